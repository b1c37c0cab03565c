"""Many independent pointwise computations as one operation, and one launch.

    ``fusepass::horizontal(operands, program) -> results``
    ``fusepass::horizontal_into(results, operands, program)``

``program`` is the text of a :class:`fusepass.fusion.kernel_ir.pointwise_program.PointwiseProgram`;
``operands`` are those of its first member, then those of the second, and so on, and so are results.
Those of a member have the shape and strides of its first ``full`` operand; all its ``full``
operands have one shape and order in memory, without gaps. Numbers are fp32, bf16, fp16 or bool,
arithmetic is in fp32. What the second form writes may be a ``full`` operand of the same member, and
of no other.

The operators compute their reference on any device but CUDA's, where they launch the kernel of
``horizontal_source.py``: one launch for up to 512 members. Under Inductor they become a call of
what :func:`make_launcher` gives. Results that only library calls read are in memory that is kept
from call to call (``workspace.py``), others in memory that Inductor plans.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fusepass.fusion.extern_calls import stays_inside
from fusepass.fusion.kernel_ir.epilogue import Epilogue, evaluate
from fusepass.fusion.kernel_ir.pointwise_program import PointwiseProgram, parse
from fusepass.kernels.pointwise.horizontal_launch import (
    ProgramPlan,
    launch,
    make_launcher,
    make_launcher_into,
    plan_of,
    sizes_of,
)
from fusepass.torch_private.inductor.host_call import HostCall, lower_to_host_call
from fusepass.torch_private.inductor.kernel_call import kernel_calls_possible

# --- reference ------------------------------------------------------------------------------------


def reference(operands: Sequence[Tensor], program: PointwiseProgram) -> list[Tensor]:
    """The results in plain PyTorch, member by member."""
    results = []
    for body, given in _members(operands, program):
        like = given[[operand.kind for operand in body.operands].index("full")]
        for made in evaluate(body, [], given):
            kept = torch.empty_strided(
                like.shape, like.stride(), dtype=made.dtype, device=made.device
            )
            results.append(kept.copy_(made.expand(like.shape)))
    return results


def _members(
    operands: Sequence[Tensor], program: PointwiseProgram
) -> list[tuple[Epilogue, Sequence[Tensor]]]:
    starts = program.starts
    if len(operands) != starts[-1]:
        raise ValueError(f"{len(operands)} operands for members that read {starts[-1]}")
    return [
        (program.bodies[body], operands[starts[i] : starts[i + 1]])
        for i, body in enumerate(program.members)
    ]


# --- operators ------------------------------------------------------------------------------------

_library = torch.library.Library("fusepass", "FRAGMENT")
_library.define(
    "horizontal(Tensor[] operands, str program) -> Tensor[]",
    tags=(torch.Tag.needs_exact_strides,),
)
_library.define(
    "horizontal_into(Tensor(a!)[] results, Tensor[] operands, str program) -> ()",
    tags=(torch.Tag.needs_exact_strides,),
)


def on_any_device(operands: Sequence[Tensor], program: str) -> list[Tensor]:
    """The reference, with the operator's arguments."""
    return reference(operands, parse(program))


def into_on_any_device(results: Sequence[Tensor], operands: Sequence[Tensor], program: str) -> None:
    """The reference, written where the results are to be."""
    for one, made in zip(results, reference(operands, parse(program)), strict=True):
        one.copy_(made)


def _into_on_cuda(results: Sequence[Tensor], operands: Sequence[Tensor], program: str) -> None:
    shapes, columns = sizes_of(operands, plan_of(program))
    device = operands[0].device.index
    with torch.cuda.device(device):
        make_launcher_into(program, shapes, columns, device)(*operands, *results)


def _fake(operands: Sequence[Tensor], program: str) -> list[Tensor]:
    return [
        operands[0].new_empty_strided(shape, strides, dtype=dtype)
        for dtype, shape, strides in _kinds(operands, plan_of(program))
    ]


def _kinds(
    operands: Sequence[Tensor], plan: ProgramPlan
) -> list[tuple[torch.dtype, torch.Size, tuple[int, ...]]]:
    """Dtype, shape and strides of each result."""
    likes = [operands[plan.likes[member]] for member in plan.of]
    return [
        (dtype, like.shape, like.stride()) for dtype, like in zip(plan.dtypes, likes, strict=True)
    ]


_library.impl("horizontal", on_any_device, "CompositeExplicitAutograd")
_library.impl("horizontal", launch, "CUDA")
torch.library.register_fake("fusepass::horizontal", _fake, lib=_library)
_library.impl("horizontal_into", into_on_any_device, "CompositeExplicitAutograd")
_library.impl("horizontal_into", _into_on_cuda, "CUDA")
torch.library.register_fake("fusepass::horizontal_into", lambda *given: None, lib=_library)
OPERATOR = torch.ops.fusepass.horizontal.default
INTO = torch.ops.fusepass.horizontal_into.default


def _call(operands: Sequence[Tensor], program: str, own: Collection[int] = ()) -> HostCall | None:
    """What generated code calls, for fake operands; None for the operator itself.

    Args:
        operands: fakes.
        program: its text.
        own: of the results that may be the called function's.
    """
    plan = plan_of(program)
    shapes, columns = sizes_of(operands, plan)
    device = operands[0].device
    known = all(isinstance(size, int) for one in (*shapes, columns) for size in one)
    if device.type != "cuda" or not kernel_calls_possible() or not known:
        return None
    outputs = _kinds(operands, plan)
    its = [i for i in range(len(outputs)) if i in own]
    kinds = tuple((i, str(outputs[i][0]).removeprefix("torch."), outputs[i][2]) for i in its)
    given = program, shapes, columns, device.index or 0, kinds
    return HostCall(make_launcher.__module__, "make_launcher", given, outputs, returned=its)


def _call_into(
    results: Sequence[Tensor], operands: Sequence[Tensor], program: str
) -> HostCall | None:
    """Likewise, for results that are there."""
    call = _call(operands, program)
    return None if call is None else replace(call, written=len(results))


def install_lowering() -> None:
    """Tell Inductor how to compile the operators, if Inductor is loaded."""
    lower_to_host_call(OPERATOR, _call, stays_inside)
    lower_to_host_call(INTO, _call_into)
