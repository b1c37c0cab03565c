"""Drawn programs of two tensors that share memory, in ways that change from call to call."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fusepass
from fusepass.errors import CaptureFault
from fusepass.testing.compare import assert_same, sharing

from .support.shared_pairs import PAIRS, THREE_ROWS, drawn, loaded, numbers

_CALLS = 4
_NOT_TRAINED = ("arrays", "bits", "pieces")  # pieces may not be written, nor asked for grad_fn then


def _called(program: Callable[..., Any], kind: str, sign: int, *, grad: bool) -> dict[str, Any]:
    leaf = numbers(sign).requires_grad_(grad)
    a, b = PAIRS[kind](leaf * 1)
    c = torch.tensor(float(sign), requires_grad=grad)
    seen: dict[str, Any] = {"inputs": (a, b, c)}
    try:
        result = program(a, b, c)
    except RuntimeError as error:  # some may not be written: two elements in one place, a leaf
        seen["error"] = str(error).splitlines()[0]
        return seen
    seen["result"] = result
    seen["sharing"] = sharing((a, b, c), [], None, result)
    parts = result if isinstance(result, tuple) else (result,)
    wanted = [one.sum() for one in parts if one.requires_grad and one.is_floating_point()]
    if wanted:
        torch.stack(wanted).sum().backward()
        seen["gradients"] = (leaf.grad, c.grad)
    return seen


def _same(eager: dict[str, Any], other: dict[str, Any], where: str, *, decomposed: bool) -> None:
    assert eager.get("error") == other.get("error"), where
    assert_same(eager["inputs"], other["inputs"], f"{where}: inputs")
    assert_same(eager.get("result"), other.get("result"), f"{where}: result")
    assert eager.get("sharing") == other.get("sharing"), where
    for one, two in zip(eager.get("gradients", ()), other.get("gradients", ()), strict=True):
        if decomposed and (
            one is None or two is None
        ):  # AOTAutograd gives zero where eager has None
            assert not any(g is not None and g.count_nonzero() for g in (one, two)), where
        else:
            assert_gradient(one, two, where)


def assert_gradient(one: Tensor | None, two: Tensor | None, where: str) -> None:
    assert (one is None) == (two is None), where
    if one is not None and two is not None:
        torch.testing.assert_close(two, one, msg=where)


def _check(seed: int, folder: Path, codegen: str, *, grad: bool) -> None:
    draw, source = random.Random(seed), drawn(seed)
    options = {"codegen": codegen}
    eager = loaded(source, folder, f"drawn_{seed}", lambda called: called)
    compiled = loaded(
        source,
        folder,
        f"compiled_{seed}",
        lambda called: torch.compile(called, backend="fusepass", options=options),
    )
    kinds = draw.sample(sorted(THREE_ROWS if seed % 2 else PAIRS), _CALLS)
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", CaptureFault)
        for kind in [kind for kind in kinds if not (grad and kind in _NOT_TRAINED)]:
            for sign in (-1, 1):
                where = f"{kind} of {sign}\n{source}"
                want = _called(eager, kind, sign, grad=grad)
                got = _called(compiled, kind, sign, grad=grad)
                _same(want, got, where, decomposed=codegen != "eager")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("codegen", ["eager", "eager-decomposed"])
def test_drawn_programs(seed: int, codegen: str, tmp_path: Path) -> None:
    _check(seed, tmp_path, codegen, grad=False)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(100, 103))
@pytest.mark.parametrize("codegen", ["eager", "eager-decomposed"])
def test_drawn_programs_in_training(seed: int, codegen: str, tmp_path: Path) -> None:
    _check(seed, tmp_path, codegen, grad=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200, 400))
def test_many_drawn_programs(seed: int, tmp_path: Path) -> None:
    for codegen in ("eager", "eager-decomposed"):
        for grad in (False, True):
            _check(seed, tmp_path, codegen, grad=grad)


def test_something_is_captured(tmp_path: Path) -> None:
    """The programs are no use if every branch of them is kept whatever the inputs are."""
    treatments = []
    for seed in range(6):
        torch._dynamo.reset()
        found: list[Any] = []

        def compiled(called: Any, found: list[Any] = found) -> Any:
            found.append(torch.compile(called, backend="fusepass", options={"codegen": "eager"}))
            return found[0]

        program = loaded(drawn(seed), tmp_path, f"apart_{seed}", compiled)
        for sign in (-1, 1):
            _called(program, "apart", sign, grad=False)
        decisions = fusepass.last_report(found[0]).to_dict()["decisions"]
        treatments += [one["treatment"] for one in decisions if one["station"] == "capture"]
    assert treatments.count("where") > 5, treatments
