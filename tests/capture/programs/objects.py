"""Named tuples, dataclasses, pytree containers and other objects left behind by the arms."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from ..support.inputs import B, signs
from ..support.program import WHERE, Family, cond, keep

FAMILY = Family("objects")
ONE = signs((B, 4))
PAIR = signs((B, 4), (B, 4), flips=2)


class Output(NamedTuple):
    hidden: Tensor
    pooled: Any = None
    count: int = 2


@dataclasses.dataclass
class Record:
    hidden: Tensor
    pooled: Any = None
    count: int = 2


@dataclasses.dataclass(frozen=True)
class Frozen:
    hidden: Tensor
    scale: float = 0.5
    inner: Any = None


@dataclasses.dataclass(slots=True)
class Slotted:
    hidden: Tensor
    name: str = "slotted"


@dataclasses.dataclass
class Derived:
    hidden: Tensor
    parts: list[Tensor] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.parts.append(self.hidden + 1)
        self.doubled = self.hidden * 2


class Pair:
    """A container that is registered with pytree, and nothing else."""

    def __init__(self, left: Tensor, right: Tensor) -> None:
        self.left = left
        self.right = right

    def total(self) -> Tensor:
        return self.left + self.right


_pytree.register_pytree_node(
    Pair, lambda pair: ((pair.left, pair.right), None), lambda leaves, _: Pair(*leaves)
)


class ModelOutput(collections.OrderedDict):  # type: ignore[type-arg]
    """The shape of the containers that transformers returns: a dict with attributes."""

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):  # type: ignore[arg-type]
            if getattr(self, item.name) is not None:
                self[item.name] = getattr(self, item.name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self and value is not None:
            super().__setitem__(name, value)
        super().__setattr__(name, value)


@dataclasses.dataclass
class EncoderOutput(ModelOutput):
    last: Any = None
    states: Any = None
    pooled: Any = None


@FAMILY.program(ONE, WHERE, grad=True, tags="contexts inductor")
def named_tuple(x: Tensor) -> Output:
    return Output(x * 2, x.sum()) if x.sum() > 0 else Output(x * 3, x.mean())


@FAMILY.program(ONE, WHERE, grad=True)
def named_tuple_read_later(x: Tensor) -> Tensor:
    if x.sum() > 0:
        out = Output(x * 2, x.sum())
    else:
        out = Output(pooled=x.mean(), hidden=x * 3)
    hidden, pooled, count = out
    return out.hidden * count + pooled + hidden


@FAMILY.program(ONE, WHERE, grad=True)
def named_tuple_made_of_one(x: Tensor) -> Output:
    out = Output(x * 2) if x.sum() > 0 else Output(x * 3)
    return Output(*out[:2], 7)


@FAMILY.program(ONE, WHERE, grad=True)
def tuple_of_torch(x: Tensor) -> Tensor:
    best = (x * 2).max(1) if x.sum() > 0 else (x * 3).max(1)
    return best.values + best.indices


@FAMILY.program(ONE, WHERE, grad=True, tags="contexts inductor")
def data_class(x: Tensor) -> Record:
    if x.sum() > 0:
        out = Record(x * 2, x.sum())
    else:
        out = Record(x * 3, x.mean())
    return out


@FAMILY.program(ONE, WHERE, grad=True)
def data_class_read_and_written_later(x: Tensor) -> tuple[Record, Tensor]:
    out = Record(x * 2) if x.sum() > 0 else Record(x.sin())
    out.hidden = out.hidden + 1
    out.count += 1
    out.hidden.mul_(2)
    return out, out.hidden * out.count


@FAMILY.program(ONE, WHERE, grad=True)
def data_class_replaced_in_an_arm(x: Tensor) -> Record:
    out = Record(x * 2)
    if x.sum() > 0:
        out = dataclasses.replace(out, hidden=out.hidden + 1)
    else:
        out = dataclasses.replace(out, hidden=out.hidden - 1)
    return out


@FAMILY.program(ONE, WHERE, grad=True)
def frozen_inside_frozen(x: Tensor) -> Frozen:
    if x.sum() > 0:
        return Frozen(x * 2, inner=Frozen(x + 1, 0.25))
    return Frozen(x * 3, inner=Frozen(x + 2, 0.25))


@FAMILY.program(ONE, WHERE, grad=True)
def slots(x: Tensor) -> Slotted:
    return Slotted(x * 2) if x.sum() > 0 else Slotted(x * 3)


@FAMILY.program(ONE, WHERE, grad=True)
def fields_made_after_init(x: Tensor) -> Derived:
    return Derived(x * 2) if x.sum() > 0 else Derived(x * 3)


@FAMILY.program(ONE, WHERE, grad=True)
def list_in_an_object_grown_later(x: Tensor) -> Derived:
    out = Derived(x * 2) if x.sum() > 0 else Derived(x * 3)
    out.parts.append(out.doubled)
    return out


@FAMILY.program(ONE, WHERE, grad=True)
def registered_class(x: Tensor) -> Pair:
    return Pair(x * 2, x + 2) if x.sum() > 0 else Pair(x * 3, x + 3)


@FAMILY.program(ONE, WHERE, grad=True)
def method_called_later(x: Tensor) -> Tensor:
    pair = Pair(x * 2, x + 2) if x.sum() > 0 else Pair(x * 3, x + 3)
    return pair.total()


@FAMILY.program(ONE, WHERE, grad=True)
def mapped_later(x: Tensor) -> Any:
    pair = Pair(x * 2, x + 2) if x.sum() > 0 else Pair(x * 3, x + 3)
    return torch.utils._pytree.tree_map(lambda leaf: leaf * 2, pair)


@FAMILY.program(ONE, WHERE, grad=True, tags="contexts inductor")
def model_output(x: Tensor) -> EncoderOutput:
    if x.sum() > 0:
        return EncoderOutput(last=x * 2, states=(x, x + 1))
    return EncoderOutput(last=x * 3, states=(x, x + 2))


@FAMILY.program(ONE, WHERE, grad=True)
def model_output_read_and_written_later(x: Tensor) -> tuple[EncoderOutput, Tensor]:
    if x.sum() > 0:
        out = EncoderOutput(last=x * 2)
    else:
        out = EncoderOutput(last=x * 3)
    y = out.last + out["last"]
    out.last = y
    out["pooled"] = y.sum()
    return out, y


@FAMILY.program(ONE, WHERE, grad=True)
def ordered_dict(x: Tensor) -> Any:
    if x.sum() > 0:
        out = collections.OrderedDict(a=x * 2, b=x.sum())
    else:
        out = collections.OrderedDict([("a", x * 3), ("b", x.mean())])
    out["c"] = out["a"] + 1
    return out


@FAMILY.program(ONE, WHERE, grad=True)
def objects_in_containers(x: Tensor) -> dict[str, Any]:
    if x.sum() > 0:
        out = {"a": [Record(x * 2), Output(x * 3)], "b": (Frozen(x + 1),)}
    else:
        out = {"a": [Record(x / 2), Output(x / 3)], "b": (Frozen(x - 1),)}
    return out


@FAMILY.program(ONE, WHERE, grad=True)
def containers_in_objects(x: Tensor) -> Record:
    if x.sum() > 0:
        out = Record([x * 2, {"a": x * 3}], (x + 1, Record(x + 4)))
    else:
        out = Record([x / 2, {"a": x / 3}], (x - 1, Record(x - 4)))
    return out


@FAMILY.program(ONE, WHERE, grad=True)
def one_object_under_two_names(x: Tensor) -> tuple[Any, ...]:
    if x.sum() > 0:
        inner = Record(x * 2)
        out = Record(inner)
    else:
        inner = Record(x * 3)
        out = Record(inner)
    inner.pooled = x + 1
    return out, inner, [inner]


@FAMILY.program(PAIR, WHERE, WHERE, grad=True)
def nested_branches(x: Tensor, y: Tensor) -> Record:
    if x.sum() > 0:
        if y.sum() > 0:
            out = Record(x * 2 + y)
        else:
            out = Record(y * 3 + x)
        out.pooled = out.hidden.sum()
    else:
        out = Record(x + y)
        out.pooled = x.sum() * y.sum()
    out.count += 1
    return out


@FAMILY.program(ONE, WHERE, grad=True)
def carried_through_a_loop(x: Tensor) -> Record:
    out = Record(x)
    for n in range(3):
        if out.hidden.sum() > 0:
            out = Record(out.hidden * -2, count=n)
        else:
            out = Record(out.hidden * -3, count=n)
    return out


def _made(x: Tensor, by: float) -> Record:
    out = Record(x * by)
    out.pooled = out.hidden.sum()
    return out


@FAMILY.program(ONE, WHERE, grad=True)
def made_by_a_helper(x: Tensor) -> Record:
    return _made(x, 2.0) if x.sum() > 0 else _made(x, 3.0)


@FAMILY.program(ONE, WHERE, grad=True)
class Remembers(nn.Module):
    """Both arms bind an object of their own to an attribute, and return it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.last: Any = None

    def forward(self, x: Tensor) -> tuple[Tensor, Record]:
        y = self.linear(x)
        if x.sum() > 0:
            self.last = out = Record(y * 2)
        else:
            self.last = out = Record(y * 3)
        return self.last.hidden + 1, out


@FAMILY.program(ONE, cond("forced"), grad=True, options={"treatment": "cond"})
def forced_cond(x: Tensor) -> Record:
    return Record(x * 2, x.sum()) if x.sum() > 0 else Record(x * 3, x.mean())


@FAMILY.program(ONE, WHERE | keep("alias"), grad=True)
def unchanged_input_inside(x: Tensor) -> Record:
    return Record(x, x * 2) if x.sum() > 0 else Record(x, x * 3)
