"""Lists, dicts, sets and deques that one arm changes are changed behind the graph."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ..support.left_state import same_state
from ..support.side_by_side import signed

TURNS = [x for (x,) in signed(1.0, -0.5, 2.0, 0.25)]


class Holds(nn.Module):
    """Something of every kind to change."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[Any] = [1, "a"]
        self.stats: dict[str, Any] = {"seen": 0, "last": None}
        self.names = {"x"}
        self.recent: deque[Any] = deque([0.5])
        self.lin = nn.Linear(4, 4)


class Appends(Holds):
    def forward(self, x: Tensor) -> Any:
        if x.sum() > 0:
            self.log.append(x * 2)
        return x + 1


class AppendsTwice(Holds):
    def forward(self, x: Tensor) -> Any:
        if x.sum() > 0:
            self.log.append(x * 2)
        if x[0] > 0:
            self.log.append("b")
        self.log.append(3)
        return x + 1


class Both(Holds):
    def forward(self, x: Tensor) -> Any:
        if x.sum() > 0:
            self.log.append(x * 2)
        else:
            self.log.clear()
            self.recent.append(x.mean())
        return x + 1


class Sets(Holds):
    def forward(self, x: Tensor) -> Any:
        if x.sum() > 0:
            self.stats["last"] = x * 2
            self.stats["seen"] += 1
        return x + 1


class NewKey(Holds):
    def forward(self, x: Tensor) -> Any:
        if x.sum() > 0:
            self.stats["fresh"] = x * 2
        if x[1] > 0:
            self.stats["other"] = "o"
        return x + 1


class RemovesKey(Holds):
    def forward(self, x: Tensor) -> Any:
        self.stats["gone"] = 1
        if x.sum() > 0:
            del self.stats["gone"]
        return x + 1


class Names(Holds):
    def forward(self, x: Tensor) -> Any:
        if x.sum() > 0:
            self.names.add("y")
        else:
            self.names.discard("x")
        return x + 1


class Items(Holds):
    def forward(self, x: Tensor) -> Any:
        if x.sum() > 0:
            self.log[0] = x * 2
        else:
            self.log[1] = x * 3
        return x + 1


class Pops(Holds):
    def forward(self, x: Tensor) -> Any:
        self.log += [1, 2, 3]
        if x.sum() > 0:
            self.log.pop()
            self.log.insert(0, x * 2)
            self.log.reverse()
        return x + 1


class Bounded(Holds):
    def forward(self, x: Tensor) -> Any:
        if x.sum() > 0:
            self.log.append(x * 2)
            if len(self.log) > 3:
                self.log.pop(0)
        return x + 1


class Nested(Holds):
    def forward(self, x: Tensor) -> Any:
        if x.sum() > 0:
            self.log.append("outer")
            if x[0] > 1:
                self.log.append(x * 2)
        elif x[1] > 0:
            self.log.append("other")
        return x + 1


class NestedKeys(Holds):
    def forward(self, x: Tensor) -> Any:
        if x.sum() > 0:
            if x[0] > 1:
                self.stats["one"] = 1
            else:
                self.stats["two"] = x * 2
        return x + 1


class Layers(Holds):
    def forward(self, x: Tensor) -> Any:
        losses: list[Any] = []
        for scale in (1.0, 2.0, 3.0):
            x = x * scale
            if x.mean() > 0.5:
                losses.append(x.mean())
        return x, losses


class LocalDict(Holds):
    def forward(self, x: Tensor) -> Any:
        found: dict[str, Any] = {"x": x}
        if x.sum() > 0:
            found["y"] = x * 2
        self.stats["last"] = found
        return x + 1, found


class Trained(Holds):
    def forward(self, x: Tensor) -> Any:
        y = x + self.lin.bias
        losses: list[Any] = []
        if x.sum() > 0:
            losses.append(y.sum())
        return y.sum(), losses


CAPTURED = [
    Appends, AppendsTwice, Both, Sets, NewKey, RemovesKey, Names, Items, Pops, Nested, NestedKeys, Layers,
    LocalDict, Trained, Bounded,
]  # fmt: skip


@pytest.mark.parametrize("kind", CAPTURED)
def test_changed_if_the_arm_was_taken(kind: Any) -> None:
    same_state(kind, *TURNS)


class Counted(Holds):
    def forward(self, x: Tensor) -> Any:
        if x.sum() > 0:
            self.log.append(x * 2)
        return x + len(self.log)


class Summed(Holds):
    def forward(self, x: Tensor) -> Any:
        losses: list[Any] = []
        if x.sum() > 0:
            losses.append(x.mean())
        return x + sum(losses)


class Iterated(Holds):
    def forward(self, x: Tensor) -> Any:
        todo = [1.0, 2.0]
        for scale in todo:
            x = x * scale
            if x.sum() > 100 and len(todo) < 3:
                todo.append(0.5)
            if x.sum() > 0 and len(todo) < 4:
                todo.append(3.0)
        return x


@pytest.mark.parametrize("kind", [Counted, Summed, Iterated])
def test_kept_where_code_looks_at_it(kind: Any) -> None:
    same_state(kind, *TURNS, breaks=-1)


def test_the_reason_has_the_line_that_looks() -> None:
    report = same_state(Counted, *TURNS, breaks=-1)
    (reason,) = {d["reason"] for d in report["decisions"] if d["station"] == "capture"}
    line = Counted.forward.__code__.co_firstlineno + 3
    assert reason == f"line {line} looks at the list `self.log`, which one arm only changes"


def test_gradients_flow_through_what_an_arm_appends() -> None:
    torch.manual_seed(0)
    eager, mine = Trained(), Trained()
    mine.load_state_dict(eager.state_dict())
    compiled = torch.compile(mine, backend="fusepass", options={"codegen": "eager"})
    for x in TURNS:
        for run, one in ((eager, eager), (compiled, mine)):
            y, losses = run(x)
            (y + sum(losses)).backward()
            assert len(losses) == int(x.sum() > 0), one
        assert torch.equal(eager.lin.bias.grad, mine.lin.bias.grad)  # type: ignore[arg-type]


class OfDefaults(Holds):
    def __init__(self) -> None:
        super().__init__()
        self.groups: defaultdict[str, list[Any]] = defaultdict(list)

    def forward(self, x: Tensor) -> Any:
        if x.sum() > 0:
            self.groups["a"].append(x)
        return x + 1


def test_what_dynamo_hides_is_kept() -> None:
    same_state(OfDefaults, *TURNS, breaks=None)


class InAnInnerArm(Holds):
    def forward(self, x: Tensor) -> Any:
        if x.sum() > 3:
            return x - 1
        if x.sum() > 0:
            self.log.append(x * 3)
        return x + 1


def test_changed_in_an_arm_inside_another() -> None:
    same_state(InAnInnerArm, *(torch.full((4,), v) for v in (0.5, 2.0, -1.0, 0.25, 3.0)))
