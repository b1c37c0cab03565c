"""Compile caches: one folder per measurement, empty for a cold compile, kept for a warm one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import torch

from fusepass.torch_private.inductor.compile import clear_compilation_metrics, clear_inductor_caches

_FOLDERS = {"TORCHINDUCTOR_CACHE_DIR": "", "TRITON_CACHE_DIR": "triton"}


@contextlib.contextmanager
def cache_folder(folder: str | None) -> Iterator[None]:
    """Let Inductor and Triton keep their caches in ``folder``; None leaves them where they are."""
    if folder is None:
        yield
        return
    saved = {variable: os.environ.get(variable) for variable in _FOLDERS}
    for variable, below in _FOLDERS.items():
        os.environ[variable] = str(Path(folder) / below)
    try:
        yield
    finally:
        for variable, value in saved.items():
            if value is None:
                os.environ.pop(variable, None)
            else:
                os.environ[variable] = value


def forget_compiled_code() -> None:
    """Drop everything compiled in this process; only the caches on disk are left."""
    torch.compiler.reset()
    clear_inductor_caches()
    clear_compilation_metrics()
