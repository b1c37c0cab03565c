"""The pytest plugin: light to load, and useful once a test asks."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

from fusepass.testing import plugin
from fusepass.testing.profiles import PROFILES

HEAVY = ("torch", "hypothesis", "networkx", "fusepass.torch_private", "fusepass.backend")
COLLECT = """
import sys
import pytest

status = pytest.main(["--co", "-q", "-p", "no:cacheprovider", *sys.argv[1:]])
assert sys.modules["fusepass.testing.plugin"]
heavy = [name for name in {heavy!r} if name in sys.modules]
assert not heavy, heavy
sys.exit(status)
"""

TEST = """
import torch
import fusepass
from fusepass import Rule

X = torch.randn(4, 8)
WRONG = Rule("wrong", lambda x: x.softmax(-1), lambda x: x.softmax(0), (X.new_ones(4, 4),))
RIGHT = Rule("right", lambda x: x * 2 * 3, lambda x: x * 6, (X,))

def test_right(fusepass_check_rule, fusepass_rule_profile):
    result = fusepass_check_rule(RIGHT)
    assert result.profile == fusepass_rule_profile == "quick"
    print("seed was", result.seed)

def test_wrong(fusepass_check_rule):
    fusepass_check_rule(WRONG)

compiled = torch.compile(lambda x: x + 1, backend="fusepass", options={"codegen": "eager"})

def test_before():
    compiled(X)
    assert fusepass.last_report(compiled)

def test_reset(fusepass_reset):
    try:
        fusepass.last_report(compiled)
    except fusepass.FusepassError:
        return
    raise AssertionError("a report from another test")
"""


def run(arguments: list[str], where: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=where, capture_output=True, text=True, check=False)


def test_the_entry_point_is_declared():
    (point,) = importlib.metadata.entry_points(group="pytest11", name="fusepass")
    assert point.value == "fusepass.testing.plugin"
    assert point.load() is plugin


def test_collecting_loads_neither_torch_nor_hypothesis(tmp_path: Path):
    (tmp_path / "test_theirs.py").write_text("def test_theirs(fusepass_rule_profile):\n    pass\n")
    # Hypothesis has a plugin of its own, which loads it only as far as it must.
    flags = ["-p", "no:hypothesispytest", "--fusepass-profile", "ci"]
    done = run(["-c", COLLECT.format(heavy=HEAVY), *flags], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_theirs" in done.stdout


def test_fixtures_and_options(tmp_path: Path):
    (tmp_path / "test_rules.py").write_text(TEST)
    flags = ["-p", "no:cacheprovider", "-rP", "--fusepass-seed", "5"]
    done = run(["-m", "pytest", *flags, "test_rules.py"], tmp_path)
    assert "1 failed, 3 passed" in done.stdout, done.stdout + done.stderr
    assert "fusepass: rules checked with profile quick, seed 5" in done.stdout
    assert "seed was 5" in done.stdout
    assert "to try the same programs again: --fusepass-profile quick --fusepass-seed 5" in (
        done.stdout
    )


def test_who_does_not_use_it_does_not_see_it(tmp_path: Path):
    (tmp_path / "test_theirs.py").write_text("def test_theirs():\n    pass\n")
    done = run(["-m", "pytest", "-p", "no:cacheprovider"], tmp_path)
    assert "1 passed" in done.stdout
    assert "fusepass:" not in done.stdout


def test_profiles_are_those_of_check_rule():
    assert tuple(PROFILES) == plugin.PROFILES
