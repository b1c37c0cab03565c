"""Two records of decisions and generated code: what is hidden in them, and what is told apart."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.perf.same_code import compare, decisions, normalised

KERNEL = """
# Source node: /home/a/old/model.py:3
from fusepass.kernels.{place} import launch
{name} = async_compile.triton('{name}', 'backend_hash: {key}')
"""


def generated(name: str, place: str = "pool", key: str = "a" * 64) -> str:
    return normalised(KERNEL.format(name=name, place=place, key=key))


def test_names_that_need_not_agree_are_hidden() -> None:
    one = generated("triton_poi_fused_relu_0")
    assert one == generated("triton_poi_fused_clamp_3", "pointwise.pool", "b" * 64)
    assert "kernel_0 = async_compile.triton('kernel_0'" in one


def test_kernels_are_told_apart_by_their_order() -> None:
    calls = "{0}.run(x)\n{1}.run({0})\n{0}.run(y)"
    one = calls.format("triton_per_fused_0", "triton_red_fused_1")
    other = calls.format("triton_red_fused_1", "triton_per_fused_0")
    assert normalised(one) == normalised(other) == calls.format("kernel_0", "kernel_1")
    assert normalised(one) != normalised(one.replace("triton_red_fused_1.run", "extern.run"))


def test_what_code_computes_is_not_hidden() -> None:
    text = "tmp2 = tmp0 * 0.5\nbuf1 = torch.ops.fusepass.pool.default(arg0_1, 3)"
    assert normalised(text) == text


def decision(**changed: Any) -> dict[str, Any]:
    return {
        "station": "capture",
        "rule": "branch",
        "outcome": "applied",
        "treatment": "where",
        "reason_code": "pure_total",
        "reason": "it takes 12.5 us",
        "file": "",
        "line": 0,
        **changed,
    }


def report(*found: dict[str, Any], breaks: tuple[str, ...] = ()) -> dict[str, Any]:
    broken = [{"reason": reason, "file": "", "line": 0} for reason in breaks]
    return {"decisions": list(found), "graph_breaks": broken, "graphs": 1}


def test_measured_numbers_are_hidden_in_decisions() -> None:
    one, other = decision(), decision(reason="it takes 13 us")
    assert decisions(report(one)) == decisions(report(other))


@pytest.mark.parametrize(
    "changed", [{"treatment": "cond"}, {"reason_code": "raises"}, {"reason": "it fails"}]
)
def test_other_decisions_are_told(changed: dict[str, Any]) -> None:
    assert decisions(report(decision())) != decisions(report(decision(**changed)))


def test_the_line_of_source_is_told_and_not_its_number(tmp_path: Path) -> None:
    one, other = tmp_path / "one" / "p.py", tmp_path / "other" / "p.py"
    for file, above in ((one, ""), (other, "import torch\n\n")):
        file.parent.mkdir()
        file.write_text(f"{above}if x.any():\n    pass\n")
    first = decisions(report(decision(file=str(one), line=1)))
    assert first == decisions(report(decision(file=str(other), line=3)))
    assert first[0].endswith("[p.py: if x.any():]")
    assert first != decisions(report(decision(file=str(other), line=4)))


def record(code: str = "a = 1", said: str = "where", **programs: Any) -> dict[str, Any]:
    found = {"ends": ["returned"], "decisions": [said], "code": ["0"]}
    return {"programs": {"p": found, **programs}, "texts": {"0": code}, "kernels": []}


def with_code(key: str, text: str) -> dict[str, Any]:
    made = record()
    made["texts"], made["programs"]["p"]["code"] = {key: text}, [key]
    return made


def test_equal_records() -> None:
    assert compare(record(), record()) == []


def test_differences_are_told() -> None:
    one, other = record(said="branch where: it is pure"), record(said="branch cond: it is pure")
    assert compare(one, other) == ["p: - branch where: it is pure", "p: + branch cond: it is pure"]
    other = record(said="branch where: it is total")
    said = ["p: words - branch where: it is pure", "p: words + branch where: it is total"]
    assert compare(one, other) == said
    other = record(said="branch where: it is pure [p.py: if x:]")
    assert compare(one, other)[0] == "p: - branch where: it is pure"
    said = compare(record(), with_code("1", "a = 2"))
    assert said[0] == "p: other code (1 / 1 graphs)"
    assert said[-2:] == ["    -a = 1", "    +a = 2"]
    assert compare(record(), record(q={"error": "e"})) == ["q: in the second record only"]
    assert compare(record(q={"error": "e"}), record(q={"error": "e"})) == []
    assert compare(record(q={"error": "e"}), record(q={"error": "f"})) == ["q: e / f"]
    kernels = {**record(), "texts": {"0": "a = 1", "k": "x"}, "kernels": ["k"]}
    assert compare(kernels, record())[0].startswith("kernels: 1 only in the first record, 0 in")


@pytest.mark.slow
def test_a_checkout_that_is_not_installed_is_recorded(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    out = tmp_path / "record.json"
    only = ["corpus:if_else.", "--sample", "12", "--codegen", "eager"]
    script = str(root / "tests/perf/same_code.py")
    command = [sys.executable, "-P", script, "--out", str(out), "--only", *only]
    subprocess.run(command, cwd=root, check=True, capture_output=True, timeout=600)
    programs = json.loads(out.read_text())["programs"]
    assert programs
    for name, found in programs.items():
        assert "returned" in found["ends"], name
        assert any("branch applied" in line for line in found["decisions"]), name
