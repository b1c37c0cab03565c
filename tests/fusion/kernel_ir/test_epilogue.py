"""Epilogues as values: their text, what is refused, and what they compute."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from fusepass.fusion.kernel_ir.epilogue import (
    OPERATIONS,
    Epilogue,
    EpilogueOperand,
    EpilogueStep,
    Output,
    evaluate,
    parse,
)

SWIGLU = Epilogue(
    2,
    (),
    (
        EpilogueStep("sigmoid", ("%0",)),
        EpilogueStep("mul", ("%0", "%2")),
        EpilogueStep("mul", ("%3", "%1")),
    ),
    (Output("%4", "bfloat16"), Output("%0", "float32")),
)
SPECIAL = Epilogue(
    1,
    (EpilogueOperand("row", "float16"), EpilogueOperand("full", "bool")),
    (EpilogueStep("maximum", ("%0", "%1")), EpilogueStep("where", ("%2", "%3", -math.inf))),
    (Output("%4", "float32"),),
)


REDUCED = Epilogue(
    1,
    (),
    (EpilogueStep("abs", ("%0",)),),
    (
        Output("%1", "bfloat16"),
        Output("%1", "float32", "rows"),
        Output("%0", "float32", "columns", "max"),
    ),
)


@pytest.mark.parametrize("epilogue", [SWIGLU, SPECIAL, REDUCED])
def test_text_and_back(epilogue: Epilogue) -> None:
    assert parse(epilogue.text()) == epilogue
    assert "\n" not in epilogue.text()


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        SWIGLU.text().replace("sigmoid", "sigmoidal"),
        SWIGLU.text().replace('"%2"', '"%9"'),
        SWIGLU.text()[:-1],
        REDUCED.text().replace("rows", "planes"),
        REDUCED.text().replace("max", "min"),
    ],
)
def test_malformed_texts(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse(text)


def test_evaluate_computes_the_epilogue() -> None:
    gate, up = torch.randn(5, 7), torch.randn(5, 7)
    out, pre = evaluate(SWIGLU, [gate, up], [])
    assert torch.equal(out, (gate * torch.sigmoid(gate) * up).bfloat16())
    assert torch.equal(pre, gate)


def test_reductions() -> None:
    product = torch.randn(5, 7)
    product[3, 2] = math.nan
    stored, sums, largest = evaluate(REDUCED, [product], [])
    assert torch.equal(stored[0], product[0].abs().bfloat16())
    torch.testing.assert_close(sums, product.abs().sum(0, keepdim=True), equal_nan=True)
    torch.testing.assert_close(largest, product.amax(1)[None], equal_nan=True)
    assert [REDUCED.stored, REDUCED.reduced] == [REDUCED.outputs[:1], REDUCED.outputs[1:]]


def test_texts_without_reductions_name_none() -> None:
    """They are part of keys that tables hold."""
    assert "over" not in SWIGLU.text()


def test_special_values_and_truth() -> None:
    product = torch.tensor([[math.nan, math.inf, -math.inf], [1.0, -0.0, 2.0]])
    row = torch.tensor([0.5, 3.0, 0.0], dtype=torch.float16)
    keep = torch.tensor([[True, True, True], [True, False, True]])
    (out,) = evaluate(SPECIAL, [product], [row, keep])
    expected = torch.tensor([[math.nan, math.inf, 0.0], [1.0, -math.inf, 2.0]])
    torch.testing.assert_close(out, expected, equal_nan=True)


def test_double_precision_is_kept() -> None:
    product = torch.randn(3, 3, dtype=torch.float64)
    epilogue = Epilogue(1, (), (EpilogueStep("exp", ("%0",)),), (Output("%1", "float64"),))
    assert torch.equal(evaluate(epilogue, [product], [])[0], product.exp())


def test_every_operation_has_a_meaning_in_triton() -> None:
    from fusepass.kernels.codegen.epilogue_source import EXPRESSIONS

    assert EXPRESSIONS.keys() == OPERATIONS.keys()


def test_numbers_are_made_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """``torch.tensor`` would copy each from the host, which cannot be part of a CUDA graph."""

    def copied(*given: Any, **more: Any) -> Tensor:
        raise AssertionError("a number was copied from the host")

    steps = (EpilogueStep("add", ("%0", 1.0)), EpilogueStep("where", (True, "%1", 0.5)))
    epilogue = Epilogue(1, (), steps, (Output("%2", "float32"),))
    monkeypatch.setattr(torch, "tensor", copied)
    (made,) = evaluate(epilogue, [torch.zeros(3, 5)], [])
    assert torch.equal(made, torch.ones(3, 5))
