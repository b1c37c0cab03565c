"""Kernels in CUDA C++, compiled once for all processes of a user.

NVRTC takes half a second for a kernel, which a program that starts with warm caches would spend
anew for each. A file for each kernel lies beside the tables of choices, in ``cubins``; it begins
with a digest of the rest, so that what a full disk or a killed process left of one is compiled
again. Where no file can be written, or others could have written it, everything is compiled each
time.
"""

from __future__ import annotations

import contextlib
import hashlib
from typing import Any

import torch

from fusepass.torch_private.cuda import nvrtc
from fusepass.tune import cache_files
from fusepass.tune.table import default_folder


def load_or_compile(source: str, name: str, architecture: str | None = None) -> Any:
    """A kernel of the current device's context, compiled for that device, now or before.

    Args:
        source: text of CUDA C++.
        name: the kernel's.
        architecture: what to compile for, as ``90a``; else the device's own.

    Raises:
        OSError: NVRTC is not there.
        RuntimeError: it refuses the source, or the driver what was made of it.
    """
    major, minor = torch.cuda.get_device_capability()
    target = architecture or f"{major}{minor}"
    file = _name(source, name, target)
    kept = _read(file)
    if kept is not None:
        with contextlib.suppress(RuntimeError):  # of another driver, it may be
            return nvrtc.loaded(*kept)
    binary, entry = nvrtc.binary_of(source, name, target)
    kernel = nvrtc.loaded(binary, entry)
    _write(file, binary, entry)
    return kernel


def _name(source: str, name: str, target: str) -> str:
    """The path of its file, relative to the cache folder."""
    versions = f"{torch.__version__} {torch.version.cuda}"
    text = "\0".join((source, name, target, versions))
    return f"cubins/{hashlib.sha256(text.encode()).hexdigest()}.cubin"


def _read(file: str) -> tuple[bytes, str] | None:
    """A binary and its entry's name; None where there is no whole file."""
    try:
        digest, entry, binary = cache_files.read(default_folder(), file).split(b"\n", 2)
    except (OSError, ValueError, RuntimeError):  # RuntimeError: a user without a folder
        return None
    whole = hashlib.sha256(entry + b"\n" + binary).hexdigest().encode() == digest
    return (binary, entry.decode()) if whole else None


def _write(file: str, binary: bytes, entry: str) -> None:
    rest = entry.encode() + b"\n" + binary
    with contextlib.suppress(OSError, RuntimeError):
        digest = hashlib.sha256(rest).hexdigest().encode()
        cache_files.write(default_folder(), file, digest + b"\n" + rest)
