"""The JSON a benchmark writes, as types. docs/bench.md explains every field.

Times are microseconds where the name ends in ``_us`` and seconds where it ends in ``_s``; memory is
in bytes. ``None`` (JSON null) means "not measured here", never zero.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict, TypeVar, cast

SCHEMA = 1
Record = TypeVar("Record")


class Times(TypedDict):
    """Statistics of one clock over all rounds."""

    median: float
    p99: float
    p99_over_p50: float
    samples: int
    rounds: list[float]  # the median of each round


class CompileSeconds(TypedDict):
    """Wall time of the first call: nothing cached, caches on disk, the same in a new process."""

    cold_s: float | None
    warm_s: float | None
    warm_process_s: float | None


class ErrorRecord(TypedDict):
    """The error rule's verdict on the worst of the output's tensors."""

    passed: bool | None
    reason: str | None
    rms: float | None
    bound: float | None
    eager_rms: float | None
    inductor_rms: float | None
    half_ulp: float | None
    relative: float | None  # rms over the reference's RMS
    tensors: int
    worst: int | None  # index of the tensor the figures are of
    bit_equal_to_eager: bool | None
    relative_to_eager: float | None  # RMS difference from eager over eager's RMS


class Distance(TypedDict):
    """Between two sets of loss curves, over all steps of all of them."""

    max_abs: float
    l2: float  # root of the sum of squares


class CurveRecord(TypedDict):
    """Loss curves of a short training, against those in float64."""

    passed: bool
    distance: Distance
    eager_distance: Distance
    over_eager: Distance  # this variant's over eager's; at most 2
    losses: list[list[float]]


class GraphFacts(TypedDict):
    """What torch.compile made of the program."""

    graphs: int
    operations: list[int]
    regions_per_call: int
    backwards_per_call: int
    frames_given_up: int


class Speedup(TypedDict):
    """Medians of per-round ratios; above 1 means faster than the baseline."""

    eager: float | None
    inductor: float | None
    best: float | None  # against the better of the two
    replay: float | None  # over Inductor in the same mode, by replay_us


class VariantRecord(TypedDict):
    """One way to run one program."""

    variant: str
    backend: str | None
    mode: str | None
    failed: str | None
    wall_us: Times | None
    device_us: Times | None
    replay_us: Times | None  # kernels alone, from a CUDA graph
    peak_memory_bytes: int | None
    compile: CompileSeconds
    error: ErrorRecord | None
    curve: CurveRecord | None  # of a training program, in place of the error rule
    graphs: GraphFacts | None
    speedup: Speedup
    over_floor: float | None  # time over the floor's in the same mode; replay_us, else wall_us
    over_hand: float | None  # wall time over that of the twin under Inductor, in the same mode
    slower: bool | None


class ProgramRecord(TypedDict):
    """One program with all its variants."""

    program: str
    parameters: dict[str, Any]
    device: str | None
    skipped: str | None
    reference: str | None  # why there is no float64 reference, or null
    exact_losses: list[list[float]] | None  # of a training program: float64's loss curves
    variants: list[VariantRecord]
    seconds: float


class CompileRow(TypedDict):
    """Compile times of one program: ours against Inductor on its ``torch.where`` twin.

    A program without branches on tensors is held against ours without capture instead.
    """

    program: str
    parameters: dict[str, Any]
    mode: str
    kind: str  # "cold", "warm" or "warm_process"
    seconds: dict[str, float | None]  # fusepass, inductor_twin or fusepass_keep, inductor
    rounds: dict[str, list[float]]
    over_twin: float | None
    over_keep: float | None
    over_untouched: float | None
    bar: float | None
    passed: bool | None
    failed: dict[str, str]


class GrowthRow(TypedDict):
    """How compile time grows with the number of layers (exponent 1: linearly)."""

    family: str
    mode: str
    kind: str
    variant: str
    layers: list[int]
    seconds: list[float]
    seconds_per_layer: float
    exponent: float


class CompileTimes(TypedDict):
    """What ``--compile-only`` measures."""

    rows: list[CompileRow]
    growth: list[GrowthRow]


class Result(TypedDict):
    """The whole file."""

    schema: int
    started: str
    seconds: float
    command: list[str]
    settings: dict[str, Any]
    hardware: dict[str, Any]
    versions: dict[str, str | None]
    programs: list[ProgramRecord]
    compile_times: CompileTimes | None


def unmeasured(kind: type[Record], **known: Any) -> Record:
    """A record of which only some fields are known; the others are None."""
    return cast("Record", {**dict.fromkeys(kind.__annotations__), **known})


def save(result: Result, path: Path) -> None:
    """Write the result as JSON, all of it or nothing: a run cut short leaves the previous file.

    NaN and infinity become null, since JSON has neither.
    """
    text = json.dumps(_strict(result), indent=1, allow_nan=False)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text + "\n", encoding="utf-8")
    beside.replace(path)


def _strict(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return value
