"""One call of a program under observation, and the comparison of two such calls."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from fusepass.testing.compare import (
    Difference,
    Values,
    assert_same,
    assert_same_bits,
    same_bits,
    sharing,
    tensors,
)
from fusepass.testing.transcript import Said, recorded
from fusepass.torch_private.fx.tensor_kinds import wrapped
from tests.fuzz.exact import doubled, in_float64, moved, same_text, values_within
from tests.fuzz.program import Loaded

CONTEXTS = ("inference", "training")
Error = tuple[type[BaseException], str] | None
ROUNDING = 32  # units in the last place of the largest gradient, for the order of a sum


@dataclass
class Seen:
    """What one call did."""

    args: tuple[Any, ...]
    result: Any = None
    error: Error = None
    raised: BaseException | None = None
    said: list[Said] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    rng: dict[str, Tensor] = field(default_factory=dict)
    grad_mode: bool = True
    grads: list[Tensor | None] = field(default_factory=list)
    backward_error: Error = None
    state: Any = None


@dataclass
class Side:
    """One of the sides: its callable, its state, its input sets, and what it is called in."""

    target: Callable[..., Any]
    owner: Any
    sets: list[tuple[Any, ...]]
    around: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext


def side(program: Loaded, context: str, *, exact: bool = False, device: str = "cpu") -> Side:
    """A fresh callable and fresh inputs, equal for all sides; in float64 if exact."""
    target, owner = program.make()
    target, owner, sets = (moved(one, device) for one in (target, owner, program.inputs()))
    if exact:
        target, owner, sets = doubled(target), doubled(owner), doubled(sets)
    if isinstance(owner, nn.Module) and context != "training":
        owner.requires_grad_(False)
    for args in sets if context == "training" else ():
        for position in program.grads:
            args[position].requires_grad_()
    return Side(target, owner, sets, in_float64 if exact else contextlib.nullcontext)


def call(one: Side, index: int, context: str) -> Seen:
    """Call one side with one of its input sets, with backward in training."""
    args = one.sets[index]
    seen = Seen(args)
    leaves = [leaf for leaf in (*tensors(args), *tensors(one.owner)) if leaf.requires_grad]
    for leaf in leaves:
        leaf.grad = None
    torch.manual_seed(7)
    with recorded() as transcript, one.around():
        try:
            seen.result = one.target(*args)
        except Exception as error:  # noqa: BLE001 - programs raise what they like; it is compared
            seen.raised = error
            seen.error = (type(error), str(error))
    seen.said, seen.faults = transcript.said, transcript.faults
    seen.rng = _random_state()
    seen.grad_mode = torch.is_grad_enabled()
    seen.state = state_of(one.owner)
    if context == "training" and seen.error is None:
        try:
            _backward(seen.result)
        except RuntimeError as error:
            seen.backward_error = (type(error), str(error))
        seen.grads = [leaf.grad for leaf in leaves]
    return seen


def _random_state() -> dict[str, Tensor]:
    """The states of the generators of the CPU and, once it is used, of the current GPU."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_initialized():  # compiling does it, also for the CPU
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _backward(result: Any) -> None:
    outputs = [out for out in tensors(result) if out.requires_grad and out.is_floating_point()]
    generator = torch.Generator().manual_seed(11)
    given = [torch.ones_like(out) if wrapped(out) else _random(out, generator) for out in outputs]
    if outputs:
        torch.autograd.backward(outputs, given)


def _random(like: Tensor, generator: torch.Generator) -> Tensor:
    drawn = torch.randn(like.shape, generator=generator, dtype=torch.float32)
    return drawn.to(like.device, like.dtype)


def state_of(owner: Any) -> Any:
    """All that a program can have written to: parameters, buffers, attributes, nested objects."""
    if isinstance(owner, nn.Module):
        kept = {
            "parameters": dict(owner.named_parameters()),
            "buffers": dict(owner.named_buffers()),
        }
        inner = {name: state_of(module) for name, module in owner.named_children()}
        return {**kept, "inner": inner, **_attributes(owner)}
    return None if owner is None else _attributes(owner)


def _attributes(owner: Any) -> dict[str, Any]:
    """Public attributes; objects of a program's own classes as dicts of theirs."""
    return {
        name: _attributes(value) if type(value).__module__ == _OWN and _plain(value) else value
        for name, value in vars(owner).items()
        if not name.startswith("_") and name != "training"
    }


_OWN = "tests.fuzz.program"  # the __name__ that a program's text runs under


def _plain(value: Any) -> bool:
    return hasattr(value, "__dict__") and not isinstance(value, (tuple, nn.Module))


def assert_same_call(
    eager: Seen,
    compiled: Seen,
    exact: Seen | None = None,
    *,
    rounded: bool = False,
    only_gradients: bool = False,
) -> bool:
    """Compare all that two calls left behind.

    Args:
        eager: the call that is right by definition.
        compiled: the other.
        exact: the call in float64, for the error rule; bit by bit if None.
        rounded: sums may have been made in another order: then up to rounding, not bit by bit.
        only_gradients: the error rule is for gradients, all else is compared as without ``exact``.

    Returns:
        Whether gradients, too, are equal bit by bit.

    Raises:
        Difference: the first one found.
    """
    by_rule = None
    if exact is not None:
        by_rule = values_within((left(eager), _given(eager)), (left(exact), _given(exact)))
    bit_by_bit = exact is None or only_gradients
    text: Callable[[str, str], bool] = str.__eq__ if bit_by_bit and not rounded else same_text
    if not _same_error(eager.error, compiled.error, text):
        raised = f"eager raised {_shown(eager.error)}, compiled {_shown(compiled.error)}"
        raise Difference("exception", "call", raised)
    if not _same_said(eager.said, compiled.said, text):
        said = [", ".join(map(str, seen.said)) or "nothing" for seen in (eager, compiled)]
        raise Difference("printed text", "call", f"eager said {said[0]}; compiled {said[1]}")
    values: Values = _close if rounded else assert_same_bits
    if by_rule is not None and not bit_by_bit:
        values = by_rule
    for name, one, other in zip(_LEFT, left(eager), left(compiled), strict=True):
        assert_same(one, other, name, values)
    if any(not torch.equal(eager.rng[one], compiled.rng[one]) for one in eager.rng):
        raise Difference("random state", "call", "the random generator is in another state")
    if eager.grad_mode != compiled.grad_mode:
        raise Difference("grad mode", "call", f"grad mode is {compiled.grad_mode} afterwards")
    shared = [sharing(seen.args, seen.state, seen.result) for seen in (eager, compiled)]
    for kind, one in shared[0].items():
        if one != shared[1][kind]:
            found = f"other {kind} are shared: {one} in eager, {shared[1][kind]} compiled"
            raise Difference("aliasing", "call", found)
    return _assert_same_gradients(eager, compiled, by_rule)


_LEFT = ("result", "args", "state")


def left(seen: Seen) -> tuple[Any, ...]:
    """All that a call left that holds tensors, in the order of :data:`_LEFT`."""
    return (seen.result, seen.args, seen.state)


def _given(seen: Seen) -> list[Tensor]:
    return [grad for grad in seen.grads if grad is not None]


def _same_said(one: list[Said], other: list[Said], text: Callable[[str, str], bool]) -> bool:
    return len(one) == len(other) and all(
        replace(a, text=b.text) == b and text(a.text, b.text)
        for a, b in zip(one, other, strict=True)
    )


def _close(one: Tensor, other: Tensor, path: str) -> None:
    """Raise Difference unless two tensors are equal up to the rounding of sums."""
    if not same_bits(one, other) and not (one.is_floating_point() and _same_sum(one, other)):
        raise Difference("values", path, f"values\neager    {one}\ncompiled {other}")


def _same_error(one: Error, other: Error, text: Callable[[str, str], bool]) -> bool:
    if one is None or other is None:
        return one is other
    return one[0] is other[0] and text(one[1], other[1])


def _assert_same_gradients(eager: Seen, compiled: Seen, values: Values | None) -> bool:
    """Whether they are equal bit by bit, or only up to the order in which autograd sums them."""
    if eager.backward_error:
        # A value saved for backward was written. Compilers that functionalize, torch's own
        # included, save a copy and succeed; nothing is left to compare.
        return True
    if compiled.backward_error:
        raise Difference("backward", "call", f"backward raised {_shown(compiled.backward_error)}")
    exact = True
    for index, (one, other) in enumerate(zip(eager.grads, compiled.grads, strict=True)):
        path = f"gradient {index}"
        if one is None or other is None:
            if one is not other:
                raise Difference("None gradient", path, f"{one} in eager, {other} compiled")
        # A zero from the arm not taken may be added: that turns -0.0 into 0.0 and nothing else.
        elif not same_bits(one, other, zero_signs=False):
            exact = False
            if values is not None:
                values(one, other, path)
            elif not _same_sum(one, other):
                raise Difference("gradient", path, f"\neager    {one}\ncompiled {other}")
    return exact


def _same_sum(one: Tensor, other: Tensor) -> bool:
    """Whether two gradients differ by no more than the rounding of a few additions.

    Autograd adds what the uses of a value contribute in an order that depends on the graph, which
    is another one where a branch became a select.
    """
    finite = one[one.isfinite()].abs()
    scale = max(1.0, float(finite.max()) if finite.numel() else 0.0)
    slack = ROUNDING * torch.finfo(one.dtype).eps * scale
    return torch.allclose(one, other, rtol=0.0, atol=slack, equal_nan=True)


def _shown(error: Error) -> str:
    return "nothing" if error is None else f"{error[0].__name__}({error[1]!r})"
