"""What is known of a device's peaks: measured once and kept in a file, or shipped with the package.

A CUDA device is measured when the first branch in need of an estimate is compiled for it, and the
figures are kept beside the table of choices, so that they are the same in every later process. The
CPU is not measured: what it reaches depends on how many cores are busy at the moment, and a
decision that flips between two runs is worse than a coarse one. Nor are devices measured by the
ranks of a job, which have to decide alike. ``FUSEPASS_DEVICE_PEAKS`` overrides: ``shipped``
measures nothing, ``measured`` measures the CPU too.
"""

from __future__ import annotations

import difflib
import functools
import json
import logging
import math
import os
import threading
import warnings
from dataclasses import asdict, fields
from typing import Any

import torch

from fusepass.errors import PeaksUnusable
from fusepass.report.decision import in_short
from fusepass.tune import decide
from fusepass.tune.cache_files import CacheFile
from fusepass.tune.device.measure_peaks import Peaks, measure
from fusepass.tune.table import default_folder, slug

logger = logging.getLogger("fusepass")

SCHEMA = 1
VARIABLE = "FUSEPASS_DEVICE_PEAKS"
SETTINGS = ("auto", "shipped", "measured", "")
CPU = Peaks(flops16=1e11, flops32=1e11, bandwidth=1e10, launch=2e-6, read_back=1e-5)
# For a device that cannot be measured: slow, so that little is run that was not needed.
UNKNOWN = Peaks(flops16=6e13, flops32=1e13, bandwidth=4e11, launch=4e-6, read_back=1e-5)
SHIPPED = {
    # As measured by `measure` with torch 2.11; without TF32.
    "NVIDIA H200": Peaks(7.6e14, 5.1e13, bandwidth=3.8e12, launch=1.8e-6, read_back=1.2e-5),
}

_known: dict[tuple[str, str], Peaks] = {}  # by device name and float32 precision
_lock = threading.Lock()


def peaks_of(device: torch.device) -> Peaks:
    """What a device reaches. Never raises; may take about a quarter of a second, once per device.

    A device that is neither the CPU nor a CUDA device in use gets conservative figures.
    """
    wanted = os.environ.get(VARIABLE, "auto")
    if wanted not in SETTINGS:
        _warn_of_setting(wanted)
    if device.type == "cpu":
        if wanted != "measured":
            return CPU
        name = "cpu"
    elif device.type == "cuda" and torch.cuda.is_available() and torch.cuda.is_initialized():
        name = torch.cuda.get_device_name(device)
    else:
        return UNKNOWN
    key = (name, _float32_precision())
    with _lock:  # another thread waits for the figures and does not disturb them
        if key in _known:
            return _known[key]
        shipped = CPU if name == "cpu" else SHIPPED.get(name, UNKNOWN)
        if wanted == "shipped" or _obstacle(device):
            return shipped  # and asks again the next time
        _known[key] = _read_or_measure(device, key) or shipped
        return _known[key]


@functools.cache
def _warn_of_setting(value: str) -> None:
    near = difflib.get_close_matches(value, SETTINGS, n=1, cutoff=0.5)
    meant = f", did you mean {near[0]!r}?" if near else ""
    problem = f"there is no value {value!r}{meant} (allowed: {', '.join(filter(None, SETTINGS))})"
    warnings.warn(PeaksUnusable(VARIABLE, problem, "; it is taken for 'auto'"), stacklevel=3)


def memory_of_device(device: torch.device) -> int:
    """Bytes of memory a CUDA device in use has; 0 for others."""
    if device.type == "cuda" and torch.cuda.is_available() and torch.cuda.is_initialized():
        return int(torch.cuda.get_device_properties(device).total_memory)
    return 0


def reset() -> None:
    """Forget what this process knows; files stay."""
    with _lock:
        _known.clear()


def _obstacle(device: torch.device) -> bool:
    """Whether measuring would do harm, fail, or make ranks differ."""
    if decide.several_ranks() or torch.are_deterministic_algorithms_enabled():
        return True  # determinism makes some products of matrices an error
    if device.type != "cuda":
        return False
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()


def _read_or_measure(device: torch.device, key: tuple[str, str]) -> Peaks | None:
    name, precision = key
    path = default_folder() / f"peaks-{slug(name)}-torch-{slug(torch.__version__)}.json"
    file = CacheFile(path, PeaksUnusable)
    kept = file.read(lambda text: parse(text, name)) or {}
    if precision in kept:
        return kept[precision]
    try:
        found = measure(device)
    except Exception as error:  # noqa: BLE001 - anything may fail on a device in use
        problem = f"measuring failed ({in_short(error).rstrip('.')})"
        advice = "; another process tries again"
        warnings.warn(PeaksUnusable(name, problem, advice), stacklevel=2)
        return None
    logger.info("fusepass: measured %s: %s", name, found)
    figures = {which: asdict(peaks) for which, peaks in {**kept, precision: found}.items()}
    file.write({"schema": SCHEMA, "device": name, "peaks": figures})
    return found


def parse(text: str, device: str) -> dict[str, Peaks]:
    """The figures in a file's text, by float32 precision.

    Raises:
        ValueError: it is not what this module writes for that device.
    """
    try:
        record: Any = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise ValueError("not a file of peaks of this version")
    if record.get("device") != device or not isinstance(record.get("peaks"), dict):
        raise ValueError("no peaks of this device in it")
    return {precision: _peaks(figures) for precision, figures in record["peaks"].items()}


def _peaks(figures: Any) -> Peaks:
    names = {field.name for field in fields(Peaks)}
    good = (
        isinstance(figures, dict)
        and figures.keys() == names
        and all(type(value) in (int, float) for value in figures.values())
        and all(math.isfinite(value) and value > 0 for value in figures.values())
    )
    if not good:
        raise ValueError("malformed peaks")
    return Peaks(**figures)


def _float32_precision() -> str:
    """Torch's name for how exact float32 products are: with TF32 they are far faster."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # set through the newer interface, in a way this one has no name for
        return "mixed"
