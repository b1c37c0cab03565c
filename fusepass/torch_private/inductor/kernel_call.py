"""Lower an operator to one launch of a Triton kernel. Run on 2.11."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch._inductor
from torch import fx

from fusepass.torch_private.inductor.host_call import HostCall, can_be_written, written
from fusepass.torch_private.inductor.lowering import expression
from fusepass.torch_private.versions import TESTED_TORCH, torch_version


@dataclass(frozen=True)
class KernelCall:
    """One launch.

    Attributes:
        kernel: of Triton, with its one configuration.
        count: programs to start, maybe symbolic.
        outputs: dtype and shape of each, of two dimensions and contiguous.
        arguments: called with what stands for inputs and outputs, gives the kernel's by name.
    """

    kernel: Any
    count: Any
    outputs: Sequence[tuple[torch.dtype, tuple[Any, Any]]]
    arguments: Callable[[Sequence[Any], Sequence[Any]], dict[str, Any]]


_TESTED = ((2, 11),)  # of torch: where the tests of tests/gpu were run on a device


def kernel_calls_tested() -> bool:
    """Whether launches in Inductor's code were tested on a device with this version of torch."""
    return torch_version() in _TESTED


def kernel_calls_possible() -> bool:
    """Whether Inductor's code with launches was looked at with this version, if without a device.

    Where they were not tested on one each launch is to be tried before it is used; see
    ``inductor/device_proof.py``.
    """
    low, high = TESTED_TORCH
    return low <= torch_version() <= high


Plan = Callable[[Sequence[torch.Tensor], int, str, str], KernelCall | HostCall | None]


def lower_to_kernel(operator: Any, plan: Plan) -> None:
    """Compile ``operator(x, weights, operands, epilogue, tile)`` to a launch of the planned kernel.

    The launch stands in the generated code with the kernel's text, as one of the user's own Triton
    kernels would: nothing of ours is called, and Inductor plans the memory of its outputs. A plan
    may name a function of ours to be called instead.

    Args:
        operator: an overload of that signature.
        plan: given fake tensors, the number of weights, the epilogue and the tile, says what to
            launch, or None to leave the call to the operator.
    """
    if "torch._inductor.lowering" not in sys.modules:
        return
    from torch._higher_order_ops.triton_kernel_wrap import (
        kernel_side_table,
        triton_kernel_wrapper_mutation,
    )
    from torch._inductor import ir, lowering
    from torch._inductor.virtualized import V

    if getattr(lowering.lowerings.get(operator), "fusepass_plan", None) is plan:
        return
    leave = lowering.fallback_handler(operator, add_to_fallback_set=False)

    def lower(x: Any, weights: Any, operands: Any, epilogue: str, tile: str) -> Any:
        node = V.graph.current_node
        args: Any = node.args
        given = [args[0], *args[1], *args[2]]
        fakes = [value.meta["val"] if isinstance(value, fx.Node) else value for value in given]
        call, device = plan(fakes, len(weights), epilogue, tile), fakes[0].device
        if call is None or V.graph.cpp_wrapper:
            return leave(x, weights, operands, epilogue, tile)
        if isinstance(call, HostCall):
            if not can_be_written():
                return leave(x, weights, operands, epilogue, tile)
            return written(call, list(zip(fakes, [x, *weights, *operands], strict=True)))
        tensors = [
            ir.ExternKernel.require_exact_strides(value, [expression(s) for s in fake.stride()])
            for value, fake in zip([x, *weights, *operands], fakes, strict=True)
        ]
        empty = lowering.lowerings[torch.ops.aten.empty_strided.default]
        outputs = [
            empty([*map(expression, shape)], [expression(shape[1]), 1], dtype=dtype, device=device)
            for dtype, shape in call.outputs
        ]
        arguments = {k: expression(v) for k, v in call.arguments(tensors, outputs).items()}
        numbers = {k: v for k, v in arguments.items() if not isinstance(v, ir.IRNode)}
        lowering.lowerings[triton_kernel_wrapper_mutation](
            kernel_idx=kernel_side_table.add_kernel(call.kernel),
            constant_args_idx=kernel_side_table.add_constant_args(numbers),
            grid=[(expression(call.count), 1, 1)],
            tma_descriptor_metadata={},
            kwargs={k: v for k, v in arguments.items() if k not in numbers},
        )
        return outputs

    lowering.register_lowering(operator, type_promotion_kind=None)(lower)
    vars(lowering.lowerings[operator])["fusepass_plan"] = plan
