"""A benchmark's result as text, for a terminal of about 120 columns."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fusepass.bench.records import (
    CompileTimes,
    ErrorRecord,
    GraphFacts,
    ProgramRecord,
    Result,
    VariantRecord,
)
from fusepass.bench.samples import AS_BY_HAND, NOISY, NOT_SLOWER, spread

LOSING = "<"
TWIN, KEEP = "inductor_twin", "fusepass_keep"  # as compile_times calls them
_LEGEND = (
    "x eager, x inductor: times as fast, by median of per-round ratios of wall time; inductor is\n"
    f"in the same mode. {LOSING} marks a cell below {NOT_SLOWER}; error/bound above 1.00 or FAIL\n"
    "breaks the error rule. replay: kernels alone, from a CUDA graph. / floor: time over that of\n"
    "the part that no fusion can take away, by replay where there is one. / hand: time over that\n"
    "of the branches written as torch.where by hand, under Inductor in the same mode;\n"
    f"{LOSING} marks one above {AS_BY_HAND}. +-: half the range of the rounds' medians of wall."
)
_HEAD = (
    "variant", "wall us", "+-", "p99/p50", "device us", "replay us", "x eager", "x inductor",
    "/ floor", "/ hand", "peak MiB", "cold s", "warm s", "regions", "graphs", "ops", "error/bound",
)  # fmt: skip


def render(result: Result) -> str:
    """The whole result: machine, one block per program, compile times, and what failed."""
    parts = [_machine(result), *(_program(one) for one in result["programs"])]
    if result["compile_times"] is not None:
        parts.append(_compile_times(result["compile_times"]))
    if any(one["variants"] for one in result["programs"]):
        parts.append(_LEGEND)
    found = ["  " + line.replace("\n", "\n    ") for line in problems(result)]
    parts += ["\n".join(["problems:", *found])] if found else []
    return "\n\n".join(parts) + "\n"


def problems(result: Result) -> list[str]:
    """One line per variant that failed or broke the error rule, and per program left out."""
    found = []
    for program in result["programs"]:
        if program["skipped"] is not None:
            found.append(f"{program['program']}: skipped, {program['skipped']}")
        for one in program["variants"]:
            where, error = f"{program['program']} {one['variant']}", one["error"]
            if one["failed"] is not None:
                found.append(f"{where}: {one['failed']}")
            elif error is not None and error["passed"] is False:
                found.append(f"{where}: error rule: {error['reason']}")
            found.extend(f"{where}: {why}" for why in _training_problems(one))
    for row in (result["compile_times"] or {"rows": []})["rows"]:
        where = f"{row['program']} {row['mode']} {row['kind']}"
        found.extend(f"{where} {label}: {why}" for label, why in row["failed"].items())
    return list(dict.fromkeys(found))


def _training_problems(one: VariantRecord) -> list[str]:
    """What is wrong with a training program; Inductor's graph breaks are not ours to report."""
    curve, graphs = one["curve"], one["graphs"]
    if curve is None:
        return []
    found = []
    if not curve["passed"]:
        far = max(curve["over_eager"]["max_abs"], curve["over_eager"]["l2"])
        found.append(f"loss curve {far:.2f} times as far from float64's as eager's")
    if graphs is not None and one["backend"] != "inductor":
        ways = graphs["regions_per_call"], graphs["backwards_per_call"]
        if ways != (1, 1):
            found.append(f"{ways[0]} graphs forward and {ways[1]} backward, not one each")
    return found


def _machine(result: Result) -> str:
    hardware, versions = result["hardware"], result["versions"]
    gpu = hardware.get("gpu") or {}
    where = gpu.get("name") or f"{hardware.get('cpu')} ({hardware.get('torch_threads')} threads)"
    names = ("torch", "triton", "cuda", "transformers", "python")
    known = [f"{name} {versions[name]}" for name in names if versions.get(name)]
    driver = [f"driver {gpu['driver_version']}"] if gpu.get("driver_version") else []
    return ", ".join([str(where), *known, *driver])


def _program(program: ProgramRecord) -> str:
    sizes = " ".join(f"{key}={value}" for key, value in program["parameters"].items())
    title = (
        f"{program['program']}  {sizes}  [{program['device'] or '-'}, {program['seconds']:.0f} s]"
    )
    if program["skipped"] is not None:
        return f"{title}\n  skipped: {program['skipped']}"
    rows = [_HEAD, *(_variant(one) for one in program["variants"])]
    note = f"\n  no float64 reference: {program['reference']}" if program["reference"] else ""
    return f"{title}\n{_aligned(rows)}{note}{_noise(program['variants'])}"


def _noise(variants: Sequence[VariantRecord]) -> str:
    """A warning where the rounds of a variant disagree, as when other programs run beside it."""
    found = []
    for one in variants:
        far, wall = spread(one["wall_us"]), one["wall_us"]
        if far is not None and wall is not None and far > NOISY:
            ends = f"{min(wall['rounds']):.1f} to {max(wall['rounds']):.1f} us"
            found.append(f"{one['variant']} ({ends})")
    if not found:
        return ""
    return (
        f"\n  NOISY: medians of rounds far apart: {', '.join(found)}. These times, and ratios of "
        "them,\n  mean little: end what else runs here, or give more --rounds or --round-seconds."
    )


def _variant(one: VariantRecord) -> tuple[str, ...]:
    wall, device, replay = one["wall_us"], one["device_us"], one["replay_us"]
    ratio, noise = one["speedup"], spread(wall)
    seconds, peak = one["compile"], one["peak_memory_bytes"]
    return (
        one["variant"],
        _number(wall["median"] if wall else None, 1),
        "-" if noise is None else f"{noise:.0%}",
        _number(wall["p99_over_p50"] if wall else None, 2),
        _number(device["median"] if device else None, 1),
        _number(replay["median"] if replay else None, 1),
        _ratio(ratio["eager"]),
        _ratio(ratio["inductor"]),
        _number(one["over_floor"], 2),
        _over_hand(one),
        _number(peak / 2**20 if peak is not None else None, 0),
        _number(seconds["cold_s"], 1),
        _number(seconds["warm_s"], 1),
        *_graphs(one["graphs"]),
        _verdict(one),
    )


def _over_hand(one: VariantRecord) -> str:
    value = one["over_hand"]
    if value is None:
        return "-"
    # Inductor's own ratio is there to compare with; it has no bar to meet.
    above = value > AS_BY_HAND and one["backend"] != "inductor"
    return f"{value:.3f}" + (f" {LOSING}" if above else "")


def _verdict(one: VariantRecord) -> str:
    if one["failed"] is not None:
        return "FAILED"
    # Eager is its own yardstick: half of its bound, always.
    if one["backend"] is not None and one["curve"] is not None:
        far = max(one["curve"]["over_eager"]["max_abs"], one["curve"]["over_eager"]["l2"])
        return f"{far:.2f}x eager" + ("" if one["curve"]["passed"] else " FAIL")
    return "-" if one["backend"] is None else _error(one["error"])


def _graphs(facts: GraphFacts | None) -> tuple[str, str, str]:
    if facts is None:
        return "-", "-", "-"
    ops = facts["operations"]
    shown = ",".join(map(str, ops)) if len(ops) <= 3 else f"{min(ops)}..{max(ops)}"
    backwards = facts["backwards_per_call"]
    regions = str(facts["regions_per_call"]) + (f"+{backwards}" if backwards else "")
    return regions, str(facts["graphs"]), shown or "-"


def _error(error: ErrorRecord | None) -> str:
    if error is None:
        return "-"
    if error["rms"] is None or error["bound"] is None or not math.isfinite(error["rms"]):
        return {True: "equal", False: "FAIL", None: "no reference"}[error["passed"]]
    return f"{error['rms'] / error['bound']:.2f}" + ("" if error["passed"] else " FAIL")


def _compile_times(times: CompileTimes) -> str:
    head = ("program", "mode", "compile", "fusepass s", "against s", "which is", "ratio", "bar",
            "inductor s", "ratio")  # fmt: skip
    rows: list[tuple[str, ...]] = [head]
    for row in times["rows"]:
        seconds = row["seconds"]
        held = row["over_keep"] is not None
        against, ratio = (KEEP, row["over_keep"]) if held else (TWIN, row["over_twin"])
        rows.append(
            (
                row["program"],
                row["mode"],
                row["kind"],
                _number(seconds.get("fusepass"), 2),
                _number(seconds.get(against), 2),
                against,
                _number(ratio, 2) + ("" if row["passed"] is not False else f" {LOSING}"),
                _number(row["bar"], 2),
                _number(seconds.get("inductor"), 2),
                _number(row["over_untouched"], 2),
            )
        )
    text = f"compile times (first call); {LOSING} marks a ratio above its bar\n{_aligned(rows)}"
    if times["growth"]:
        lines: list[tuple[str, ...]] = [
            ("growth", "mode", "compile", "variant", "s at layers", "s per layer", "exponent")
        ]
        for one in times["growth"]:
            points = zip(one["layers"], one["seconds"], strict=True)
            shown = " ".join(f"{count}:{value:.2f}" for count, value in points)
            named = one["family"], one["mode"], one["kind"], one["variant"]
            per_layer, exponent = one["seconds_per_layer"], one["exponent"]
            lines.append((*named, shown, _number(per_layer, 3), _number(exponent, 2)))
        text += f"\n\n{_aligned(lines)}"
    return text


def _ratio(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" + (f" {LOSING}" if value < NOT_SLOWER else "")


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        first, *rest = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join(["  " + row[0].ljust(len(first)), *rest]).rstrip())
    return "\n".join(lines)
