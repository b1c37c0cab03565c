"""Make docs/models.md of the records in tests/models/results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.models.pool import read

RESULTS = Path(__file__).with_name("results")
PAGE = Path(__file__).parents[2] / "docs" / "models.md"
MODES = {"eval": "Inference", "train": "Training"}
_HEAD = """# Models

`python -m tests.models --write-docs` makes this page from the records in `tests/models/results`.
Each model is of a class of transformers, timm, torchvision or diffusers, with a small config and
random weights. It is called with six inputs that differ in values, in padding and in lengths, and
where the model permits it in the sizes of its images. `torch.compile` with a backend that runs each
graph op by op (“plain”) is compared with fusepass that runs op by op (`codegen="eager"`), on
the CPU. Mixtures of experts have transformers' `eager` experts.

- **breaks**: lines of code that break the graph in one of the six calls.
- **graphs**: graphs that the last call enters. One is a whole graph.
- **eager**: functions that Dynamo gives up behind a break, so that they run in eager mode.
- **compiles**: frames compiled in the six calls, for the first time or again for other sizes.
- **causes**: the [reason codes](reasons.md) of the breaks that fusepass leaves. `not_decided`: Dynamo breaks the
  graph in a function that fusepass says nothing about.

Two numbers with an arrow are plain Dynamo's and fusepass's; one number is both.
[How fusepass is tested](design/own_tests.md#models-of-libraries) says how to measure the models again.
"""


def records() -> list[dict[str, Any]]:
    """All records, the newest of each model and mode."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for file in sorted(RESULTS.glob("*.jsonl")):
        found |= {(one["name"], one["mode"]): one for one in read(str(file))}
    return [found[key] for key in sorted(found)]


def text(all_records: Iterable[dict[str, Any]]) -> str:
    """The page."""
    parts = [_HEAD]
    everything = list(all_records)
    for mode, title in MODES.items():
        whole = [one for one in everything if one["mode"] == mode and "fusepass" in one]
        if whole:
            parts += [f"## {title}\n", _summary(whole), _table(whole)]
    parts.append(_not_measured(everything))
    return "\n".join(parts).rstrip() + "\n"


def is_whole(way: dict[str, Any]) -> bool:
    """One graph in each call, with at most two compiles."""
    fine = not way["breaks"] and not way["left"] and not way["error"]
    return fine and set(way["graphs"]) == {1} and way["compiles"] <= 2


def _summary(found: list[dict[str, Any]]) -> str:
    breaking = [one for one in found if one["plain"]["breaks"] or one["plain"]["left"]]
    whole = sum(is_whole(one["fusepass"]) for one in breaking)
    plain, ours = (sum(one[way]["breaks"] for one in found) for way in ("plain", "fusepass"))
    losers = [_name(one) for one in found if is_loser(one)]
    different = [_name(one) for one in found if one["fusepass"].get("different")]
    failing = [
        _name(one) for one in found if one["fusepass"]["error"] and not one["plain"]["error"]
    ]
    causes = Counter(kept["code"] for one in found for kept in one["fusepass"]["kept"])
    versions = sorted(
        {f"torch {one['torch']}" for one in found}
        | {one["library"] for one in found if "library" in one}
    )
    lines = [
        f"{', '.join(versions)}. {len(found)} models; {len(breaking)} break under plain Dynamo: {plain} breaks, {ours} with fusepass.",
        f"With fusepass, {whole} of the {len(breaking)} are one graph in all six calls, compiled at most twice.",
        "",
        f"- More breaks, or more functions in eager mode, than with plain Dynamo: {_names(losers)}.",
        f"- Results other than eager mode's: {_names(different)}.",
        f"- An error that plain Dynamo does not raise: {_names(failing)}.",
        "",
        "| cause of a break that stays | breaks |",
        "|---|---|",
        *(f"| `{code}` | {n} |" for code, n in causes.most_common()),
        "",
    ]
    return "\n".join(lines)


def is_loser(one: dict[str, Any]) -> bool:
    """Whether fusepass breaks a graph, or leaves a function to eager, that plain Dynamo does not."""
    plain, ours = one["plain"], one["fusepass"]
    if plain["error"]:  # it did not come as far as fusepass
        return False
    return (
        bool(ours["error"])
        or ours["breaks"] > plain["breaks"]
        or len(ours["left"]) > len(plain["left"])
    )


def _names(names: list[str]) -> str:
    return ", ".join(names) or "none"


def _name(one: dict[str, Any]) -> str:
    return one["name"].partition("/")[2]


def _table(found: list[dict[str, Any]]) -> str:
    lines = [
        "| library | model | breaks | graphs | eager | compiles | causes |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in found:
        plain, ours = one["plain"], one["fusepass"]
        causes = Counter(kept["code"] for kept in ours["kept"])
        cells = [
            one["name"].partition("/")[0],
            _name(one)
            + (" (loses)" if is_loser(one) else "")
            + (" (differs)" if ours.get("different") else ""),
            _both(plain["breaks"], ours["breaks"]),
            _both(_last(plain), _last(ours)),
            _both(len(plain["left"]), len(ours["left"])),
            _both(plain["compiles"], ours["compiles"]),
            ", ".join(f"{code} {n}" for code, n in causes.most_common()),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _last(way: dict[str, Any]) -> Any:
    return "error" if way["error"] else way["graphs"][-1]


def _both(plain: Any, ours: Any) -> str:
    return str(plain) if plain == ours else f"{plain} → {ours}"


def _not_measured(found: list[dict[str, Any]]) -> str:
    left = sorted({one["name"] for one in found if "fusepass" not in one})
    if not left:
        return ""
    return f"## Not measured\n\nThese do not build from a small config, or take too long: {_names(left)}.\n"


def write() -> None:
    """Write the page."""
    PAGE.write_text(text(records()))
