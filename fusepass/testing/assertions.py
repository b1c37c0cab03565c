"""Assertions about single programs: which rules act on one, that none does, what it raises."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fusepass.errors import ArgumentType, NoReport, NotAProgram, RewriteMismatch, UnknownRule
from fusepass.report import log
from fusepass.report.decision import Outcome, Station
from fusepass.report.explain import last_report
from fusepass.report.restore import everything_restored
from fusepass.rewrite.option_scope import resolve_checked
from fusepass.rewrite.registry import rule_names
from fusepass.testing.call import Seen, at_precision, observed
from fusepass.testing.compare import Difference
from fusepass.testing.program_text import Text
from fusepass.testing.rounding import check_rounding
from fusepass.testing.same_call import exact_values, rounded_values
from fusepass.torch_private.dynamo.compile_state import (
    dynamic_shapes_unlearned,
    original_callable,
    room_for_recompiles,
)
from fusepass.torch_private.fx.graphs import tree_flatten, tree_map, tree_unflatten

_CALL = "def program(*args, **kwargs):\n    return pattern(*args, **kwargs)\n"


def assert_rewrites(
    fn: Any,
    /,
    *args: Any,
    rules: Mapping[str, int],
    codegen: str = "eager",
    dynamic: bool | None = None,
    options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> None:
    """Compile and run a program; rules must act so many times each, and the result be eager's.

    Results, what the program writes and gradients are compared as in
    :func:`fusepass.testing.check_rule`. Arguments, parameters and other state are put back.

    Args:
        fn: a function or an nn.Module.
        *args: positional arguments of the call.
        rules: rule name to the number of times it must be applied (0 for not at all); rules that
            are not named may act as they like.
        codegen: how the rewritten program runs: ``"eager"`` op by op (rules after autograd do not
            run), ``"eager-decomposed"`` op by op with them, ``"inductor"``.
        dynamic: as for torch.compile.
        options: further options for torch.compile.
        **kwargs: keyword arguments of the call.

    Raises:
        RewriteMismatch: (an AssertionError) with the report, near misses included.
        ArgumentType: ``rules`` are no counts.
        UnknownRule: a rule that must act is not in force.
        UnknownOption, OptionType, OptionValue: bad options.
    """
    given: Any = rules
    if not isinstance(given, Mapping) or not all(
        isinstance(name, str) and type(count) is int for name, count in given.items()
    ):
        expected = "a dict of rule name to how often it must act, as {'silu': 1}"
        raise ArgumentType("assert_rewrites(rules=…)", given, expected)
    known = rule_names()
    for name, count in rules.items():
        if count and name not in known:
            raise UnknownRule(name, known, "rules of assert_rewrites")
    calls = _observed(fn, args, kwargs, codegen, dynamic, options)
    wrong = [
        f"rule {name!r} applied {calls.applied[name]} times, expected {count}"
        for name, count in rules.items()
        if calls.applied[name] != count
    ]
    _assert_kept(fn, calls, wrong)


def assert_untouched(
    fn: Any,
    /,
    *args: Any,
    rules: Collection[str] | None = None,
    codegen: str = "eager",
    dynamic: bool | None = None,
    options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> None:
    """Compile and run a program; no rule may act on it, and the result must be eager's.

    Args:
        fn: a function or an nn.Module.
        *args: positional arguments of the call.
        rules: names of the rules that must not act; by default all of them. Branches are captured
            all the same: that is no rule's doing.
        codegen: as for :func:`assert_rewrites`.
        dynamic: as for torch.compile.
        options: further options for torch.compile.
        **kwargs: keyword arguments of the call.

    Raises:
        RewriteMismatch: (an AssertionError) with the report.
        ArgumentType: ``rules`` are no names.
        UnknownOption, OptionType, OptionValue: bad options.
    """
    given: Any = rules
    names = isinstance(given, Collection) and not isinstance(given, str)
    if given is not None and not (names and all(isinstance(name, str) for name in given)):
        raise ArgumentType("assert_untouched(rules=…)", given, "a list of rule names, or None")
    calls = _observed(fn, args, kwargs, codegen, dynamic, options)
    wrong = [
        f"rule {name!r} applied {count} times, expected none"
        for name, count in calls.applied.items()
        if rules is None or name in rules
    ]
    _assert_kept(fn, calls, wrong)


def assert_error(
    fn: Any,
    /,
    *args: Any,
    error: type[Exception] = Exception,
    codegen: str = "eager",
    dynamic: bool | None = None,
    options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> None:
    """Compile and run a program that raises: it must raise what it raises in eager mode.

    Args:
        fn: a function or an nn.Module.
        *args: positional arguments of the call.
        error: what eager must raise; the compiled program the same type with the same text.
        codegen: as for :func:`assert_rewrites`.
        dynamic: as for torch.compile.
        options: further options for torch.compile.
        **kwargs: keyword arguments of the call.

    Raises:
        RewriteMismatch: (an AssertionError) with the report.
        ArgumentType: ``error`` is no type of exception.
        UnknownOption, OptionType, OptionValue: bad options.
    """
    given: Any = error
    if not isinstance(given, type) or not issubclass(given, BaseException):
        expected = "a type of exception, as IndexError"
        raise ArgumentType("assert_error(error=…)", given, expected)
    calls = _observed(fn, args, kwargs, codegen, dynamic, options)
    raised = calls.eager.raised
    if not isinstance(raised, error):
        found = "nothing" if raised is None else repr(raised)
        problem = f"eager mode raises {found}, expected {error.__name__}"
        raise RewriteMismatch(_name(fn), problem, calls.report)
    _assert_kept(fn, calls, [])


def _assert_kept(fn: Any, calls: _Calls, wrong: list[str]) -> None:
    """Raise with all that is wrong: the counts, and the first difference from eager."""
    try:
        pairs = rounded_values(calls.eager, calls.compiled)
        exact = exact_values(calls.eager, _exactly(fn, calls)) if pairs else {}
        for pair in pairs:
            difference = check_rounding([(pair, exact.get(id(pair.eager)), 0.0)])
            if difference is not None:
                raise difference
    except Difference as difference:
        wrong = [*wrong, str(difference)]
    if wrong:
        raise RewriteMismatch(_name(fn), "; ".join(wrong), calls.report)


@dataclass(frozen=True)
class _Calls:
    """One program, called in eager mode and compiled.

    Attributes:
        args, kwargs: of the calls.
        eager, compiled: what the calls left.
        applied: how often each rule was applied.
        report: as text.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    eager: Seen
    compiled: Seen
    applied: Counter[str]
    report: str


@log.trial()
def _observed(
    fn: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    codegen: str,
    dynamic: bool | None,
    options: Mapping[str, Any] | None,
) -> _Calls:
    if not callable(fn):
        raise NotAProgram(fn)
    given = {"codegen": codegen, **(options or {})}
    resolve_checked(options=given)  # here: otherwise it is what the program raised
    target = original_callable(fn)
    # Code of its own: what was compiled before is not met again.
    with contextlib.closing(Text(_CALL, target)) as text:
        compiled = torch.compile(text.program, backend="fusepass", dynamic=dynamic, options=given)
        eager = _snapshot(target, target, args, kwargs)
        with room_for_recompiles(), dynamic_shapes_unlearned():
            other = _snapshot(compiled, target, args, kwargs)
        try:
            report = last_report(compiled)
        except NoReport as nothing:
            return _Calls(args, kwargs, eager, other, Counter(), str(nothing))
    applied = Counter(
        d.rule
        for d in report.decisions
        if d.outcome is Outcome.APPLIED and d.station is not Station.CAPTURE
    )
    return _Calls(args, kwargs, eager, other, applied, str(report))


def _snapshot(run: Any, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Seen:
    """Observe one call, and put back what it changed."""

    def program(*given: Any) -> Any:
        return run(*args, **kwargs)

    with everything_restored(target, args, kwargs):
        seen = observed(program, (*args, kwargs) if kwargs else args, target)
        shared = seen.sharing()
        left = tree_map(_copy, (seen.result, seen.args, seen.held))
        return dataclasses.replace(seen, result=left[0], args=left[1], held=left[2], shared=shared)


def _copy(value: Any) -> Any:
    """A tensor that stays as it is now; anything else itself."""
    if not isinstance(value, Tensor):
        return value
    with torch.inference_mode(value.is_inference()), torch.no_grad():
        if 0 in value.stride() or value._is_view():
            made = value.detach().clone()
        else:
            made = torch.empty_strided(
                value.shape, value.stride(), dtype=value.dtype, device=value.device
            ).copy_(value)
    return made.requires_grad_(value.requires_grad) if value.is_floating_point() else made


def _exactly(fn: Any, calls: _Calls) -> Seen:
    """The program in float64, on copies of its tensors."""
    target = original_callable(fn)
    leaves, structure = tree_flatten((calls.args, calls.kwargs))
    places = [i for i, value in enumerate(leaves) if isinstance(value, Tensor)]
    state: dict[str, Tensor] = {}
    if isinstance(target, torch.nn.Module):
        state = {**dict(target.named_parameters()), **dict(target.named_buffers())}

    def program(*tensors: Tensor) -> Any:
        changed = list(leaves)
        for place, tensor in zip(places, tensors, strict=False):
            changed[place] = tensor
        args, kwargs = tree_unflatten(changed, structure)
        if not state:
            return target(*args, **kwargs)
        named = dict(zip(state, tensors[len(places) :], strict=True))
        return torch.func.functional_call(target, named, args, kwargs)

    with everything_restored(target, calls.args, calls.kwargs):
        given = [*(leaves[place] for place in places), *state.values()]
        return at_precision(torch.float64, program, given)


def _name(fn: Any) -> str:
    return getattr(fn, "__qualname__", type(fn).__name__)
