"""Try each call of our kernels on a device or torch version they were not tested with.

Around a kernel stands code that Inductor generates, and behind it a compiler; both change from
release to release of torch. Where ours have been run on a device with the release that is there
(``kernel_call.kernel_calls_tested``) nothing is tried. Elsewhere each new call is compiled by
Inductor alone, as it will be in its graph, called on random inputs of its sizes and strides, and
compared with the operator's reference. What came out is remembered in the table of choices.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from fusepass.errors import CandidateFailed
from fusepass.fusion.kernel_ir.epilogue import parse
from fusepass.kernels.conv import cudnn, depthwise, implicit_gemm
from fusepass.kernels.gemm import normed_gemms, op, sibling_gemms
from fusepass.kernels.gemm.baseline import reduce_partial_results
from fusepass.kernels.pointwise import horizontal, pool
from fusepass.numerics import agree
from fusepass.options import Options
from fusepass.report.decision import Reason, in_short
from fusepass.report.version import VERSION
from fusepass.rewrite.apply.graph_rule_driver import innermost_first
from fusepass.rewrite.rule import Reject
from fusepass.torch_private.dynamo.compile_state import is_control_flow
from fusepass.torch_private.fx.graphs import size_hint
from fusepass.torch_private.inductor import kernel_call, lowering
from fusepass.tune.decide import table_for
from fusepass.tune.problems.base import REFERENCE
from fusepass.tune.table import ChoiceEntry

HOLDS, FAILS = "holds", "fails"
_SCALE = 0.25  # of random numbers: sums of thousands of products stay within fp16
_SEED = 2026
_DEVICES = ("cuda",)  # elsewhere stand references only
_COPIES = 8  # of the operands, in memory: in single precision, and results


@dataclass(frozen=True)
class _ComparedKernel:
    """What is compared.

    Attributes:
        reference: called as the operator is, computes the same in torch.
        complete: of all that a call gives, and its arguments, what is compared.
    """

    reference: Callable[..., Any]
    complete: Callable[..., Sequence[Tensor]] = lambda made, *given: made


def _sum_partial_results(made: Sequence[Tensor], *given: Any) -> Sequence[Tensor]:
    """Reduced outputs come in parts, of which only the whole is anything."""
    return reduce_partial_results(parse(given[3]), list(made))


@functools.cache
def _compared_kernels() -> dict[Any, _ComparedKernel]:
    """By operator; those whose kernel computes on CUDA tensors have their reference apart."""
    return {
        op.OPERATOR: _ComparedKernel(op.OPERATOR, _sum_partial_results),
        sibling_gemms.OPERATOR: _ComparedKernel(sibling_gemms.OPERATOR),
        normed_gemms.OPERATOR: _ComparedKernel(normed_gemms.OPERATOR),
        implicit_gemm.OPERATOR: _ComparedKernel(implicit_gemm.OPERATOR),
        cudnn.OPERATOR: _ComparedKernel(cudnn.OPERATOR),
        depthwise.OPERATOR: _ComparedKernel(depthwise.on_any_device),
        pool.OPERATOR: _ComparedKernel(pool.on_any_device),
        horizontal.OPERATOR: _ComparedKernel(horizontal.on_any_device),
        horizontal.INTO: _ComparedKernel(horizontal.into_on_any_device),
    }


def needs_proof(options: Options) -> bool:
    """Whether new calls have to be tried at all; references asked for by name need not."""
    return options.candidate != REFERENCE and not kernel_call.kernel_calls_tested()


def calls_of(gm: fx.GraphModule) -> list[fx.Node]:
    """The calls of our kernels in a graph and those nested in it."""
    return [
        node
        for part in innermost_first(gm)
        for node in part.graph.nodes
        if node.op == "call_function" and node.target in _compared_kernels()
    ]


def first_failure(calls: Sequence[fx.Node], sources: bytes) -> Reject | None:
    """Why some calls cannot stay, of which one fails; None if all work, now or by the table.

    What is found holds for these sources.
    """
    for node in calls:
        why = _failure_of(node, sources)
        if why is not None:
            text = f"with torch {torch.__version__} {node.target}: {why}"
            return Reject(Reason.UNSUPPORTED_VERSION, text, node)
    return None


def _failure_of(node: fx.Node, sources: bytes) -> str | None:
    fakes, rebuild = _tensors_of(node)
    device = fakes[0].device
    if device.type not in _DEVICES:
        return None  # the reference, asked for by name
    cuda = device.type == "cuda"
    if cuda and not torch.cuda.is_available():
        return "not tried: there is no device"
    if cuda and torch.cuda.is_current_stream_capturing():
        return "not tried: a CUDA graph is being captured"
    described = [_layout_of(one) for one in fakes]
    if None in described:
        return "not tried: a size is not known"
    shapes = [one for one in described if one is not None]
    text = repr((VERSION, str(node.target), shapes, rebuild(shapes)))
    key = f"trial {hashlib.sha256(text.encode() + sources).hexdigest()[:32]}"
    table = table_for(device)
    known = table.find(key)
    if known is not None and known.candidate in (HOLDS, FAILS):
        return None if known.candidate == HOLDS else "it failed when it was tried before"
    if cuda and _COPIES * sum(one.numbers * one.dtype.itemsize for one in shapes) > _free_memory(
        device
    ):
        return "not tried: too little memory is free"
    try:
        works = _matches_reference(node.target, shapes, rebuild, device)
        problem = "its numbers are not those of its reference"
    except Exception as error:
        if is_control_flow(error):
            raise
        works, problem = False, in_short(error)
    table.add(key, ChoiceEntry(HOLDS if works else FAILS, {}))
    if works:
        return None
    warnings.warn(CandidateFailed(str(node.target), problem), stacklevel=2)
    return problem


@dataclass(frozen=True)
class _TensorLayout:
    """A tensor's dtype and where its numbers lie; ``numbers`` counts its memory's."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def numbers(self) -> int:
        if 0 in self.shape:
            return 0
        steps = zip(self.shape, self.strides, strict=True)
        return 1 + sum((size - 1) * stride for size, stride in steps)


def _layout_of(fake: Tensor) -> _TensorLayout | None:
    sizes, strides = ([size_hint(one) for one in many] for many in (fake.shape, fake.stride()))
    if None in sizes or None in strides:
        return None
    known = [tuple(one or 0 for one in many) for many in (sizes, strides)]
    return _TensorLayout(fake.dtype, *known)


def _tensors_of(node: fx.Node) -> tuple[list[Tensor], Callable[[Sequence[Any]], tuple[Any, ...]]]:
    """The fake tensors a call is given, and what puts others in their places."""
    nodes: list[fx.Node] = []
    fx.map_arg(node.args, nodes.append)
    tensors = [one for one in nodes if isinstance(one.meta["val"], Tensor)]

    def rebuild(others: Sequence[Any]) -> tuple[Any, ...]:
        waiting = iter(others)

        def put(one: fx.Node) -> Any:
            value = one.meta["val"]
            return next(waiting) if isinstance(value, Tensor) else size_hint(value)

        given: tuple[Any, ...] = fx.map_arg(node.args, put)
        return given

    return [one.meta["val"] for one in tensors], rebuild


def _free_memory(device: torch.device) -> int:
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def _matches_reference(
    operator: Any,
    shapes: Sequence[_TensorLayout],
    rebuild: Callable[[Sequence[Any]], tuple[Any, ...]],
    device: torch.device,
) -> bool:
    """Whether Inductor's code for a call computes what the operator's reference does."""
    known = _compared_kernels()[operator]
    writes = bool(operator._schema.is_mutable)
    plain = torch.autocast("cuda", enabled=False)
    current = torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
    with lowering.real_tensors(), plain, current:
        generator = torch.Generator(device).manual_seed(_SEED)
        tensors = [_random_tensor(one, generator) for one in shapes]

        def called(function: Callable[..., Any], *given: Tensor) -> list[Tensor]:
            args = rebuild(given)
            if not writes:
                found = function(*args)
                return [found] if isinstance(found, Tensor) else list(found)
            written = [one.clone() for one in args[0]]
            function(written, *args[1:])
            return written

        compiled = lowering.compile_region(lambda *x: called(operator, *x), tensors, {})
        given = rebuild(tensors)
        made, expected = (
            [one.contiguous() for one in known.complete(found, *given)]
            for found in (compiled(), called(known.reference, *tensors))
        )
        # Convolutions may use TF32 unless told not to; a wrong result is off by far more.
        return agree(made, expected, tf32=True)


def _random_tensor(described: _TensorLayout, generator: torch.Generator) -> Tensor:
    device = generator.device
    if described.dtype.is_floating_point:
        drawn = torch.randn(described.numbers, generator=generator, device=device) * _SCALE
    else:
        drawn = torch.randint(0, 2, (described.numbers,), generator=generator, device=device)
    return drawn.to(described.dtype).as_strided(described.shape, described.strides)
