"""Graphs that are run op by op, as eager runs them, because of one call in them.

What eager refuses for a dtype or for a number Inductor may compute, and of operands of two dtypes
``normal`` makes another one: all are rare, and by the time Inductor's passes see a graph, gone.
What eager's CPU kernels refuse for a dtype is tried on a few zeros: no list would hold all of it.

``as_strided`` reads memory, not a tensor: also numbers between and behind those of its operand. A
functional graph has no such memory. What a program wrote in place, or made in another layout, has
another one under AOTAutograd and Inductor, and other numbers are read, or such as nobody wrote.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, fx

from fusepass.graph.dataflow.effects import written_nodes
from fusepass.graph.dataflow.memory import tensors_of
from fusepass.graph.ops.op_names import argument, op_name, tensor_value
from fusepass.graph.safety.dtype_trial import RAISES, dtype_reason
from fusepass.inductor.faults.fault import Fault
from fusepass.report.decision import Decision, Station
from fusepass.torch_private.fx.graphs import size_hint, storage_key

_STRIDED = Fault(
    "strided_memory",
    (104505, 133512, 174963, 195665, 197431),
    "reads other memory by as_strided than the program's",
)
_NAMES = frozenset(("as_strided", "as_strided_", "as_strided_copy", "as_strided_scatter"))


def op_by_op_reason(gm: fx.GraphModule) -> list[Decision]:
    """Why a graph that Dynamo recorded is not given to Inductor; empty if it is."""
    graphs = [one.graph for one in gm.modules() if isinstance(one, fx.GraphModule)]
    found = [_STRIDED] if any(map(_reads_other_memory, graphs)) else []
    nodes = [node for graph in graphs for node in graph.nodes]
    found += [fault for fault in _OF_CALLS if any(map(fault.applies, nodes))]
    return [fault.decision("run op by op", Station.HAND_OFF) for fault in found]


def _is_refused(node: fx.Node) -> bool:
    """Whether eager's CPU kernels have no such call for the dtypes that are given."""
    values = [value for one in node.all_input_nodes for value in tensors_of(one)]
    if not node.op.startswith("call_") or any(one.device.type != "cpu" for one in values):
        return False
    reason = dtype_reason(node, op_name(node) or "") if values else None
    return reason is not None and reason.endswith(RAISES)


def _is_refused_number(node: fx.Node) -> bool:
    beta = argument(node, 5, "beta", 1.0) if op_name(node) == "smooth_l1_loss" else 0
    return isinstance(beta, (int, float)) and beta < 0


def _is_mixed_normal(node: fx.Node) -> bool:
    values = [tensor_value(one) for one in node.args[:2]] if op_name(node) == "normal" else []
    dtypes = {value.dtype for value in values if value is not None}
    return len(dtypes) > 1


_OF_CALLS = (
    Fault(
        "refused_dtype",
        (141865, 197554, 197807, 198155),
        "computes what eager refuses for the dtype",
        applies=_is_refused,
    ),
    Fault(
        "refused_argument",
        (194501,),
        "takes a number that eager refuses",
        applies=_is_refused_number,
    ),
    Fault(
        "dtype_of_normal", (194547,), "draws in another dtype than eager", applies=_is_mixed_normal
    ),
)


def _reads_other_memory(graph: fx.Graph) -> bool:
    given, written = set[Any](), set[Any]()  # memory of inputs, and of what is written so far
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            given.add(_memory(node))
        elif op_name(node) in _NAMES:
            operand = node.all_input_nodes[0] if node.all_input_nodes else None
            x = tensor_value(operand)
            if x is None or operand is None or _is_outside(node, x):
                return True
            memory = _memory(operand)
            as_it_lies = memory in given and memory not in written
            as_it_lies = as_it_lies and operand.op in ("placeholder", "get_attr")
            if not as_it_lies and not _fills_its_memory(x):
                return True
        written |= {_memory(one) for one in written_nodes(node)}
    return False


def _memory(node: fx.Node) -> int | None:
    """Which memory a tensor lies in; None for what is no tensor."""
    value = tensor_value(node)
    return None if value is None else storage_key(value)


def _fills_its_memory(x: Tensor) -> bool:
    """Whether a tensor is contiguous, and all of its memory: then it lies so everywhere."""
    sizes = [size_hint(size) for size in x.shape]
    strides = [size_hint(stride) for stride in x.stride()]
    expected = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size is None or (size != 1 and stride != expected):
            return False
        expected *= size
    held = size_hint(x.untyped_storage().nbytes())
    return held is not None and held <= expected * x.element_size()


def _is_outside(node: fx.Node, x: Tensor) -> bool:
    """Whether a call reads behind the memory there is; where sizes vary nobody knows."""
    at = 2 if op_name(node) == "as_strided_scatter" else 1
    sizes, strides = argument(node, at, "size"), argument(node, at + 1, "stride")
    offset = argument(node, at + 2, "storage_offset")
    offset = x.storage_offset() if offset is None else offset
    held = x.untyped_storage().nbytes()
    if not isinstance(sizes, (tuple, list)) or not isinstance(strides, (tuple, list)):
        return False
    if not all(isinstance(one, int) for one in (*sizes, *strides, offset, held)) or 0 in sizes:
        return False
    last = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    return bool((last + 1) * x.element_size() > held)
