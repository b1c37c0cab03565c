"""Numbers that Python needs behind a join are known from the first trace of the frame on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.symbolic_convert import InstructionTranslator

from ..support.side_by_side import side_by_side, signed

TURNS = signed(1.5, -0.5, 2.0, 0.25)
SCALES = [1.5, 0.25, 3.0]


def compared(x: Tensor) -> Tensor:
    first = -1
    if x[0] > 0:
        first = 0
    second = 3
    if x[1] > 0:
        second = 4
    if first >= 0:
        x = x + 1
    if second > 3:
        x = x * 2
    return x


def truth(x: Tensor) -> Tensor:
    steps = 0
    if x[0] > 0:
        steps = 2
    if x.sum() > 100:  # passed over on the way to the use
        x = x - 1
    if steps:
        x = x * 3
    return x


def index(x: Tensor) -> Tensor:
    at = 0
    if x[0] > 0:
        at = 2
    return x * SCALES[at]


def rounds(x: Tensor) -> Tensor:
    count = 1 if x[1] > 0 else 0
    number = 1
    if x[0] > 0:
        number = 3
    for _ in range(number):
        x = x * 1.5
    return x + count


def one_name(x: Tensor) -> Tensor:
    at = -1
    if x[0] > 0:
        at = 1
    if at > 0:
        x = x + 1
    at = -1
    if x[1] > 0:
        at = 2
    if at == 2:
        x = x * 2
    return x


def bound_anew(x: Tensor) -> Tensor:
    scale = 2.0
    if x[0] > 0:
        scale = 3.0
    x = x * scale
    scale = 1.0
    if scale > 0:
        x = x + 1
    return x


def beside_tensors(x: Tensor) -> Tensor:
    most = 0.5
    if x[0] > 0:
        most = 1.5
    if x.sum() > most:
        x = x * 2
    return x


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    run = InstructionTranslator.run

    def counted(self: Any) -> Any:
        found.append(self)
        return run(self)

    monkeypatch.setattr(InstructionTranslator, "run", counted)
    return found


@pytest.mark.parametrize(
    "program", [compared, truth, index, rounds, one_name, bound_anew, beside_tensors]
)
def test_traced_once(program: Callable[[Tensor], Any], traces: list[Any]) -> None:
    x = torch.tensor([1.0, -1.0, 0.5])
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    assert torch.equal(compiled(x), program(x))
    assert len(traces) == 1
    outcome = side_by_side(program, *TURNS)
    assert {treatment for treatment, _ in outcome.treatments} == {"where"}
    assert outcome.breaks == []


def _numbers(count: int, body: str, last: str) -> Callable[[Tensor], Any]:
    lines = "".join(body.replace("N", str(i)) for i in range(count))
    names: dict[str, Any] = {}
    exec(f"def program(x):\n    c = 0\n{lines}    return {last}\n", names)
    return names["program"]  # type: ignore[no-any-return]


COUNTED = """
    if x[N] > 0:
        c += 1
"""
RETURNED = """
    atN = -1
    if x[N] > 0:
        atN = N
"""


@pytest.mark.parametrize("count", [4, 8])
@pytest.mark.parametrize(
    ("body", "last"), [(COUNTED, "x * 2 if c > 2 else x"), (RETURNED, "x, {all}")]
)
def test_all_numbers_at_fault_are_known_at_the_next_trace(
    count: int, body: str, last: str, traces: list[Any]
) -> None:
    last = last.replace("{all}", ", ".join(f"at{i}" for i in range(count)))
    program = _numbers(count, body, last)
    x = torch.randn(8)
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    got, want = compiled(x), program(x)
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    assert len(traces) == 2
