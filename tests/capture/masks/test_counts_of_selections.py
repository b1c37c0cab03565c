"""How many elements a mask selects, in tensor work and in conditions, without looking at them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ..support.asserting import asserted_count
from ..support.side_by_side import by_error_rule

Program = Callable[[Tensor, Tensor], Any]


def draws() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(5)
    masks = [torch.rand(5, 7, generator=generator) < share for share in (0.5, 0, 1, 0.1, 0.3, 0)]
    return [(torch.randn(5, 7, generator=generator), mask) for mask in masks]


USED: dict[str, Program] = {
    "numel": lambda x, m: x.sum() / x[m].numel(),
    "len": lambda x, m: x.sum() / len(x[m]),
    "shape": lambda x, m: x * x[m].shape[0],
    "size": lambda x, m: x - x[m].size(0) / 7,
    "rows": lambda x, m: x[m.any(1)].numel() * x,
    "nonzero": lambda x, m: x * m.nonzero().shape[0] + m.nonzero().numel(),
    "nonzero_of_numbers": lambda x, m: x / (x.relu().nonzero().size(0) + 1),
    "nonzero_as_tuple": lambda x, m: x * m.nonzero(as_tuple=True)[1].numel(),
    "where": lambda x, m: x + torch.where(m)[0].shape[0],
    "argwhere": lambda x, m: x + len(torch.argwhere(m)),
    "masked_select": lambda x, m: x / max(torch.masked_select(x, m).numel(), 1),
    "at_least_one": lambda x, m: x[m].sum() / max(1, x[m].shape[0]),
    "arithmetic": lambda x, m: x * (2 * x[m].numel() + 1) - x[m].numel() ** 2,
    "float": lambda x, m: x * float(x[m].numel()) + x[m].sum(),
    "as_a_tensor": lambda x, m: torch.tensor(x[m].numel()) * x,
    "full": lambda x, m: torch.full((3,), float(len(x[m]))),
    "two_masks": lambda x, m: x * (x[m].numel() - x[x > 0].numel()),
    "updated": lambda x, m: (x * 2).index_put((m,), x[m] / x[m].numel()),
}


@pytest.mark.sampled(2)  # each of them, with gradients or without
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", [n for n in USED if n != "updated"])
def test_counts_used_in_tensor_arithmetic(name: str, grad: bool) -> None:
    by_error_rule(USED[name], *draws(), grad=grad).only("device", "on_device")


def early(x: Tensor, m: Tensor) -> Tensor:
    chosen = x[m]
    if chosen.numel() == 0:
        return x.sum() * 0
    return chosen.mean()


def guarded(x: Tensor, m: Tensor) -> Tensor:
    h = x * 2
    if len(x[m]) > 2:
        h = h + x[m].mean()
    return h


def chosen_by_truth(x: Tensor, m: Tensor) -> Tensor:
    return x[m].pow(2).mean() if x[m].numel() else (x * 0).sum()


def of_places(x: Tensor, m: Tensor) -> Tensor:
    h = x * 2
    if 0 < m.nonzero().shape[0] < 12:
        h = h - 1
    return h


def several_at_once(x: Tensor, m: Tensor) -> Tensor:
    h, rows = x * 2, m.any(1)
    if x[rows].numel() >= 14 and len(x[m]) < 30:
        h = h - 1
    return h


def compared(x: Tensor, m: Tensor) -> Tensor:
    h = x * 2
    if x[m].numel() > x[x > 0].numel():
        h = h - 1
    return h


def raising(x: Tensor, m: Tensor) -> Tensor:
    if x[m].numel() == 0:
        raise ValueError("nothing is selected")
    return x[m].mean()


def in_a_helper(x: Tensor, m: Tensor) -> Tensor:
    def loss(x: Tensor, m: Tensor) -> Tensor:
        chosen = x[m]
        if len(chosen) == 0:
            return x.sum() * 0
        return chosen.mean()

    total = x.sum()
    for row, mask in zip(x, m, strict=True):
        total = total + loss(row, mask)
    return total


TESTED = [
    early,
    guarded,
    chosen_by_truth,
    of_places,
    several_at_once,
    compared,
    raising,
    asserted_count,
    in_a_helper,
]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("program", TESTED, ids=lambda program: program.__name__)
def test_counts_used_in_conditions(program: Program, grad: bool) -> None:
    outcome = by_error_rule(program, *draws(), grad=grad)
    assert not any(treatment == "keep" for treatment, _ in outcome.treatments)
    assert outcome.breaks == []
    assert ("device", "on_device") in outcome.treatments
    assert not outcome.ops["nonzero"]


def beside_a_sum(x: Tensor, m: Tensor) -> Any:
    chosen = x[m]
    return chosen.sum(), chosen.numel()


def of_a_moment(x: Tensor, m: Tensor) -> Any:
    mask = m.clone()
    count = x[mask].numel()
    mask.logical_not_()
    return count, x[mask].numel(), mask


def in_a_dict(x: Tensor, m: Tensor) -> Any:
    return {"loss": x[m].mean(), "rows": len(x[m.any(1)]), "total": [x[m].numel() * 2 + 1]}


RETURNED: dict[str, Program] = {
    "numel": lambda x, m: x[m].numel(),
    "len": lambda x, m: (x * 2, len(x[m])),
    "nonzero": lambda x, m: m.nonzero().numel(),
    "nonzero_of_numbers": lambda x, m: x.relu().nonzero().size(0),
    "where": lambda x, m: torch.where(m)[0].numel(),
    "masked_select": lambda x, m: (torch.masked_select(x, m).numel(), x.sum()),
    "share": lambda x, m: (x * 2, x[m].numel() / x.numel()),
    "both_uses": lambda x, m: (x / (x[m].numel() + 1), x[m].numel()),
    "beside_an_item": lambda x, m: (x.sum().item() > 0, x[m].shape[0]),
    "beside_a_sum": beside_a_sum,
    "of_a_moment": of_a_moment,
    "in_a_dict": in_a_dict,
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", RETURNED)
def test_returned(name: str, grad: bool) -> None:
    """Read behind the graph as a Python int: nothing is selected, and the graph is one."""
    outcome = by_error_rule(RETURNED[name], *draws(), grad=grad)
    assert "keep" not in {treatment for treatment, _ in outcome.treatments}
    assert ("late", "after_graph") in outcome.treatments
    assert outcome.breaks == []
    assert not outcome.ops["nonzero"]


def test_returned_beside_what_is_selected() -> None:
    def program(x: Tensor, m: Tensor) -> Any:
        chosen = x[m]
        return chosen, chosen.numel()

    by_error_rule(program, *draws()).only("keep", "size")


def test_returned_from_dynamic_shapes() -> None:
    given = [(torch.randn(n, 3), torch.rand(n, 3) < 0.5) for n in (5, 7, 2)]
    assert by_error_rule(RETURNED["in_a_dict"], *given, dynamic=True).breaks == []
    assert by_error_rule(beside_a_sum, *given, dynamic=True).breaks == []


def test_given_on_behind_a_graph_break() -> None:
    def program(x: Tensor, m: Tensor) -> Tensor:
        count = x[m].numel()
        torch._dynamo.graph_break()
        return x * count

    outcome = by_error_rule(program, *draws())
    assert {treatment for treatment, _ in outcome.treatments} == {"late"}
    assert len(outcome.breaks) == 1


def as_a_size(x: Tensor, m: Tensor) -> Tensor:
    return torch.zeros(x[m].numel())


def as_a_slice(x: Tensor, m: Tensor) -> Tensor:
    return x.flatten()[: x[m].numel()]


def as_a_range(x: Tensor, m: Tensor) -> Tensor:
    for _ in range(len(x[m])):
        x = x * 0.5
    return x


def as_a_key(x: Tensor, m: Tensor) -> Tensor:
    return x * {0: 2.0}.get(x[m].numel(), 3.0)


def divides_integers(x: Tensor, m: Tensor) -> Tensor:
    return x.long() // x[m].numel()


@pytest.mark.parametrize(
    "program",
    [as_a_size, as_a_slice, as_a_range, as_a_key, divides_integers],
    ids=lambda program: program.__name__,
)
def test_needed_by_python(program: Program) -> None:
    outcome = by_error_rule(program, *draws())
    assert {treatment for treatment, _ in outcome.treatments} == {"keep"}


def test_a_mask_written_before_its_count_is_tested() -> None:
    """What was selected does not change; the branch is kept, or tests the older count."""

    def program(x: Tensor, m: Tensor) -> Tensor:
        h, mask = x * 2, m.clone()
        count = x[mask].numel()
        mask.fill_(True)
        if count > 12:
            h = h + 1
        return h * count

    by_error_rule(program, *draws())


def test_a_count_used_after_its_mask_was_written() -> None:
    def program(x: Tensor, m: Tensor) -> Tensor:
        mask = m.clone()
        count = x[mask].numel()
        mask.logical_not_()
        return x * count + x[mask].numel()

    by_error_rule(program, *draws()).only("device", "on_device")


def test_through_inductor() -> None:
    by_error_rule(guarded, *draws(), grad=True, codegen="inductor")
    by_error_rule(USED["at_least_one"], *draws(), grad=True, codegen="inductor")
    by_error_rule(beside_a_sum, *draws(), grad=True, codegen="inductor")


def test_dynamic_shapes() -> None:
    given = [(torch.randn(n, 3), torch.rand(n, 3) < 0.5) for n in (5, 7, 2)]
    for program in (USED["len"], USED["nonzero"], guarded, early):
        outcome = by_error_rule(program, *given, dynamic=True)
        assert outcome.breaks == []
