"""``torch.compile`` with other backends does the same before, beside and after fusepass.

One process runs the same programs twice, first without fusepass, then with fusepass imported and
in use, and compares what torch counts and says.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = '''
import contextlib, io, json, sys
import torch
from torch import nn

def plain(x, w):
    return x @ w

def flagged(x, w):  # library calls and a view: nothing to generate
    y = x @ w
    if x[0, 0]:
        return y @ w
    return w @ y

def branch(x, w):
    y = x @ w
    if y.sum() > 0:
        y = y @ w
    else:
        y = w @ y
    return y @ w

def nested(x, w):
    for _ in range(2):
        x = branch(x, w)
    return x

def asserts(x, w):
    assert x.sum() == x.sum()
    return x @ w

def ternary(x, w):
    return (x @ w) if (x.sum() > 0 and w.sum() > 0) else (w @ x)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.eye(2))
    def forward(self, x, w):
        return branch(x, self.w) @ w

def generator(x, w):
    def parts():
        yield x @ w
        if x.sum() > 0:
            yield w @ x
    return sum(parts())

PROGRAMS = [plain, branch, flagged, nested, asserts, ternary, generator, Net()]

def observe(backend):
    """Everything torch counts and says about compiling and running the programs."""
    from torch._dynamo.utils import counters
    seen = []
    for program in PROGRAMS if backend == "eager" else (plain, flagged):
        torch._dynamo.reset()
        counters.clear()
        graphs = []
        def count(gm, inputs):
            graphs.append([f"{n.op} {n.target}" for n in gm.graph.nodes])
            return gm.forward
        compiled = torch.compile(program, backend="inductor" if backend == "inductor" else count)
        results = []
        for sign in (1, -1, 0, 1):
            x = torch.full((2, 2), 1.0 * sign)
            results.append(compiled(x, torch.eye(2)).tolist())
        held = {g: dict(c) for g, c in counters.items() if c}
        out = torch._dynamo.explain(program)(torch.ones(2, 2), torch.eye(2))
        explained = [out.graph_count, out.graph_break_count, out.op_count]
        explained += [reason.reason for reason in out.break_reasons]
        seen.append([graphs, results, held, explained])
    return seen

def fullgraph_errors():
    found = []
    for program in (branch, ternary, generator):
        torch._dynamo.reset()
        try:
            torch.compile(program, backend="eager", fullgraph=True)(torch.ones(2, 2), torch.eye(2))
        except Exception as error:
            found.append([type(error).__name__, str(error).split("\\n")[0]])
    return found

from torch._inductor import config
config.fx_graph_cache = False  # what the first round left there would be a difference
torch._functorch.config.enable_autograd_cache = False

before = [observe("eager"), observe("inductor"), fullgraph_errors()]
assert "fusepass" not in sys.modules
captured = 0
for program in PROGRAMS:  # by name, as a user would
    torch._dynamo.reset()
    fused = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    fused(torch.ones(2, 2), torch.eye(2))
    import fusepass
    captured += sum(d.treatment == "where" for d in fusepass.last_report(fused).decisions)
after = [observe("eager"), observe("inductor"), fullgraph_errors()]

torch._dynamo.reset()  # the same function, alive in both at once
other = torch.compile(branch, backend="eager")
fused = torch.compile(branch, backend="fusepass", options={"codegen": "eager"})
both = []
for sign in (1, -1):
    x = torch.full((2, 2), 1.0 * sign)
    both.append([f(x, torch.eye(2)).tolist() for f in (branch, other, fused)])
from torch._dynamo.utils import counters
counters.clear()
with torch._dynamo.config.patch(error_on_recompile=True):
    for f in (other, fused, other):
        f(torch.ones(2, 2), torch.eye(2))
print("FOUND", json.dumps([before, after, captured, both, fusepass.last_report(fused).to_dict()["graphs"]]))
'''


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    folder = tmp_path_factory.mktemp("untouched")
    script = folder / "program.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(folder),
    )
    assert done.returncode == 0, done.stderr
    (line,) = (text for text in done.stdout.split("\n") if text.startswith("FOUND "))
    found: list[Any] = json.loads(line.removeprefix("FOUND "))
    return found


@pytest.mark.parametrize("backend", [0, 1], ids=["eager", "inductor"])
@pytest.mark.parametrize("what", [0, 1, 2, 3], ids=["graphs", "results", "counters", "explain"])
def test_same_as_without(backend: int, what: int, found: list[Any]) -> None:
    before, after, *_ = found
    for one, other in zip(before[backend], after[backend], strict=True):
        assert one[what] == other[what]


def test_programs_do_break_without_us(found: list[Any]) -> None:
    """Else the comparison would compare nothing."""
    breaks = [explained[1] for *_, explained in found[0][0]]
    assert breaks[0] == 0
    assert sum(count > 0 for count in breaks) >= 4
    assert [len(graphs) for graphs, *_ in found[0][0]][1] > 2
    assert found[0][1][1][2]["stats"]["unique_graphs"] > 2


def test_and_not_with_us(found: list[Any]) -> None:
    assert found[2] >= 5


def test_fullgraph_errors_are_torchs_own(found: list[Any]) -> None:
    assert found[0][2] == found[1][2]
    assert len(found[0][2]) == 3


def test_one_function_in_both_at_once(found: list[Any]) -> None:
    *_, both, graphs = found
    for results in both:
        assert results[0] == results[1] == results[2]
    assert graphs == 1
