"""Private torch names the benchmark needs; they belong in ``fusepass/torch_private.py``.

Checked on torch 2.11, 2.13 and 2.15.
"""

from __future__ import annotations

from typing import Any


def clear_inductor_caches() -> None:
    """Drop Inductor's in-memory caches, so that a compile reads (or misses) those on disk."""
    from torch._inductor.utils import clear_caches

    clear_caches()


def clear_compilation_metrics() -> None:
    """Forget the frames Dynamo has compiled so far."""
    from torch._dynamo.utils import clear_compilation_metrics as clear

    clear()


def compilation_metrics() -> list[Any]:
    """One record per frame Dynamo compiled or gave up (the last 64), with ``graph_op_count``."""
    from torch._dynamo.utils import get_compilation_metrics

    return list(get_compilation_metrics())
