"""Triton's text as Gluon, and what different versions of Gluon call alike."""

from __future__ import annotations

IMPORTS = """\
import triton
import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait,
)

"""


def in_gluon(text: str) -> str:
    """Triton's text as Gluon, for what both languages call the same."""
    text = text.replace("tl.PropagateNan", "triton.language.PropagateNan").replace("tl.", "gl.")
    return text.replace("@triton.jit", "@gluon.jit")


def copies() -> dict[str, str]:
    """What this Triton calls copies by TMA: ``$fetch`` from memory, ``$send`` to it."""
    return {
        "$fetch": _named("async_load", "async_copy_global_to_shared"),
        "$send": _named("async_store", "async_copy_shared_to_global"),
    }


def _named(new: str, old: str) -> str:
    """What this Triton calls a copy by TMA; newer ones keep the old name, to say it is gone."""
    from triton.experimental.gluon.language.nvidia.hopper import tma

    return new if hasattr(tma, new) else old
