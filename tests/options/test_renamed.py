"""Public names that were renamed: the old spelling works, with a warning."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import pytest
import torch

import fusepass
from fusepass import tune
from fusepass.errors import OptionValue, RenamedName, UnknownOption, current_name
from fusepass.options import RENAMED, resolve, with_current_names
from fusepass.report.decision import Reason
from fusepass.rewrite.registry import rule_names


@pytest.mark.parametrize(("old", "new"), RENAMED["rules"].items())
def test_old_names_of_rules_switch_the_rules(old: str, new: str) -> None:
    assert new in rule_names()
    assert old not in rule_names()
    with pytest.warns(RenamedName, match=new) as caught, fusepass.options(rules={old: False}):
        assert not resolve().rule_on(new)
    assert {warning.filename for warning in caught} == {__file__}
    with pytest.warns(DeprecationWarning, match=new):
        assert not resolve(given={"rules": {old: False}}).rule_on(new)


def test_an_old_name_replaces_the_new_one_of_an_outer_scope() -> None:
    with fusepass.options(rules={"conv_1x1": False}), pytest.warns(RenamedName):
        assert resolve(given={"rules": {"conv_product": True}}).rule_on("conv_1x1")


def test_an_old_name_reaches_torch_compile() -> None:
    program = torch.compile(
        torch.sin, backend="fusepass", options={"codegen": "eager", "rules": {"recipes": False}}
    )
    with pytest.warns(RenamedName, match="inductor_configs"):
        result = program(torch.ones(2))
    assert torch.equal(result, torch.ones(2).sin())
    report = fusepass.last_report(program)
    assert "inductor_configs" not in {decision.rule for decision in report.decisions}


@pytest.mark.parametrize("given", [{}, {"rules": {"inductor_configs": False}}, {"mode": "default"}])
def test_current_names_do_not_warn(given: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert resolve(given=given).codegen == "inductor"


def test_old_values_of_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["fusepass.options"], "RENAMED", {"codegen": {"plain": "eager"}})
    with pytest.warns(RenamedName, match="eager"):
        assert resolve(given={"codegen": "plain"}).codegen == "eager"
    with pytest.raises(OptionValue):
        resolve(given={"codegen": "nothing"})


def test_wrong_names_are_still_refused() -> None:
    assert with_current_names({"rules": 3}) == {"rules": 3}
    with pytest.raises(UnknownOption), fusepass.options(rules={"recipe": False}):
        pass


def test_old_reason_codes() -> None:
    with pytest.warns(RenamedName, match="variant"):
        assert Reason("flavour") is Reason.VARIANT
    with pytest.warns(RenamedName, match="variant"):
        assert Reason.FLAVOUR is Reason.VARIANT  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="nothing"):
        Reason("nothing")
    with pytest.raises(AttributeError, match="NOTHING"):
        Reason.NOTHING  # type: ignore[attr-defined]  # noqa: B018


def test_old_names_of_the_tuner() -> None:
    for old, new in tune._RENAMED.items():
        assert new in tune.__all__
        assert old not in tune.__all__
        with pytest.warns(RenamedName, match=new):
            assert getattr(tune, old) is getattr(tune, new)
    with pytest.raises(AttributeError, match="nothing"):
        _ = tune.nothing


def test_a_name_in_use_stays() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert current_name("the rule", "pool", {"conv_product": "conv_1x1"}) == "pool"
