"""Calls that scale by a Python number beside the tensors: ``alpha=``, ``value=``, a weight."""

from __future__ import annotations

import torch
from torch import fx

from fusepass.graph.number import Held, Unfit
from fusepass.graph.number_pointwise import FUNCTIONS, pointwise, rounds
from fusepass.graph.number_range import is_int64, negated
from fusepass.graph.number_use import HALVES, Use, computed_in
from fusepass.report.decision import Reason


def lerp(use: Use) -> None:
    """``torch.lerp`` with the number as its weight."""
    number = _given(use, "weight")
    dtype, (start, end) = _operands(use, ("input", "end"))
    if use.value.requires_grad and rounds(use, number, dtype):
        raise Unfit(Reason.INEXACT, "the gradient has one less the weight, a double")
    use.narrowed(use.record(torch.lerp, start, end, use.checked("weight", dtype)))


def scaled_product(use: Use) -> None:
    """``addcmul`` and ``addcdiv`` with ``value=``: the first factor is scaled."""
    _given(use, "value")
    dtype, (x, first, second) = _operands(use, ("input", "tensor1", "tensor2"))
    factor = use.checked("value", dtype)
    call = torch.addcmul if use.name == "addcmul" else torch.addcdiv
    use.narrowed(use.record(call, x, use.record(torch.mul, first, factor), second))


def alpha(use: Use) -> None:
    """``x.add(y, alpha=s)``, which is ``addcmul(x, y, s)``; other calls of ``add`` and ``sub``."""
    if use.number("alpha") is None:
        pointwise(use)
        return
    number = _given(use, "alpha")
    if number.kind == "bool":
        raise use.unfit()
    if use.value.dtype in HALVES and use.value.device.type == "cpu":
        raise Unfit(Reason.INEXACT, f"{use.name} rounds in between or not, by the tensor's size")
    dtype, (x, y) = _operands(use, ("input", "other"))
    opposite = negated(number.range)
    wraps = number.kind == "int" and not is_int64(opposite)
    if use.name == "sub" and (wraps or not opposite.fits(use.value.dtype)):
        raise Unfit(Reason.OVERFLOW, "alpha= is negated, which may leave its dtype")
    factor = use.checked("alpha", use.value.dtype)
    if dtype != use.value.dtype:
        factor = use.checked("alpha", dtype)
    if not dtype.is_floating_point:
        use.narrowed(use.record(FUNCTIONS[use.name], x, use.record(torch.mul, y, factor)))
        return
    if use.name == "sub":
        # Of an integer zero the negative is zero.
        floating = number.kind == "float"
        factor = use.record(torch.neg, factor) if floating else use.record(torch.rsub, factor, 0)
    use.narrowed(use.record(torch.addcmul, x, y, factor))


def leaky_relu(use: Use) -> None:
    """``leaky_relu`` with the number as its slope, which is ``prelu``."""
    _given(use, "negative_slope")
    if use.in_place or use.given.get("inplace"):
        raise use.unfit()
    dtype, (x,) = _operands(use, ("input",))
    if not dtype.is_floating_point:
        raise use.unfit()
    slope = use.record("reshape", use.checked("negative_slope", dtype), 1)
    use.narrowed(use.record(torch.prelu, x, slope))


def _given(use: Use, name: str) -> Held:
    """The number given for an argument; the others may not be such numbers."""
    number = use.number(name)
    if number is None or any(node in use.held for node in use.others(name)):
        raise use.unfit()
    return number


def _operands(use: Use, names: tuple[str, ...]) -> tuple[torch.dtype, list[fx.Node]]:
    """Tensors of one dtype, as they are in the dtype that eager computes in."""
    values = [use.tensor(name) for name in names]
    dtype = values[0].dtype
    if any(value.dtype != dtype or value.device != values[0].device for value in values):
        raise use.unfit()
    wide = computed_in(dtype)
    nodes = [use.given[name] for name in names]
    return wide, nodes if wide == dtype else [use.record("to", node, wide) for node in nodes]
