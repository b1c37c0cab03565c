"""The value of a chain of CPU calls that depends on nothing, computed once, by eager itself."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from fusepass.graph.dataflow.effects import RANDOM_OPS
from fusepass.graph.dataflow.memory import same_layout
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.host_tensors.cpu_chain import CpuChain
from fusepass.torch_private.fx.graph_constants import as_int
from fusepass.torch_private.fx.graphs import call_target

LIMIT = 64 * 2**20  # bytes of one tensor: a mask of 4096 × 4096 float32


class NotConstant(Exception):
    """The value differs from call to call, or cannot be computed here; the text says why."""


class TooLarge(NotConstant):
    """The value, or one on the way to it, has more than ``LIMIT`` bytes."""


def is_draw(node: fx.Node) -> bool:
    """Whether a call on the CPU draws random numbers, numpy's as Dynamo traces them included."""
    name = op_name(node) or ""
    origin = getattr(getattr(node.target, "f", None), "__module__", None) or ""
    return name in RANDOM_OPS or name.removesuffix("_like") in RANDOM_OPS or "random" in origin


def is_literal(node: fx.Node) -> bool:
    """Whether a call makes a tensor of numbers that stand in the program."""
    names = ("tensor", "as_tensor", "asarray", "scalar_tensor", "new_tensor", "Tensor")
    if op_name(node) not in names:
        return False
    data = node.args[1:] if op_name(node) == "new_tensor" else node.args
    found: list[fx.Node] = []
    fx.map_arg((data, node.kwargs), found.append)
    return not found


def value_of(chain: CpuChain) -> torch.Tensor:
    """The CPU tensor that a chain ends in, as its reader would see it.

    Raises NotConstant if it depends on a symbolic size or on random numbers, a call fails, or gives
    what it did not when it was traced (under autocast); TooLarge for more than ``LIMIT`` bytes.
    """
    for node in chain.nodes:
        if is_draw(node):
            raise NotConstant(f"{op_name(node)} draws random numbers")
        _check_size(node)
    env: dict[fx.Node, Any] = {node: _number(node) for node in chain.sizes}
    with _as_in_eager():
        for node in chain.shapes:
            env[node] = _like(node)
        for node in chain.nodes:
            env[node] = _call_on_cpu(node, env)
    return env[chain.wanted]  # type: ignore[no-any-return]


def literal_value(node: fx.Node) -> torch.Tensor:
    """What a call makes of numbers on the CPU; raises NotConstant if it fails."""
    with _as_in_eager():
        env = {source: _like(source) for source in node.all_input_nodes}
        return _call_on_cpu(node, env, on_cpu=True)  # type: ignore[no-any-return]


@contextlib.contextmanager
def _as_in_eager() -> Iterator[None]:
    """Ordinary tensors on the CPU, whatever modes the program is compiled under."""
    with (
        torch.inference_mode(False),
        torch.no_grad(),
        torch.autocast("cpu", enabled=False),
        torch.device("cpu"),
    ):
        yield


def _call_on_cpu(node: fx.Node, env: dict[fx.Node, Any], on_cpu: bool = False) -> Any:
    args = fx.map_arg(node.args, env.__getitem__)
    kwargs = dict(fx.map_arg(node.kwargs, env.__getitem__))
    if on_cpu:
        kwargs["device"] = "cpu"
    try:
        found = call_target(node.target, args, kwargs)
    except Exception as error:
        raise NotConstant(f"{op_name(node)} raises {type(error).__name__}") from error
    expected = tensor_value(node)
    if expected is not None and not on_cpu and not same_layout(found, expected):
        raise NotConstant(f"{op_name(node)} gives another dtype, shape or layout than when traced")
    return found


def _check_size(node: fx.Node) -> None:
    value = node.meta.get("example_value")
    for part in value if isinstance(value, (tuple, list)) else (value,):
        if not isinstance(part, torch.Tensor):
            continue
        shape, stride = _static(node, part)
        held = [n for n, s in zip(shape, stride, strict=True) if s != 0]
        if math.prod(held) * part.element_size() > LIMIT:
            raise TooLarge(f"{node.name} has more than {LIMIT >> 20} MiB")


def _number(node: fx.Node) -> Any:
    value = node.meta["example_value"]
    parts = value if isinstance(value, (tuple, list)) else (value,)
    known = [as_int(p) if isinstance(p, torch.SymInt) else p for p in parts]
    if any(p is None or isinstance(p, (torch.SymFloat, torch.SymBool)) for p in known):
        raise NotConstant(f"{node.name} is a dynamic size")
    return type(value)(known) if isinstance(value, (tuple, list)) else known[0]


def _like(node: fx.Node) -> torch.Tensor:
    """Memory without contents in the shape of a tensor of which nothing else is read."""
    fake = tensor_value(node)
    assert fake is not None
    shape, stride = _static(node, fake)
    return torch.empty_strided(shape, stride, dtype=fake.dtype)


def _static(node: fx.Node, fake: torch.Tensor) -> tuple[list[int], list[int]]:
    shape, stride = ([*map(as_int, n)] for n in (fake.shape, fake.stride()))
    if None in shape or None in stride:
        raise NotConstant(f"{node.name} has a dynamic shape")
    return shape, stride  # type: ignore[return-value]
