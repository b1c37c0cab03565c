"""Calls that take a Python number, with a 0-d tensor in its place.

A Python number is weak: it takes part in promotion by its kind alone. A 0-d tensor is cast to the
dtype in which eager would compute, so that promotion has nothing left to decide. For float16 and
bfloat16 that is float32: ``x * 1e-8`` is not ``x * 0``. Where eager converts the number with a
check for overflow, which raises, the range of the number must exclude it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from fusepass.graph.canonical import op_name, tensor_value
from fusepass.graph.number import MIXED, READ_LATE, Held, Unfit, operand
from fusepass.graph.number_range import negated
from fusepass.graph.recording import Recorder, is_same_kind
from fusepass.report.decision import Reason

_PLAIN = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_SUPPORTED = (*_PLAIN, torch.float16, torch.bfloat16, torch.float32, torch.float64)
_KINDS = {"bool": 0, "int": 1, "float": 2}


@dataclass
class Use:
    """One call that uses numbers.

    Attributes:
        node: the call.
        name: of the operation, without the underscore of an in-place spelling.
        in_place: whether it writes its first operand.
        given: arguments by name.
        held: numbers that are held, by node.
        value: the fake tensor it gives; of its first operand, if it gives none.
        recorder: of the graph.
    """

    node: fx.Node
    name: str
    in_place: bool
    given: dict[str, Any]
    held: dict[fx.Node, Held]
    value: torch.Tensor
    recorder: Recorder

    def number(self, name: str) -> Held | None:
        """The held number given for an argument, if one is."""
        given = self.given.get(name)
        return self.held.get(given) if isinstance(given, fx.Node) else None

    def tensor(self, name: str) -> torch.Tensor:
        """The fake tensor given for an argument.

        Raises:
            Unfit: something else is given.
        """
        value = tensor_value(self.given.get(name))
        if value is None or value.dtype not in _SUPPORTED:
            raise self.unfit()
        return value

    def unfit(self) -> Unfit:
        """That the call has no form that takes a tensor for the number."""
        return Unfit(Reason.PYTHON_VALUE, f"{self.name} has no form that takes a tensor for it")

    def checked(self, name: str, dtype: torch.dtype) -> fx.Node:
        """A held number as a tensor of the dtype that eager converts it to, with a check.

        Raises:
            Unfit: the check could fail.
        """
        number = self.number(name)
        assert number is not None
        self.settled(number, dtype)
        if not number.range.fits(dtype):
            text = f"{self.name} raises for a number that {_name(dtype)} does not hold"
            raise Unfit(Reason.OVERFLOW, text)
        return number.on(self.value.device, dtype)

    def settled(self, number: Held, dtype: torch.dtype) -> None:
        """Refuse a number that may be an integer or a float, where it matters.

        Raises:
            Unfit: it does.
        """
        if number.mixed and not dtype.is_floating_point:
            raise Unfit(Reason.PYTHON_VALUE, MIXED)

    def put(self, **tensors: fx.Node) -> None:
        """Give the call these tensors in place of the numbers of these arguments."""
        places = {self.given[name]: tensor for name, tensor in tensors.items()}
        args, kwargs = self.node.args, self.node.kwargs
        swap: Callable[[fx.Node], fx.Node] = lambda n: places.get(n, n)  # noqa: E731
        self.node.args = fx.map_arg(args, swap)
        self.node.kwargs = fx.map_arg(kwargs, swap)
        if not self.in_place and not is_same_kind(self.recorder.fake(self.node), self.value):
            self.node.args, self.node.kwargs = args, kwargs
            raise self.unfit()

    def become(self, made: fx.Node) -> None:
        """Have another node take the place of the call.

        Raises:
            Unfit: it is not of the same dtype, sizes and strides.
        """
        if not is_same_kind(made.meta["example_value"], self.value):
            raise self.unfit()
        made.meta = dict(self.node.meta)
        self.node.replace_all_uses_with(made)
        self.node.graph.erase_node(self.node)

    def record(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """One more call in front of it."""
        return self.recorder.before(self.node, target, *args, **kwargs)


def replace(node: fx.Node, held: dict[fx.Node, Held], recorder: Recorder) -> None:
    """Replace the numbers that a call uses.

    Args:
        node: a call of the graph.
        held: the numbers to replace.
        recorder: of the graph.

    Raises:
        Unfit: the call needs the number itself.
    """
    spelled = op_name(node)
    if spelled is None:
        raise Unfit(Reason.PYTHON_VALUE, f"{_called(node)} may need the number itself")
    in_place = spelled.endswith("_") and not spelled.endswith("__")
    name = spelled[:-1] if in_place else spelled
    handler = _HANDLERS.get(name)
    names = handler[0] if handler is not None else ()
    if name == "where" and (node.op == "call_method" or node.target is torch.Tensor.where):
        names = ("input", "condition", "other")
    given = _by_name(node, names)
    value = tensor_value(node) if name != "setitem" else tensor_value(node.args[0])
    if handler is None or given is None or value is None or "out" in given:
        raise _no_handler(node, name, held)
    use = Use(node, name, in_place, given, held, value, recorder)
    recorder.grad = value.requires_grad
    handler[1](use)


def _by_name(node: fx.Node, names: tuple[str, ...]) -> dict[str, Any] | None:
    """Arguments by name; one held number may stand once only."""
    if len(node.args) > len(names):
        return None
    given = dict(zip(names, node.args, strict=False))
    if given.keys() & node.kwargs.keys():
        return None
    given |= node.kwargs
    if "self" in given:
        given["input"] = given.pop("self")
    return given


def _no_handler(node: fx.Node, name: str, held: dict[fx.Node, Held]) -> Unfit:
    used = [held[n] for n in node.all_input_nodes if n in held]
    if all(number.kind == "int" for number in used):
        return Unfit(Reason.SIZE, f"{name} takes it as a size, an index or a count")
    return Unfit(Reason.PYTHON_VALUE, f"{name} has no form that takes a tensor for it")


def _called(node: fx.Node) -> str:
    return getattr(node.target, "__name__", str(node.target))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def category(dtype: torch.dtype) -> int:
    """0 for bool, 1 for integers, 2 for floating point."""
    return 2 if dtype.is_floating_point else int(dtype is not torch.bool)


def common_dtype(x: torch.Tensor, number: Held) -> torch.dtype:
    """The dtype that a tensor and a Python number are promoted to."""
    if _KINDS[number.kind] <= category(x.dtype):
        return x.dtype
    return torch.get_default_dtype() if number.kind == "float" else torch.int64


def computed_in(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which eager computes on numbers of a dtype."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_DIVISIONS = ("floor_divide", "remainder", "fmod")
_REVERSED = {
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
_FUNCTIONS: dict[str, Any] = {
    name: getattr(torch, name)
    for name in (
        """
        add sub mul div floor_divide remainder fmod eq ne lt le gt ge bitwise_and bitwise_or
        bitwise_xor bitwise_left_shift bitwise_right_shift pow
        """
    ).split()
}


def _pointwise(use: Use) -> None:
    """Arithmetic, comparisons and bitwise operations of a tensor and a number, in either order."""
    name = _REVERSED.get(use.name, use.name)
    other = "input" if use.number("input") is not None else "other"
    number, x_name = use.number(other), "other" if other == "input" else "input"
    if number is None or any(n in use.held for n in _others(use, other)):
        raise use.unfit()
    x = use.tensor(x_name)
    reverse = (other == "input") != (use.name in _REVERSED)
    common = common_dtype(x, number)
    use.settled(number, x.dtype)
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
        use.node.replace_all_uses_with(given)
        use.node.graph.erase_node(use.node)
        return
    sides = (tensor, wide) if reverse and name not in ("add", "mul") else (wide, tensor)
    made = use.record(_FUNCTIONS[name], *sides, **kwargs)
    if use.in_place:
        _finish(use, use.record("copy_", given, made))
    elif on_cpu:
        use.become(use.record("reshape", made, ()))
    else:
        use.become(use.record("to", made, use.value.dtype))


def _others(use: Use, besides: str) -> list[Any]:
    return [v for k, v in use.given.items() if k != besides and isinstance(v, fx.Node)]


def _put_operand(use: Use, name: str, other: str, tensor: fx.Node, *, reverse: bool) -> None:
    if use.name in _REVERSED:
        if use.given.keys() != {"input", "other"}:
            raise use.unfit()
        use.become(use.record(_FUNCTIONS[name], tensor, use.given["input"]))
    elif reverse and name in ("add", "mul"):  # as ``x.__radd__`` has it
        use.become(use.record(_FUNCTIONS[name], use.given["other"], tensor))
    else:
        use.put(**{other: tensor})


def _check_division(
    use: Use, name: str, number: Held, x: torch.Tensor, common: torch.dtype, *, reverse: bool
) -> None:
    """Integers divided by a number that may be zero, or wraps to zero, raise."""
    rounded = name in _DIVISIONS or (name == "div" and use.given.get("rounding_mode") is not None)
    if common.is_floating_point:
        return
    if rounded and not reverse:
        if not number.range.excludes_zero():
            raise Unfit(Reason.PARTIAL_OP, "a division of integers by zero raises, and it may be")
        if not number.range.fits(common):
            raise Unfit(Reason.OVERFLOW, f"it may wrap to zero as {_name(common)}, which raises")


def _quotient(use: Use, number: Held, x_name: str) -> None:
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


def _power(use: Use) -> None:
    """A number to the power of a tensor; the other way round eager has cases of its own."""
    if use.number("input") is None and use.name not in _REVERSED:
        raise use.unfit()
    _pointwise(use)


def _clamp(use: Use) -> None:
    x = use.tensor("input")
    dtype = x.dtype if use.in_place else use.value.dtype
    names = [name for name in ("min", "max") if use.given.get(name) is not None]
    bounds = {}
    for name in names:
        if use.number(name) is not None:
            bounds[name] = use.checked(name, dtype)
            continue
        side = operand(use.given[name], use.held)
        if isinstance(side, Held) or not _takes(dtype, side):
            raise use.unfit()
        bounds[name] = use.record(torch.full, (), side, dtype=dtype, device=x.device)
    target = "clamp_" if use.in_place else "clamp"
    _finish(use, use.record(target, use.given["input"], **bounds))


def _takes(dtype: torch.dtype, number: Any) -> bool:
    """Whether a known number fits a dtype."""
    if not isinstance(number, (int, float)):
        return False
    if dtype.is_floating_point:
        return not abs(number) < float("inf") or abs(number) <= torch.finfo(dtype).max
    limits = torch.iinfo(dtype) if dtype is not torch.bool else None
    return isinstance(number, int) and limits is not None and limits.min <= number <= limits.max


def _finish(use: Use, made: fx.Node) -> None:
    """A call in place hands on its first operand."""
    if use.in_place:
        made.meta = dict(use.node.meta)
        use.node.replace_all_uses_with(made)
        use.node.graph.erase_node(use.node)
    else:
        use.become(made)


def _fill(argument: str) -> Callable[[Use], None]:
    """Calls that store the number: converted to the dtype of what is filled, with a check."""

    def handler(use: Use) -> None:
        use.put(**{argument: use.checked(argument, use.value.dtype)})

    return handler


def _setitem(use: Use) -> None:
    if use.number("value") is None or any(n in use.held for n in _inside(use.given["index"])):
        raise Unfit(Reason.SIZE, "it is an index")
    tensor = use.checked("value", use.tensor("input").dtype)
    use.node.args = (*use.node.args[:2], tensor)


def _inside(tree: Any) -> list[fx.Node]:
    found: list[fx.Node] = []
    fx.map_arg(tree, found.append)
    return found


def _where(use: Use) -> None:
    dtype = use.value.dtype
    numbers = [name for name in ("input", "other") if use.number(name) is not None]
    if not numbers:
        raise use.unfit()
    use.put(**{name: use.checked(name, dtype) for name in numbers})


def _full(use: Use) -> None:
    """A new tensor full of the number."""
    if use.number("fill_value") is None or any(n in use.held for n in _others(use, "fill_value")):
        raise Unfit(Reason.SIZE, f"{use.name} takes it as a size")
    if any(n in use.held for n in _inside(use.given.get("size"))) or use.given.get("requires_grad"):
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


def _tensor(use: Use) -> None:
    """``torch.tensor`` of a number, or of lists of numbers."""
    number = use.number("data")
    if READ_LATE in use.node.meta and number is not None:
        made = number.out()
        use.node.replace_all_uses_with(made)
        use.node.graph.erase_node(use.node)
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
    if not isinstance(side, Held):
        if not _takes(dtype, side):
            raise use.unfit()
        return use.record(torch.full, (), side, dtype=dtype, device=device)
    use.settled(side, dtype)
    if not side.range.fits(dtype):
        raise Unfit(Reason.OVERFLOW, f"a tensor of {_name(dtype)} cannot be made of every number")
    return side.on(device, dtype)


def _wide(use: Use, names: tuple[str, ...]) -> tuple[torch.dtype, list[fx.Node]]:
    """Tensors of one floating dtype, in the dtype eager computes in."""
    values = [use.tensor(name) for name in names]
    dtype = values[0].dtype
    if any(value.dtype != dtype or value.device != values[0].device for value in values):
        raise use.unfit()
    wide = computed_in(dtype)
    nodes = [use.given[name] for name in names]
    return wide, nodes if wide == dtype else [use.record("to", node, wide) for node in nodes]


def _narrow(use: Use, made: fx.Node) -> None:
    """Hand on a result that may have been computed in a wider dtype."""
    if use.in_place:
        _finish(use, use.record("copy_", use.given["input"], made))
        return
    if tensor_value(made).dtype != use.value.dtype:  # type: ignore[union-attr]
        made = use.record("to", made, use.value.dtype)
    use.become(made)


def _lerp(use: Use) -> None:
    if use.number("weight") is None:
        raise use.unfit()
    wide, (start, end) = _wide(use, ("input", "end"))
    _narrow(use, use.record(torch.lerp, start, end, use.checked("weight", wide)))


def _scaled_product(use: Use) -> None:
    """``addcmul`` and ``addcdiv`` with ``value=``: the first factor is scaled."""
    if use.number("value") is None:
        raise use.unfit()
    wide, (x, first, second) = _wide(use, ("input", "tensor1", "tensor2"))
    factor = use.checked("value", wide)
    call = torch.addcmul if use.name == "addcmul" else torch.addcdiv
    _narrow(use, use.record(call, x, use.record(torch.mul, first, factor), second))


def _alpha(use: Use) -> None:
    """``x.add(y, alpha=s)``, which is ``addcmul(x, y, s)``; other calls of ``add`` and ``sub``."""
    if use.number("alpha") is None:
        _pointwise(use)
        return
    wide, (x, y) = _wide(use, ("input", "other"))
    number = use.number("alpha")
    assert number is not None
    if number.kind == "bool" or wide is torch.bool:
        raise use.unfit()
    factor = use.checked("alpha", use.value.dtype)
    if wide != use.value.dtype:  # on the CPU it is rounded first
        on_cpu = use.value.device.type == "cpu"
        factor = use.record("to", factor, wide) if on_cpu else use.checked("alpha", wide)
    if use.name == "sub" and not negated(number.range).fits(use.value.dtype):
        raise Unfit(Reason.OVERFLOW, "alpha= is negated, which may leave its dtype")
    if not wide.is_floating_point:
        _narrow(use, use.record(_FUNCTIONS[use.name], x, use.record(torch.mul, y, factor)))
        return
    if use.name == "sub":
        factor = use.record(torch.neg, factor)
    _narrow(use, use.record(torch.addcmul, x, y, factor))


Handler = tuple[tuple[str, ...], Callable[[Use], None]]
_TWO = ("input", "other")
_HANDLERS: dict[str, Handler] = {
    **dict.fromkeys([*_FUNCTIONS, *_REVERSED], (_TWO, _pointwise)),
    "add": (_TWO, _alpha),
    "sub": (_TWO, _alpha),
    "pow": (_TWO, _power),
    "clamp": (("input", "min", "max"), _clamp),
    "clamp_min": (("input", "min"), _clamp),
    "clamp_max": (("input", "max"), _clamp),
    "masked_fill": (("input", "mask", "value"), _fill("value")),
    "fill": (("input", "value"), _fill("value")),
    "setitem": (("input", "index", "value"), _setitem),
    "__setitem__": (("input", "index", "value"), _setitem),
    "full": (("size", "fill_value"), _full),
    "full_like": (("input", "fill_value"), _full),
    "new_full": (("input", "size", "fill_value"), _full),
    "tensor": (("data",), _tensor),
    "scalar_tensor": (("data",), _tensor),
    "lerp": (("input", "end", "weight"), _lerp),
    "addcmul": (("input", "tensor1", "tensor2"), _scaled_product),
    "addcdiv": (("input", "tensor1", "tensor2"), _scaled_product),
    "where": (("condition", "input", "other"), _where),
}
