"""Variances of what a mask selected: values, gradients, and eager's warning of too few elements."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fusepass

from ..support.side_by_side import by_error_rule

Program = Callable[[Tensor, Tensor], Any]


def draws() -> list[tuple[Tensor, Tensor]]:
    """Masks of none, one, two, some and all."""
    generator = torch.Generator().manual_seed(7)
    found = []
    for count in (0, 1, 2, 20, 35):
        mask = torch.zeros(35, dtype=torch.bool)
        mask[torch.randperm(35, generator=generator)[:count]] = True
        found.append((torch.randn(5, 7, generator=generator), mask.reshape(5, 7)))
    return found


def in_an_arm(x: Tensor, m: Tensor) -> Tensor:
    if x.sum() > -1000:
        y = x[m].std() + 1
    else:
        y = x.sum()
    return y


def in_a_helper(x: Tensor, m: Tensor) -> Tensor:
    def normal(values: Tensor) -> Tensor:
        return values.mean() / (values.std() + 1)

    return normal(x[m]) + normal(x[m.any(1)])


WARNS: dict[str, Program] = {
    "std": lambda x, m: x[m].std(),
    "var": lambda x, m: torch.var(x[m]) * 2,
    "biased": lambda x, m: x[m].var(unbiased=False),
    "correction": lambda x, m: x[m].std(correction=2),
    "two_lines": lambda x, m: x[m].std() + x[m].abs().var(),
    "rows": lambda x, m: x[m.any(1)].std(0).sum(),
    "of_rows": lambda x, m: x[m.any(1)].std(1).mean(),
    "all_of_rows": lambda x, m: x[m.any(1)].std(),
    "masked_select": lambda x, m: torch.masked_select(x, m).std(),
    "places": lambda x, m: x[torch.where(m)].std(),
    "half": lambda x, m: x.bfloat16()[m].std(),
    "in_an_arm": in_an_arm,
    "in_a_helper": in_a_helper,
}


def heard(function: Program, given: tuple[Tensor, Tensor]) -> list[tuple[Any, ...]]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        function(*given)
    kept = [w for w in found if "degrees of freedom" in str(w.message)]
    return [(str(w.message), w.category, w.filename, w.lineno) for w in kept]


@pytest.mark.parametrize(
    ("name", "codegen"),
    [*((name, "eager") for name in WARNS), ("std", "inductor"), ("of_rows", "inductor")],
)
def test_eager_warns_in_every_call(name: str, codegen: str) -> None:
    program = WARNS[name]
    fusepass.reset()
    compiled = torch.compile(program, backend="fusepass", options={"codegen": codegen})
    for given in (*draws(), *draws()):
        want = heard(program, given)
        assert heard(compiled, given) == want
    report = fusepass.last_report(compiled).to_dict()
    assert report["graph_breaks"] == []


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", WARNS)
def test_values(name: str, grad: bool) -> None:
    """Values and gradients; float64 gradients of 16-bit numbers made inside belong to others."""
    grad = grad and name != "half"
    outcome = by_error_rule(WARNS[name], *draws(), grad=grad)
    assert "keep" not in {treatment for treatment, _ in outcome.treatments}
    assert not outcome.ops["nonzero"]


def mask_written(x: Tensor, m: Tensor) -> Tensor:
    mask = m.clone()
    chosen = x[mask]
    mask.fill_(False)
    return chosen.std()


KEPT: dict[str, Program] = {
    "mask_written": mask_written,
    "negative_correction": lambda x, m: x[m].var(correction=-1),
    "too_few_columns": lambda x, m: x[m.any(1)][:, :1].std(1).sum(),
    "mean_too": lambda x, m: sum(torch.std_mean(x[m])),
}


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str) -> None:
    outcome = by_error_rule(KEPT[name], *draws())
    assert "keep" in {treatment for treatment, _ in outcome.treatments}


def test_lines_kept_where_they_stand() -> None:
    for options in ({"defer_prints": False}, {"rules": {"print": False}}):
        outcome = by_error_rule(WARNS["std"], *draws(), **options)
        outcome.only("keep", "side_effect")


def test_a_filter_that_raises() -> None:
    fusepass.reset()
    compiled = torch.compile(WARNS["std"], backend="fusepass", options={"codegen": "eager"})
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*degrees of freedom")
        with pytest.raises(UserWarning, match="degrees of freedom"):
            compiled(*draws()[0])


def test_no_warning_without_a_mask() -> None:
    outcome = by_error_rule(lambda x, m: x.std() + x.var(0).sum(), *draws())
    assert outcome.decisions == []


def test_rows_of_a_size_that_varies_are_kept() -> None:
    """Whether one row is enough is not known then."""
    given = [(torch.randn(n, n), torch.rand(n, n) < 0.5) for n in (5, 7, 4)]
    outcome = by_error_rule(WARNS["all_of_rows"], *given, dynamic=True)
    known = torch.__version__ >= "2.15"  # which traces them again as they are
    assert {treatment for treatment, _ in outcome.treatments} == (
        {"device", "late"} if known else {"keep"}
    )
    assert by_error_rule(WARNS["std"], *given, dynamic=True).breaks == []
