"""The comparison of results sees into objects: classes, attributes, their order, who is who."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import pytest
import torch

from fusepass.testing.compare import (
    Difference,
    assert_same,
    assert_same_facts,
    same_bits,
    sharing,
    tensors,
)


@dataclasses.dataclass
class Record:
    tensor: Any
    count: int = 1


class Plain:
    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class Output(collections.OrderedDict):  # type: ignore[type-arg]
    pass


@dataclasses.dataclass(slots=True)
class Slotted:
    tensor: Any


def with_attribute(value: Any, **attributes: Any) -> Any:
    vars(value).update(attributes)
    return value


def rows(*parts: torch.Tensor) -> torch.Tensor:
    return torch.nested.nested_tensor(list(parts), layout=torch.jagged)


ONE = torch.ones(2)
TWO = torch.ones(2) * 2


@pytest.mark.parametrize(
    ("one", "other", "kind"),
    [
        (Record(ONE), Record(TWO), "values"),
        (Record(ONE), Record(ONE, 2), "python value"),
        (Record(ONE), Plain(tensor=ONE, count=1), "structure"),
        (Record(ONE), with_attribute(Record(ONE), more=1), "structure"),
        (Plain(a=1, b=2), Plain(b=2, a=1), "structure"),
        (Plain(a=[ONE]), Plain(a=[TWO]), "values"),
        (Output(a=ONE), with_attribute(Output(a=ONE), a=ONE), "structure"),
        (with_attribute(Output(), a=ONE), with_attribute(Output(), a=TWO), "values"),
        (Slotted(ONE), Slotted(TWO), "values"),
        (ONE.to_sparse(), TWO.to_sparse(), "values"),
        (ONE.to_sparse(), ONE, "stride"),
        (rows(ONE), rows(TWO), "values"),
        (rows(ONE), rows(ONE, TWO), "shape"),
    ],
)
def test_differences(one: Any, other: Any, kind: str) -> None:
    assert_same(one, one, "it")
    with pytest.raises(Difference) as caught:
        assert_same(one, other, "it")
    assert caught.value.kind == kind


def test_tensors_and_who_is_who() -> None:
    record = Record(ONE)
    found = tensors([record, Plain(a=TWO), Slotted(ONE)])
    assert [id(tensor) for tensor in found] == [id(ONE), id(TWO), id(ONE)]
    assert sharing([record, record]) != sharing([record, Record(ONE)])


@dataclasses.dataclass
class _ModelOutput(collections.OrderedDict[str, Any]):
    """Keeps each field as an item, too, as the outputs of transformers do."""

    loss: torch.Tensor
    logits: torch.Tensor

    def __post_init__(self) -> None:
        self.update(loss=self.loss, logits=self.logits)


def test_an_item_that_is_also_an_attribute_is_found_once() -> None:
    loss, logits = torch.ones(()), torch.ones(2)
    found = list(tensors(_ModelOutput(loss, logits)))
    assert [id(one) for one in found] == [id(loss), id(logits)]


def test_an_object_that_holds_itself_is_walked_once() -> None:
    x, child = torch.ones(2), Plain()
    parent = Plain(tensor=x, child=child, again=[x])
    child.parent = parent
    assert list(map(id, tensors(parent))) == [id(x), id(x)]
    assert sharing(parent)["containers"] == [0, 1, 2]  # the parent, the child, the list


def test_a_nested_tensor_is_not_like_an_ordinary_one() -> None:
    x = torch.ones(2)
    with pytest.raises(Difference, match=r"dtype is torch\.float32 in eager, None"):
        assert_same_facts(x, torch.nested.nested_tensor([x]), "result")


def test_lazily_conjugated_tensors() -> None:
    z = torch.complex(torch.tensor([1.0, -2.0]), torch.tensor([0.5, 3.0]))
    assert same_bits(z.conj(), z.conj())
    assert same_bits(z.conj(), z.conj().resolve_conj())
    assert not same_bits(z, z.conj())
