"""Objects left behind by the arms that a single object could not be: other kinds, other fields."""

from __future__ import annotations

import collections
from typing import Any

from torch import Tensor

from ..support.program import WHERE, Family, keep
from .objects import ONE, Derived, EncoderOutput, Frozen, Output, Pair, Record, Slotted

FAMILY = Family("objects_kept")


@FAMILY.program(ONE, WHERE, grad=True)
def input_handed_on_by_one_arm(x: Tensor) -> Record:
    return Record(x) if x.sum() > 0 else Record(x * 3)


@FAMILY.program(ONE, WHERE, grad=True)
def other_class(x: Tensor) -> Any:
    return Record(x * 2) if x.sum() > 0 else Frozen(x * 3)


class Recorded(Record):
    pass


@FAMILY.program(ONE, WHERE, grad=True)
def subclass(x: Tensor) -> Record:
    return Record(x * 2) if x.sum() > 0 else Recorded(x * 3)


@FAMILY.program(ONE, WHERE, grad=True)
def named_or_plain_tuple(x: Tensor) -> Any:
    return Output(x * 2, x, 1) if x.sum() > 0 else (x * 3, x, 1)


@FAMILY.program(ONE, WHERE, grad=True)
def dict_or_ordered_dict(x: Tensor) -> Any:
    return {"a": x * 2} if x.sum() > 0 else collections.OrderedDict(a=x * 3)


@FAMILY.program(ONE, WHERE, grad=True)
def other_constant(x: Tensor) -> Frozen:
    return Frozen(x * 2, 0.25) if x.sum() > 0 else Frozen(x * 3, 0.75)


@FAMILY.program(ONE, WHERE, grad=True)
def other_text(x: Tensor) -> Slotted:
    return Slotted(x * 2, "a") if x.sum() > 0 else Slotted(x * 3, "b")


@FAMILY.program(ONE, WHERE, grad=True)
def field_is_none_in_one_arm(x: Tensor) -> EncoderOutput:
    return EncoderOutput(x * 2, pooled=x.sum()) if x.sum() > 0 else EncoderOutput(x * 3)


@FAMILY.program(ONE, WHERE, grad=True)
def attribute_in_one_arm_only(x: Tensor) -> Record:
    out = Record(x * 2) if x.sum() > 0 else _with_note(Record(x * 3))
    return out


def _with_note(record: Record) -> Record:
    record.note = "more"  # type: ignore[attr-defined]
    return record


@FAMILY.program(ONE, WHERE, grad=True)
def attributes_in_another_order(x: Tensor) -> Pair:
    if x.sum() > 0:
        pair = Pair(x * 2, x + 2)
        pair.first, pair.second = x + 3, x + 4  # type: ignore[attr-defined]
    else:
        pair = Pair(x * 3, x + 2)
        pair.second, pair.first = x + 5, x + 6  # type: ignore[attr-defined]
    return pair


@FAMILY.program(ONE, keep("python_value"), grad=True)
def one_object_or_two(x: Tensor) -> tuple[Record, Record]:
    if x.sum() > 0:
        a = b = Record(x * 2)
    else:
        a, b = Record(x * 3), Record(x * 4)
    return a, b


@FAMILY.program(ONE, keep("python_value"), grad=True)
def older_object_in_one_arm(x: Tensor) -> tuple[Record, Record]:
    older = Record(x + 1)
    out = older
    if x.sum() > 0:
        out = Record(x * 2)
    return out, older


@FAMILY.program(ONE, keep("side_effect"), grad=True)
def older_object_written(x: Tensor) -> Record:
    out = Record(x + 1)
    if x.sum() > 0:
        out.hidden = x * 2
    else:
        out.hidden = x * 3
    return out


@FAMILY.program(ONE, WHERE, grad=True)
def older_list_in_a_new_object_written(x: Tensor) -> Derived:
    parts = [x]
    if x.sum() > 0:
        out = Derived(x * 2, parts)
    else:
        out = Derived(x * 3, parts)
    return out


@FAMILY.program(ONE, WHERE, grad=True)
def other_dtype_in_a_field(x: Tensor) -> Record:
    return Record(x * 2) if x.sum() > 0 else Record(x.double())


class Counted:
    made = 0

    def __init__(self, hidden: Tensor) -> None:
        Counted.made += 1
        self.hidden = hidden


def _count(_: Any) -> int:
    made, Counted.made = Counted.made, 0
    return made


# The class is bound the same number by both arms, which may be seen or not.
@FAMILY.program(ONE, WHERE | keep("side_effect") | keep("untraceable"), grad=True, state=_count)
def class_that_counts(x: Tensor) -> Tensor:
    out = Counted(x * 2) if x.sum() > 0 else Counted(x * 3)
    return out.hidden + 1


class Remade:
    def __new__(cls, hidden: Tensor) -> Remade:
        made = super().__new__(cls)
        made.first = hidden + 1  # type: ignore[attr-defined]
        return made

    def __init__(self, hidden: Tensor) -> None:
        self.hidden = hidden


@FAMILY.program(ONE, keep("python_value") | keep("untraceable"), grad=True)
def class_with_its_own_new(x: Tensor) -> Remade:
    return Remade(x * 2) if x.sum() > 0 else Remade(x * 3)


@FAMILY.program(ONE, keep("python_value"), grad=True)
def method_of_a_new_object(x: Tensor) -> Tensor:
    total = Pair(x, x + 2).total if x.sum() > 0 else Pair(x, x + 3).total
    return total()
