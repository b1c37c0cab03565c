"""Several threads compile at once, for fusepass and for others: results and reports stay apart."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fusepass

EAGER = {"codegen": "eager"}

# Threads that compile at once with torch's own "eager" backend and no branch crash or hang there.
pytestmark = pytest.mark.skipif(
    torch.__version__ < "2.13", reason="torch 2.11 itself crashes when threads compile at once"
)


def make(number: int) -> Callable[[Tensor, Tensor], Tensor]:
    """A function of its own (own code object), with ``number + 1`` branches."""
    lines = ["def program(x, w):"]
    for step in range(number + 1):
        lines += [f"    if x.sum() > {step}:", "        x = x @ w"]
        lines += ["    else:", "        x = w @ x"]
    scope: dict[str, Any] = {}
    exec(compile("\n".join([*lines, "    return x @ w"]), f"<program {number}>", "exec"), scope)
    program: Callable[[Tensor, Tensor], Tensor] = scope["program"]
    return program


def at_once(jobs: list[Callable[[], Any]]) -> list[Any]:
    """Run all jobs, started together; what the first raised is raised."""
    start = threading.Barrier(len(jobs))
    results: list[Any] = [None] * len(jobs)
    errors: list[BaseException] = []

    def run(index: int) -> None:
        try:
            start.wait(30)
            results[index] = jobs[index]()
        except BaseException as error:  # noqa: BLE001  # handed to the main thread
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    if errors:
        raise errors[0]
    return results


def job(number: int, backend: str, options: dict[str, Any]) -> Callable[[], Any]:
    program = make(number)
    compiled = torch.compile(program, backend=backend, options=options or None)

    def run() -> Any:
        x, w = torch.ones(2, 2), torch.eye(2) * 2
        for sign in (1, -1, 1):
            torch.testing.assert_close(compiled(x * sign, w), program(x * sign, w))
        return compiled

    return run


@pytest.mark.parametrize("round_", range(2))
def test_four_threads_two_backends(round_: int) -> None:
    jobs = [
        job(n, "fusepass" if n % 2 == 0 else "eager", EAGER if n % 2 == 0 else {}) for n in range(4)
    ]
    compiled = at_once(jobs)
    for number in (0, 2):
        report = fusepass.last_report(compiled[number])
        branches = [d for d in report.decisions if d.rule == "branch"]
        assert [d.treatment for d in branches] == ["where"] * (number + 1)
        assert {d.file for d in branches} == {f"<program {number}>"}
        assert (len(report.operations), report.graph_breaks) == (1, ())
    for number in (1, 3):
        with pytest.raises(fusepass.errors.NoReport):
            fusepass.last_report(compiled[number])


def products_in(reason: str) -> int:
    """How many matrix products a decision says are left."""
    found = re.search(r"(\d+) matrix products", reason)
    return int(found.group(1)) if found else 1


def test_through_inductor_with_backward() -> None:
    """Decisions of passes inside Inductor go to the graph they are about."""

    def training(size: int) -> Callable[[], Any]:
        scope: dict[str, Any] = {}
        body = " @ ".join(["x"] + ["w"] * size)
        exec(compile(f"def f(x, w):\n    return {body}", f"<training {size}>", "exec"), scope)
        compiled = torch.compile(scope["f"], backend="fusepass")

        def run() -> Any:
            x = torch.eye(2, requires_grad=True)
            compiled(x, torch.eye(2) * 2).sum().backward()
            assert x.grad is not None
            assert x.grad.tolist() == [[2.0**size] * 2] * 2
            return compiled

        return run

    for size, compiled in enumerate(at_once([training(size) for size in (1, 2, 3)]), start=1):
        report = fusepass.last_report(compiled)
        after = [d.reason for d in report.decisions if d.station == "after"]
        assert [products_in(reason) for reason in after] == [size, size]


def test_options_of_one_thread_do_not_reach_another() -> None:
    entered = threading.Barrier(3)

    def scoped(treatment: str) -> Callable[[], str]:
        program = make(0)

        def run() -> str:
            with fusepass.options(treatment=treatment, codegen="eager"):
                entered.wait(30)  # changing options once something is compiled is a warning
                compiled = torch.compile(program, backend="fusepass")
                compiled(torch.ones(2, 2), torch.eye(2))
            (d,) = (d for d in fusepass.last_report(compiled).decisions if d.rule == "branch")
            return d.treatment

        return run

    assert at_once([scoped(t) for t in ("where", "cond", "keep")]) == ["where", "cond", "keep"]


def test_explain_from_threads() -> None:
    def explain(number: int) -> Callable[[], int]:
        program = make(number)

        def run() -> int:
            with fusepass.options(codegen="eager"):
                report = fusepass.explain(program, torch.ones(2, 2), torch.eye(2))
            return sum(d.rule == "branch" for d in report.decisions)

        return run

    assert at_once([explain(n) for n in range(3)]) == [1, 2, 3]


FIRST_USE = """
import threading
import torch

start, errors = threading.Barrier(4), []

def run(number):
    def program(x):
        return x.sin() * number if x.sum() > number else x - 1
    x = torch.ones(8)
    start.wait()
    try:
        compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
        torch.testing.assert_close(compiled(x), program(x))
    except BaseException as error:
        errors.append(repr(error))

threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not errors, errors
from torch._dynamo.backends.registry import register_backend
try:
    register_backend(lambda gm, inputs: gm, name="fusepass")
except AssertionError as error:
    assert "duplicate" in str(error)
else:
    raise SystemExit("another backend took the name")
"""


def test_first_use_in_several_threads(tmp_path: Path) -> None:
    """Nobody has imported fusepass yet: each thread finds it by name, and loads it."""
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", FIRST_USE],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
