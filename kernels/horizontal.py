"""Many independent element-wise computations as one operation, and one launch.

    ``fusepass::horizontal(operands, program) -> results``

``program`` is the text of a :class:`fusepass.graph.horizontal.Program`; ``operands`` are those of
its first member, then those of the second, and so on. There is one result for each member, of the
shape and strides of its first ``full`` operand; all ``full`` operands of a member have one shape
and order in memory, without gaps. Numbers are fp32, bf16, fp16 or bool, arithmetic is in fp32.

The operator computes its reference on any device but CUDA's, where it launches the kernel of
``horizontal_source.py``: one launch for up to 512 members. Under Inductor it becomes a call of what
:func:`filler` gives. Results that only library calls read are in memory that is kept from call to
call (``kept_memory.py``), others in memory that Inductor plans.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from fusepass.graph.epilogue import Epilogue, evaluate
from fusepass.graph.horizontal import Program, parse
from fusepass.graph.library_calls import stays_inside
from fusepass.kernels.horizontal_launch import filler, launch, plan_of, sizes_of
from fusepass.torch_private.host_call import HostCall, lower_to_host_call
from fusepass.torch_private.kernel_call import kernel_calls_tested

# --- reference ------------------------------------------------------------------------------------


def reference(operands: Sequence[Tensor], program: Program) -> list[Tensor]:
    """The results in plain PyTorch, member by member."""
    results = []
    for body, given in _members(operands, program):
        like = given[[operand.kind for operand in body.operands].index("full")]
        (made,) = evaluate(body, [], given)
        kept = torch.empty_strided(like.shape, like.stride(), dtype=made.dtype, device=made.device)
        results.append(kept.copy_(made.expand(like.shape)))
    return results


def _members(
    operands: Sequence[Tensor], program: Program
) -> list[tuple[Epilogue, Sequence[Tensor]]]:
    starts = program.starts
    if len(operands) != starts[-1]:
        raise ValueError(f"{len(operands)} operands for members that read {starts[-1]}")
    return [
        (program.bodies[body], operands[starts[i] : starts[i + 1]])
        for i, body in enumerate(program.members)
    ]


# --- operator -------------------------------------------------------------------------------------

_library = torch.library.Library("fusepass", "FRAGMENT")
_library.define(
    "horizontal(Tensor[] operands, str program) -> Tensor[]",
    tags=(torch.Tag.needs_exact_strides,),
)


def _on_any_device(operands: Sequence[Tensor], program: str) -> list[Tensor]:
    return reference(operands, parse(program))


def _fake(operands: Sequence[Tensor], program: str) -> list[Tensor]:
    plan = plan_of(program)
    return [
        operands[like].new_empty_strided(operands[like].shape, operands[like].stride(), dtype=dtype)
        for like, dtype in zip(plan.likes, plan.dtypes, strict=True)
    ]


_library.impl("horizontal", _on_any_device, "CompositeExplicitAutograd")
_library.impl("horizontal", launch, "CUDA")
torch.library.register_fake("fusepass::horizontal", _fake, lib=_library)
OPERATOR = torch.ops.fusepass.horizontal.default


def _call(operands: Sequence[Tensor], program: str, own: Collection[int] = ()) -> HostCall | None:
    """What generated code calls, for fake operands; None for the operator itself.

    Args:
        operands: fakes.
        program: its text.
        own: of the members whose results may be the called function's.
    """
    plan = plan_of(program)
    shapes, columns = sizes_of(operands, plan)
    device = operands[0].device
    known = all(isinstance(size, int) for one in (*shapes, columns) for size in one)
    if device.type != "cuda" or not kernel_calls_tested() or not known:
        return None
    strides = [operands[like].stride() for like in plan.likes]
    outputs = list(zip(plan.dtypes, shapes, strides, strict=True))
    its = [i for i in range(len(outputs)) if i in own]
    kinds = tuple((i, str(plan.dtypes[i]).removeprefix("torch."), strides[i]) for i in its)
    given = program, shapes, columns, device.index or 0, kinds
    return HostCall(filler.__module__, "filler", given, outputs, returned=its)


def install_lowering() -> None:
    """Tell Inductor how to compile ``fusepass::horizontal``, if Inductor is loaded."""
    lower_to_host_call(OPERATOR, _call, stays_inside)
