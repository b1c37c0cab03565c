"""Rewrite pointwise calls, fills and clamps with a Python number, to take a 0-d tensor.

Arithmetic in either order, functions that torch has for two tensors, and calls that scale by a
number beside the tensors (``alpha=``, ``value=``, a weight).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from fusepass.capture.scalars.call_rewriter import (
    HALVES,
    SUPPORTED,
    Use,
    category,
    common_dtype,
    computed_in,
    inside,
    name_of,
    takes,
)
from fusepass.capture.scalars.scalar import (
    READ_LATE,
    ScalarTensor,
    Unfit,
    is_int64,
    negated,
    operand,
)
from fusepass.graph.ops.op_names import tensor_value
from fusepass.report.decision import Reason
from fusepass.torch_private.versions import clamp_gradients, clamps_to_nan, stores_check_halves

_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_DIVISIONS = ("floor_divide", "remainder", "fmod")
REVERSED = {
    "__radd__": "add",
    "__rsub__": "sub",
    "__rmul__": "mul",
    "__rtruediv__": "div",
    "__rdiv__": "div",
    "__rfloordiv__": "floor_divide",
    "__rmod__": "remainder",
    "__rpow__": "pow",
    "__rand__": "bitwise_and",
    "__ror__": "bitwise_or",
    "__rxor__": "bitwise_xor",
    "rsub": "sub",
}
FUNCTIONS: dict[str, Any] = {
    name: getattr(torch, name)
    for name in (
        """
        add sub mul div floor_divide remainder fmod eq ne lt le gt ge bitwise_and bitwise_or
        bitwise_xor bitwise_left_shift bitwise_right_shift pow
        """
    ).split()
}


def pointwise(use: Use) -> None:
    """Arithmetic, comparisons and bitwise operations of a tensor and a number, in either order."""
    name = REVERSED.get(use.name, use.name)
    other, number = use.sole("input", "other")
    x_name = "other" if other == "input" else "input"
    x = use.tensor(x_name)
    reverse = (other == "input") != (use.name in REVERSED)
    common = common_dtype(x, number)
    use.settled(number, x.dtype)
    if name == "remainder" and reverse and x.requires_grad and torch.is_grad_enabled():
        raise Unfit(Reason.PARTIAL_OP, "torch has no gradient for a remainder by a tensor")
    _check_division(use, name, number, x, common, reverse=reverse)
    if name == "div" and reverse and use.given.get("rounding_mode") is None:
        _quotient(use, number, x_name)
        return
    dtype = common if name in _COMPARISONS else computed_in(common)
    if name == "div" and use.given.get("rounding_mode") is None and not dtype.is_floating_point:
        dtype = torch.get_default_dtype()
    tensor = number.on(x.device, dtype)
    on_cpu = x.device.type == "cpu"
    wider = x.dtype != dtype and category(x.dtype) == 2  # float16 beside float32
    if not wider or (on_cpu and x.dim()):
        # On the CPU eager hands a number to its kernels as a 0-d tensor, too.
        _put_operand(use, name, other, tensor, reverse=reverse)
        return
    given = use.given[x_name]
    wide = use.record("reshape", given, 1) if on_cpu else use.record("to", given, dtype)
    kwargs = {k: v for k, v in use.given.items() if k not in ("input", "other")}
    if on_cpu and use.in_place:
        use.record(f"{name}_", wide, tensor, **kwargs)
        use.give_way(given, described=False)
        return
    sides = (tensor, wide) if reverse and name not in ("add", "mul") else (wide, tensor)
    made = use.record(FUNCTIONS[name], *sides, **kwargs)
    if use.in_place:
        use.finish(use.record("copy_", given, made))
    elif on_cpu:
        use.become(use.record("reshape", made, ()))
    else:
        use.become(use.record("to", made, use.value.dtype))


def _put_operand(use: Use, name: str, other: str, tensor: fx.Node, *, reverse: bool) -> None:
    if use.name in REVERSED:
        if use.given.keys() != {"input", "other"}:
            raise use.unfit()
        x = use.given["input"]
        sides = (x, tensor) if name in ("add", "mul") else (tensor, x)
        use.become(use.record(FUNCTIONS[name], *sides))
    elif reverse and name in ("add", "mul"):  # as ``x.__radd__`` has it
        use.become(use.record(FUNCTIONS[name], use.given["other"], tensor))
    else:
        use.put(**{other: tensor})


def _check_division(
    use: Use,
    name: str,
    number: ScalarTensor,
    x: torch.Tensor,
    common: torch.dtype,
    *,
    reverse: bool,
) -> None:
    """Integers divided by a number that may be zero, or wraps to zero, raise."""
    rounded = name in _DIVISIONS or (name == "div" and use.given.get("rounding_mode") is not None)
    if common.is_floating_point:
        return
    if rounded and not reverse:
        if not number.range.excludes_zero():
            raise Unfit(Reason.PARTIAL_OP, "a division of integers by zero raises, and it may be")
        if not number.range.fits(common):
            raise Unfit(Reason.OVERFLOW, f"it may wrap to zero as {name_of(common)}, which raises")


def _quotient(use: Use, number: ScalarTensor, x_name: str) -> None:
    """``number / x`` is ``x.reciprocal() * number`` in eager."""
    inverse = use.record("reciprocal", use.given[x_name])
    value = tensor_value(inverse)
    assert value is not None
    dtype = computed_in(value.dtype)
    tensor = number.on(value.device, dtype)
    if dtype == value.dtype or (value.device.type == "cpu" and value.dim()):
        use.become(use.record(torch.mul, inverse, tensor))
    elif value.device.type == "cpu":
        product = use.record(torch.mul, use.record("reshape", inverse, 1), tensor)
        use.become(use.record("reshape", product, ()))
    else:
        product = use.record(torch.mul, use.record("to", inverse, dtype), tensor)
        use.become(use.record("to", product, value.dtype))


def rounds(use: Use, number: ScalarTensor, dtype: torch.dtype) -> bool:
    """Whether a number may lose digits as a tensor of a dtype."""
    device = use.value.device
    number.on(device, dtype)
    return torch.promote_types(number.dtype_on(device), dtype) != dtype


def power(use: Use) -> None:
    """``number ** x``, and ``x ** number`` with eager's own cases for some exponents."""
    number = use.number("exponent")
    if use.number("input") is not None:
        held = use.number("input")
        wide = computed_in(use.value.dtype)
        if use.value.requires_grad and held is not None and rounds(use, held, wide):
            raise Unfit(Reason.INEXACT, "the gradient has the logarithm of the base, a double")
        use.given["other"] = use.given.pop("exponent")
        pointwise(use)
        return
    if number is None:
        raise use.unfit()
    x, given = use.tensor("input"), use.given["input"]
    common = common_dtype(x, number)
    use.settled(number, common)
    if not common.is_floating_point:
        if number.range.least < 0:
            raise Unfit(Reason.PARTIAL_OP, "an integer to a negative power raises, and it may be")
        if common is torch.bool:
            raise use.unfit()
        use.narrowed(use.record(torch.pow, given, use.checked("exponent", common)))
        return
    if use.value.requires_grad:
        raise Unfit(Reason.INEXACT, "the gradient of a power depends on its exponent otherwise")
    if common in HALVES:
        raise Unfit(Reason.INEXACT, f"a power of {name_of(common)} is rounded in between or not")
    base = given if x.dtype == common else use.record("to", given, common)
    exponent = number.on(x.device, common)
    if x.device.type == "cpu":
        exact = torch.promote_types(number.dtype_on(x.device), common) == common
        if number.kind != "float":  # an odd one must stay odd
            known = number.range.within(2 / torch.finfo(common).eps)
            exact = common is torch.float64 or bool(known)
        if not exact:
            text = f"a Python exponent is a double to the CPU's kernel, a tensor {name_of(common)}"
            raise Unfit(Reason.INEXACT, text)
    use.narrowed(powers(use, base, exponent))


def powers(use: Use, base: fx.Node, exponent: fx.Node) -> fx.Node:
    """As eager's kernels have it: a square is a product, a power of a half is a square root."""
    made = use.record(torch.pow, base, exponent)
    square = use.record(torch.mul, base, base)
    cases = {
        2.0: square,
        3.0: use.record(torch.mul, square, base),
        -2.0: use.record("reciprocal", square),
        0.5: use.record("sqrt", base),
        -0.5: use.record("rsqrt", base),
        -1.0: use.record("reciprocal", base),
    }
    for case, value in cases.items():
        chosen = use.record(torch.eq, exponent, case)
        made = use.record(torch.where, chosen, value, made)
    return made


def of_two(use: Use) -> None:
    """``copysign``, ``xlogy`` and their like: eager itself makes a tensor of the number."""
    name, number = use.sole("input", "other")
    x, dtype = use.tensor("other" if name == "input" else "input"), use.value.dtype
    use.settled(number, x.dtype)
    if "xlog" in use.name and name == "other" and use.value.requires_grad and number.range.nan:
        _logarithm(use, number.on(x.device, dtype))
        return
    use.put(**{name: number.on(x.device, dtype)})


def _logarithm(use: Use, other: fx.Node) -> None:
    """``xlogy`` and ``xlog1py`` in training: to a number that is NaN, zeros give no gradient.

    To a tensor that holds it they give NaN.
    """
    given, one_more = use.given["input"], use.name.rstrip("_").endswith("xlog1py")
    none = use.record(torch.eq, given, 0)
    none = use.record(torch.logical_and, none, use.record(torch.isnan, other))
    safe = use.record(torch.where, none, 0.0 if one_more else 1.0, other)
    made = use.record(torch.special.xlog1py if one_more else torch.xlogy, given, safe)
    use.narrowed(use.record(torch.where, none, math.nan, made))


def isin(use: Use) -> None:
    """``isin`` of a tensor's elements and one number: eager compares each with it."""
    number, invert = use.number("test_element"), use.given.get("invert", False)
    known = use.given.keys() <= {"elements", "test_element", "assume_unique", "invert"}
    if number is None or not known or not isinstance(invert, bool):
        raise use.unfit()
    x = use.tensor("elements")
    use.settled(number, x.dtype)
    tensor = number.on(x.device, common_dtype(x, number))
    call = torch.ne if invert else torch.eq
    use.become(use.record(call, use.given["elements"], tensor))


def float_power(use: Use) -> None:
    """``float_power``: a power of doubles."""
    name, number = use.sole("input", "exponent")
    x_name = "exponent" if name == "input" else "input"
    x, given = use.tensor(x_name), use.given[x_name]
    use.settled(number, torch.float64)
    if use.value.requires_grad:
        raise Unfit(Reason.INEXACT, "the gradient of a power depends on its exponent otherwise")
    wide = given if x.dtype == torch.float64 else use.record("to", given, torch.float64)
    tensor = number.on(x.device, torch.float64)
    made = use.record(torch.pow, tensor, wide) if name == "input" else powers(use, wide, tensor)
    use.narrowed(made)


def lerp(use: Use) -> None:
    """``torch.lerp`` with the number as its weight."""
    _, number = use.sole("weight")
    dtype, (start, end) = _operands(use, ("input", "end"))
    if use.value.requires_grad and rounds(use, number, dtype):
        raise Unfit(Reason.INEXACT, "the gradient has one less the weight, a double")
    use.narrowed(use.record(torch.lerp, start, end, use.checked("weight", dtype)))


def scaled_product(use: Use) -> None:
    """``addcmul`` and ``addcdiv`` with ``value=``: the first factor is scaled."""
    use.sole("value")
    dtype, (x, first, second) = _operands(use, ("input", "tensor1", "tensor2"))
    factor = use.checked("value", dtype)
    call = torch.addcmul if use.name == "addcmul" else torch.addcdiv
    use.narrowed(use.record(call, x, use.record(torch.mul, first, factor), second))


def alpha(use: Use) -> None:
    """``x.add(y, alpha=s)``, which is ``addcmul(x, y, s)``; other calls of ``add`` and ``sub``."""
    if use.number("alpha") is None:
        pointwise(use)
        return
    _, number = use.sole("alpha")
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
        # The negative of an integer zero is zero.
        floating = number.kind == "float"
        factor = use.record(torch.neg, factor) if floating else use.record(torch.rsub, factor, 0)
    use.narrowed(use.record(torch.addcmul, x, y, factor))


def leaky_relu(use: Use) -> None:
    """``leaky_relu`` with the number as its slope, which is ``prelu``."""
    use.sole("negative_slope")
    if use.in_place or use.given.get("inplace"):
        raise use.unfit()
    dtype, (x,) = _operands(use, ("input",))
    if not dtype.is_floating_point:
        raise use.unfit()
    slope = use.record("reshape", use.checked("negative_slope", dtype), 1)
    use.narrowed(use.record(torch.prelu, x, slope))


def _operands(use: Use, names: tuple[str, ...]) -> tuple[torch.dtype, list[fx.Node]]:
    """Tensors of one dtype, as they are in the dtype that eager computes in."""
    values = [use.tensor(name) for name in names]
    dtype = values[0].dtype
    if any(value.dtype != dtype or value.device != values[0].device for value in values):
        raise use.unfit()
    wide = computed_in(dtype)
    nodes = [use.given[name] for name in names]
    return wide, nodes if wide == dtype else [use.record("to", node, wide) for node in nodes]


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
