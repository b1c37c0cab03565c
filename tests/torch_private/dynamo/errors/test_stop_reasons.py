"""What stopped a trace, as one sentence for the author of the program."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fusepass
from fusepass.torch_private.dynamo.errors.stop_reasons import (
    error_in_short,
    why_broken,
    why_stopped,
)
from fusepass.torch_private.dynamo.errors.wording import knows_only_torch


def unique(x: Tensor) -> Any:
    return torch.unique(x)


def branch(x: Tensor) -> Any:
    return x + 1 if x.sum() > 0 else x


def opened(x: Tensor) -> Any:
    with open(__file__) as file:  # noqa: PTH123
        return file, x


def disabled(x: Tensor) -> Any:
    return torch.compiler.disable(branch)(x)


def numpy(x: Tensor) -> Any:
    import numpy as np

    return np.frexp(x.numpy())


def broken(x: Tensor) -> Any:
    torch._dynamo.graph_break()
    return x


def fails(x: Tensor) -> Any:
    return x @ torch.ones(5, 5)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (unique, "the size of what unique gives depends on data"),
        (opened, "cannot trace the builtin open"),
        (numpy, "NumPy's frexp"),
        (broken, "the program asks for a graph break"),
        (disabled, "which torch.compiler.disable keeps from being compiled"),
    ],
)
def test_sentences(program: Callable[..., Any], words: str) -> None:
    with fusepass.options(codegen="eager"):
        found = fusepass.explain(program, torch.ones(3)).graph_breaks
    said = [one["reason"] for one in found]
    assert any(words in one for one in said), said
    assert not any(map(knows_only_torch, said))


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("Data-dependent branching", "a branch tests a value of a tensor"),
        ("Unsupported Tensor.item() call with capture_scalar_outputs=False", "keep it a tensor"),
        ("graph break in loop", "move the break out of it"),
        ("Reconstruction failure", "needed behind it"),
    ],
)
def test_kinds(kind: str, words: str) -> None:
    assert words in why_broken(f"{kind}\n  Explanation: of L['x'].\n\n  Developer debug context: c")


@pytest.mark.parametrize("program", [disabled, fails])
def test_no_internal_name(program: Callable[..., Any]) -> None:
    torch._dynamo.reset()
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which class depends on torch
        torch.compile(program, backend="eager", fullgraph=True)(torch.ones(3))
    for said in (why_stopped(caught.value), error_in_short(caught.value)):
        assert said
        assert not knows_only_torch(said)
        assert "\n" not in said


def test_what_no_sentence_is_known_for_says_torchs_or_nothing_wrong() -> None:
    told = "New kind\n  Explanation: Dynamo does not know L['x']. More.\n\n  Developer debug context: c"
    assert why_broken(told) == "torch.compile does not know x"
    hidden = "Missing tp_hash\n  Explanation: Add tp_hash_impl.\n\n  Developer debug context: c"
    assert why_broken(hidden) == "torch.compile cannot trace what stands there"
    empty = "Odd thing\n  Explanation: Currently not supported\n\n  Developer debug context: c"
    assert why_broken(empty) == "torch.compile does not support it: Odd thing"


def test_errors_in_short() -> None:
    assert error_in_short(ValueError("L['x'] is wrong\nmore")) == "ValueError: x is wrong"
    assert error_in_short(ValueError("SymNodeVariable u0")) == "ValueError"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert error_in_short(KeyError()) == "KeyError"
