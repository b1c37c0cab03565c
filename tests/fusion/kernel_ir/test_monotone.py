"""Which functions a maximum may be taken past, and functions one after the other."""

from __future__ import annotations

import math

import pytest
import torch

from fusepass.fusion.kernel_ir.epilogue import (
    Epilogue,
    EpilogueStep,
    Output,
    compose,
    evaluate,
    is_monotone,
)


def body(*steps: tuple[object, ...]) -> Epilogue:
    made = tuple(EpilogueStep(str(op), args) for op, *args in steps)  # type: ignore[arg-type]
    made = tuple(EpilogueStep(one.op, tuple(one.args)) for one in made)
    return Epilogue(1, (), made, (Output(f"%{len(made)}", "float32"),))


MONOTONE = {
    "nothing": body(),
    "relu": body(("relu", "%0")),
    "bounded": body(("maximum", "%0", -1.0), ("minimum", "%1", 6.0)),
    "shifted": body(("add", "%0", -3.0), ("sub", "%1", 0.1)),
    "scaled": body(("mul", "%0", 0.3), ("div", "%1", 7)),
    "all": body(("mul", "%0", 2.0), ("add", "%1", 1.0), ("relu", "%2")),
}
OTHERS = {
    "falling": body(("sub", 1.0, "%0")),
    "turned round": body(("mul", "%0", -1.0)),
    "nothing of it": body(("mul", "%0", 0.0)),
    "nearly nothing": body(("mul", "%0", 1e-60)),
    "divided by nearly nothing": body(("div", "%0", 1e-39)),
    "infinite": body(("add", "%0", math.inf)),
    "infinite in fp32": body(("add", "%0", 1e300)),
    "no number": body(("maximum", "%0", math.nan)),
    "reciprocal": body(("reciprocal", "%0")),
    "sigmoid": body(("sigmoid", "%0")),
    "twice": body(("mul", "%0", "%0")),
    "from the beginning": body(("relu", "%0"), ("add", "%0", 1.0)),
    "not the last": Epilogue(1, (), (EpilogueStep("relu", ("%0",)),), (Output("%0", "float32"),)),
    "a comparison": body(("gt", "%0", 0.0)),
}


@pytest.mark.parametrize("name", MONOTONE)
def test_monotone_bodies(name: str) -> None:
    function = MONOTONE[name]
    assert is_monotone(function)
    x = torch.randn(4, 500) * torch.tensor([[1e-40], [1e-3], [1.0], [1e38]])
    x[:, :4] = torch.tensor([math.inf, -math.inf, 0.0, -0.0])
    ordered = x.flatten().sort().values
    (made,) = evaluate(function, [ordered], [])
    assert bool((made[1:] >= made[:-1]).all())
    (of_nan,) = evaluate(function, [torch.tensor([math.nan])], [])
    assert bool(of_nan.isnan().all())


@pytest.mark.parametrize("name", OTHERS)
def test_non_monotone_bodies(name: str) -> None:
    assert not is_monotone(OTHERS[name])


@pytest.mark.parametrize("first", MONOTONE)
@pytest.mark.parametrize(
    "second", ["relu", "twice", "from the beginning", "not the last", "falling"]
)
def test_compose_of_two_bodies(first: str, second: str) -> None:
    one, other = MONOTONE[first], (MONOTONE | OTHERS)[second]
    x = torch.randn(50)
    (between,) = evaluate(one, [x], [])
    (want,) = evaluate(other, [between], [])
    both = compose(one, other)
    assert torch.equal(evaluate(both, [x], [])[0], want)
    assert both.outputs[0].dtype == other.outputs[0].dtype
