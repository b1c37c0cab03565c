"""Two processes, one cache folder: the second hits every cache and gives the same report.

A process takes seconds, so the tests of this file share the three they need.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import json
import torch

def infer(x, w):  # a library call: no code to generate
    return x @ w

def train(x):  # the arm not taken has an infinite derivative at zero: it must be gated
    return x.sqrt() if x.sum() > 0 else x * 2

def run():
    import fusepass
    from torch._dynamo.utils import counters

    found = {}
    with torch.no_grad():
        f = torch.compile(infer, backend="fusepass")
        found["result"] = f(torch.ones(2, 2), torch.eye(2)).tolist()
    g = torch.compile(train, backend="fusepass")
    x = torch.zeros(8, requires_grad=True)
    g(x).sum().backward()
    found["grad"] = x.grad.tolist()
    found["reports"] = [fusepass.last_report(c).to_dict() for c in (f, g)]
    groups = {k: v for group in ("inductor", "aot_autograd") for k, v in counters[group].items()}
    found["caches"] = {k: v for k, v in groups.items() if "_cache_" in k}
    found["package"] = fusepass.__file__
    return found

if __name__ == "__main__":
    print("FOUND", json.dumps(run()))
"""


class Processes:
    """Runs the program with one cache folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.script = folder / "program.py"
        self.script.write_text(PROGRAM)

    def run(self, path: Path | None = None) -> Any:
        environment = {
            **os.environ,
            "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "cache"),
            "OMP_NUM_THREADS": "1",
        }
        if path is not None:
            environment["PYTHONPATH"] = str(path)
        command = [sys.executable, str(self.script)]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, cwd=self.folder
        )
        assert done.returncode == 0, done.stderr
        (line,) = (text for text in done.stdout.split("\n") if text.startswith("FOUND "))
        return json.loads(line.removeprefix("FOUND "))


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Processes:
    return Processes(tmp_path_factory.mktemp("processes"))


@pytest.fixture(scope="module")
def first(processes: Processes) -> Any:
    return processes.run()


@pytest.fixture(scope="module")
def second(processes: Processes, first: Any) -> Any:
    return processes.run()


def counts(found: Any, word: str) -> int:
    return sum(n for key, n in found["caches"].items() if key.endswith(word))


def test_first_misses(first: Any) -> None:
    assert counts(first, "fxgraph_cache_miss") == 3  # one graph, and forward and backward
    assert counts(first, "autograd_cache_miss") == 2
    assert counts(first, "_hit") == counts(first, "_bypass") == 0


def test_results(first: Any, second: Any) -> None:
    assert first["result"] == second["result"]
    assert first["grad"] == second["grad"] == [2.0] * 8  # ungated it would be NaN


def test_second_hits_everything(second: Any) -> None:
    assert counts(second, "fxgraph_cache_hit") == 3
    assert counts(second, "autograd_cache_hit") == 2
    assert counts(second, "_miss") == counts(second, "_bypass") == 0


@pytest.mark.parametrize("program", [0, 1], ids=["infer", "train"])
def test_same_report(first: Any, second: Any, program: int) -> None:
    assert first["reports"][program] == second["reports"][program]


@pytest.mark.parametrize(("program", "graphs"), [(0, 1), (1, 2)])
def test_decisions_of_passes_inside_inductor_came_along(
    second: Any, program: int, graphs: int
) -> None:
    """They did not run; forward and backward count apart."""
    decisions = second["reports"][program]["decisions"]
    assert [d["station"] for d in decisions].count("after") == graphs


def test_branch_was_captured(second: Any) -> None:
    (branch,) = (d for d in second["reports"][1]["decisions"] if d["rule"] == "branch")
    assert branch["treatment"] == "where"
    assert Path(branch["file"]).name == "program.py"


def test_changed_source_of_a_rule_misses(processes: Processes, second: Any, tmp_path: Path) -> None:
    """A comment is enough. tests/rewrite/test_identity.py has the other files that count."""
    for name in ("fusepass", "patterns", "kernels"):
        target = tmp_path / "fusepass" / ("" if name == "fusepass" else name)
        unwanted = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, target, ignore=unwanted, dirs_exist_ok=True)
    rule = tmp_path / "fusepass" / "patterns" / "branch_to_where.py"
    rule.write_text(rule.read_text() + "\n# one more line\n")
    found = processes.run(path=tmp_path)
    assert Path(found["package"]).parent == tmp_path / "fusepass"
    assert counts(found, "_hit") == 0
    assert counts(found, "fxgraph_cache_miss") == 3
    assert found["reports"] == second["reports"]
