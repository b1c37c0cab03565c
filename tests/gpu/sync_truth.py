"""What makes the host wait in a call on CUDA, found out without fusepass.

Torch's own warnings of synchronising calls give lines; a profiler's trace with Python's frames
gives the runtime's calls, and the function each stands in.
"""

from __future__ import annotations

import ast
import bisect
import json
import os
import re
import sys
import sysconfig
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

Line = tuple[str, int]
SYNCHRONISES = {
    "cudaStreamSynchronize",
    "cudaDeviceSynchronize",
    "cudaEventSynchronize",
    "cudaMemcpy",
}  # not cudaMalloc and the like: whether they happen depends on the caches of memory
_NOT_THEIRS = (
    os.path.dirname(torch.__file__) + os.sep,  # noqa: PTH120 - a prefix of strings
    os.path.realpath(sysconfig.get_paths()["stdlib"]) + os.sep,
    "<frozen",
    __file__,
)


def is_programs(file: str) -> bool:
    """Whether a file is the program's or a library's other than torch."""
    real = os.path.realpath(file) if os.path.isabs(file) else file  # noqa: PTH117
    return "site-packages" in real.replace(_NOT_THEIRS[0], "") or not real.startswith(_NOT_THEIRS)


def warned(call: Callable[[], Any]) -> Counter[Line]:
    """Lines at which ``set_sync_debug_mode("warn")`` warns, and how often."""
    found: Counter[Line] = Counter()

    def heard(message: Any, *_: Any, **__: Any) -> None:
        if "synchronizing CUDA operation" in str(message):
            stack = [f for f in traceback.extract_stack() if is_programs(f.filename)]
            found[stack[-1].filename, stack[-1].lineno or 0] += 1

    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = heard
        torch.cuda.set_sync_debug_mode("warn")
        try:
            call()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return found


def profiled(call: Callable[[], Any]) -> list[dict[str, Any]]:
    """Events of a trace of the call, with Python's frames."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=activities, with_stack=True) as profiler:
        with torch.profiler.record_function("the call"):
            call()
        with torch.profiler.record_function("after the call"):
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return [event for event in events if event.get("ph") == "X"]


def waits_by_function(events: list[dict[str, Any]]) -> Counter[tuple[str, int]]:
    """Synchronising calls of the runtime, and copies to pageable memory, by Python function.

    A function is its file, as the profiler shortens it, and the number of its first line. A copy
    and the wait for it count once, with the wait.
    """
    (whole,) = (e for e in events if e["name"] == "the call" and e["cat"] == "user_annotation")
    copies = {e["args"]["correlation"]: e["name"] for e in events if e["cat"] == "gpu_memcpy"}
    frames = [e for e in events if e["cat"] == "python_function" and _function(e) is not None]
    frames.sort(key=lambda e: e["ts"])
    calls = sorted((e for e in events if e["cat"] == "cuda_runtime"), key=lambda e: e["ts"])
    found: Counter[tuple[str, int]] = Counter()
    for number, call in enumerate(calls):
        if not whole["ts"] <= call["ts"] <= whole["ts"] + whole["dur"]:
            continue
        moved = copies.get(call["args"].get("correlation"), "")
        waits = call["name"] in SYNCHRONISES
        if call["name"] == "cudaMemcpyAsync" and "DtoH" in moved and "Pageable" in moved:
            after = calls[number + 1]["name"] if number + 1 < len(calls) else ""
            waits = after != "cudaStreamSynchronize"
        if waits:
            found[_around(frames, call)] += 1
    return found


def _around(frames: list[dict[str, Any]], call: dict[str, Any]) -> tuple[str, int]:
    """The innermost function of the program that was running; of the calling thread's if none."""
    at = bisect.bisect_right([e["ts"] for e in frames], call["ts"])
    for same_thread in (True, False):
        for frame in reversed(frames[:at]):
            holds = frame["ts"] + frame["dur"] >= call["ts"]
            if holds and (not same_thread or frame["tid"] == call["tid"]):
                function = _function(frame)
                assert function is not None
                return function
    return "", 0


def _function(event: dict[str, Any]) -> tuple[str, int] | None:
    """File and first line of a Python function's event, None for torch's and the library's own."""
    match = re.fullmatch(r"(.+\.py)\((\d+)\): (.+)", event["name"])
    if match is None:
        return None
    file = match[1].replace("\\", "/")
    package = file.split("/")[0].removesuffix(".py")
    inner = package == "torch" or package in sys.stdlib_module_names
    ours = file.endswith("sync_truth.py")
    return None if inner or ours or not is_programs(match[1]) else (file, int(match[2]))


def function_of(line: Line) -> tuple[str, int]:
    """File and first line of the innermost function that a line of a program is in.

    Lambdas count; comprehensions are part of their function, as they are from Python 3.12 on.
    """
    file, number = line
    best = (1, 0)
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    for node in ast.walk(ast.parse(Path(file).read_text())):
        if isinstance(node, kinds) and node.lineno <= number <= (node.end_lineno or 0):
            decorators = getattr(node, "decorator_list", [])
            first = min([node.lineno, *(one.lineno for one in decorators)])
            best = max(best, (first, number))
    return file, best[0]


def same(function: tuple[str, int], other: tuple[str, int]) -> bool:
    """Whether a function by its whole path is the one by its shortened path."""
    return function[1] == other[1] and function[0].replace("\\", "/").endswith(other[0].lstrip("/"))
