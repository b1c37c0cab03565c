"""Values in a graph that depend on no input, computed once on the CPU.

Only operations whose result has the same bits on every device take part: factories of integers and
booleans, comparisons, logic, integer arithmetic and changes of shape.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from fusepass.graph.dataflow.effects import written_nodes
from fusepass.graph.dataflow.memory import memory_of
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.torch_private.fx.graphs import call_target

EXACT = frozenset(
    """ arange full ones zeros ones_like zeros_like full_like new_ones new_zeros new_full eye tril
    triu tensor eq ne lt le gt ge logical_and logical_or logical_xor logical_not bitwise_and
    bitwise_or bitwise_xor bitwise_not __and__ __or__ __invert__ add sub mul neg where masked_fill
    view reshape expand expand_as broadcast_to unsqueeze squeeze permute transpose t T mT getitem
    __getitem__ select narrow flatten unflatten contiguous clone detach to bool int long repeat cat
    stack movedim alias """.split()
)
_MEMO = "fusepass_constant"  # node.meta key: the computed value, or the reason there is none


class NotConstant(Exception):
    """The value depends on an input or an inexact operation, or is too large to compute here."""


def constant_value(node: fx.Node, max_elements: int = 1 << 24) -> torch.Tensor:
    """The value of a node that depends on no input, as a CPU tensor; strides of 0 stay 0.

    Raises:
        NotConstant: with the reason.
    """
    value = _evaluate(node, max_elements)
    if not isinstance(value, torch.Tensor):
        raise NotConstant(f"{node.name} is not a tensor")
    return value


def _evaluate(node: fx.Node, max_elements: int) -> Any:
    """A node's value; first those it is made of, which may be many, one made of the other."""
    written = _written_memory(node.graph)
    todo = [] if _MEMO in node.meta else [node]
    while todo:
        last = todo[-1]
        try:
            _check(last, written, max_elements)
            for operand in last.all_input_nodes:
                if _MEMO not in operand.meta:
                    todo.append(operand)
                    break
                _memoized(operand)
            else:
                todo.pop().meta[_MEMO] = (_compute(last), None)
        except NotConstant as reason:
            todo.pop().meta[_MEMO] = (None, str(reason))
    return _memoized(node)


def _memoized(node: fx.Node) -> Any:
    value, problem = node.meta[_MEMO]
    if problem is not None:
        raise NotConstant(problem)
    return value


def _written_memory(graph: fx.Graph) -> set[int | None]:
    return {memory_of(written) for node in graph.nodes for written in written_nodes(node)}


def _check(node: fx.Node, written: set[int | None], max_elements: int) -> None:
    """Raise unless the node's call gives the same bits everywhere, and few of them."""
    name = op_name(node)
    if memory_of(node) in written:
        raise NotConstant(f"{node.name} is written in place")
    if name not in EXACT:
        raise NotConstant(f"{name or node.name} is not an exact operation on constants")
    result = tensor_value(node)
    if result is None or result.dtype.is_floating_point or result.dtype.is_complex:
        raise NotConstant(f"{node.name} is not an integer or bool tensor")
    if not all(isinstance(size, int) for size in result.shape):
        raise NotConstant(f"{node.name} has a dynamic shape")
    stored = math.prod(n for n, s in zip(result.shape, result.stride(), strict=True) if s != 0)
    if stored > max_elements:
        raise NotConstant(f"{node.name} is too large to compute at compile time")


def _compute(node: fx.Node) -> Any:
    def argument(value: Any) -> Any:
        if isinstance(value, fx.Node):
            return _memoized(value)
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if isinstance(value, str) and value.split(":")[0] in ("cuda", "cpu", "xpu", "mps"):
            return "cpu"
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise NotConstant(f"{node.name} has a dynamic argument")
        return value

    args = fx.node.map_aggregate(node.args, argument)
    kwargs = fx.node.map_aggregate(node.kwargs, argument)
    with torch.no_grad():
        return call_target(node.target, args, kwargs)
