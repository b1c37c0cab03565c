"""A place in the program where capture decides something."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fusepass.report.decision import Decision, Outcome, Reason, Station

Instruction = tuple[Any, int]  # code object and index


@dataclass(frozen=True)
class Place:
    """A place where the program asks for something that capture may let into the graph.

    Attributes:
        rule: that decides about it, by its name in the report.
        instruction: the same when the frame starts again.
        position: in the source, the same in resumed functions.
        file, line: for the report.
        dtype: of the tensor, where a number is read from one.
    """

    rule: str
    instruction: Instruction
    position: tuple[Any, ...]
    file: str
    line: int
    dtype: torch.dtype | None = None

    @property
    def everywhere(self) -> tuple[Any, ...]:
        """The key of the place in every frame."""
        return self.rule, self.position, self.dtype

    def decided(self, outcome: Outcome, code: Reason, text: str, treatment: str) -> Decision:
        """The decision about the place, for the report."""
        where = self.file, self.line
        return Decision(Station.CAPTURE, self.rule, outcome, code, text, treatment, *where)
