"""Ask whether Inductor would split a reduction, and lower one without splitting.

Read and run on torch 2.11 to 2.15.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

_SETTING = "split_reductions"
_BLOCKS = 64  # of results for each multiprocessor: with more of them Inductor never parts


def is_reduction_parted(device: torch.device, numbers: int, results: int, *, inner: bool) -> bool:
    """Whether Inductor would reduce in two kernels, parts first.

    Args:
        device: a CUDA device.
        numbers: reduced for each result.
        results: of the reduction.
        inner: whether numbers of one result lie side by side.
    """
    from torch._inductor import config
    from torch._inductor.virtualized import V

    if not config.split_reductions:
        return False
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    if results > 1 and results >= _BLOCKS * processors:
        return False
    return bool(V.choices.reduction_split_factor(device, numbers, results, inner) > 1)


def can_be_whole(operator: Any) -> bool:
    """Whether Inductor has code of its own for an operator."""
    from torch._inductor.lowering import lowerings

    return operator in lowerings


def reduction_of(target: Any) -> Any:
    """The operator that a call of a graph is, also one that is kept whole."""
    return getattr(target, "_inductor_lowering_output_metadata_fn", target)


@functools.cache
def whole_reduction(operator: Any) -> Callable[..., Any]:
    """What Inductor calls in the place of a reduction, which is then in one kernel.

    It takes the operator's arguments in Inductor's own representation, so it has its place in a
    graph that is about to be lowered. A graph nested in another one (an arm of a ``cond``) Inductor
    also runs on fake tensors by then, of which it is the operator.
    """
    from torch._inductor import config
    from torch._inductor.lowering import lowerings

    def lower(*args: Any, **kwargs: Any) -> Any:
        if isinstance(args[0], torch.Tensor):
            return operator(*args, **kwargs)
        with config.patch({_SETTING: False}):
            return lowerings[operator](*args, **kwargs)

    lower.__name__ = lower.__qualname__ = f"whole_{operator.__name__.replace('.', '_')}"
    vars(lower)["_inductor_lowering_function"] = True
    vars(lower)["_inductor_lowering_output_metadata_fn"] = operator  # from torch 2.15 on
    return lower
