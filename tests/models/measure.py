"""Measure one model: plain Dynamo against fusepass, both op by op, and both against eager mode."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import fusepass
from fusepass.errors import FusepassWarning, NoReport
from fusepass.report import log
from fusepass.testing.compare import same_bits, tensors
from tests.models.build import build, found_layout, inputs, loss
from tests.models.dynamo_events import Events, counted
from tests.models.inputs import CALLS, Layout

WAYS = ("eager", "plain", "fusepass")


@dataclass
class Run:
    """Six calls of a model in one way.

    Attributes:
        results: of each call the tensors returned, and in training all gradients.
        graphs: how many graphs each call entered.
        error: what a call raised, or "".
        said: warnings, each once.
        kept: breaks with their causes, of fusepass.
    """

    events: Events = field(default_factory=Events)
    results: list[list[Tensor | None]] = field(default_factory=list)
    graphs: list[int] = field(default_factory=list)
    error: str = ""
    said: set[str] = field(default_factory=set)
    kept: list[dict[str, Any]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    seconds: float = 0.0


def measured(name: str, mode: str, ways: Sequence[str] = WAYS) -> Iterator[dict[str, Any]]:
    """Records of one model, each with more in it: the last one is whole."""
    library = name.partition("/")[0]
    record: dict[str, Any] = {"name": name, "mode": mode, "state": "building"}
    record |= {"torch": torch.__version__, "library": f"{library} {metadata.version(library)}"}
    started = time.perf_counter()
    layout = found_layout(name, mode)
    record["left_out"] = sorted(layout.left_out & {"pixel_values", "input_features", "labels"})
    record |= {"state": "eager", "build_seconds": round(time.perf_counter() - started, 1)}
    yield record
    runs = {}
    for way in ways:
        runs[way] = _run(name, mode, layout, way)
        record |= {"state": way, way: _told(runs[way])}
        if way != "eager":
            record[way] |= _compared(runs["eager"], runs[way])
        yield record
        if way == "eager" and runs[way].error:
            return
    if "fusepass" in runs:
        before = {one for way in ways if way != "fusepass" for one in runs[way].said}
        record["warnings"] = sorted(runs["fusepass"].said - before)
    record["state"] = "done"
    yield record


def _run(name: str, mode: str, layout: Layout, way: str) -> Run:
    run = Run()
    torch._dynamo.reset()
    fusepass.reset()
    model = build(name, mode)
    target = model
    if way == "plain":
        target = torch.compile(model, backend=run.events.plain)
    elif way == "fusepass":
        target = torch.compile(model, backend="fusepass", options={"codegen": "eager"})
    started = time.perf_counter()
    with contextlib.ExitStack() as stack:
        heard = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        stack.enter_context(counted(run.events))
        tally = stack.enter_context(log.count_entries()) if way == "fusepass" else ()
        try:
            for call in range(CALLS):
                before = run.events.entered + len(tally)
                run.results.append(_call(model, target, inputs(model, call, layout, mode), mode))
                run.graphs.append(run.events.entered + len(tally) - before)
        except Exception as error:  # noqa: BLE001 - the result is that it raises
            run.error = f"{type(error).__name__}: {error}"[:600]
    run.seconds = time.perf_counter() - started
    for one in heard:
        text = f"{one.category.__name__}: {str(one.message)[:300]}"
        (
            run.faults.append(text)
            if issubclass(one.category, FusepassWarning)
            else run.said.add(text)
        )
    if way == "fusepass":
        run.kept = _causes(target, run.events)
    return run


def _call(model: Any, target: Any, arguments: dict[str, Any], mode: str) -> list[Tensor | None]:
    torch.manual_seed(7)
    if mode == "eval":
        with torch.no_grad():
            return [one.clone() for one in tensors(target(**arguments))]
    model.zero_grad(set_to_none=True)
    result = target(**arguments)
    found: list[Tensor | None] = [one.detach().clone() for one in tensors(result)]
    loss(result).backward()
    return found + [None if one.grad is None else one.grad.clone() for one in model.parameters()]


def _compared(eager: Run, other: Run) -> dict[str, Any]:
    """How many calls differ from eager, and the first difference."""
    first, count = "", 0
    for call, (wanted, got) in enumerate(zip(eager.results, other.results)):
        difference = _difference(wanted, got)
        if difference:
            count += 1
            first = first or f"call {call}: {difference}"
    return {"different": count, "difference": first}


def _difference(wanted: list[Tensor | None], got: list[Tensor | None]) -> str:
    if len(wanted) != len(got):
        return f"{len(wanted)} tensors in eager, {len(got)} compiled"
    for index, (one, other) in enumerate(zip(wanted, got)):
        if one is None or other is None:
            if one is not other:
                return f"tensor {index}: {_kind(one)} in eager, {_kind(other)} compiled"
        elif (one.shape, one.dtype) != (other.shape, other.dtype):
            return f"tensor {index}: {_kind(one)} in eager, {_kind(other)} compiled"
        elif not same_bits(one, other, zero_signs=False):
            most = (one.double() - other.double()).abs().max() if one.dtype != torch.bool else 1
            return f"tensor {index}: values of {_kind(one)} differ by {float(most):.3g}"
    return ""


def _kind(one: Tensor | None) -> str:
    return "None" if one is None else f"{str(one.dtype).removeprefix('torch.')}{[*one.shape]}"


def _told(run: Run) -> dict[str, Any]:
    return {
        "breaks": len({_site(places) for places in run.events.breaks}),
        "chains": len(run.events.breaks),
        "places": sorted({_short(_site(places)) for places in run.events.breaks}),
        "graphs": run.graphs,
        "left": sorted(f"{_short((f, n))} {name}" for f, n, name in run.events.left),
        "compiles": run.events.compiles,
        "error": run.error,
        "faults": sorted({*run.faults}),
        "kept": run.kept,
        "met": sorted({_first_line(text) for text in run.events.breaks.values()}),
        "seconds": round(run.seconds, 2),
    }


_OURS = str(Path(fusepass.__file__).parent)


def _site(places: tuple[tuple[str, int], ...]) -> tuple[str, int]:
    """The line that breaks the graph, which is none of fusepass's own."""
    return next((one for one in reversed(places) if not one[0].startswith(_OURS)), places[-1])


def _short(place: tuple[str, int]) -> str:
    return f"{'/'.join(Path(place[0]).parts[-2:])}:{place[1]}"


def _first_line(text: str) -> str:
    return next((line for line in text.splitlines() if line.strip()), "")[:160]


def _causes(compiled: Any, events: Events) -> list[dict[str, Any]]:
    """The reason code and the reason of each line that breaks the graph under fusepass."""
    decisions: dict[Any, Any] = {}
    said: dict[Any, str] = {}
    with contextlib.suppress(NoReport):
        report = fusepass.last_report(compiled)
        kept = [d for d in report.decisions if d.treatment == "keep" or d.rule == "graph_break"]
        decisions = {(d.file, d.line): d for d in kept}
        said = {(one["file"], one["line"]): one["reason"] for one in report.graph_breaks}
    found: dict[str, dict[str, Any]] = {}
    for places, text in events.breaks.items():
        at = next((one for one in reversed(places) if one in decisions), None)
        if at is not None:
            code, reason = str(decisions[at].reason_code.value), decisions[at].reason
        else:
            at = next((one for one in reversed(places) if one in said), _site(places))
            code, reason = "not_decided", said.get(at, _first_line(text))
        site = _short(_site(places))
        if found.get(site, {}).get("code", "not_decided") == "not_decided":
            found[site] = {"at": site, "line": _short(at), "code": code, "reason": reason[:300]}
            found[site]["met"] = _first_line(text)
    return list(found.values())
