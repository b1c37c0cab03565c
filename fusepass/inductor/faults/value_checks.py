"""Checks of values that eager's CPU kernels make and Inductor's code does not.

``index_add`` with an index outside, ``binary_cross_entropy`` of what is no probability: eager
raises, a graph compiled by Inductor returns numbers. The values are looked at before they are used,
in one pass over them. On a GPU both ways end in a device-side assertion.
"""

from __future__ import annotations

import torch
from torch import Tensor, fx

from fusepass.graph.ops.op_names import argument, op_name, tensor_value
from fusepass.inductor.faults.fault import Fault
from fusepass.report.decision import Decision, Station

_FAULT = Fault("lost_check", (151918, 185246, 185885, 193757), "takes values that eager refuses")
_LOOKUP = Fault("lost_check", (151918,), "takes values that eager refuses", fixed_in=(2, 13))
_OUTSIDE = "index out of range in self"
_OF_DIMENSION = "index {{}} is out of bounds for dimension {} with size {}"
_BERNOULLI = "Expected p_in >= 0 && p_in <= 1 to be true, but got false."
_LOSS = "all elements of {} should be between 0 and 1"


@torch.library.custom_op("fusepass::checked", mutates_args=())
def check_values(x: Tensor, low: float, high: float, index: bool, message: str) -> Tensor:
    """A zero of the same dtype, to be added to what was looked at."""
    if x.numel():
        least, most = torch.aminmax(x)
        if not (bool(least >= low) and bool(most <= high)):  # also false for NaN
            first = x[~((x >= low) & (x <= high))].flatten()[0].item()
            raise (IndexError if index else RuntimeError)(message.format(first))
    return x.new_zeros(())


@check_values.register_fake
def _(x: Tensor, low: float, high: float, index: bool, message: str) -> Tensor:
    return x.new_empty(())


def add_checks(gm: fx.GraphModule) -> list[Decision]:
    """Have the values of such calls of a graph of Dynamo's looked at; what was decided."""
    found = False
    for module in gm.modules():
        if not isinstance(module, fx.GraphModule):
            continue
        for node in list(module.graph.nodes):
            name = op_name(node)
            if name in ("index_add", "index_add_"):
                found |= _check_index(node)
            elif name == "embedding" and _LOOKUP.is_here:
                found |= _check_lookup(node)
            elif name in ("bernoulli", "bernoulli_"):
                found |= _check_bernoulli(node)
            elif name == "binary_cross_entropy":
                found |= _check_probabilities(node)
        if found:
            module.recompile()
    return [_FAULT.decision("values are looked at first", Station.HAND_OFF)] if found else []


def _check_index(node: fx.Node) -> bool:
    x, dim, index = tensor_value(node.args[0]), argument(node, 1, "dim"), argument(node, 2, "index")
    if x is None or not isinstance(dim, int) or x.dim() == 0:
        return False
    size: int | torch.SymInt = x.shape[dim]
    if not isinstance(size, int):
        return False  # a check would make the size a constant
    one = x.dim() == 1  # with more dimensions another kernel of eager raises otherwise
    text = _OUTSIDE if one else _OF_DIMENSION.format(dim % x.dim(), size)
    return _insert_check(node, index, (0, size - 1), one, text)


def _check_lookup(node: fx.Node) -> bool:
    weight = tensor_value(argument(node, 1, "weight"))
    if weight is None or not isinstance(weight.shape[0], int):
        return False
    return _insert_check(node, argument(node, 0, "input"), (0, weight.shape[0] - 1), True, _OUTSIDE)


def _check_probabilities(node: fx.Node) -> bool:
    names = ("input", "target")
    pairs = [(argument(node, place, name), _LOSS.format(name)) for place, name in enumerate(names)]
    found = [_insert_check(node, value, (0, 1), False, text) for value, text in pairs]
    return any(found)


def _check_bernoulli(node: fx.Node) -> bool:
    """Check ``bernoulli``: eager draws in float64, or in the dtype of the tensor of chances."""
    of_chances = op_name(node) == "bernoulli" and argument(node, 1, "p") is None
    chances = argument(node, 0, "input") if of_chances else argument(node, 1, "p")
    return _insert_check(node, chances, (0, 1), False, _BERNOULLI)


def _insert_check(
    node: fx.Node, value: object, ends: tuple[int, int], index: bool, message: str
) -> bool:
    held = tensor_value(value)
    if not isinstance(value, fx.Node) or held is None or held.device.type != "cpu":
        return False
    with node.graph.inserting_before(node):
        plain = node.graph.call_method("detach", (value,))
        zero = node.graph.call_function(
            torch.ops.fusepass.checked.default,
            (plain, float(ends[0]), float(ends[1]), index, message),
        )
        same = node.graph.call_function(torch.add, (value, zero))
    for made, like in ((plain, held), (zero, held.new_empty(())), (same, held)):
        made.meta = {k: v for k, v in node.meta.items() if k != "example_value"}
        made.meta["example_value"] = like
    node.replace_input_with(value, same)
    return True
