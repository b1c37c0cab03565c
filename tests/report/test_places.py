"""Where a report says that something is: at the program's line, not in torch's files."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fusepass


class Sub(Tensor):
    pass


class Guarded(nn.Module):
    """Runs in ``Sequential.forward``."""

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            x = x + 1
        return x


def stored(x: Tensor, mask: Tensor) -> Tensor:
    y = x * 2
    y[mask] = 1.0
    return y + 1


def read(x: Tensor, mask: Tensor) -> Tensor:
    n = x.sum().item()
    return x * n + mask


def deviation(x: Tensor, mask: Tensor) -> Tensor:
    return nn.functional.gaussian_nll_loss(x, x, x.abs() + mask)


def validated(x: Tensor, mask: Tensor) -> Tensor:
    return torch.distributions.Normal(x, mask + 1.0, validate_args=True).mean


@pytest.mark.parametrize("program", [stored, read, deviation, validated])
@pytest.mark.parametrize("kind", [Tensor, Sub])
def test_the_programs_line(program: Callable[..., Any], kind: type[Tensor]) -> None:
    x, mask = torch.arange(4.0).as_subclass(kind), torch.tensor([True, False, True, True])
    report = fusepass.explain(program, x, mask)
    first = program.__code__.co_firstlineno
    placed = [d for d in report.decisions if d.file]
    assert placed
    assert all(d.file == __file__ for d in placed)
    assert all(first < d.line <= first + 3 for d in placed)


def test_a_module_in_one_of_torchs() -> None:
    report = fusepass.explain(nn.Sequential(Guarded(), Guarded()), torch.ones(3))
    told = [d for d in report.decisions if d.rule in ("branch", "branch_to_where")]
    assert told
    assert {d.file for d in told} == {__file__}


LIBRARY = {
    "checks": """
import torch

def helper(x, n):
    return torch.repeat_interleave(x, n)

def check(ok):
    if not ok:
        raise ValueError("wrong")
""",
    "model": """
import torch
from placed_library.checks import check, helper

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x, n):
        x = x + 1
        y = helper(x, n)
        return y * 2

class Checked(torch.nn.Module):
    def forward(self, x, n):
        check(x.sum() > 0)
        check(n.sum() > 0)
        return local(x * 2)

def local(x):
    torch._dynamo.graph_break()
    return x + 1

class Kept(torch.nn.Module):
    def forward(self, x, n):
        held = {}
        held["n"] = x
        self.held = held
        check(x.sum() > 0)
        self.held = {}
        check(n.sum() > 0)
        return x * 2
""",
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A package that lies where installed ones do: helpers in one file, models in another."""
    root = tmp_path_factory.mktemp("site-packages")
    folder = root / "site-packages" / "placed_library"
    folder.mkdir(parents=True)
    for name, source in {"__init__": "", **LIBRARY}.items():
        (folder / f"{name}.py").write_text(source)
    sys.path.insert(0, str(folder.parent))
    try:
        yield importlib.import_module("placed_library.model")
    finally:
        sys.path.remove(str(folder.parent))
        for name in [name for name in sys.modules if name.startswith("placed_library")]:
            del sys.modules[name]


def line_with(module: Any, text: str, nth: int = 0) -> int:
    lines = Path(module.__file__).read_text().splitlines()
    return [n for n, line in enumerate(lines, 1) if text in line][nth]


class TestHelpers:
    """What is met in a library's helper is at the line of the model that calls it."""

    def test_break_in_a_helper_is_told_once(self, library: Any) -> None:
        """The helper is inlined first, and then compiled by itself."""
        report = fusepass.explain(library.Net(), torch.ones(2), torch.tensor([1, 2]))
        (found,) = report.graph_breaks
        assert (found["file"], found["line"]) == (
            library.__file__,
            line_with(library, "y = helper"),
        )
        assert found["reason"].endswith(" [in helper (checks.py:5)]")
        (decision,) = [d for d in report.decisions if d.treatment == "keep"]
        assert (decision.file, decision.line) == (found["file"], found["line"])

    def test_captured_checks_have_a_line_each(self, library: Any) -> None:
        report = fusepass.explain(library.Checked(), torch.ones(2), torch.ones(2))
        sinks = [d for d in report.decisions if d.treatment == "sink"]
        lines = [line_with(library, text) for text in ("check(x", "check(n")]
        assert [(d.file, d.line) for d in sinks] == [(library.__file__, n) for n in lines]
        assert all("[in check (checks.py:8)]" in d.reason for d in sinks)

    def test_function_beside_the_model_is_no_helper(self, library: Any) -> None:
        report = fusepass.explain(library.Checked(), torch.ones(2), torch.ones(2))
        (found,) = report.graph_breaks
        assert found["line"] == line_with(library, "graph_break()")
        assert "[in " not in found["reason"]

    def test_kept_checks_of_two_lines_are_two(self, library: Any) -> None:
        report = fusepass.explain(library.Kept(), torch.ones(2), torch.ones(2))
        lines = {line_with(library, text, 1) for text in ("check(x", "check(n")}
        assert {d["line"] for d in report.graph_breaks} == lines

    def test_users_function_around_a_library_has_the_librarys_model(self, library: Any) -> None:
        model = library.Net()

        def program(x: Tensor, n: Tensor) -> Tensor:
            return model(x, n) + 1

        report = fusepass.explain(program, torch.ones(2), torch.tensor([1, 2]))
        assert {found["file"] for found in report.graph_breaks} == {library.__file__}

    def test_users_call_of_a_librarys_helper(self, library: Any) -> None:
        def program(x: Tensor, n: Tensor) -> Tensor:
            return library.helper(x, n) + 1

        report = fusepass.explain(program, torch.ones(2), torch.tensor([1, 2]))
        (found,) = report.graph_breaks
        assert found["file"] == __file__
        assert found["line"] == program.__code__.co_firstlineno + 1
        assert "[in helper (checks.py:5)]" in found["reason"]
