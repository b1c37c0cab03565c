"""Assertions about single programs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fusepass
from fusepass.errors import RewriteMismatch
from fusepass.testing import assert_error, assert_rewrites, assert_untouched

from . import correct_rules, wrong_rules

SILU = correct_rules.RULES["silu"]
X = torch.randn(4, 8)


def twice(x):
    x = x * torch.sigmoid(x)
    return x * torch.sigmoid(x)


def test_counts_and_values():
    with fusepass.rules(SILU):
        assert_rewrites(twice, X, rules={"silu": 2})
        assert_rewrites(twice, X.requires_grad_(), rules={"silu": 2}, dynamic=True)
        with pytest.raises(RewriteMismatch, match="'silu' applied 2 times, expected 1"):
            assert_rewrites(twice, X, rules={"silu": 1})


def test_a_program_compiled_before_is_compiled_again():
    assert_untouched(twice, X)
    with fusepass.rules(SILU):
        assert_rewrites(twice, X, rules={"silu": 2})
    assert_untouched(twice, X)


def test_the_message_holds_the_near_miss():
    with fusepass.rules(SILU):
        with pytest.raises(RewriteMismatch, match="applied 0 times") as failure:
            assert_rewrites(lambda x: x * torch.tanh(x), X, rules={"silu": 1})
    assert "fusepass report" in str(failure.value)


def test_a_wrong_result_fails_though_the_count_is_right():
    with fusepass.rules(wrong_rules.RULES["tanh for erf"]):
        with pytest.raises(RewriteMismatch, match=r"result: its value"):
            assert_rewrites(lambda x: F.gelu(x), X, rules={"tanh for erf": 1})


def test_gradients_of_a_module_and_its_state():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)

        def forward(self, x):
            y = self.norm(self.linear(x))
            return y * torch.sigmoid(y)

    model = Model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with fusepass.rules(SILU):
        assert_rewrites(model, X, rules={"silu": 1})
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    wrong = wrong_rules.RULES["gradient dropped in part"]
    with fusepass.rules(wrong):
        with pytest.raises(RewriteMismatch, match=r"gradients\[\d\]: its value"):
            assert_rewrites(model, X, rules={wrong.name: 1})


def _shifted(x, w):
    return (x * w + 1000.0) - 1000.0


class _Shifts:
    """An object of the program's own that holds a tensor."""

    def __init__(self):
        self.w = torch.linspace(0.1, 2.0, 64)

    def __call__(self, x):
        return _shifted(x, self.w)


def test_an_object_that_holds_tensors_is_held_against_float64():
    def replacement(x, w):
        return (x * w + 1100.0) - 1100.0  # as exact as the pattern, in other digits

    rule = fusepass.Rule("shifted", _shifted, replacement, (torch.ones(8), torch.ones(8)))
    x = torch.linspace(-1.0, 1.0, 64, requires_grad=True)
    with fusepass.rules(rule):
        assert_rewrites(_Shifts(), x, rules={"shifted": 1})


def test_written_arguments_are_put_back():
    def writes(x):
        y = x * torch.sigmoid(x)
        x.mul_(2)
        return y

    given = torch.ones(3, 3)
    with fusepass.rules(SILU):
        assert_rewrites(writes, given, rules={"silu": 1})
    assert torch.equal(given, torch.ones(3, 3))


def test_untouched():
    with fusepass.rules(SILU):
        assert_untouched(lambda x: torch.tanh(x), X)
        assert_untouched(twice, X, rules=["another"])
        with pytest.raises(RewriteMismatch, match="'silu' applied 2 times, expected none"):
            assert_untouched(twice, X)


def test_keyword_arguments_and_containers():
    def program(pair, *, scale):
        x, y = pair["x"], pair["y"]
        return {"r": x * torch.sigmoid(x) * scale, "y": y}

    with fusepass.rules(SILU):
        assert_rewrites(program, {"x": X, "y": X + 1}, scale=2.0, rules={"silu": 1})


def test_errors():
    def raises(x, index):
        return (x * torch.sigmoid(x))[index]

    far = torch.tensor([100])
    with fusepass.rules(SILU):
        assert_error(raises, X, far, error=IndexError)
        with pytest.raises(RewriteMismatch, match="raises nothing, expected IndexError"):
            assert_error(raises, X, torch.tensor([0]), error=IndexError)
        with pytest.raises(RewriteMismatch, match="expected KeyError"):
            assert_error(raises, X, far, error=KeyError)
    with fusepass.rules(wrong_rules.RULES["nothing to launch on"]):
        with pytest.raises(RewriteMismatch, match="raises nothing"):
            assert_error(lambda x: x + x, torch.ones(0, 3))


def test_rules_after_autograd_need_their_codegen():
    rule = correct_rules.RULES["addmm"]
    given = [torch.randn(3, 4), torch.randn(4, 5), torch.randn(5)]
    with fusepass.rules(rule):
        assert_rewrites(rule.pattern, *given, rules={"addmm": 1}, codegen="eager-decomposed")
        assert_rewrites(rule.pattern, *given, rules={"addmm": 0}, codegen="eager")
