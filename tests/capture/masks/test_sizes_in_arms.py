"""Nothing of a size that only the data know is left behind, whether a branch goes or stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

import fusepass
from fusepass import backend
from fusepass.graph.ops.op_names import tensor_value

from ..support.check import fresh_compiler

X = torch.arange(-6.0, 6.0).reshape(3, 4)
SOME = X > 2


def updated(x: Tensor, mask: Tensor) -> Tensor:
    h = x * 2
    if mask.any():
        h[h > 1] = h[h > 1] * h[h > 1] + 1
    return h


def counted(x: Tensor, mask: Tensor) -> Tensor:
    h = x * 2
    if mask.any():
        h[mask] /= h[mask].numel()
    return h


def reduced(x: Tensor, mask: Tensor) -> Tensor:
    h = x * 2
    if mask.any():
        h[mask] -= h[mask].mean()
    return h


def places(x: Tensor, mask: Tensor) -> Tensor:
    h = x * 2
    if mask.any():
        h = h + mask.nonzero().sum()
    return h


def selected(x: Tensor, mask: Tensor) -> Tensor:
    h = x * 2
    if mask.any():
        h = h[mask]
    return h + 1


def compiled(program: Callable[..., Any], **rest: Any) -> Callable[..., Any]:
    options = {"codegen": "eager", **rest.pop("options", {})}
    return torch.compile(program, backend="fusepass", options=options, **rest)


def graphs_of(program: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, **options: Any) -> Any:
    """The code of every graph with what is still to be checked about sizes, and the treatments."""
    seen: list[tuple[str, Any]] = []
    hand_off = backend.hand_off

    def spy(gm: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        fakes = [v for v in map(tensor_value, gm.graph.nodes) if v is not None]
        modes = {getattr(fake, "fake_mode", None) for fake in fakes} - {None}
        checks = [mode.shape_env.deferred_runtime_asserts for mode in modes if mode.shape_env]
        seen.append((gm.code, [check for check in checks if check]))
        return hand_off(gm, *args, **kwargs)

    monkeypatch.setattr(backend, "hand_off", spy)
    with fresh_compiler():
        function = compiled(program, options=options)
        torch.testing.assert_close(function(X.clone(), SOME), program(X.clone(), SOME))
        decisions = fusepass.last_report(function).to_dict()["decisions"]
    monkeypatch.undo()
    return seen, [d["treatment"] for d in decisions if d["rule"] == "branch"]


@pytest.mark.parametrize(("program", "treatment"), [(updated, "where"), (reduced, "drop")])
def test_an_update_leaves_no_size(
    program: Callable[..., Any], treatment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, treatments = graphs_of(program, monkeypatch)
    assert treatments == [treatment]
    ((code, checks),) = seen
    assert "sym_size" not in code
    assert "assert" not in code
    assert checks == []


@pytest.mark.parametrize("program", [counted, places, selected])
def test_anything_else_is_as_without_capture(
    program: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = graphs_of(program, monkeypatch)
    kept = graphs_of(program, monkeypatch, treatment="keep")
    assert tried == kept
    assert tried[1] == ["keep"]


def test_a_count_after_the_branch_is_computed_again() -> None:
    def program(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        h = x * 2
        if mask.any():
            h[mask] += 1
        return h, x[mask] * 2

    with fresh_compiler():
        function = compiled(program, fullgraph=True)
        for mask in (SOME, SOME & False, SOME | True):
            for got, want in zip(function(X, mask), program(X, mask), strict=True):
                assert torch.equal(got, want)


def test_a_count_known_before_stays_known() -> None:
    def program(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        h = x * 2
        before = x[mask]
        if mask.any():
            h[mask] += 1
        return h, x[mask] * before

    with fresh_compiler():
        function = compiled(program, fullgraph=True)
        for mask in (SOME, SOME & False, SOME | True):
            for got, want in zip(function(X, mask), program(X, mask), strict=True):
                assert torch.equal(got, want)
