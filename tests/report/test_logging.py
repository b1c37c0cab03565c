"""What fusepass logs: one summary line per compile, to the logger ``fusepass``, and no more."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor

import fusepass

EAGER = {"codegen": "eager"}


def branch(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x - 1


class Tagged(Tensor):
    """No branch leaves it beside a plain tensor."""


def breaks(x: Tensor) -> Tensor:
    if x.sum() > 0:
        x = x.as_subclass(Tagged)
    return x * 3


def lines(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name.split(".")[0] == "fusepass"]


def test_one_line_per_compile(caplog: pytest.LogCaptureFixture) -> None:
    program = torch.compile(branch, backend="fusepass", options=EAGER, dynamic=False)
    with caplog.at_level(logging.INFO, logger="fusepass"):
        program(torch.ones(2))
        program(torch.ones(2))
    (line,) = lines(caplog)
    assert (line.name, line.levelname) == ("fusepass", "INFO")
    text = line.getMessage()
    assert "branch" in text
    assert f"{__file__}:{branch.__code__.co_firstlineno}" in text
    assert "1 where" in text
    assert "operations" in text
    with caplog.at_level(logging.INFO, logger="fusepass"):
        program(torch.ones(3))
    assert len(lines(caplog)) == 2


def test_one_line_per_graph_of_a_frame_that_breaks(caplog: pytest.LogCaptureFixture) -> None:
    program = torch.compile(breaks, backend="fusepass", options=EAGER)
    with caplog.at_level(logging.INFO, logger="fusepass"):
        program(torch.ones(2))
    assert len(lines(caplog)) == len(fusepass.last_report(program).operations) == 2


def test_silent_unless_asked(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.WARNING, logger="fusepass"):
        torch.compile(branch, backend="fusepass", options=EAGER)(torch.ones(2))
    assert lines(caplog) == []
    assert capfd.readouterr() == ("", "")


def test_no_handler_is_installed() -> None:
    """A library leaves that to the program."""
    assert logging.getLogger("fusepass").handlers == []


def test_other_backends_log_nothing_here(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="fusepass"):
        torch.compile(breaks, backend="eager")(torch.ones(2))
    assert lines(caplog) == []
