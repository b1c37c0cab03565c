"""``grad_fn`` in what a program says: let pass behind a graph break, and nowhere else."""

from __future__ import annotations

from tests.fuzz.examine import examine, without_names
from tests.fuzz.program import Program
from tests.harness.transcript import Said

SOURCE = """
import torch
from torch import nn

HELD = []


class Model(nn.Module):
    def forward(self, x, m):
        y = x * 2
        if m.any():
            y = y.tanh()
        LINE
        return y


def make():
    model = Model()
    return model, model


def inputs():
    x = torch.tensor([0.5, -1.0])
    return [(x, torch.tensor([True, False])), (x, torch.tensor([False, False]))]


GRADS = (0,)
"""


def program(line: str) -> Program:
    return Program(SOURCE.replace("LINE", line), training=True, name="by hand")


def test_behind_a_break() -> None:
    """The branch is a select; then the graph breaks, and eager's print sees what comes out of it."""
    broken = "torch._dynamo.graph_break(); print(y)"
    assert examine(program(broken)).failures == []


def test_other_text_is_not_let_pass() -> None:
    line = "torch._dynamo.graph_break(); print(y, HELD.append(1) or len(HELD))"
    (*_, failure) = examine(program(line)).failures
    assert failure.kind == "printed text"


def test_late_lines_have_the_name() -> None:
    assert examine(program("print(y)")).failures == []


def test_without_names() -> None:
    wrapped = "tensor([2.0000, 3.0000],\n       grad_fn=<WhereBackward0>)\n"
    plain = "tensor([2.0000, 3.0000], grad_fn=<IndexBackward0>)\n"
    said = [[Said("stdout", text)] for text in (wrapped, plain, plain.replace("3", "4"))]
    first, second, other = map(without_names, said)
    assert first == second != other
