"""Rewrite fills and clamps with a Python number, and keep torch's check for overflow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from fusepass.capture.scalars.call_rewriter import HALVES, SUPPORTED, Use, inside, name_of, takes
from fusepass.capture.scalars.scalar import READ_LATE, ScalarTensor, Unfit, operand
from fusepass.report.decision import Reason
from fusepass.torch_private.versions import clamp_gradients, clamps_to_nan, stores_check_halves


def clamp(use: Use) -> None:
    """``clamp`` between numbers: a known one beside it becomes a tensor, too."""
    x = use.tensor("input")
    dtype = x.dtype if use.in_place else use.value.dtype
    names = [name for name in ("min", "max") if use.given.get(name) is not None]
    bounds = {}
    for name in names:
        if use.number(name) is not None:
            bounds[name] = use.checked(name, dtype)
            continue
        side = operand(use.given[name], use.held)
        if isinstance(side, ScalarTensor) or not takes(dtype, side):
            raise use.unfit()
        bounds[name] = use.record(torch.full, (), side, dtype=dtype, device=x.device)
    alone = len(bounds) == 1 and use.name == "clamp"
    if alone and dtype.is_floating_point and not clamps_to_nan():
        _clamp_but_by_nan(use, bounds)
        return
    if use.value.requires_grad and torch.is_grad_enabled() and clamp_gradients():
        _clamp_with_gradient(use, bounds)
        return
    target = "clamp_" if use.in_place else "clamp"
    use.finish(use.record(target, use.given["input"], **bounds))


def _clamp_but_by_nan(use: Use, bounds: dict[str, fx.Node]) -> None:
    """Torch before 2.13 takes a number that is NaN for no bound, and gives it no gradient."""
    if use.in_place and use.value.requires_grad:  # the backward would read what is written here
        raise use.unfit()
    given = use.given["input"]
    clamped = use.record("clamp", given, **bounds)
    (bound,) = bounds.values()
    as_it_is = use.record("detach", given)
    use.narrowed(use.record(torch.where, use.record(torch.isnan, bound), as_it_is, clamped))


def _clamp_with_gradient(use: Use, bounds: dict[str, fx.Node]) -> None:
    """The gradient that eager has of a clamp by a number, where that by a tensor is another."""
    rules = clamp_gradients()
    given, x = use.given["input"], use.tensor("input")
    if rules is None or use.in_place or x.dtype != use.value.dtype:
        raise use.unfit()
    clamped = use.record("clamp", use.record("detach", given), **bounds)
    passes = None
    for name, (at_bound, at_nan) in zip(("min", "max"), rules, strict=True):
        if name not in bounds:
            continue
        compare = {"min": (torch.gt, torch.ge), "max": (torch.lt, torch.le)}[name][at_bound]
        inside = use.record(compare, given, bounds[name])
        if at_nan:
            inside = use.record(torch.logical_or, inside, use.record(torch.isnan, given))
        both = passes is not None
        passes = use.record(torch.logical_and, passes, inside) if both else inside
    use.become(use.record(torch.where, passes, given, clamped))


def fill(argument: str) -> Callable[[Use], None]:
    """Calls that store the number: converted to the dtype of what is filled, with a check."""

    def handler(use: Use) -> None:
        use.put(**{argument: use.checked(argument, use.value.dtype)})

    return handler


def setitem(use: Use) -> None:
    """``x[index] = number``."""
    if use.number("value") is None or any(n in use.held for n in inside(use.given["index"])):
        raise Unfit(Reason.SIZE, "it is an index")
    unchecked = not stores_check_halves()
    tensor = use.checked("value", use.tensor("input").dtype, lenient=unchecked)
    use.node.args = (*use.node.args[:2], tensor)


def where(use: Use) -> None:
    """``torch.where`` with the number on one side, or on both."""
    dtype = use.value.dtype
    numbers = [name for name in ("input", "other") if use.number(name) is not None]
    if not numbers:
        raise use.unfit()
    use.put(**{name: use.checked(name, dtype, lenient=True) for name in numbers})


def full(use: Use) -> None:
    """A new tensor full of the number."""
    others = [n for k, v in use.given.items() if k != "fill_value" for n in inside(v)]
    sized = use.number("fill_value") is None or any(n in use.held for n in others)
    if sized or use.given.get("requires_grad"):
        raise Unfit(Reason.SIZE, f"{use.name} takes it as a size")
    tensor = use.checked("fill_value", use.value.dtype)
    kwargs = {k: v for k, v in use.given.items() if k not in ("size", "input", "fill_value")}
    kwargs |= {"dtype": use.value.dtype, "device": use.value.device}
    if use.name == "full":
        made = use.record(torch.empty, use.given["size"], **kwargs)
    elif use.name == "full_like":
        made = use.record(torch.empty_like, use.given["input"], **kwargs)
    else:
        made = use.record("new_empty", use.given["input"], use.given["size"], **kwargs)
    use.become(use.record("fill_", made, tensor))


def tensor(use: Use) -> None:
    """``torch.tensor`` of a number, or of lists of numbers."""
    number = use.number("data")
    if READ_LATE in use.node.meta and number is not None:
        use.give_way(number.out(), described=False)
        return
    allowed = {"data", "dtype", "device"}
    if use.given.keys() - allowed:
        raise use.unfit()
    use.become(use.record("clone", _stacked(use, use.given["data"])))


def _stacked(use: Use, data: Any) -> fx.Node:
    if isinstance(data, (list, tuple)):
        if not data:
            raise use.unfit()
        return use.record(torch.stack, [_stacked(use, item) for item in data])
    side = operand(data, use.held)
    dtype, device = use.value.dtype, use.value.device
    if dtype not in SUPPORTED:
        raise use.unfit()
    if not isinstance(side, ScalarTensor):
        if not takes(dtype, side):
            raise use.unfit()
        return use.record(torch.full, (), side, dtype=dtype, device=device)
    use.settled(side, dtype)
    whole = not dtype.is_floating_point or use.name == "scalar_tensor"
    if whole and not side.range.fits(dtype) and not (dtype in HALVES and device.type == "cpu"):
        raise Unfit(Reason.OVERFLOW, f"a tensor of {name_of(dtype)} cannot be made of every number")
    return side.on(device, dtype)
