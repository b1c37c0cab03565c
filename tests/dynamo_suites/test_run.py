"""The harness itself, on a file with one test of each kind: nothing of torch's own is kept here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SUITE = """
import os

import torch
import torch._dynamo.test_case
from torch._dynamo.testing import CompileCounter, CompileCounterWithBackend


def branch(x):
    if x.sum() > 0:
        return x + 1
    return x - 1


class Tests(torch._dynamo.test_case.TestCase):
    def test_results(self):
        for x in (torch.ones(2), -torch.ones(2)):
            for backend in ("eager", "aot_eager"):
                self.assertEqual(torch.compile(branch, backend=backend)(x), branch(x))

    def test_counts(self):
        for counter in (CompileCounter(), CompileCounterWithBackend("aot_eager")):
            torch._dynamo.reset()
            torch.compile(branch, backend=counter)(torch.ones(2))
            self.assertEqual(counter.frame_count, 2)

    def test_breaks(self):
        for how in ({"backend": "eager"}, {"backend": CompileCounter()}, {}):
            with self.assertRaises(torch._dynamo.exc.Unsupported):
                torch.compile(branch, fullgraph=True, **how)(torch.ones(2))

    def test_fails(self):
        self.fail()

    def test_skips(self):
        self.skipTest("why")

    def test_the_process_dies(self):
        os.kill(os.getpid(), 9)
"""


def outcomes(folder: Path, way: str) -> dict[str, dict[str, Any]]:
    rows = map(json.loads, (folder / f"test_small.{way}.jsonl").read_text().splitlines())
    return {row["id"].rpartition(".")[2]: row for row in rows if "id" in row}


@pytest.mark.slow  # five processes import torch
def test_both_ways_are_run_and_compared(tmp_path: Path) -> None:
    (tmp_path / "test_small.py").write_text(SUITE)
    # torch's test cases are expecttest's, which the development environment does not have.
    (tmp_path / "expecttest.py").write_text("from unittest import TestCase\n")
    out = tmp_path / "out"
    line = [
        sys.executable,
        str(Path(__file__).with_name("run.py")),
        str(tmp_path / "test_small.py"),
    ]
    line += ["--out", str(out), "--limit", "60"]
    before: dict[str, str] = {}
    for _ in range(2):  # the second time every test has a result
        done = subprocess.run(line, capture_output=True, text=True, check=True)
        assert "6 tests, 3 pass in the control, 1 differ, 1 with other counts" in done.stdout
        assert "test_breaks: fail: AssertionError: Unsupported not raised" in done.stdout
        files = {file.name: file.read_text() for file in out.glob("*.jsonl")}
        assert before in ({}, files)
        before = files
    kinds = {"test_fails": "fail", "test_skips": "skip", "test_the_process_dies": "died"}
    kinds |= {"test_results": "pass", "test_counts": "pass"}
    for way, breaks in (("control", "pass"), ("mapped", "fail")):
        rows = outcomes(out, way)
        found = {name: row["outcome"] for name, row in rows.items()}
        assert found == {**kinds, "test_breaks": breaks}
        assert all(not row["warnings"] for row in rows.values())
    # The control counts the frames in front of the break and behind it; fusepass has no break.
    assert outcomes(out, "mapped")["test_counts"]["counts"] == ["1 2", "1 2"]
