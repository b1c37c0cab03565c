"""Whether two calls of a program left the same behind."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from torch import Tensor

from fusepass.numerics import is_float
from fusepass.testing.call import Error, Seen
from fusepass.testing.compare import (
    Difference,
    Facts,
    Values,
    assert_same,
    assert_same_bits,
    facts,
    facts_of_rules,
    same_bits,
    tensors,
)
from fusepass.testing.rounding import (
    Pair,
    assert_same_sum,
    counterparts,
    same_sum,
    same_text,
    shown_values,
    values_within,
)
from fusepass.testing.transcript import Said

Rounded = Literal["nothing", "gradients", "everything"]


def assert_same_call(
    eager: Seen,
    compiled: Seen,
    exact: Seen | None = None,
    *,
    where: str = "",
    rounded: Rounded = "nothing",
    only_gradients: bool = False,
    roundings: int = 1,
    by_rule: Values | None = None,
    facts: Facts = facts,
) -> bool:
    """Compare all that two calls left behind; warn again of what fusepass warned of.

    Args:
        eager: the call that is right by definition.
        compiled: the other.
        exact: the call in float64, for the error rule; bit by bit if None.
        where: which call it is, for messages.
        rounded: what may differ by the order of a sum.
        only_gradients: the error rule is for gradients, all else is compared as without ``exact``.
        roundings: half ulps that the error rule lets pass whatever eager's error is.
        by_rule: compares the numbers of tensors in place of the error rule.
        facts: what else of a tensor is compared.

    Returns:
        Whether gradients are equal bit by bit, but for the sign of zero.

    Raises:
        Difference: the first one found.
    """
    for fault in compiled.faults:
        warnings.warn(fault, stacklevel=2)
    if exact is not None:
        by_rule = values_within(exact_values(eager, exact), roundings)
    everything, exactly = rounded == "everything", exact is None or only_gradients
    text: Callable[[str, str], bool] = same_text if everything or not exactly else str.__eq__
    name = where and f"{where}: "
    if not _same_error(eager.error, compiled.error, text):
        raised = f"eager raised {_shown(eager.error)}, compiled {_shown(compiled.error)}"
        raise Difference("exception", f"{name}call", raised)
    if not _same_said(eager.said, compiled.said, text):
        said = ["\n  ".join(["", *map(str, one.said)]) or " nothing" for one in (eager, compiled)]
        raise Difference("printed text", f"{name}call", f"eager said{said[0]}\ncompiled{said[1]}")
    values: Values = assert_same_sum if everything else assert_same_bits
    if by_rule is not None and not only_gradients:
        values = by_rule
    for part, one, other in zip(_LEFT, _left(eager), _left(compiled), strict=True):
        assert_same(one, other, f"{name}{part}", values, facts)
    if any(eager.rng[one] != compiled.rng[one] for one in eager.rng):
        raise Difference("random state", f"{name}call", "a random generator is in another state")
    if eager.grad_mode != compiled.grad_mode:
        after = f"grad mode is {compiled.grad_mode} afterwards"
        raise Difference("grad mode", f"{name}call", after)
    shared = compiled.sharing()
    for kind, ids in eager.sharing().items():
        if ids != shared[kind]:
            found = f"other {kind} are shared: {ids} in eager, {shared[kind]} compiled"
            raise Difference("aliasing", f"{name}call", found)
    return _assert_same_gradients(eager, compiled, name, by_rule, rounded)


_LEFT = ("result", "args", "state", "parameters and buffers")


def _left(seen: Seen) -> tuple[Any, ...]:
    """All that a call left that holds tensors, in the order of :data:`_LEFT`."""
    return (seen.result, seen.args, seen.state, seen.held)


def exact_values(eager: Seen, exact: Seen) -> dict[int, Tensor]:
    """What each tensor that a call left is in another call of the same program, by its id."""
    if exact.raised is not None:
        return {}
    grads = ([grad for grad in seen.grads if grad is not None] for seen in (eager, exact))
    left = (tensors(_left(seen)) for seen in (eager, exact))
    return counterparts(*left) | counterparts(*grads)


def rounded_values(eager: Seen, compiled: Seen) -> list[Pair]:
    """The values of a rewritten program that rounding may explain.

    Most programs have none, and need no exact result.

    Raises:
        Difference: the first one that rounding does not explain.
    """
    found: list[Pair] = []

    def collect(one: Tensor, other: Tensor, path: str) -> None:
        for fact in ("dtype", "shape"):  # gradients may lie in memory as they like
            if getattr(one, fact) != getattr(other, fact):
                told = f"{getattr(one, fact)} in eager, {getattr(other, fact)} compiled"
                raise Difference(fact, path, f"{fact} is {told}")
        if same_bits(one, other, zero_signs=False):
            return
        if not is_float(one):
            raise Difference("values", path, shown_values(one, other))
        found.append(Pair(path, one, other))

    assert_same_call(eager, compiled, by_rule=collect, facts=facts_of_rules)
    return found


def _same_said(one: list[Said], other: list[Said], text: Callable[[str, str], bool]) -> bool:
    return len(one) == len(other) and all(
        replace(a, text=b.text) == b and text(a.text, b.text)
        for a, b in zip(one, other, strict=True)
    )


def _same_error(one: Error, other: Error, text: Callable[[str, str], bool]) -> bool:
    if one is None or other is None:
        return one is other
    return one[0] is other[0] and text(one[1], other[1])


def _assert_same_gradients(
    eager: Seen, compiled: Seen, name: str, by_rule: Values | None, rounded: Rounded
) -> bool:
    """Whether they are equal bit by bit, or only up to the order in which autograd sums them."""
    if eager.backward_error:
        # A value saved for backward was written. Compilers that functionalize, torch's own
        # included, save a copy and succeed; nothing is left to compare.
        return True
    if compiled.backward_error:
        text = f"backward raised {_shown(compiled.backward_error)}"
        raise Difference("backward", f"{name}call", text)
    exact = True
    for index, (one, other) in enumerate(zip(eager.grads, compiled.grads, strict=True)):
        path = f"{name}gradients[{index}]"
        if one is None or other is None:
            if one is not other:
                raise Difference("None gradient", path, f"{one} in eager, {other} compiled")
            continue
        # A zero from the arm not taken may be added: that turns -0.0 into 0.0 and nothing else.
        if same_bits(one, other, zero_signs=False):
            continue
        exact = False
        if by_rule is not None:
            by_rule(one, other, path)
        elif rounded == "nothing" or not same_sum(one, other):
            raise Difference("gradient", path, f"\neager    {one}\ncompiled {other}")
    return exact


def _shown(error: Error) -> str:
    return "nothing" if error is None else f"{error[0].__name__}({error[1]!r})"
