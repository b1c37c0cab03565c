"""The hash of a rule, part of Inductor's cache keys: all that decides what the rule does is in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

import fusepass
from fusepass.inductor import passes
from fusepass.options import resolve
from fusepass.rewrite.source_hash import Unhashable, rule_hash

SOURCE = """
import functools
import torch
from torch.nn import functional as F

FACTOR = 2.0
TABLE = {"scale": 1.0, "names": ["a", "b"], "kinds": {"x", "y"}}

def helper(x):
    return deeper(x) + 0.0

def deeper(x):
    return x * 1.0

def outer(kept):
    def pattern(x, *, _default=1.0):
        return torch.tanh(x) * FACTOR
    def replacement(x, unused=5):
        return helper(torch.tanh(x)) * FACTOR * kept * TABLE["scale"]
    return pattern, replacement

class Checks:
    limit = 3
    @staticmethod
    def small(match):
        return None

@torch.library.custom_op("fusepass_test_hash::one", mutates_args=())
def operator(x: torch.Tensor) -> torch.Tensor:
    return x + 1.0

def check(match):
    return Checks.small(match)

def partial_part(x, y):
    return x * y

def with_operator(x):
    return operator(x) - 1.0

def make(fusepass):
    pattern, replacement = outer(1.0)
    return fusepass.Rule("tried", lambda x: pattern(x), lambda x: replacement(x),
        (torch.randn(3, 4),), check, place="after", priority=0)

def make_partial(fusepass):
    part = functools.partial(partial_part, y=2.0)
    return fusepass.Rule("tried", part, lambda x: x + x, (torch.randn(3, 4),), place="after")

def make_operator(fusepass):
    return fusepass.Rule("tried", with_operator, with_operator, (torch.randn(3, 4),))
"""
EDITS = {
    "constant in the pattern": ("torch.tanh(x) * FACTOR\n    def", "torch.tanh(x) * 3.0\n    def"),
    "operation in the pattern": (
        "return torch.tanh(x) * FACTOR\n",
        "return torch.tan(x) * FACTOR\n",
    ),
    "global": ("FACTOR = 2.0", "FACTOR = 3.0"),
    "type of a global": ("FACTOR = 2.0", "FACTOR = 2"),
    "inside a global": ('"scale": 1.0', '"scale": 2.0'),
    "helper": ("deeper(x) + 0.0", "deeper(x) - 0.0"),
    "helper of a helper": ("return x * 1.0", "return x / 1.0"),
    "closure value": ("outer(1.0)", "outer(1.5)"),
    "default": ("unused=5", "unused=6"),
    "keyword default": ("_default=1.0", "_default=2.0"),
    "check": ("return Checks.small(match)", "return Checks.small(match) or None"),
    "method the check calls": (
        "    def small(match):\n        return None",
        "    def small(match):\n        return match.options and None",
    ),
    "name": ('Rule("tried", lambda', 'Rule("other", lambda'),
    "place": ('check, place="after"', 'check, place="before"'),
    "priority": ("priority=0", "priority=1"),
    "devices": ("priority=0", 'priority=0, devices=("cuda",)'),
    "shape of the example": ("torch.randn(3, 4),), check", "torch.randn(3, 1),), check"),
    "dtype of the example": ("torch.randn(3, 4),), check", "torch.randn(3, 4).double(),), check"),
    "number of inputs": ("torch.randn(3, 4),), check", "torch.randn(3, 4), 1.0), check"),
}
SAME = {
    "nothing": ("", ""),
    "comment": ("FACTOR = 2.0", "FACTOR = 2.0  # as before"),
    "other values in the example": ("torch.randn(3, 4),), check", "torch.ones(3, 4),), check"),
    "a function it does not use": ("return x * y", "return x / y"),
    "a line further down": ("\nFACTOR", "\n\n\nFACTOR"),
}


def module(change: tuple[str, str] = ("", "")) -> dict[str, Any]:
    """The module above with one edit."""
    before, after = change
    assert before in SOURCE
    scope: dict[str, Any] = {"__name__": "rules_of_a_user"}
    exec(compile(SOURCE.replace(before, after, 1), "rules_of_a_user.py", "exec"), scope)
    return scope


def hashed(change: tuple[str, str] = ("", ""), make: str = "make") -> str:
    return rule_hash(module(change)[make](fusepass))


@pytest.mark.parametrize("name", EDITS)
def test_changed(name: str) -> None:
    assert hashed(EDITS[name]) != hashed()


@pytest.mark.parametrize("name", SAME)
def test_same(name: str) -> None:
    assert hashed(SAME[name]) == hashed()


def test_partial() -> None:
    assert hashed(make="make_partial") == hashed(make="make_partial")
    for change in (("y=2.0", "y=3.0"), ("return x * y", "return x / y")):
        assert hashed(change, "make_partial") != hashed(make="make_partial")


def test_operator() -> None:
    """Its body runs when the pattern is traced on tensors without it."""
    assert hashed(make="make_operator") == hashed(make="make_operator")
    assert hashed(("x + 1.0", "x + 2.0"), "make_operator") != hashed(make="make_operator")


def test_function_in_a_module_of_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``import helpers`` and ``helpers.scaled(x)``: the helper decides as well."""
    found = set()
    for number in (2.0, 3.0):
        helpers = ModuleType("fusepass_test_helpers")
        exec(f"def scaled(x):\n    return x * {number}", vars(helpers))
        monkeypatch.setitem(sys.modules, helpers.__name__, helpers)
        scope: dict[str, Any] = {"__name__": "rules_of_a_user"}
        text = (
            "import fusepass_test_helpers as helpers\ndef pattern(x):\n    return helpers.scaled(x)"
        )
        exec(text, scope)
        try:
            found.add(rule_hash(rule(scope["pattern"])))
        except Unhashable:
            return  # that is safe, too
    assert len(found) == 2


def rule(replacement: Any, place: str = "after") -> fusepass.Rule:
    return fusepass.Rule("tried", lambda x: x * 2, replacement, (torch.randn(3, 4),), place=place)  # type: ignore[arg-type]


class Config:
    """A value whose content nobody can tell from its text."""

    factor = 2.0


def unhashable() -> list[Any]:
    tensor, config, layer = torch.ones(4), Config(), torch.nn.Linear(4, 4)

    def with_tensor(x: Tensor) -> Tensor:
        return x + x * tensor

    def with_object(x: Tensor) -> Tensor:
        return x * config.factor

    def with_module(x: Tensor) -> Tensor:
        return x + x + 0 * layer.in_features

    return [with_tensor, with_object, with_module]


@pytest.mark.parametrize("replacement", unhashable(), ids=lambda f: f.__name__)
def test_what_cannot_be_told_from_its_text_is_refused(replacement: Any) -> None:
    with pytest.raises(Unhashable):
        rule_hash(rule(replacement))


def test_two_objects_of_one_kind_are_told_apart() -> None:
    """Which of the helpers is meant where."""

    def one(x: Tensor) -> Tensor:
        return x + 1

    def two(x: Tensor) -> Tensor:
        return x + 2

    def made(first: Any, second: Any, third: Any) -> str:
        return rule_hash(rule(lambda x: third(second(first(x)))))

    assert made(one, two, one) != made(one, two, two)


class TestCache:
    """Inductor's cache with rules of one's own."""

    @pytest.fixture(autouse=True)
    def _folder(self, cache_dir: Path) -> Iterator[None]:
        counters.clear()
        yield
        fusepass.reset()

    def run(self, replacement: Any, **changes: Any) -> list[str]:
        """Compile anew and run; outcomes of the rule."""
        torch.compiler.reset()
        compiled = torch.compile(lambda x: (x * 2) @ x.t(), backend="fusepass")
        x = torch.randn(3, 4)
        with fusepass.rules(rule(replacement)), torch.no_grad():
            torch.testing.assert_close(compiled(x), (x * 2) @ x.t())
        found = fusepass.last_report(compiled).decisions
        return [d.outcome.value for d in found if d.rule == "tried"]

    def test_hit_reports_the_same(self) -> None:
        for _ in range(2):
            assert self.run(lambda x: x + x) == ["applied"]
        assert counters["inductor"]["fxgraph_cache_hit"] == 1

    def test_changed_rule_misses(self) -> None:
        self.run(lambda x: x + x)
        self.run(lambda x: x - -x)
        assert counters["inductor"]["fxgraph_cache_hit"] == 0
        assert counters["inductor"]["fxgraph_cache_miss"] == 2

    def test_rule_left_out_misses(self) -> None:
        self.run(lambda x: x + x)
        torch.compiler.reset()
        compiled = torch.compile(lambda x: (x * 2) @ x.t(), backend="fusepass")
        with torch.no_grad():
            compiled(torch.randn(3, 4))
        assert counters["inductor"]["fxgraph_cache_hit"] == 0

    def test_unhashable_rule_bypasses_it_and_says_so(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        config = Config()
        for factor in (2.0, 2.0):
            config.factor = factor
            assert self.run(lambda x: x + x + (config.factor - 2)) == ["applied"]
        assert counters["inductor"]["fxgraph_cache_hit"] == 0
        assert counters["inductor"]["fxgraph_cache_bypass"] == 2
        assert "cache is bypassed" in caplog.text
        assert "Config" in caplog.text

    def test_identity_names_the_rule(self, caplog: pytest.LogCaptureFixture) -> None:
        config = Config()
        assert passes.pass_uuid(resolve(), [rule(lambda x: x * config.factor)]) is None
        assert "tried" in caplog.text


PROGRAM = """
import json
import torch
import fusepass
from torch._dynamo.utils import counters
from fusepass.rewrite.source_hash import rule_hash

KINDS = {"a", "b", "c", "d"}  # sets come in another order in each process

def pattern(x):
    return x * 2

def replacement(x):
    return x + x if "a" in KINDS else x

RULE = fusepass.register(
    fusepass.Rule("doubled", pattern, replacement, (torch.randn(3, 4),), place="after")
)

def program(x):
    return (x * 2).cos().sum()

if __name__ == "__main__":
    compiled = torch.compile(program, backend="fusepass")
    x = torch.linspace(-1, 1, 8).view(2, 4).requires_grad_()
    compiled(x).backward()
    found = {"hash": rule_hash(RULE), "grad": x.grad.tolist()}
    found["report"] = fusepass.last_report(compiled).to_dict()
    found["caches"] = {k: v for k, v in counters["inductor"].items() if "fxgraph_cache" in k}
    print("FOUND", json.dumps(found))
"""


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What two processes with one cache folder found."""
    folder = tmp_path_factory.mktemp("rules")
    (folder / "program.py").write_text(PROGRAM)
    found = []
    for seed in ("1", "2"):
        environment = {
            **os.environ,
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"),
            "OMP_NUM_THREADS": "1",
            "PYTHONHASHSEED": seed,
        }
        done = subprocess.run(
            [sys.executable, "program.py"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
        )
        assert done.returncode == 0, done.stderr
        (line,) = (text for text in done.stdout.split("\n") if text.startswith("FOUND "))
        found.append(json.loads(line.removeprefix("FOUND ")))
    return found


def test_two_processes_give_one_hash(processes: list[Any]) -> None:
    first, second = processes
    assert first["hash"] == second["hash"]


def test_second_process_hits_and_reports_the_rule(processes: list[Any]) -> None:
    first, second = processes
    assert first["caches"] == {"fxgraph_cache_miss": 2}
    assert second["caches"] == {"fxgraph_cache_hit": 2}
    assert first["grad"] == second["grad"]
    assert first["report"] == second["report"]
    applied = [d for d in second["report"]["decisions"] if d["rule"] == "doubled"]
    assert "applied" in [d["outcome"] for d in applied]
    assert {d["station"] for d in applied} == {"after"}
    assert Path(applied[0]["file"]).name == "program.py"
