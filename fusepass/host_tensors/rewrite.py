"""Replace CPU tensors of a graph by calls on the device, or by constants uploaded once."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from fusepass.capture.nodes.select_node import ARM
from fusepass.graph.ops.op_names import tensor_value
from fusepass.host_tensors.cpu_chain import CpuChain
from fusepass.host_tensors.replay import DeviceReplay
from fusepass.torch_private.fx.graph_constants import add_constant, as_int

# Meta key of the node of a constant, as graph/dataflow/constant_folding.py reads it
_VALUE = "fusepass_constant"
_DEVICE_NODES = (
    "fusepass_on_device"  # meta key on a CPU node: device to the node that stands for it there
)
_NAME = "host_constant_"
_NOT_COPIED = ("example_value", _VALUE, _DEVICE_NODES, ARM)


def insert_calls(
    gm: fx.GraphModule, chain: CpuChain, made: DeviceReplay, reader: fx.Node, *, shared: bool
) -> fx.Node:
    """Insert what a plan says in front of the reader.

    With ``shared``, what stands on the device for one of the nodes already serves again.
    """
    calls = {call.stands_for: call for call in made.calls}
    env: dict[fx.Node, fx.Node] = {}

    def on_device(node: fx.Node) -> fx.Node:
        return env.get(node, node)

    for node in chain.nodes:
        fake = made.values[node]
        if node in made.equivalents:
            env[node] = env[made.equivalents[node]]
        elif node in made.literals:
            env[node] = insert_constant(gm, made.literals[node], fake, reader)
            if chain.written:
                env[node] = _insert(gm.graph, "clone", (env[node],), {}, (node, reader, fake))
        else:
            call, device = calls[node], getattr(fake, "device", None)
            twin = node.meta.get(_DEVICE_NODES, {}).get(device)
            if shared and twin is not None and twin.meta.get(ARM) in (None, reader.meta.get(ARM)):
                env[node] = twin
                continue
            args, kwargs = fx.map_arg(call.args, on_device), fx.map_arg(call.kwargs, on_device)
            env[node] = _insert(gm.graph, call.target, args, kwargs, (node, reader, fake))
            node.meta.setdefault(_DEVICE_NODES, {})[device] = env[node]
    return env[chain.wanted]


def insert_constant(
    gm: fx.GraphModule, value: torch.Tensor, fake: torch.Tensor, reader: fx.Node
) -> fx.Node:
    """A node that holds a CPU tensor on the device and in the layout of ``fake``.

    Equal constants are one.
    """
    graph = gm.graph
    held: list[fx.Node] = [n for n in graph.find_nodes(op="get_attr") if _VALUE in n.meta]
    laid_out = _with_layout(value, fake)
    for node in held:
        if _equal(node, laid_out, fake):
            return node
    name = f"{_NAME}{len(held)}"
    add_constant(gm, name, upload(laid_out, fake.device))
    first = next(node for node in graph.nodes if node.op != "placeholder")
    with graph.inserting_before(first):
        node = graph.get_attr(name)
    _describe(node, reader, node, fake)  # outside every arm, so that all may read it
    node.meta[_VALUE] = (laid_out, None)
    return node


def insert_copy(
    graph: fx.Graph, source: fx.Node, reader: fx.Node, layout: dict[str, Any]
) -> fx.Node:
    """A copy of a tensor of the device, which stands for what the reader hands out."""
    fake = tensor_value(reader)
    assert fake is not None
    kwargs = {**layout, "dtype": fake.dtype, "copy": True}
    return _insert(graph, "to", (source,), kwargs, (reader, reader, fake))


def upload(value: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A CPU tensor on a device, strides as they are."""
    with torch.inference_mode(False), torch.no_grad():
        return value.to(device)


def constant_bytes(graph: fx.Graph) -> int:
    """Memory of the constants that were put into a graph."""
    return sum(
        n.meta[_VALUE][0].untyped_storage().nbytes()
        for n in graph.find_nodes(op="get_attr")
        if _VALUE in n.meta
    )


def _with_layout(value: torch.Tensor, fake: torch.Tensor) -> torch.Tensor:
    """A CPU tensor in the dtype and with the strides of a fake one."""
    with torch.inference_mode(False), torch.no_grad():
        shape, stride = value.shape, [as_int(n) or 0 for n in fake.stride()]
        return torch.empty_strided(shape, stride, dtype=fake.dtype, device="cpu").copy_(value)


def _equal(node: fx.Node, value: torch.Tensor, fake: torch.Tensor) -> bool:
    """Whether a constant has the same bits, layout and device."""
    constant, held = tensor_value(node), node.meta[_VALUE][0]
    if constant is None or (constant.device, constant.dtype) != (fake.device, fake.dtype):
        return False
    if held.shape != value.shape or held.stride() != value.stride():
        return False
    ours, theirs = (v.contiguous().reshape(-1).view(torch.uint8) for v in (held, value))
    return torch.equal(ours, theirs)


def _insert(
    graph: fx.Graph,
    target: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    described: tuple[fx.Node, fx.Node, Any],
) -> fx.Node:
    like, reader, fake = described
    with graph.inserting_before(reader):
        if callable(target):
            node = graph.call_function(target, args, kwargs)
        else:
            node = graph.call_method(target, args, kwargs)
    _describe(node, like, reader, fake)
    return node


def _describe(node: fx.Node, like: fx.Node, reader: fx.Node, value: Any) -> None:
    node.meta.update({k: v for k, v in like.meta.items() if k not in _NOT_COPIED})
    if ARM in reader.meta:
        node.meta[ARM] = reader.meta[ARM]
    node.meta["example_value"] = value
