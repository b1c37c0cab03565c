"""What a program puts in the place of ``print`` and the like is code of the program."""

# ruff: noqa: T201 - the programs print

from __future__ import annotations

import builtins
import logging
import pprint
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fusepass
from fusepass.testing.compare import assert_same

heard: list[str] = []
logger = logging.getLogger("fusepass_tests.replaced")


def note(*values: Any, **_: Any) -> None:
    """In the place of a function; torch warns of things of its own."""
    if str(values[0]).startswith(("loss", "[")):
        heard.append(" ".join(map(str, values)))


def note_record(_: logging.Logger, *values: Any, **__: Any) -> None:
    """In the place of a method."""
    heard.append(" ".join(map(str, values)))


def prints(x: Tensor) -> Tensor:
    print("loss", x.sum().item())
    return x + len(heard)


def prints_prettily(x: Tensor) -> Tensor:
    pprint.pprint([x.sum().item()])  # noqa: T203
    return x + len(heard)


def warns(x: Tensor) -> Tensor:
    warnings.warn(f"loss {x.sum().item()}", stacklevel=1)
    return x + len(heard)


def logs_to_root(x: Tensor) -> Tensor:
    logging.warning("loss %s", x.sum().item())  # noqa: LOG015
    return x + len(heard)


def logs(x: Tensor) -> Tensor:
    logger.warning("loss %s", x.sum().item())
    return x + len(heard)


PLACES: list[tuple[Callable[[Tensor], Tensor], Any, str, Any]] = [
    (prints, builtins, "print", note),
    (prints_prettily, pprint, "pprint", note),
    (warns, warnings, "warn", note),
    (logs_to_root, logging, "warning", note),
    (logs, logging.Logger, "warning", note_record),
]


@pytest.mark.parametrize(("program", "place", "name", "other"), PLACES)
def test_a_replacement_is_called_when_eager_calls_it(
    program: Callable[[Tensor], Tensor],
    place: Any,
    name: str,
    other: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    seen: list[tuple[list[Tensor], list[str]]] = []
    monkeypatch.setattr(place, name, other)
    for target in (program, compiled):
        heard.clear()
        results = [target(torch.ones(2)) for _ in range(2)]
        seen.append((results, list(heard)))
    assert_same(*(results for results, _ in seen), "results")
    assert seen[0][1] == seen[1][1]
    assert len(seen[0][1]) == 2


def test_the_original_is_written_late_under_any_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where only one process of several prints."""
    original = print

    def first_only(*values: Any, **options: Any) -> None:
        original("[0]", *values, **options)

    def program(x: Tensor) -> Tensor:
        print("loss", x.sum())
        return x * 2

    monkeypatch.setattr(builtins, "print", first_only)
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    for _ in range(2):
        compiled(torch.ones(2))
    assert capsys.readouterr().out == "[0] loss tensor(2.)\n" * 2
    assert not fusepass.last_report(compiled).graph_breaks


def test_replaced_before_fusepass_is_imported() -> None:
    text = """
        import builtins
        original, heard = print, []
        builtins.print = lambda *values, **_: heard.append(values)
        import torch

        def program(x):
            print("loss", x.sum().item())
            return x + len(heard)

        compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
        for number in (1, 2):
            assert compiled(torch.ones(2)).tolist() == [1.0 + number] * 2
        assert heard == [("loss", 2.0)] * 2, heard
        original("as in eager")
    """
    command = [sys.executable, "-c", textwrap.dedent(text)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "as in eager\n", done.stderr
