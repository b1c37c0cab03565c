"""``masked_scatter`` behind a check: one graph, eager's results, gradients and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fusepass

Program = Callable[..., Any]


def checked(x: Tensor, source: Tensor, ids: Tensor) -> Tensor:
    if (ids > 9).any():
        raise ValueError(f"no such id in {ids.shape}")
    return x.masked_scatter((ids == 7).unsqueeze(-1).expand_as(x), source) * 2


def broadcast(x: Tensor, source: Tensor, ids: Tensor) -> Tensor:
    if (ids > 9).any():
        raise ValueError("no such id")
    return torch.masked_scatter(x, source=source, mask=(ids == 7)[..., None])


def of_elements(x: Tensor, source: Tensor, ids: Tensor) -> Tensor:
    if (ids > 9).any():
        raise ValueError("no such id")
    mask = (ids == 7).unsqueeze(-1) & (torch.arange(x.shape[-1]) != 1)
    return x.masked_scatter(mask, source)


def in_place(x: Tensor, source: Tensor, ids: Tensor) -> Tensor:
    y = x + 1
    if (ids > 9).any():
        raise ValueError("no such id")
    z = y.masked_scatter_((ids == 7).unsqueeze(-1), source)
    return z * y


def transposed(x: Tensor, source: Tensor, ids: Tensor) -> Tensor:
    if (ids > 9).any():
        raise ValueError("no such id")
    mask = (ids == 7).t().expand(x.shape[-1], -1, -1)
    return x.transpose(0, 2).masked_scatter(mask, source)


def larger_mask(x: Tensor, source: Tensor, ids: Tensor) -> Tensor:
    if (ids > 9).any():
        raise ValueError("no such id")
    return x[:1].masked_scatter((ids == 7).unsqueeze(-1), source)


def twice(x: Tensor, source: Tensor, ids: Tensor) -> Tensor:
    if (ids > 9).any():
        raise ValueError("no such id")
    y = x.masked_scatter((ids == 7).unsqueeze(-1), source)
    if (ids < 0).any():
        raise IndexError("negative")
    return y.masked_scatter((ids == 6).unsqueeze(-1), source.flatten())


PROGRAMS = (checked, broadcast, of_elements, in_place, transposed, larger_mask, twice)


def outcome(program: Program, *given: Tensor) -> Any:
    try:
        return program(*given)
    except Exception as error:  # noqa: BLE001 - compared
        return type(error), str(error)


def ids_of(*numbers: int) -> Tensor:
    return torch.tensor(numbers).reshape(2, 3)


IDS = {
    "some": ids_of(7, 0, 7, 0, 7, 1),
    "none": ids_of(0, 0, 1, 0, 2, 1),
    "all": ids_of(7, 7, 7, 7, 7, 7),
    "checked": ids_of(7, 7, 7, 7, 10, 7),
    "second": ids_of(6, 6, 6, 6, 7, -1),
}


@pytest.mark.parametrize("rows", [0, 3, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)
def test_results_and_errors(program: Program, dtype: torch.dtype, rows: int) -> None:
    torch.compiler.reset()
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    for ids in IDS.values():
        x = torch.arange(24).reshape(2, 3, 4).to(dtype)
        source = -torch.arange(1, rows * 4 + 1).reshape(rows, 4).to(dtype)
        a, b = outcome(program, x, source, ids), outcome(compiled, x, source, ids)
        if isinstance(a, Tensor):
            assert torch.equal(a, b)
            assert (a.stride(), a.dtype) == (b.stride(), b.dtype)
        else:
            assert a == b
    assert not fusepass.last_report(compiled).graph_breaks


@pytest.mark.parametrize("trained", [(0, 1), (0,), (1,)])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)
def test_gradients(program: Program, trained: tuple[int, ...]) -> None:
    torch.compiler.reset()
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    for name in ("some", "none", "second"):
        gradients = []
        for call in (program, compiled):
            generator = torch.Generator().manual_seed(1)
            x, source = (torch.randn(n, 3, 4, generator=generator) for n in (2, 3))
            leaves = [t.requires_grad_(i in trained) for i, t in enumerate((x, source))]
            found = outcome(call, *leaves, IDS[name])
            if isinstance(found, Tensor):
                (found * torch.arange(found.numel()).reshape(found.shape)).sum().backward()
            gradients.append([leaf.grad for leaf in leaves])
        for a, b in zip(*gradients, strict=True):
            assert (a is None) == (b is None)
            assert a is None or torch.equal(a, b)


def partial_rows(x: Tensor, source: Tensor, ids: Tensor) -> Tensor:
    return checked(x, source.flatten()[:-1], ids)


@pytest.mark.parametrize("trained", [False, True])
def test_source_of_no_whole_rows(trained: bool) -> None:
    torch.compiler.reset()
    compiled = torch.compile(partial_rows, backend="fusepass", options={"codegen": "eager"})
    for rows in (3, 4):
        found = []
        for call in (partial_rows, compiled):
            source = torch.arange(rows * 4.0).reshape(rows, 4).requires_grad_(trained)
            value = outcome(call, torch.zeros(2, 3, 4), source, IDS["some"])
            if trained and isinstance(value, Tensor):
                value.pow(2).sum().backward()
                value = source.grad
            found.append(value)
        a, b = found
        assert torch.equal(a, b) if isinstance(a, Tensor) else a == b


# --- Near misses: calls that are left as they are -------------------------------------------------


def unchecked(x: Tensor, source: Tensor, ids: Tensor) -> Tensor:
    return x.masked_scatter((ids == 7).unsqueeze(-1), source)


def handled(x: Tensor, source: Tensor, ids: Tensor) -> Tensor:
    if (ids > 9).any():
        raise ValueError("no such id")
    try:
        return x.masked_scatter((ids == 7).unsqueeze(-1), source)
    except RuntimeError:
        return x - 1


def into_an_input(x: Tensor, source: Tensor, ids: Tensor) -> Tensor:
    if (ids > 9).any():
        raise ValueError("no such id")
    return x.masked_scatter_((ids == 7).unsqueeze(-1), source) + 1


def of_integers(x: Tensor, source: Tensor, ids: Tensor) -> Tensor:
    if (ids > 9).any():
        raise ValueError("no such id")
    return x.masked_scatter(ids.unsqueeze(-1), source)


def other_dtypes(x: Tensor, source: Tensor, ids: Tensor) -> Tensor:
    if (ids > 9).any():
        raise ValueError("no such id")
    return x.masked_scatter((ids == 7).unsqueeze(-1), source.double())


@pytest.mark.parametrize(
    "program",
    [unchecked, handled, into_an_input, of_integers, other_dtypes],
    ids=lambda one: one.__name__,
)
def test_left_as_they_are(program: Program) -> None:
    torch.compiler.reset()
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    for ids in IDS.values():
        given = [(torch.zeros(2, 3, 4), torch.arange(12.0).reshape(3, 4), ids) for _ in range(2)]
        a, b = outcome(program, *given[0]), outcome(compiled, *given[1])
        assert torch.equal(a, b) if isinstance(a, Tensor) else a[0] == b[0]
        assert torch.equal(given[0][0], given[1][0])
    applied = [d for d in fusepass.last_report(compiled).decisions if d.rule == "masked"]
    assert not any(decision.treatment == "sink" for decision in applied)
