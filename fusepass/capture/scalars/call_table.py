"""Replace the Python numbers in a call by 0-d tensors, by a table of calls.

A Python number is weak: it takes part in promotion by its kind alone. A 0-d tensor is cast to the
dtype in which eager would compute, so that promotion has nothing left to decide. For float16 and
bfloat16 that is float32: ``x * 1e-8`` is not ``x * 0``. Where eager converts the number with a
check for overflow, which raises, the range of the number must exclude it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from fusepass.capture.scalars.call_rewriter import Use, inside, refuse_kinds
from fusepass.capture.scalars.rewrite_pointwise import (
    FUNCTIONS,
    REVERSED,
    alpha,
    clamp,
    fill,
    float_power,
    full,
    isin,
    leaky_relu,
    lerp,
    of_two,
    pointwise,
    power,
    scaled_product,
    setitem,
    tensor,
    where,
)
from fusepass.capture.scalars.scalar import ScalarTensor, Unfit, kind_of
from fusepass.graph.dataflow.node_recorder import NodeRecorder
from fusepass.graph.ops.op_names import argument, display_name, op_name, tensor_value
from fusepass.graph.safety.tensor_kinds import special_tensor_reason
from fusepass.report.decision import Reason
from fusepass.torch_private.fx.tensor_kinds import is_transformed


def replace(node: fx.Node, held: dict[fx.Node, ScalarTensor], recorder: NodeRecorder) -> None:
    """Replace the numbers that a call uses.

    Raises:
        Unfit: the call needs the number itself.
    """
    spelled = op_name(node)
    if spelled is None:
        raise Unfit(Reason.PYTHON_VALUE, f"{_call_name(node)} may need the number itself")
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
    own = special_tensor_reason(node)
    if own is not None:
        raise Unfit(Reason.PYTHON_VALUE, f"{own}: it may need the number itself")
    operands = [tensor_value(operand) for operand in node.all_input_nodes]
    if any(fake is not None and is_transformed(fake) for fake in [value, *operands]):
        raise Unfit(Reason.UNTRACEABLE, f"{name} is inside torch.vmap or torch.func.functionalize")
    use = Use(node, name, in_place, given, held, value, recorder)
    recorder.grad = value.requires_grad
    refuse_kinds(use)
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


def as_size(node: fx.Node, number: fx.Node) -> Unfit | None:
    """The refusal of a call that takes a number as a size, an index or a count; else None."""
    name = op_name(node)
    if name is None or kind_of(number) != "int" or kind_of(node) is not None:
        return None
    handled = name in _HANDLERS or name.removesuffix("_") in _HANDLERS
    if handled and not (name in _TAKE_SIZES and number in _sizes(node, _TAKE_SIZES[name])):
        return None
    return Unfit(Reason.SIZE, f"{display_name(name)} takes it as a size, an index or a count")


_TAKE_SIZES = {"full": 0, "new_full": 1, "setitem": 1, "__setitem__": 1}


def _sizes(node: fx.Node, position: int) -> list[fx.Node]:
    name = "index" if "setitem" in str(op_name(node)) else "size"
    return inside(argument(node, position, name))


def _no_handler(node: fx.Node, name: str, held: dict[fx.Node, ScalarTensor]) -> Unfit:
    used = [n for n in node.all_input_nodes if n in held]
    sized = [as_size(node, n) for n in used]
    if all(sized) and sized[0] is not None:
        return sized[0]
    return Unfit(Reason.PYTHON_VALUE, f"no form of {name} that takes a tensor for it is known")


def _call_name(node: fx.Node) -> str:
    return getattr(node.target, "__name__", str(node.target))


Handler = tuple[tuple[str, ...], Callable[[Use], None]]
_TWO = ("input", "other")
_HANDLERS: dict[str, Handler] = {
    **dict.fromkeys([*FUNCTIONS, *REVERSED], (_TWO, pointwise)),
    "add": (_TWO, alpha),
    "sub": (_TWO, alpha),
    "pow": (("input", "exponent"), power),
    "__rpow__": (_TWO, power),
    "float_power": (("input", "exponent"), float_power),
    "copysign": (_TWO, of_two),
    "xlogy": (_TWO, of_two),
    "special_xlogy": (_TWO, of_two),
    "special_xlog1py": (_TWO, of_two),
    "special_zeta": (_TWO, of_two),
    "isin": (("elements", "test_element"), isin),
    "leaky_relu": (("input", "negative_slope"), leaky_relu),
    "index_fill": (("input", "dim", "index", "value"), fill("value")),
    "clamp": (("input", "min", "max"), clamp),
    "clamp_min": (("input", "min"), clamp),
    "clamp_max": (("input", "max"), clamp),
    "masked_fill": (("input", "mask", "value"), fill("value")),
    "fill": (("input", "value"), fill("value")),
    "setitem": (("input", "index", "value"), setitem),
    "__setitem__": (("input", "index", "value"), setitem),
    "full": (("size", "fill_value"), full),
    "full_like": (("input", "fill_value"), full),
    "new_full": (("input", "size", "fill_value"), full),
    "tensor": (("data",), tensor),
    "scalar_tensor": (("data",), tensor),
    "lerp": (("input", "end", "weight"), lerp),
    "addcmul": (("input", "tensor1", "tensor2"), scaled_product),
    "addcdiv": (("input", "tensor1", "tensor2"), scaled_product),
    "where": (("condition", "input", "other"), where),
}

# Numbers given to these beside a tensor tell nothing of what the result looks like.
_SAME_FOR_ANY = frozenset([*FUNCTIONS, *REVERSED, "clamp", "float_power", "leaky_relu", "lerp"])


def takes_any_number(node: fx.Node) -> bool:
    """Whether a result is a tensor of the same dtype and sizes for all numbers of one kind."""
    name = op_name(node)
    known = name is not None and name.removesuffix("_") in _SAME_FOR_ANY
    return known and any(tensor_value(source) is not None for source in node.all_input_nodes)
