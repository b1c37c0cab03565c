"""Which kernels a stretch of a graph becomes: a model of how Inductor fuses, coarse and cheap.

- Views are free.
- Pointwise calls that read one another become one kernel, which reads each operand from memory
  once and writes what somebody else needs.
- A reduction or normalisation joins the pointwise work it reads, and ends that kernel.
- Products of matrices, convolutions, attention, sorts, scans and operators that are not torch's are
  kernels of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import fx

from fusepass.graph.cost.flops import flops
from fusepass.graph.dataflow.effects import written_nodes
from fusepass.graph.dataflow.fake_sizes import stored_bytes, tensors_of
from fusepass.graph.dataflow.memory import memories
from fusepass.graph.ops.op_names import op_name

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
        half: whether they are on 16-bit numbers.
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

    Args:
        nodes: calls in the order of the graph.
        joins: pairs of values between which one is selected afterwards.
        outputs: values somebody reads later; where nothing reads a value, somebody will.
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
