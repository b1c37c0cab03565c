"""How much memory an arm keeps for its backward, and when that is too much to run it unneeded.

An upper bound: whatever a backward reads is taken for kept, though Inductor computes cheap values
again. Only memory the arm itself allocates counts; what was there before is there anyway.
"""

from __future__ import annotations

import operator

from torch import fx

from fusepass.graph.dataflow.memory import memories, stored_bytes, tensors_of
from fusepass.graph.ops.op_names import argument, op_name, tensor_value, where_parts
from fusepass.options import Options
from fusepass.tune.device.peaks import memory_of_device

LEAST_BOUND = 64 << 20  # bytes
SHARE_OF_MEMORY = 0.02

# Their backward reads no operand and no result, only the gradient (and shapes, which are free).
_NOTHING = frozenset(
    """add arange avg_pool1d avg_pool2d avg_pool3d bfloat16 cat clone constant_pad_nd contiguous
    copy cumsum deg2rad double dstack empty empty_like fill flip float full full_like half hstack
    imag mean neg ones ones_like pad positive rad2deg real repeat roll rsub stack sub sum tile to
    tril triu type type_as vstack zero zeros zeros_like""".split()
)
# Their backward reads the result.
_RESULT = frozenset(
    """exp exp2 expm1 sigmoid tanh sqrt rsqrt reciprocal relu softmax _softmax softmin
    log_softmax _log_softmax cumprod""".split()
)
# Their backward reads operands, not the result.
_OPERANDS = frozenset(
    """abs asin acos atan clamp clamp_max clamp_min cos cosh erf gelu hardsigmoid hardswish hardtanh
    log log10 log1p log2 logit maximum mish minimum relu6 sigmoid_backward silu sin sinc sinh
    softplus softsign square xlogy""".split()
)
# Linear in each operand: the backward reads one only where another requires grad.
_PRODUCTS = frozenset("mul matmul mm bmm mv dot inner outer linear addmm baddbmm einsum".split())


def saved_bytes(nodes: list[fx.Node]) -> int:
    """Bytes the nodes allocate and a backward keeps, at most.

    What does not require grad keeps nothing.
    """
    inside = set(nodes)
    older = {
        key
        for node in nodes
        for operand in node.all_input_nodes
        if operand not in inside
        for key in memories([operand])
    }
    kept: dict[int, int] = {}
    for node in nodes:
        for held in values_saved_for_backward(node):
            for key, value in zip(memories([held]), tensors_of(held), strict=False):
                if key not in older:
                    kept[key] = max(kept.get(key, 0), stored_bytes(value))
    return sum(kept.values())


def saved_bytes_limit(options: Options, device_memory: int) -> int:
    """What an arm may keep: the option, or the larger of 64 MiB and 2 % of the device's memory."""
    if options.max_saved_bytes is not None:
        return options.max_saved_bytes
    return max(LEAST_BOUND, int(SHARE_OF_MEMORY * device_memory))


def memory_excess(arms: dict[bool, list[fx.Node]], options: Options) -> str | None:
    """Why running both arms would take too much memory in training, or None.

    Either arm may turn out to be the one that was not needed, so each has to keep to the bound.
    """
    for nodes in arms.values():
        saved = saved_bytes(nodes)
        if not saved:
            continue
        device = next(value.device for node in nodes for value in tensors_of(node))
        bound = saved_bytes_limit(options, memory_of_device(device))
        if saved > bound:
            return (
                f"an arm would keep {saved / 2**20:.1f} MiB for its backward whether it is needed "
                f"or not, and {bound / 2**20:.1f} MiB are allowed (max_saved_bytes)"
            )
    return None


def values_saved_for_backward(node: fx.Node) -> list[fx.Node]:
    """The values the backward of a call reads: some operands, or the call itself; at most."""
    results = tensors_of(node)
    calls = node.op in ("call_function", "call_method", "call_module")
    if not calls or not any(value.requires_grad for value in results):
        return []
    name = (op_name(node) or "").rstrip("_")
    if name in _NOTHING:
        return []
    if name in _RESULT:
        return [node]
    operands = [n for n in node.all_input_nodes if tensors_of(n)]
    parts = where_parts(node)
    if parts is not None or getattr(node.target, "fusepass_pure", False):
        condition = parts[0] if parts is not None else node.args[0]
        return [n for n in operands if n is condition]
    if name == "masked_fill":
        return [n for n in operands if n is argument(node, 1, "mask")]
    if name == "index_select":
        return [n for n in operands if n is argument(node, 2, "index")]
    if node.target is operator.getitem and tensor_value(node.args[0]) is None:
        return []  # one of several results
    if name in _OPERANDS:
        return operands
    if name in _PRODUCTS:
        trained = [n for n in operands if any(value.requires_grad for value in tensors_of(n))]
        if name in ("addmm", "baddbmm"):  # what is added is not multiplied
            operands = operands[1:]
        twice = len(operands) == 1 and not _has_scalar(node)  # x * x
        return [n for n in operands if twice or any(other is not n for other in trained)]
    everything = set(memories([node]))
    is_view = any(not everything.isdisjoint(memories([n])) for n in operands)
    return [] if is_view else [*operands, node]


def _has_scalar(node: fx.Node) -> bool:
    return any(
        isinstance(arg, (int, float, complex)) for arg in (*node.args, *node.kwargs.values())
    )
