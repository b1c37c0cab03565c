"""Which rules are in force: the built-in ones, installed packages', registered and scoped ones.

Rules are read when a callable is compiled or recompiled, like options.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import threading
import warnings
from collections.abc import Iterable, Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from fusepass.default_rules import default_rules, graph_edits
from fusepass.errors import RuleError, RulePackageFault, RulesChanged
from fusepass.report import live_compiles, warn_once
from fusepass.rewrite import validate
from fusepass.rewrite.match import from_rule
from fusepass.rewrite.rule import Place, Rule

ENTRY_POINT_GROUP = "fusepass_rules"

# Settled while Dynamo traces; switched on and off like rules.
_CAPTURE_RULES = ("branch", "sink", "item", "print", "masked", "try")
_HAND_OFF_RULES = ("conv_layout", "inductor_configs")
_lock = threading.Lock()
_registered: dict[str, Rule] = {}
_scoped: contextvars.ContextVar[tuple[Rule, ...]] = contextvars.ContextVar(
    "fusepass_rules", default=()
)


def register(rule: Rule) -> Rule:
    """Put a rule in force for everything compiled from now on.

    Args:
        rule: tried on its own example first.

    Returns:
        The rule, so that the call can wrap its definition.

    Raises:
        RuleError: the rule is malformed, or another one has its name.
    """
    with _lock:
        _check(rule, [r.name for r in active_rules()])
        _registered[rule.name] = rule
    _warn_if_late()
    return rule


def unregister(rule: Rule | str) -> None:
    """Take a registered rule out again.

    Args:
        rule: the rule or its name.

    Raises:
        RuleError: no rule of that name was registered.
    """
    given: object = rule
    if not isinstance(given, (Rule, str)):
        problem = f"that {type(given).__name__} is neither a fusepass.Rule nor the name of one"
        raise RuleError(repr(given)[:60], "unregister", problem)
    name = given if isinstance(given, str) else given.name
    with _lock:
        if name not in _registered:
            raise RuleError(name, "unregister", f"no such rule is registered ({_names()})")
        del _registered[name]
    _warn_if_late()


@contextlib.contextmanager
def rules(*given: Rule) -> Iterator[None]:
    """Scope in which more rules are in force, for everything compiled inside it.

    Callables compiled before keep the rules they were compiled with, without a warning: a scope is
    about what is inside.

    Raises:
        RuleError: on entry, as :func:`register`.
    """
    names = [r.name for r in active_rules()]
    for rule in given:
        _check(rule, names)
        names.append(rule.name)
    token = _scoped.set((*_scoped.get(), *given))
    try:
        yield
    finally:
        _scoped.reset(token)


def active_rules(place: Place | None = None) -> tuple[Rule, ...]:
    """Rules in force here, the built-in ones first.

    Args:
        place: only those for before or after autograd.
    """
    found = (*default_rules(), *_package_rules(), *_registered.values(), *_scoped.get())
    return tuple(r for r in found if place is None or r.place == place)


def rule_names() -> list[str]:
    """Every name ``options["rules"]`` may hold."""
    names = [rule.name for rule in graph_edits()] + [rule.name for rule in active_rules()]
    return [*_CAPTURE_RULES, *_HAND_OFF_RULES, *names]


def _check(rule: Rule, taken: Iterable[str]) -> None:
    validate.validate(rule)
    ours = (*(r.name for r in graph_edits()), *_CAPTURE_RULES, *_HAND_OFF_RULES)
    if rule.name in (*taken, *ours):
        hint = "give this one another"
        if rule.name in _registered:  # as where a module is loaded again
            hint = f"to put this one in its place call fusepass.unregister({rule.name!r}) first"
        problem = f"another rule in force has this name; {hint}"
        raise RuleError(rule.name, rule.location, problem)


def _names() -> str:
    return "registered: " + (", ".join(sorted(_registered)) or "none")


def _warn_if_late() -> None:
    if live_compiles.anything_compiled():
        warn_once.warn(RulesChanged(), stacklevel=3)


@functools.cache
def _package_rules() -> tuple[Rule, ...]:
    """Rules of installed packages; a package that is broken costs a warning, not the compile."""
    found: list[Rule] = []
    taken = {rule.name for rule in default_rules()}
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        try:
            for rule in _rules_of(entry):
                _check(rule, taken)
                taken.add(rule.name)
                found.append(rule)
        except Exception as fault:  # noqa: BLE001 - packages are anybody's code
            problem = f"{type(fault).__name__}: {fault}"
            warnings.warn(RulePackageFault(entry.name, entry.value, problem), stacklevel=3)
    return tuple(found)


def _rules_of(entry: EntryPoint) -> list[Rule]:
    value: Any = entry.load()
    if callable(value) and not isinstance(value, Rule):
        value = value()
    return [value] if isinstance(value, Rule) else list(value)


def forget_packages() -> None:
    """Look for rules of installed packages again (tests)."""
    _package_rules.cache_clear()
    from_rule.pattern_of.cache_clear()
