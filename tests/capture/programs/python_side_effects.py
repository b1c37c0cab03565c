"""Arms that change Python state that existed before: containers, closures, globals, attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from ..support.inputs import B, signs
from ..support.program import WHERE, Family

FAMILY = Family("python_side_effects")
ONE = signs((B, 4))


@FAMILY.program(ONE, WHERE, grad=True)
def list_append(x: Tensor) -> list[Tensor]:
    out: list[Tensor] = []
    if x.sum() > 0:
        out.append(x * 2)
    else:
        out.append(x * 3)
    return out


@FAMILY.program(ONE, WHERE)
def list_extend_and_pop(x: Tensor) -> list[Tensor]:
    out = [x + 1, x + 2]
    if x.sum() > 0:
        out.extend([x * 2])
    else:
        out.pop()
    return out


@FAMILY.program(ONE, WHERE)
def dict_item(x: Tensor) -> dict[str, Tensor]:
    out = {"a": x + 1}
    if x.sum() > 0:
        out["a"] = x * 2
    return out


@FAMILY.program(ONE, WHERE)
def dict_update_of_two(x: Tensor) -> dict[str, Tensor]:
    out: dict[str, Tensor] = {}
    if x.sum() > 0:
        out.update(a=x * 2)
    else:
        out.update(b=x * 2)
    return out


@FAMILY.program(
    signs((B, 4)),
    WHERE,
    built=True,
    state=lambda run: list(run.__closure__[0].cell_contents),
    recompiles=True,
)
def append_to_closure() -> Callable[[Tensor], Tensor]:
    log: list[Tensor] = []

    def run(x: Tensor) -> Tensor:
        if x.sum() > 0:
            log.append(x.sum())
        return x * 2

    return run


@FAMILY.program(
    ONE, WHERE, built=True, state=lambda run: run.__closure__[0].cell_contents, recompiles=True
)
def nonlocal_counter() -> Callable[[Tensor], Tensor]:
    count = 0

    def run(x: Tensor) -> Tensor:
        nonlocal count
        if x.sum() > 0:
            count += 1
        return x * 2

    return run


LAST: dict[str, Any] = {"stale": 0}
MODE = "start"


def read_and_reset(run: object) -> tuple[str, list[str]]:
    global MODE
    found = (MODE, sorted(LAST))
    MODE = "start"
    LAST.clear()
    LAST["stale"] = 0
    return found


@FAMILY.program(ONE, WHERE, state=read_and_reset)
def global_written(x: Tensor) -> Tensor:
    global MODE  # writing a global is the program
    if x.sum() > 0:
        MODE = "positive"
    else:
        MODE = "negative"
    return x * 2


@FAMILY.program(ONE, WHERE, state=read_and_reset)
def global_dict_written(x: Tensor) -> Tensor:
    if x.sum() > 0:
        LAST["positive"] = 1
    else:
        LAST.clear()
    return x * 2


@FAMILY.program(ONE, WHERE, state=lambda module: module.steps)
class CountsSteps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            self.steps += 1
        return x * 2


@FAMILY.program(ONE, WHERE, state=lambda module: module.last)
class RemembersTensor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        h = x * 2
        if x.sum() > 0:
            self.last = h
        return h + 1
