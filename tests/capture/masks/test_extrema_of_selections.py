"""The largest and smallest of what a mask selects: eager's values, gradients and exceptions."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fusepass

from ..support.side_by_side import side_by_side

Program = Callable[..., Any]
INF, NAN = float("inf"), float("nan")


def draws(dtype: torch.dtype = torch.float32) -> list[tuple[Tensor, Tensor]]:
    """A tensor and a mask: several selected, none, all, one; ties, NaN, infinities."""
    generator = torch.Generator().manual_seed(5)
    x = (torch.randn(3, 5, generator=generator) * 3).to(dtype)
    some = torch.rand(3, 5, generator=generator) < 0.5
    one = torch.zeros(3, 5, dtype=torch.bool)
    one[1, 2] = True
    given = [
        (x, some),
        (x, ~some & some),
        (x, ~one | one),
        (x, one),
        (x ^ x if dtype is torch.bool else x.abs() * 0, some),
    ]
    if dtype.is_floating_point:
        special = torch.where(torch.rand(3, 5, generator=generator) < 0.4, -INF, x)
        given += [
            (torch.full_like(x, -INF), some),
            (torch.full_like(x, INF), some),
            (special, some),
            (-special, some),
            (torch.where(some, -INF, x), some),
            (torch.where(some, x, NAN), some),
            (torch.where(one, NAN, x), some | one),
        ]
    return given


SPELLED: dict[str, Program] = {
    "max": lambda x, m: x[m].max(),
    "min": lambda x, m: x[m].min(),
    "function": lambda x, m: torch.max(x[m]) - torch.min(x[m]),
    "computed": lambda x, m: (x[m] * 2).abs().max(),
    "selected": lambda x, m: torch.masked_select(x, m).max(),
    "rows": lambda x, m: x[m[:, 0]].min(),
    "rows_from_behind": lambda x, m: x[..., m[0]].max(),
    "used": lambda x, m: x / x[m].max(),
    "scaled": lambda x, m: x[m].sub(x[m].min()).sum() * 0 + 1,
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", SPELLED)
def test_extrema(name: str, grad: bool) -> None:
    given = draws()[:5] if name == "scaled" else draws()  # sums are taken in another order
    outcome = side_by_side(SPELLED[name], *given, grad=grad)
    outcome.only("device", "on_device")
    assert not outcome.ops["nonzero"]
    assert any("asked once, after the graph" in reason for reason in outcome.reasons)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool]
)
@pytest.mark.parametrize("name", ["max", "min"])
def test_dtypes(name: str, dtype: torch.dtype) -> None:
    given = draws(dtype)
    side_by_side(SPELLED[name], *given, grad=dtype.is_floating_point).only("device", "on_device")


def test_through_inductor() -> None:
    outcome = side_by_side(SPELLED["max"], *draws(), grad=True, codegen="inductor")
    outcome.only("device", "on_device")


def test_dynamic_shapes() -> None:
    given = [(torch.randn(size), torch.rand(size) < 0.5) for size in (4, 6, 9)]
    outcome = side_by_side(SPELLED["max"], *given, grad=True, dynamic=True)
    outcome.only("device", "on_device")


def test_the_first_of_two_raises() -> None:
    def program(x: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
        return x[m].min(), x[~m].max()

    side_by_side(program, *draws()).only("device", "on_device")


def test_in_front_of_a_raise_of_the_program() -> None:
    def program(x: Tensor, m: Tensor) -> Tensor:
        largest = x[m].max()
        if largest > 2:
            raise ValueError(f"{largest:.2f}")
        return largest

    outcome = side_by_side(program, *draws())
    assert {t for t, _ in outcome.treatments} == {"device", "sink"}
    assert outcome.breaks == []


def test_a_write_behind_is_undone() -> None:
    def program(x: Tensor, m: Tensor) -> Tensor:
        x.add_(1)
        largest = x[m].max()
        x.mul_(2)
        m.logical_not_()
        return largest

    side_by_side(program, *draws()).only("device", "on_device")


def test_the_traceback_ends_in_the_program() -> None:
    def inner(x: Tensor, m: Tensor) -> Tensor:
        return x[m].max()

    def outer(x: Tensor, m: Tensor) -> Tensor:
        return inner(x * 2, m) + 1

    fusepass.reset()
    x = torch.ones(3)
    nothing = x > 1
    shown = []
    for called in (outer, torch.compile(outer, backend="fusepass", options={"codegen": "eager"})):
        with pytest.raises(RuntimeError, match=r"^max\(\): Expected reduction dim") as caught:
            called(x, nothing)
        frames = traceback.extract_tb(caught.value.__traceback__)
        shown.append([(f.name, f.lineno) for f in frames if f.filename == __file__][-2:])
    assert shown[0] == shown[1]
    assert [name for name, _ in shown[0]] == ["outer", "inner"]


def caught(x: Tensor, m: Tensor) -> Tensor:
    try:
        return x[m].max()
    except RuntimeError:
        return x.sum() * 0


def caught_by_the_caller(x: Tensor, m: Tensor) -> Tensor:
    try:
        return SPELLED["max"](x, m)
    except (ValueError, RuntimeError):
        return x.sum() * 0


def finally_done(x: Tensor, m: Tensor) -> Tensor:
    try:
        largest = x[m].max()
    finally:
        DONE.append(1)
    return largest


def done_before(x: Tensor, m: Tensor) -> Tensor:
    DONE.append(2)
    return x[m].max()


def random_behind(x: Tensor, m: Tensor) -> Tensor:
    return x[m].max() + torch.rand(3)


def in_an_arm(x: Tensor, m: Tensor) -> Tensor:
    return x[m].max() if m.any() else x.sum() * 0


def mask_written(x: Tensor, m: Tensor) -> Tensor:
    mask = m.clone()
    chosen = x[mask]
    mask.logical_not_()
    return chosen.max()


DONE: list[int] = []
KEPT: dict[str, Program] = {
    "caught": caught,
    "caught_by_the_caller": caught_by_the_caller,
    "finally_done": finally_done,
    "done_before": done_before,
    "random_behind": random_behind,
    "in_an_arm": in_an_arm,
    "mask_written": mask_written,
    "along": lambda x, m: x[m].max(0),
    "rows_along": lambda x, m: x[m[:, 0]].max(dim=0).values,
    "amax": lambda x, m: torch.cat([x[m], x[0]])[:1].amin() + (x[m].amax() if m.any() else 0),
    "argmax": lambda x, m: x[m].argmax(),
    "of_places": lambda x, m: m.nonzero().max(),
    "beside_itself": lambda x, m: (x[m].max(), x[m]),
    "sorted_first": lambda x, m: x[m].sort().values.max(),
    "in_a_list": lambda x, m: [x[part].max() for part in (m, ~m) if DONE.append(3) is None],
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str, grad: bool) -> None:
    DONE.clear()
    given = [(x, m) for x, m in draws() if name != "argmax" or m.any()]  # not for plain torch
    outcome = side_by_side(KEPT[name], *given, grad=grad)
    kept = [t for t, _ in outcome.treatments if t == "keep"]
    assert kept or outcome.breaks, outcome.decisions
    DONE[:] = [] if len(DONE) % 2 == 0 else [0]
    assert not DONE, "done once in eager and once compiled"


def test_extremum_of_an_empty_selection() -> None:
    side_by_side(lambda x, m: x[:0][m[:0]].max(), *draws())


@pytest.mark.parametrize("rule", ["sink", "masked"])
def test_switched_off(rule: str) -> None:
    outcome = side_by_side(SPELLED["max"], *draws(), rules={rule: False})
    assert {t for t, _ in outcome.treatments} == {"keep"}
