"""Messages that are put together in very many steps: kept, with a reason."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fusepass
from fusepass.errors import CaptureFault


def raises(x: Tensor, rounds: int) -> Tensor:
    if x.sum() > 0:
        text = f"{x.sum().item()}"
        for i in range(rounds):
            text = text + f" {i}"
        raise ValueError(text)
    return x * 2


def _prints(parts: int) -> Callable[..., Any]:
    shown = " + ".join(['f"{a}"'] * parts)
    names: dict[str, Any] = {}
    text = (
        f"def program(x, rounds):\n    a = x.sum().item()\n    print({shown})\n    return x * 2\n"
    )
    exec(text, names)
    return names["program"]  # type: ignore[no-any-return]


def doubles(x: Tensor, rounds: int) -> Tensor:
    if x.sum() > 0:
        text = f"{x.sum().item()}"
        for _ in range(rounds):
            text = text + text
        raise ValueError(len(text) > 0, text[:9])
    return x * 2


def _outcome(program: Callable[..., Any], x: Tensor, rounds: int) -> str:
    try:
        return str(program(x, rounds))
    except ValueError as error:
        return repr(error)


@pytest.mark.parametrize(
    ("program", "rounds", "kept"),
    [
        (raises, 20, False),
        (raises, 1500, True),
        (_prints(20), 1, False),
        (_prints(1200), 1, True),
        (doubles, 18, True),
    ],
)
def test_a_long_message(
    program: Callable[..., Any], rounds: int, kept: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    # Dynamo 2.11 adds up the numbers of `f"{a}" + f"{a}"` once a read number has varied.
    inputs = (torch.ones(2), -torch.ones(2)) if program in (raises, doubles) else (torch.ones(2),)
    for x in inputs:
        wanted = _outcome(program, x, rounds), capsys.readouterr().out
        with warnings.catch_warnings():
            warnings.simplefilter("error", CaptureFault)
            assert (_outcome(compiled, x, rounds), capsys.readouterr().out) == wanted
    kept_for = [d.reason for d in fusepass.last_report(compiled).decisions if d.treatment == "keep"]
    assert bool(kept_for) == kept
