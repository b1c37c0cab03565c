"""Every built-in rule passes the check that users' rules are given."""

from __future__ import annotations

import pytest

import fusepass
from fusepass.default_rules import default_rules
from fusepass.testing import check_rule

RULES = default_rules()
QUICK = ("linear_gelu_tanh", "linear_relu_no_bias", "linear_silu_by_hand_saved")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("rule", [r for r in RULES if r.name in QUICK], ids=lambda rule: rule.name)
def test_quick(rule: fusepass.Rule) -> None:
    assert check_rule(rule).fired


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_ci(rule: fusepass.Rule) -> None:
    assert check_rule(rule, profile="ci").fired
