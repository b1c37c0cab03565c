"""Where a measurement was taken: machine and versions, for the record."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from datetime import UTC, datetime
from typing import Any

import torch

from fusepass.tune.device.names import cpu_name

PACKAGES = ("fusepass", "torch", "triton", "transformers", "networkx", "numpy")
_QUERY = ("driver_version", "power.limit", "clocks.sm", "clocks.mem", "temperature.gpu")


def versions() -> dict[str, str | None]:
    """Versions of Python, the packages that matter, CUDA and cuDNN; None for what is absent."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    # The installed metadata lacks the "+cu130" that torch itself reports.
    found["torch"] = str(torch.__version__)
    found["cuda"] = torch.version.cuda
    cudnn = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    found["cudnn"] = None if cudnn is None else str(cudnn)
    return found


def hardware(device: str) -> dict[str, Any]:
    """Processor, memory and, when ``device`` is "cuda", the GPU with its driver and clocks now."""
    record: dict[str, Any] = {
        "device": device,
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "cpu_count": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpu": None,
    }
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        record["gpu"] = {
            "name": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "memory_bytes": properties.total_memory,
            **gpu_state(),
        }
    return record


def heading(what: str | None, device: str) -> dict[str, Any]:
    """How a record of measurements begins: what they are, the day, machine and versions."""
    return {
        "what": what,
        "date": datetime.now(UTC).date().isoformat(),
        "hardware": hardware(device),
        "versions": versions(),
    }


def gpu_state() -> dict[str, str | None]:
    """Driver version, power limit and clocks as nvidia-smi tells them; None without nvidia-smi."""
    command = ["nvidia-smi", f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return dict.fromkeys(_QUERY)
    return dict(zip(_QUERY, (value.strip() for value in done.stdout.split(",")), strict=False))
