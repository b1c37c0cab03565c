"""``check_rule`` passes rules that are right, fails those that are wrong, and says how to see it.

``--fusepass-profile ci`` tries more than an everyday run has time for.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

import fusepass
from fusepass import Reject, Rule
from fusepass.errors import MissingHypothesis, RuleCheckFailed, RuleError, UnknownProfile
from fusepass.testing import check_rule

from . import correct_rules, wrong_rules

KILLED_AT_LEAST = 18 / 20

X = torch.randn(4, 8)


def silu(**changes):
    """A rule that is right, but for the changes."""
    return dataclasses.replace(correct_rules.RULES["silu"], **changes)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", correct_rules.RULES)
def test_a_rule_that_is_right_passes(name: str, fusepass_check_rule):
    result = fusepass_check_rule(correct_rules.RULES[name])
    assert result.programs >= 10
    assert 3 * result.fired >= result.programs
    assert result.near_misses >= 3


@functools.cache
def failure_of(name: str, profile: str) -> Exception | None:
    """How a wrong rule fails; checked once in a run of this file."""
    try:
        check_rule(wrong_rules.RULES[name], profile)
    except (RuleCheckFailed, RuleError) as failure:
        return failure
    return None


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", wrong_rules.RULES)
def test_a_wrong_rule_fails(name: str, fusepass_rule_profile):
    assert failure_of(name, fusepass_rule_profile) is not None


@pytest.mark.sampled(2)
def test_most_wrong_rules_fail(fusepass_rule_profile):
    failed = [n for n in wrong_rules.RULES if failure_of(n, fusepass_rule_profile) is not None]
    assert len(wrong_rules.RULES) >= 20
    assert len(failed) >= KILLED_AT_LEAST * len(wrong_rules.RULES)


# What the message must say, so that a rule is failed for what is wrong with it.
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("dim baked in", r"result\[0\]: its value .* Unlike the example: scalars=\(0,\)"),
        ("eps baked in", r"Unlike the example: scalars=\("),
        ("alpha ignored", r"Unlike the example: scalars=\("),
        ("double computed in single", r"dtypes=\(torch.float64"),
        ("result shared", "not applied to its own example.*alias: .* y0 and y1 share memory"),
        ("wrong backward", r"gradients\[0\]: its value"),
        ("memory order assumed", r"result\[0\]: its value .* Unlike the example: layouts="),
        ("operand handed back", "not applied to its own example. Not applied because of:\n.*alias"),
        ("nothing to launch on", r"IndexError.*sizes=\(0, 8\)"),
        ("mean of nothing", r"NaN or infinity .* sizes=\(0, 8\)"),
        ("NaN lost", "NaN or infinity"),
        ("gradient dropped", "when gradients are asked for"),
        ("operand overwritten", r"args\[0\]: its value"),
        ("in place on the operand", "writes to its inputs"),
        ("gradient at zero", r"gradients\[0\]: NaN or infinity"),
    ],
)
def test_the_message_names_what_is_wrong(name: str, said: str, fusepass_rule_profile):
    assert re.search(f"(?s){said}", str(failure_of(name, fusepass_rule_profile)))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "name", ["dim baked in", "operand overwritten", "wrong backward", "mean of nothing"]
)
def test_the_snippet_shows_the_failure(name: str, tmp_path, fusepass_rule_profile):
    failure = failure_of(name, fusepass_rule_profile)
    assert isinstance(failure, RuleCheckFailed)
    file = tmp_path / "snippet.py"
    file.write_text(failure.snippet)
    command = [sys.executable, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "AssertionError" in done.stderr, done.stdout + done.stderr
    assert re.search(rf"before +{re.escape(name)}", done.stdout)  # the report
    assert failure.snippet in str(failure)


def test_a_rule_made_in_a_function_is_printed():
    def pattern(x):
        return torch.relu(x)

    def replacement(x):
        return torch.where(x > 0, x, torch.zeros_like(x))

    with pytest.raises(RuleCheckFailed) as failure:
        check_rule(Rule("local", pattern, replacement, (X,)))
    text = failure.value.snippet
    assert "def pattern(x):\n    return torch.relu(x)" in text
    with pytest.raises(AssertionError):
        exec(compile(text, "snippet", "exec"), {})


def test_a_rule_that_never_fires_fails_with_its_reasons():
    def check(match):
        return Reject("cost", "too expensive today")

    with pytest.raises(RuleCheckFailed, match="not applied to its own") as failure:
        check_rule(silu(check=check))
    assert "cost: too expensive today" in str(failure.value)


def test_a_check_that_raises_is_reported_with_its_error():
    def check(match):
        return match["x"].shape[0] // 0

    with pytest.raises(RuleCheckFailed) as failure:
        check_rule(silu(check=check))
    first = str(failure.value).splitlines()[0]
    assert "): its check raised ZeroDivisionError: " in first
    assert __file__ in first
    assert "becomes of it" not in first


def test_a_rule_that_fires_too_seldom_fails():
    def check(match):
        plain = tuple(match["x"].shape) == (4, 8) and match["x"].is_contiguous()
        return None if plain and match["x"].dtype == torch.float32 else Reject("cost", "not now")

    assert check_rule(silu(check=check), fires_in=0.05).fired > 0
    with pytest.raises(RuleCheckFailed, match=r"(?s)fewer than 95%: .*not now"):
        check_rule(silu(check=check), fires_in=0.95)


def test_a_rule_for_inference_says_so():
    def check(match):
        return Reject("no_gradient", "inference only") if match.training else None

    rule = silu(check=check)
    with pytest.raises(RuleCheckFailed, match="training=False"):
        check_rule(rule)
    assert check_rule(rule, training=False).fired > 0


def test_a_replacement_that_fails_only_when_run_is_not_blamed_on_the_program():
    rule = silu(replacement=lambda x: F.silu(x) if x.shape[0] != 1 else x[3])
    result = check_rule(rule)  # the engine leaves such a place alone
    assert any("IndexError" in text for _, text in result.rejected)


def test_equal_seeds_try_equal_programs():
    one, other = (check_rule(silu(), seed=3) for _ in range(2))
    third = check_rule(silu(), seed=4)
    assert (one.programs, one.fired, one.rejected) == (other.programs, other.fired, other.rejected)
    assert "seed 3" in str(one)
    assert third.seed == 4


def test_the_rule_is_out_of_force_again():
    check_rule(silu())
    compiled = torch.compile(silu().pattern, backend="fusepass", options={"codegen": "eager"})
    compiled(X)
    assert not [d for d in fusepass.last_report(compiled).decisions if d.rule == "silu"]


def test_a_registered_rule_can_be_checked():
    rule = silu(name="registered silu")
    fusepass.register(rule)
    try:
        assert check_rule(rule).fired > 0
    finally:
        fusepass.reset()  # so that nothing compiled is left to warn of
        fusepass.unregister(rule)


def test_what_the_caller_compiled_stays_compiled():
    compiled = torch.compile(lambda x: x + 1, backend="fusepass", options={"codegen": "eager"})
    compiled(X)
    before = fusepass.last_report(compiled)
    check_rule(silu())
    compiled(X)
    assert fusepass.last_report(compiled) == before


def test_errors_before_anything_is_tried():
    with pytest.raises(UnknownProfile, match=r"no profile 'thorough'.*quick, ci, nightly"):
        check_rule(silu(), "thorough")
    with pytest.raises(RuleError, match="fails on its own example"):
        check_rule(silu(pattern=lambda x: x @ x))


def test_hypothesis_is_asked_for_at_once(monkeypatch):
    monkeypatch.setattr("fusepass.testing.check.find_spec", lambda name: None)
    with pytest.raises(MissingHypothesis, match="pip install"):
        check_rule(silu())


def test_a_failure_is_an_assertion_of_fusepass():
    assert issubclass(RuleCheckFailed, AssertionError)
    assert issubclass(RuleCheckFailed, fusepass.FusepassError)
