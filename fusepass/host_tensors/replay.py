"""The calls of a chain again, on another device, where all of them give the same bits there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from fusepass.graph.dataflow.memory import memory_of, same_layout
from fusepass.graph.ops.op_names import argument, op_name, tensor_value
from fusepass.graph.ops.schemas import is_number
from fusepass.host_tensors.cpu_chain import CpuChain
from fusepass.host_tensors.exact_ops import CASTS, COMPARISONS, FACTORIES, ROUNDED, Inexact
from fusepass.host_tensors.host_constant import NotConstant, is_draw, is_literal, literal_value
from fusepass.host_tensors.value_sets import Bound, ValueSets
from fusepass.torch_private.fx.graph_constants import bounds_up_to, known_bounds
from fusepass.torch_private.fx.graphs import call_target
from fusepass.torch_private.fx.tracing import quiet_fakes

# Up to here whole numbers, their small multiples and their sums are exact in float32.
_ASSUMED_SIZE = 2**20
_NOT_CARRIED_OVER = ("device", "dtype", "pin_memory", "layout", "requires_grad")
_RANDOM_FACTORIES = frozenset(
    "rand randn randint randperm rand_like randn_like randint_like".split()
)
_TAKES_A_DEVICE = FACTORIES | _RANDOM_FACTORIES | {"linspace", "logspace"}
_RANDOM_IN_PLACE = frozenset("normal_ uniform_ random_ exponential_ bernoulli_".split())


@dataclass(frozen=True)
class DeviceCall:
    """One call on the device: which node of the chain it stands for, and how it is made."""

    stands_for: fx.Node
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass
class DeviceReplay:
    """A plan: what stands on the device for each node of a chain.

    Attributes:
        calls: in program order; their operands are nodes of the chain.
        equivalents: nodes that are, on the device, what another node is.
        literals: nodes that stand for a constant, with its value on the CPU.
        values: for each node of the chain, a fake tensor of what stands for it.
    """

    calls: list[DeviceCall] = field(default_factory=list)
    equivalents: dict[fx.Node, fx.Node] = field(default_factory=dict)
    literals: dict[fx.Node, torch.Tensor] = field(default_factory=dict)
    values: dict[fx.Node, Any] = field(default_factory=dict)


def check_exact(chain: CpuChain, dtype: torch.dtype) -> None:
    """Hold every call of a chain, and storing its result as ``dtype``, against the exact table.

    What draws random numbers is taken for exact, and so is rounding in a chain that does: nobody
    expects these bits. A symbolic size may become bounded by a guard on the way. Raises Inexact if
    a call may give other bits on another device.
    """
    try:
        _check_node(chain, dtype, known_bounds)
    except Inexact:
        if not chain.sizes:
            raise
        _check_node(chain, dtype, lambda size: bounds_up_to(size, _ASSUMED_SIZE))


def _check_node(chain: CpuChain, dtype: torch.dtype, bound: Bound) -> None:
    held = ValueSets(bound)
    drawn = False
    for node in chain.nodes:
        if is_draw(node):
            _check_draw(node)
            drawn = True
            held.forget(node)
        elif is_literal(node) and not is_one_number(node):
            held.set_from_value(node, _value(node))
        elif drawn and (op_name(node) or "").rstrip("_") in ROUNDED | CASTS | COMPARISONS:
            held.forget(node)
        else:
            held.admit(node)
    if not drawn:
        held.of(chain.wanted, dtype)


def plan_replay(chain: CpuChain, device: torch.device, fake_mode: Any) -> DeviceReplay:
    """How to make on a device what a chain makes on the CPU, tried on fake tensors.

    Raises Inexact if a call has no form for the device, or gives another shape or layout there.
    """
    made = DeviceReplay()
    for node in chain.nodes:
        if is_literal(node) and not is_one_number(node):
            made.literals[node] = _value(node)
            made.values[node] = _empty_like(made.literals[node], device, fake_mode)
            continue
        source = node.args[0] if node.args else None
        casts = op_name(node) in CASTS
        if casts and isinstance(source, fx.Node) and memory_of(source) == memory_of(node):
            made.equivalents[node] = made.equivalents.get(source, source)
            made.values[node] = made.values[source]
            continue
        call = _call_on(node, device)
        made.calls.append(call)
        made.values[node] = _fake_result(call, made, fake_mode)
    return made


def is_one_number(node: fx.Node) -> bool:
    """Whether a call makes a tensor of no dimensions of a number, or of a symbolic size."""
    data = argument(node, 0, "s" if op_name(node) == "scalar_tensor" else "data")
    if op_name(node) not in ("tensor", "as_tensor", "asarray", "scalar_tensor"):
        return False
    return is_number(data)


def _call_on(node: fx.Node, device: torch.device) -> DeviceCall:
    name, value = op_name(node) or "", tensor_value(node)
    kwargs = {k: v for k, v in node.kwargs.items() if k not in _NOT_CARRIED_OVER}
    if is_one_number(node) and value is not None:
        number = argument(node, 0, "s" if name == "scalar_tensor" else "data")
        return DeviceCall(node, torch.full, ((), number), {"dtype": value.dtype, "device": device})
    if name in _TAKES_A_DEVICE and value is not None:
        return DeviceCall(
            node, node.target, node.args, kwargs | {"dtype": value.dtype, "device": device}
        )
    if (name in CASTS or name == "tensor") and value is not None:
        layout = {k: v for k, v in kwargs.items() if k == "memory_format"}
        source = tensor_value(node.args[0])
        if source is not None and source.dtype is not value.dtype:
            return DeviceCall(node, "to", (node.args[0], value.dtype), layout)
        if name == "contiguous":
            return DeviceCall(node, "contiguous", node.args, layout)
        return DeviceCall(node, "clone", (node.args[0],), layout)
    if "device" in node.kwargs:
        raise Inexact(f"{name} is given a device")
    return DeviceCall(node, node.target, node.args, dict(node.kwargs))


def _check_draw(node: fx.Node) -> None:
    name = op_name(node)
    if name not in _RANDOM_FACTORIES and name not in _RANDOM_IN_PLACE:
        raise Inexact(f"{name} is not among the draws that can be made elsewhere")
    if node.kwargs.get("generator") is not None:
        raise Inexact(f"{name} draws from a generator of its own")


def _value(node: fx.Node) -> torch.Tensor:
    try:
        return literal_value(node)
    except NotConstant as reason:
        raise Inexact(str(reason)) from reason


def _fake_result(call: DeviceCall, made: DeviceReplay, fake_mode: Any) -> Any:
    """What a call gives on fake tensors; it must be what it gives on the CPU but for the device."""

    def fake(node: fx.Node) -> Any:
        return made.values[node] if node in made.values else node.meta["example_value"]

    name = op_name(call.stands_for)
    args, kwargs = fx.map_arg(call.args, fake), fx.map_arg(call.kwargs, fake)
    try:
        with fake_mode, torch.no_grad(), quiet_fakes():
            found = call_target(call.target, args, kwargs)
    except Exception as error:
        raise Inexact(f"{name} does not run there ({type(error).__name__})") from error
    expected = tensor_value(call.stands_for)
    if expected is not None and not same_layout(found, expected):
        raise Inexact(f"{name} gives another shape or layout there")
    return found


def _empty_like(value: torch.Tensor, device: torch.device, fake_mode: Any) -> torch.Tensor:
    with fake_mode, torch.no_grad():
        return torch.empty_strided(
            tuple(value.shape), value.stride(), dtype=value.dtype, device=device
        )
