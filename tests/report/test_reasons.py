"""The examples of docs/reasons.md: each has the reason code it stands under, and runs as in eager."""

from __future__ import annotations

import contextlib
import io
import linecache
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import fusepass

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "reasons.md").read_text()
SECTIONS = dict(re.findall(r"^### `(\w+)`\n(.*?)(?=^##|\Z)", TEXT, flags=re.MULTILINE | re.DOTALL))
WITHOUT_EXAMPLE = {"unsupported_version", "internal"}  # no program can bring these about


def example(code: str) -> dict[str, Any]:
    """What the example under a code defines."""
    (source,) = re.findall(r"```python\n(.*?)```", SECTIONS[code], flags=re.DOTALL)
    name = f"<docs/reasons.md {code}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    scope: dict[str, Any] = {"torch": torch, "fusepass": fusepass}
    exec(compile(source, name, "exec"), scope)
    return scope


@pytest.mark.parametrize("code", sorted(set(SECTIONS) - WITHOUT_EXAMPLE))
def test_example(code: str) -> None:
    scope = example(code)
    program, inputs = scope["program"], scope["inputs"]
    options = {"codegen": "eager"} | scope.get("options", {})
    compiled = torch.compile(program, backend="fusepass", options=options)
    with fusepass.rules(*scope.get("rules", ())), contextlib.redirect_stdout(io.StringIO()):
        report = fusepass.explain(compiled, *inputs)
        torch.manual_seed(0)
        expected = program(*inputs)
        torch.manual_seed(0)
        torch.testing.assert_close(compiled(*inputs), expected)
    found = [d for d in report.decisions if d.reason_code == code]
    assert found, (
        f"{code} not among {[(d.rule, d.reason_code, d.reason) for d in report.decisions]}"
    )
    assert all(d.reason for d in found)
    if found[0].station in ("capture", "before"):
        assert found[0].file.endswith(f"{code}>")
    if found[0].station == "capture":
        line = linecache.getline(found[0].file, found[0].line)
        assert found[0].rule != "branch" or "if " in line or "while " in line or code == "loop"
        assert found[0].rule != "print" or "print(" in line


def test_the_rest_has_none() -> None:
    assert all("```" not in SECTIONS[code] for code in WITHOUT_EXAMPLE)
