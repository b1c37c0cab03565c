"""Kernels in CUDA C++, compiled once for all processes of a user.

NVRTC takes half a second for a kernel, which a program that starts with warm caches would spend
anew for each. A file for each kernel lies beside the tables of choices, in ``cubins``; it begins
with a digest of the rest, so that what a full disk or a killed process left of one is compiled
again. Where no file can be written everything is compiled each time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from pathlib import Path
from typing import Any

import torch

from fusepass.torch_private import nvrtc
from fusepass.tune.table import default_folder


def compiled(source: str, name: str, architecture: str | None = None) -> Any:
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
    path = _path(source, name, target)
    kept = _read(path)
    if kept is not None:
        with contextlib.suppress(RuntimeError):  # of another driver, it may be
            return nvrtc.loaded(*kept)
    binary, entry = nvrtc.binary_of(source, name, target)
    kernel = nvrtc.loaded(binary, entry)
    _write(path, binary, entry)
    return kernel


def _path(source: str, name: str, target: str) -> Path | None:
    """Where it is kept; None where a user has no folder."""
    versions = f"{torch.__version__} {torch.version.cuda}"
    text = "\0".join((source, name, target, versions))
    try:
        folder = default_folder()
    except RuntimeError:
        return None
    return folder / "cubins" / f"{hashlib.sha256(text.encode()).hexdigest()}.cubin"


def _read(path: Path | None) -> tuple[bytes, str] | None:
    """A binary and its entry's name; None where there is no whole file."""
    if path is None:
        return None
    try:
        digest, entry, binary = path.read_bytes().split(b"\n", 2)
    except (OSError, ValueError):
        return None
    whole = hashlib.sha256(entry + b"\n" + binary).hexdigest().encode() == digest
    return (binary, entry.decode()) if whole else None


def _write(path: Path | None, binary: bytes, entry: str) -> None:
    """Written beside its place and moved there: nobody sees half of it."""
    if path is None:
        return
    rest = entry.encode() + b"\n" + binary
    beside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest)
        beside.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
