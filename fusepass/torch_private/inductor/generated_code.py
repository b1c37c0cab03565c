"""Mend what Inductor generates for the CPU: NaN in oneDNN, masked numbers, readers after writes.

Three faults, each with a section below. oneDNN's activations are run apart from its kernels,
because these lose NaN.

With frozen weights Inductor hands a convolution or linear layer on the CPU to oneDNN together with
the activation behind it. For ReLU and for clamps between two numbers (ReLU6, hard-tanh, and
hard-sigmoid) oneDNN takes the larger of two numbers by an instruction that drops NaN: where eager
gives NaN, its kernels give 0, or an end of the clamp. Under passes of ours these activations are
computed behind the library's call, in code Inductor generates: ResNet-18 takes as long
(``tests/perf/cpu_models.py``). What keeps NaN (SiLU, GELU, hard-swish, leaky ReLU unless its slope
is 0, tanh, sigmoid, sums) stays in the call.

Run on 2.11 to 2.15.
"""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from fusepass.torch_private.inductor.passes import under_our_passes
from fusepass.torch_private.patches import Patches, Theirs, once
from fusepass.torch_private.versions import torch_version

_MARK = "of_fusepass"
_lock = threading.Lock()
_NOTHING: dict[str, tuple[Any, ...]] = {"default": ("none", [], ""), "binary": (None, [], None)}


def keep_nan() -> None:
    """Have Inductor compute these activations itself, in graphs that passes of ours see."""
    if not torch.backends.mkldnn.is_available():
        return
    from torch._inductor import mkldnn_lowerings  # noqa: F401 - registers what is replaced
    from torch._inductor.lowering import lowerings

    with _lock:
        for operator, variant in _fused_calls():
            theirs = lowerings.get(operator)
            if theirs is not None and not hasattr(theirs, _MARK):
                lowerings[operator] = _parted(theirs, variant)


def _fused_calls() -> Iterator[tuple[Any, str]]:
    """Operators whose last three arguments are an activation, its numbers and its algorithm."""
    of_library = torch.ops.mkldnn
    for packet in ("_convolution_pointwise", "_convolution_transpose_pointwise"):
        yield getattr(of_library, packet).default, "default"
    yield of_library._linear_pointwise.default, "default"
    for packet in ("_convolution_pointwise", "_convolution_pointwise_"):
        yield getattr(of_library, packet).binary, "binary"


def _parted(theirs: Callable[..., Any], variant: str) -> Callable[..., Any]:
    """A lowering of the call without an activation that drops NaN, and of that behind it."""

    @functools.wraps(theirs)
    def lower(*args: Any, **kwargs: Any) -> Any:
        *operands, name, numbers, _ = args
        behind = _ACTIVATIONS.get(name)
        if name == "leaky_relu" and numbers[0] == 0:
            behind = _leaky  # by ReLU it is computed otherwise
        if behind is None or kwargs or not under_our_passes():
            return theirs(*args, **kwargs)
        return behind(theirs(*operands, *_NOTHING[variant]), numbers)

    setattr(lower, _MARK, True)
    return lower


# --- activations, of what a lowering made ---------------------------------------------------------


def _relu(x: Any, _: Sequence[float]) -> Any:
    from torch._inductor.lowering import lowerings

    return lowerings[torch.ops.aten.relu.default](x)


def _leaky(x: Any, slopes: Sequence[float]) -> Any:
    from torch._inductor.lowering import lowerings

    wide = _cast(x, torch.float32)
    below = lowerings[torch.ops.aten.mul.Tensor](wide, slopes[0])
    above = lowerings[torch.ops.aten.gt.Scalar](wide, 0.0)
    return _cast(lowerings[torch.ops.aten.where.self](above, wide, below), x.get_dtype())


def _between(x: Any, ends: Sequence[float]) -> Any:
    from torch._inductor.lowering import lowerings

    low, high = ends
    wide = _cast(x, torch.float32)
    made = lowerings[torch.ops.aten.clamp_min.default](wide, low)
    return _cast(lowerings[torch.ops.aten.clamp_max.default](made, high), x.get_dtype())


def _hard_sigmoid(x: Any, _: Sequence[float]) -> Any:
    from torch._inductor.lowering import lowerings

    wide = lowerings[torch.ops.aten.add.Tensor](_cast(x, torch.float32), 3)
    made = lowerings[torch.ops.aten.div.Tensor](_between(wide, (0, 6)), 6)
    return _cast(made, x.get_dtype())


def _cast(x: Any, dtype: torch.dtype) -> Any:
    from torch._inductor.lowering import lowerings

    return lowerings[torch.ops.prims.convert_element_type.default](x, dtype)


_ACTIVATIONS = {"relu": _relu, "hardtanh": _between, "hardsigmoid": _hard_sigmoid}


# --- Fix Inductor's C++ for a number that is used both under a mask and outside -------------------
# What is computed under a mask becomes a vector, and where it is a number, torch 2.11 notes that
# the number itself is one from then on: its next use is C++ that does not compile. With a fill of
# part of a tensor and a sum with the same number (``x[1:] = 3.0``, ``x + 3.0``) that is soon met.
# Under passes of ours it is another variable of the same name that is noted so.
#
# Run on 2.11 to 2.15; from 2.13 on torch does so itself.


@once
def keep_numbers() -> None:
    """Have numbers stay numbers behind a mask, in graphs of ours."""
    if torch_version() >= (2, 13):
        return
    from torch._inductor.codegen.cpp import CppVecOverrides

    def masked(theirs: Theirs, mask: Any, body: Callable[[], Any], other: Any) -> Any:
        ours = under_our_passes()
        return theirs(mask, (lambda: copy.copy(body())) if ours else body, other)

    Patches().put(CppVecOverrides, "masked", masked)


# --- Keep readers after writes when Inductor's C++ backend changes loops --------------------------
# A call that writes its operand (``scatter_reduce_``, ``index_put_``, an operator of the program)
# gives its memory a new name, by which what reads it later is kept behind it. Up to torch 2.14 that
# name is forgotten where the C++ backend changes a reader's loops to put it into one kernel with
# others: the reader may then run before the write. Gradients of ``max_pool2d`` beside a ``where``
# were wrong (pytorch/pytorch#185509). Under passes of ours the name is given again.
#
# Run on 2.11 to 2.15; from 2.15 on torch does so itself.


@once
def keep_order_of_writes() -> None:
    """Have readers stay behind the calls that write what they read, in graphs of ours."""
    if torch_version() >= (2, 15):
        return
    from torch._inductor.scheduler import SchedulerNode

    def recompute(theirs: Theirs, node: Any, *args: Any, **kwargs: Any) -> Any:
        made = theirs(node, *args, **kwargs)
        if node.mutation_renames and under_our_passes():
            node.set_read_writes(node.read_writes.rename(node.mutation_renames))
        return made

    Patches().put(SchedulerNode, "recompute_size_and_body", recompute)
