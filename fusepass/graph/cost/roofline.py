"""What a stretch of a graph costs: a roofline estimate, against asking the host which arm to run.

Coarse on purpose. It decides one thing: whether running an arm that may not be needed is cheaper
than waiting for the host. What is outside the stretch is left out, though Inductor would fuse some
of the work with it: the estimate is rather too high, and so rather too careful.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import torch
from torch import fx

from fusepass.graph.dataflow.effects import written_nodes
from fusepass.graph.dataflow.memory import elements, memories, size, stored_bytes, tensors_of
from fusepass.graph.ops.op_names import argument, op_name, tensor_value
from fusepass.tune.device.peaks import peaks_of

# --- Floating-point operations --------------------------------------------------------------------
# Products of matrices, convolutions and attention have some. Everything else is bound by the memory
# that it reads and writes.

# The left operand of a product, whose last dimension is summed over: its position and keywords.
_CONTRACTED: dict[str | None, tuple[int, tuple[str, ...]]] = {
    **dict.fromkeys("mm bmm mv matmul linear dot vdot inner".split(), (0, ("input", "self"))),
    "addmm": (1, ("mat1",)),
    "addmv": (1, ("mat",)),
    "baddbmm": (1, ("batch1",)),
}


def flops(node: fx.Node) -> float:
    """Floating-point operations of one call, a multiplication and an addition counting as two."""
    name, result = op_name(node), tensor_value(node)
    if result is None:
        found = tensors_of(node)
        if name not in _FORMULAS or not found:
            return 0.0
        result = found[0]
    if name in _CONTRACTED:
        left = _operand(node, *_CONTRACTED[name])
        if left is None:
            return 0.0
        return 2.0 * elements(result) * (size(left.shape[-1]) if left.dim() else 1)
    return _FORMULAS[name](node, result) if name in _FORMULAS else 0.0


def _operand(node: fx.Node, position: int, keywords: tuple[str, ...]) -> torch.Tensor | None:
    if len(node.args) > position:
        return tensor_value(node.args[position])
    return next((tensor_value(node.kwargs[k]) for k in keywords if k in node.kwargs), None)


def _addbmm(node: fx.Node, result: torch.Tensor) -> float:
    """Products of a batch, summed over the batch too."""
    left = _operand(node, 1, ("batch1",))
    return 0.0 if left is None else 2.0 * elements(left) * size(result.shape[-1])


def _convolution(node: fx.Node, result: torch.Tensor) -> float:
    """Each output element takes the weights of its output channel."""
    weight = tensor_value(argument(node, 1, "weight"))
    if weight is None:
        return 0.0
    return 2.0 * elements(result) * elements(weight) / max(1, size(weight.shape[0]))


def _transposed_convolution(node: fx.Node, result: torch.Tensor) -> float:
    """Each input element takes the weights of its input channel."""
    source = tensor_value(argument(node, 0, "input"))
    weight = tensor_value(argument(node, 1, "weight"))
    if source is None or weight is None:
        return 0.0
    return 2.0 * elements(source) * elements(weight) / max(1, size(weight.shape[0]))


def _attention(node: fx.Node, result: torch.Tensor) -> float:
    """Scores of each query with each key, then the weighted values."""
    query = tensor_value(argument(node, 0, "query"))
    key = tensor_value(argument(node, 1, "key"))
    if query is None or key is None:
        return 0.0
    keys, inner = size(key.shape[-2]), size(query.shape[-1])
    rows = elements(result) / max(1, size(result.shape[-1]))
    return 2.0 * rows * keys * (inner + size(result.shape[-1]))


def _bilinear(node: fx.Node, result: torch.Tensor) -> float:
    weight = tensor_value(argument(node, 2, "weight"))
    if weight is None:
        return 0.0
    return 2.0 * elements(result) * elements(weight) / max(1, size(weight.shape[0]))


def _contraction(node: fx.Node, result: torch.Tensor) -> float:
    """FLOPs of a contraction: |a| |b| / |result| is the summed size, squared, without batches."""
    operands = [v for arg in node.all_input_nodes for v in tensors_of(arg)]
    if not operands or not elements(result):
        return 0.0
    first, last = elements(operands[0]), elements(operands[-1])
    return 2.0 * elements(result) * math.sqrt(first * last / elements(result))


def _einsum(node: fx.Node, result: torch.Tensor) -> float:
    """Twice the product of all sizes named; what is behind an ellipsis is in no name."""
    equation = node.args[0]
    given = node.args[1:]
    operands = list(given[0] if given and isinstance(given[0], (tuple, list)) else given)
    values = [tensor_value(operand) for operand in operands]
    if not isinstance(equation, str) or "." in equation or None in values:
        return _contraction(node, result)
    sizes: dict[str, int] = {}
    names = equation.replace(" ", "").split("->")[0].split(",")
    for letters, value in zip(names, values, strict=False):
        shape = value.shape if value is not None else ()
        sizes.update(zip(letters, map(size, shape), strict=False))
    return 2.0 * math.prod(sizes.values())


def _distances(node: fx.Node, result: torch.Tensor) -> float:
    points = tensor_value(argument(node, 0, "x1"))
    return 0.0 if points is None else 3.0 * elements(result) * size(points.shape[-1])


_FORMULAS: dict[str | None, Callable[[fx.Node, torch.Tensor], float]] = {
    **{f"conv{n}d": _convolution for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": _transposed_convolution for n in (1, 2, 3)},
    "convolution": _convolution,
    "scaled_dot_product_attention": _attention,
    "addbmm": _addbmm,
    "bilinear": _bilinear,
    "tensordot": _contraction,
    "einsum": _einsum,
    "cdist": _distances,
}


# --- Kernels --------------------------------------------------------------------------------------
# Which kernels a stretch of a graph becomes: a model of how Inductor fuses, coarse and cheap.
# - Views are free.
# - Pointwise calls that read one another become one kernel, which reads each operand from memory
#   once and writes what somebody else needs.
# - A reduction or normalisation joins the pointwise work it reads, and ends that kernel.
# - Products of matrices, convolutions, attention, sorts, scans and operators that are not torch's
#   are kernels of their own.

_REDUCTIONS = frozenset(
    """_log_softmax _softmax all amax amin aminmax any argmax argmin batch_norm cosine_similarity
    count_nonzero cross_entropy dist group_norm huber_loss instance_norm kl_div l1_loss layer_norm
    linalg_vector_norm log_softmax logsumexp max mean min mse_loss nanmean nansum native_layer_norm
    nll_loss norm normalize pdist prod rms_norm smooth_l1_loss softmax softmin std std_mean sum var
    var_mean vector_norm""".split()
)
# Kernels of their own, and how many times each goes over its operands.
_PASSES = {
    **dict.fromkeys("sort argsort msort median nanmedian unique".split(), 8),
    **dict.fromkeys("topk kthvalue mode".split(), 4),
    **dict.fromkeys("cumsum cumprod cummax cummin logcumsumexp".split(), 2),
}
Pair = tuple[fx.Node, fx.Node]


@dataclass
class KernelCost:
    """One kernel.

    Attributes:
        device: where it runs.
        flops: floating-point operations that count; 0 for what memory bounds.
        half_flops_only: whether they are on 16-bit numbers.
        moved: bytes read and written.
        passes: how often it goes over them.
        trained: whether a backward goes through it.
    """

    device: torch.device
    flops: float = 0.0
    half_flops_only: bool = False
    moved: int = 0
    passes: int = 1
    trained: bool = False


@dataclass
class _KernelCall:
    """A call that does work, or the select between two results."""

    results: list[torch.Tensor]
    operands: list[fx.Node]
    fuses: bool  # with the pointwise work it reads
    ends: bool  # each reader is another kernel
    node: fx.Node | None = None
    kernel: list[_KernelCall] = field(default_factory=list)
    stage: int = 0  # kernels on the longest way to it; work of two stages cannot be one kernel


def modeled_kernels(
    nodes: Sequence[fx.Node], joins: Sequence[Pair] = (), outputs: Iterable[fx.Node] = ()
) -> list[KernelCost]:
    """The kernels of ``nodes``, in order.

    Between the values of each pair in ``joins`` one is selected afterwards; ``outputs`` are read
    later.
    """
    inside = set(nodes)
    views = set(filter(_is_view, inside))
    calls: dict[fx.Node, _KernelCall] = {}
    for node in nodes:
        if node.op.startswith("call_") and tensors_of(node) and node not in views:
            calls[node] = _call(node)
    selects = (
        _KernelCall(tensors_of(a), list(dict.fromkeys((a, b))), True, False) for a, b in joins
    )
    everything = [*calls.values(), *selects]
    kernels: dict[int, list[_KernelCall]] = {}
    for call in everything:
        _assign_kernel(call, [calls[p] for p in _producers(call, views) if p in calls], kernels)
    needed = {_producer(node, views) for node in outputs}
    for node in nodes:
        if any(user not in inside for user in node.users):
            needed.add(_producer(node, views))
    readers: dict[fx.Node, list[_KernelCall]] = {}
    for call in everything:
        for producer in _producers(call, views):
            readers.setdefault(producer, []).append(call)
    return [_launch(kernel, calls, views, readers, needed) for kernel in kernels.values()]


def _call(node: fx.Node) -> _KernelCall:
    name = op_name(node)
    operands = [operand for operand in node.all_input_nodes if tensors_of(operand)]
    pure = getattr(node.target, "fusepass_pure", False)
    alone = (name is None and not pure) or name in _PASSES or flops(node) > 0
    ends = alone or name in _REDUCTIONS
    return _KernelCall(tensors_of(node), operands, not alone, ends, node)


def _assign_kernel(
    call: _KernelCall, producers: list[_KernelCall], kernels: dict[int, list[_KernelCall]]
) -> None:
    """Put a call into the kernel of what it reads, or into one of its own."""
    call.stage = max((p.stage + p.ends for p in producers), default=0)
    call.kernel = [call]
    kernels[id(call.kernel)] = call.kernel
    if not call.fuses:
        return
    for producer in producers:
        same = producer.stage == call.stage and not producer.ends and producer.fuses
        if same and producer.kernel is not call.kernel and _device(producer) == _device(call):
            merged = producer.kernel
            del kernels[id(call.kernel)]
            merged.extend(call.kernel)
            for member in call.kernel:
                member.kernel = merged
            call.kernel = merged


def _launch(
    kernel: list[_KernelCall],
    calls: dict[fx.Node, _KernelCall],
    views: set[fx.Node],
    readers: dict[fx.Node, list[_KernelCall]],
    needed: set[fx.Node],
) -> KernelCost:
    read: dict[int, int] = {}  # by memory, so that two views of one tensor are read once
    written = 0
    result = KernelCost(_device(kernel[0]))
    for call in kernel:
        for operand in call.operands:
            producer = calls.get(_producer(operand, views))
            if producer is None or producer.kernel is not kernel:
                for key, value in zip(memories([operand]), tensors_of(operand), strict=False):
                    read[key] = max(read.get(key, 0), stored_bytes(value))
        result.trained |= any(value.requires_grad for value in call.results)
        node = call.node
        others = () if node is None else readers.get(node, ())
        if (
            node is None
            or node in needed
            or not others
            or any(r.kernel is not kernel for r in others)
        ):
            written += sum(map(stored_bytes, call.results))
        if node is not None and not call.fuses:
            result.flops = flops(node)
            result.half_flops_only = call.results[0].element_size() <= 2
            result.passes = _PASSES.get(op_name(node) or "", 1)
    result.moved = sum(read.values()) + written
    return result


def _producers(call: _KernelCall, views: set[fx.Node]) -> list[fx.Node]:
    return list(dict.fromkeys(_producer(operand, views) for operand in call.operands))


def _producer(node: fx.Node, views: set[fx.Node]) -> fx.Node:
    """The call whose result a value is or is a view of; the value itself from outside.

    ``views`` are the calls of the stretch that only look at memory in another way.
    """
    while node in views:
        keys = set(memories([node]))
        node = next(n for n in node.all_input_nodes if not keys.isdisjoint(memories([n])))
    return node


def _is_view(node: fx.Node) -> bool:
    """Whether a call does nothing but look at memory of an operand in another way."""
    if node.op not in ("call_function", "call_method") or written_nodes(node):
        return False
    keys = set(memories([node]))
    return any(not keys.isdisjoint(memories([operand])) for operand in node.all_input_nodes)


def _device(call: _KernelCall) -> torch.device:
    return call.results[0].device


def microseconds(
    nodes: Sequence[fx.Node],
    *,
    joins: Sequence[Pair] = (),
    outputs: Iterable[fx.Node] = (),
    training: bool = False,
) -> float:
    """Estimated device time of running ``nodes``, in µs.

    In ``training`` the backward of what requires grad counts, too; the rest is as for
    :func:`modeled_kernels`.
    """
    found = modeled_kernels(nodes, joins, outputs)
    return 1e6 * sum(_seconds(launch, training and launch.trained) for launch in found)


def host_round_trip(device: torch.device) -> float:
    """Estimated cost of breaking the graph to read a value back, in µs."""
    return 1e6 * peaks_of(device).round_trip


def launch(device: torch.device) -> float:
    """Estimated cost of starting one kernel, in µs."""
    return 1e6 * peaks_of(device).launch


def estimates(
    arms: dict[bool, list[fx.Node]],
    pairs: Sequence[Pair],
    device: torch.device,
    *,
    training: bool = False,
    inside: Mapping[bool, float] = MappingProxyType({}),
) -> dict[str, float]:
    """What each treatment of a branch would take, in µs, for the report.

    Nobody knows which arm will be needed. ``cond`` and ``break`` are given for the one that costs
    less, so that ``where``, which runs both, is the least of them only if it does not lose
    whichever is needed. A ``cond`` waits for the host as a break does: what it saves in resuming it
    loses in fusion at its edges and in CUDA graphs. In training its backward asks again.
    ``inside`` is what branches in each arm take whose nodes are not given, in µs.

    Returns:
        ``where``: both arms and the select; ``cond``: a host round trip and one arm; ``break``: the
        same, and writing and reading again what could have been fused with the code after it.
    """
    both = microseconds([*arms[True], *arms[False]], joins=pairs, training=training)
    both += sum(inside.values())
    one = min(
        microseconds(arms[side], outputs=[p[not side] for p in pairs], training=training)
        + inside.get(side, 0.0)
        for side in (True, False)
    )
    trip = host_round_trip(device)
    left = sum(stored_bytes(value) for pair in pairs for value in tensors_of(pair[0]))
    lost = 1e6 * 2 * left / peaks_of(device).bandwidth
    return {
        "where": round(both, 2),
        "cond": round(trip * (2 if training else 1) + one, 2),
        "break": round(trip + one + lost, 2),
    }


def _seconds(launch: KernelCost, training: bool) -> float:
    """The slower of operations and bytes; a backward takes twice as many of either.

    The backward of a product is two products, other backwards are one kernel that reads the
    gradient and what was saved.
    """
    peaks = peaks_of(launch.device)
    rate = peaks.flops16 if launch.half_flops_only else peaks.flops32
    work = max(launch.flops / rate, launch.passes * launch.moved / peaks.bandwidth)
    forward = peaks.launch * launch.passes + work
    backward = peaks.launch * (2 if launch.flops else 1) + 2 * work
    return forward + backward if training else forward
