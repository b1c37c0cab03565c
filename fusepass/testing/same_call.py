"""Whether two calls of a program left the same behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
from fusepass.testing.rounding import Pair, counterparts, shown_values


def assert_same_call(
    eager: Seen,
    compiled: Seen,
    *,
    where: str = "",
    values: Values = assert_same_bits,
    gradients: Values | None = None,
    facts: Facts = facts,
    text: Callable[[str, str], bool] = str.__eq__,
) -> bool:
    """Compare all that two calls left behind.

    Args:
        eager: the call that is right by definition.
        compiled: the other.
        where: which call it is, for messages.
        values: compares the numbers of tensors.
        gradients: compares those of gradients that differ in a bit; none may by default.
        facts: what else of a tensor is compared.
        text: compares what errors say.

    Returns:
        Whether gradients are equal bit by bit, but for the sign of zero.

    Raises:
        Difference: the first one found.
    """
    name = where and f"{where}: "
    assert_same_error(eager, compiled, name, text)
    for part, one, other in zip(_LEFT, _left(eager), _left(compiled), strict=True):
        assert_same(one, other, f"{name}{part}", values, facts)
    if eager.grad_mode != compiled.grad_mode:
        after = f"grad mode is {compiled.grad_mode} afterwards"
        raise Difference("grad mode", f"{name}call", after)
    shared = compiled.sharing()
    for kind, ids in eager.sharing().items():
        if ids != shared[kind]:
            found = f"other {kind} are shared: {ids} in eager, {shared[kind]} compiled"
            raise Difference("aliasing", f"{name}call", found)
    return _assert_same_gradients(eager, compiled, name, gradients)


def assert_same_error(
    eager: Seen, compiled: Seen, name: str, text: Callable[[str, str], bool]
) -> None:
    """Raise Difference unless two calls raised the same, or nothing."""
    one, other = eager.error, compiled.error
    if one is None or other is None:
        same = one is other
    else:
        same = one[0] is other[0] and text(one[1], other[1])
    if not same:
        raised = f"eager raised {_shown(one)}, compiled {_shown(other)}"
        raise Difference("exception", f"{name}call", raised)


_LEFT = ("result", "args", "state", "parameters and buffers")


def _left(seen: Seen) -> tuple[Any, ...]:
    """All that a call left that holds tensors, in the order of :data:`_LEFT`."""
    return (seen.result, seen.args, seen.state, seen.held)


def exact_values(eager: Seen, exact: Seen) -> dict[int, Tensor]:
    """What each tensor that a call left is in another call of the same program, by its id.

    The other call may not tell what an object that is no module holds: then the result, the
    arguments and their gradients, which come first, are looked for by themselves.
    """
    if exact.raised is not None:
        return {}
    both, most = (eager, exact), len(exact.grads)
    grads = ([grad for grad in seen.grads[:most] if grad is not None] for seen in both)
    parts = [[seen.result for seen in both], [seen.args for seen in both], [*map(_left, both)]]
    found = counterparts(*grads)
    for part in parts:
        found |= counterparts(*map(tensors, part))
    return found


def rounded_values(eager: Seen, compiled: Seen) -> list[Pair]:
    """The values of a rewritten program that rounding may explain; most programs have none.

    Raises Difference for the first one that rounding does not explain.
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

    assert_same_call(eager, compiled, values=collect, gradients=collect, facts=facts_of_rules)
    return found


def _assert_same_gradients(eager: Seen, compiled: Seen, name: str, compare: Values | None) -> bool:
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
        if compare is None:
            raise Difference("gradient", path, f"\neager    {one}\ncompiled {other}")
        compare(one, other, path)
    return exact


def _shown(error: Error) -> str:
    return "nothing" if error is None else f"{error[0].__name__}({error[1]!r})"
