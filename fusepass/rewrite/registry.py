"""Which rules are in force: the built-in ones, installed packages', registered and scoped ones.

Rules are read when a callable is compiled or recompiled, like options.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Set
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import torch

from fusepass.default_rules import default_rules, graph_edits
from fusepass.errors import RuleError, RulePackageFault, RulesChanged
from fusepass.report import live_compiles, warn_once
from fusepass.rewrite.match import trace
from fusepass.rewrite.match.pattern import FLOATS, parameter_names, pattern_of
from fusepass.rewrite.match.trace import trace_fault
from fusepass.rewrite.rule import Place, Rule
from fusepass.torch_private.fx.tracing import plain_fake_mode

# --- Trying a rule on its own example, before any graph is touched by it --------------------------


def validate(candidate: object) -> None:
    """Raise unless a rule is well formed and both its sides agree on the example.

    Raises:
        RuleError: with the file and line of the rule and what is wrong.
    """
    if not isinstance(candidate, Rule):
        if isinstance(candidate, (list, tuple, set, frozenset)):
            problem = "rules are passed one by one, as fusepass.rules(*these)"
        else:
            problem = "that is no fusepass.Rule"
        raise RuleError(repr(candidate)[:60], f"a {type(candidate).__name__}", problem)
    rule: Any = candidate  # whatever the annotations say, its fields hold what they were given
    if not isinstance(rule.name, str) or not rule.name.strip():
        raise _rule_error(rule, f"its name must be a text, not {rule.name!r}")
    if rule.place not in ("before", "after"):
        raise _rule_error(rule, f"its place is {rule.place!r}; allowed: 'before', 'after'")
    if isinstance(rule.priority, bool) or not isinstance(rule.priority, int):
        raise _rule_error(rule, f"its priority must be an int, not {rule.priority!r}")
    if not isinstance(rule.devices, tuple) or not all(isinstance(d, str) for d in rule.devices):
        raise _rule_error(
            rule, f"its devices must be a tuple of device types, not {rule.devices!r}"
        )
    for device in rule.devices:
        if not _is_device_type(device):
            raise _rule_error(
                rule, f"its devices name {device!r}, which is no device type as 'cuda'"
            )
    for part in ("pattern", "replacement", *(("check",) if rule.check is not None else ())):
        if not callable(getattr(rule, part)):
            raise _rule_error(rule, f"its {part} is no function but {getattr(rule, part)!r}")
    names = parameter_names(rule)
    _check_replacement_takes(rule, names)
    inputs = _example(rule)
    tensors = [v for v in inputs if isinstance(v, torch.Tensor)]
    if not tensors:
        raise _rule_error(rule, "its example holds no tensor")
    floats = [v.dtype for v in tensors if v.dtype in FLOATS]
    pattern = pattern_of(rule, floats[0] if floats else torch.float32)
    _check_sides(rule, inputs, len(pattern.roots))


def _is_device_type(name: str) -> bool:
    try:
        return torch.device(name).type == name
    except RuntimeError:
        return False


def _rule_error(rule: Rule, problem: str) -> RuleError:
    return RuleError(str(rule.name), rule.location, problem)


def _example(rule: Rule) -> tuple[Any, ...]:
    try:
        made: Any = rule.example() if callable(rule.example) else rule.example
        if made is None or isinstance(made, (torch.Tensor, Mapping, Set, str)):
            raise _example_error(rule, made)
        inputs = tuple(made)
    except RuleError:
        raise
    except Exception as error:
        problem = f"its example fails: {type(error).__name__}: {error}"
        raise _rule_error(rule, problem) from error
    for value in inputs:
        if not isinstance(value, (torch.Tensor, bool, int, float, str)):
            kind = type(value).__name__
            raise _rule_error(
                rule, f"its example holds a {kind}; allowed: tensors, int, float, bool, str"
            )
    return inputs


def _example_error(rule: Rule, made: object) -> RuleError:
    """The error for an example without order, for None, and for a tensor: it would be unpacked."""
    kind = f"a {type(made).__name__}" if made is not None else "None"
    if isinstance(made, torch.Tensor):
        kind = "a tensor"
    what = "what its example returns" if callable(rule.example) else "its example"
    must = "it must be a tuple with a value for each parameter of the pattern, in their order"
    return _rule_error(rule, f"{what} is {kind}; {must}; one value is written (x,)")


def _check_replacement_takes(rule: Rule, names: tuple[str, ...]) -> None:
    try:
        parameters = inspect.signature(rule.replacement).parameters.values()
    except (TypeError, ValueError):
        return  # an operator; the trial below will tell
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in places if p.default is p.empty]
    if not len(required) <= len(names) <= len(places):
        taken = ", ".join(p.name for p in places)
        raise _rule_error(
            rule, f"its pattern takes ({', '.join(names)}), its replacement ({taken})"
        )


def _check_sides(rule: Rule, inputs: tuple[Any, ...], outputs: int) -> None:
    """Run both sides on fake tensors like the example and compare what they return."""
    mode = plain_fake_mode()
    sides = []
    for function, what in ((rule.pattern, "pattern"), (rule.replacement, "replacement")):
        fakes = [mode.from_tensor(v.detach()) if isinstance(v, torch.Tensor) else v for v in inputs]
        versions = [v._version for v in fakes if isinstance(v, torch.Tensor)]
        record = trace.record_torch if rule.place == "before" else trace.record_aten
        try:
            graph = record(function, fakes, mode)
        except Exception as error:
            raise _rule_error(rule, trace_fault(what, error)) from error
        if versions != [v._version for v in fakes if isinstance(v, torch.Tensor)]:
            raise _rule_error(rule, f"its {what} writes to its inputs")
        returned: Any = next(n for n in reversed(graph.nodes) if n.op == "output").args[0]
        sides.append([n.meta.get("example_value", n.meta.get("val")) for n in returned])
    if len(sides[1]) != outputs:
        raise _rule_error(
            rule, f"its pattern returns {outputs} tensors, its replacement {len(sides[1])}"
        )
    for place, (old, new) in enumerate(zip(*sides, strict=True)):
        where = f"output {place}: " if outputs > 1 else ""
        if old.dtype != new.dtype:
            raise _rule_error(
                rule, f"{where}its pattern returns {old.dtype}, its replacement {new.dtype}"
            )
        if old.device != new.device:
            raise _rule_error(
                rule,
                f"{where}its pattern returns a tensor on {old.device}, its replacement one on "
                f"{new.device}",
            )
        if old.shape != new.shape:
            raise _rule_error(
                rule,
                f"{where}its pattern returns shape {tuple(old.shape)}, its replacement "
                f"{tuple(new.shape)}",
            )


ENTRY_POINT_GROUP = "fusepass_rules"

# Settled while Dynamo traces; switched on and off like rules.
_CAPTURE_RULES = ("specialize", "branch", "sink", "item", "print", "masked", "try")
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
    validate(rule)
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
