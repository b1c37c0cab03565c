"""Containers with their tensors replaced: same classes, same sharing, the loader's left alone."""

from __future__ import annotations

import collections
import dataclasses
import types
import typing
from collections import OrderedDict, UserDict, UserList, defaultdict, deque
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence
from torch.utils import _pytree

from fusepass import errors
from fusepass.prefetching.tree import moved, replaced

ONE, TWO = torch.arange(3.0), torch.arange(4)
META = torch.device("meta")


def minus(found: Any) -> Any:
    """A new tensor, told from the old one by its values."""
    return -found if isinstance(found, Tensor) else found.to("cpu")


class Pair(typing.NamedTuple):
    first: Any
    second: Any = 1


Untyped = collections.namedtuple("Untyped", "a b")


@dataclasses.dataclass
class Sample:
    image: Any
    label: Any = 0
    derived: Any = dataclasses.field(init=False, default=None)

    def __post_init__(self) -> None:
        self.derived = ("made once", self.image)


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    image: Any
    label: int = 0


class Named(dict):
    """A dict with more than items."""

    name = ""


class Row(tuple):
    """A tuple of a class of its own."""

    __slots__ = ()


class Listed(list):
    name = ""


class Registered:
    """Known to pytree."""

    def __init__(self, tensor: Any, note: str) -> None:
        self.tensor, self.note = tensor, note


_pytree.register_pytree_node(
    Registered, lambda one: ([one.tensor], one.note), lambda items, note: Registered(*items, note)
)


class Mover:
    """Moves itself."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def to(self, device: Any) -> Mover:
        return Mover(self.tensor.to(device))


class MovingDict(dict):
    """Moves itself, all but one key."""

    def to(self, *args: Any, **kwargs: Any) -> MovingDict:
        return MovingDict({k: v if k == "keep" else v.to(*args, **kwargs) for k, v in self.items()})


class Quantity:
    """Converts itself to a unit: not a move."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def to(self, unit: str) -> float:
        raise AssertionError(unit)


class Line(deque):
    name = ""


@dataclasses.dataclass
class FieldsToo(dict):
    extra: Any = None


def named(kind: type, items: Any) -> Any:
    made = kind(items)
    made.name = "kept"
    return made


def filled(kind: Any, *args: Any) -> Any:
    made = kind(*args)
    made["a"] = ONE
    return made


def same(one: Any, other: Any) -> bool:
    """Equal, in classes and attributes too."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, (UserDict, UserList, dict, types.MappingProxyType, list, deque, tuple)):
        extra = same(vars(one), vars(other)) if hasattr(one, "__dict__") else True
        if hasattr(one, "items"):
            pairs = list(zip(one.items(), other.items(), strict=True))
            return extra and all(k == j and same(v, w) for (k, v), (j, w) in pairs)
        return extra and all(same(v, w) for v, w in zip(one, other, strict=True))
    if dataclasses.is_dataclass(one):
        names = [field.name for field in dataclasses.fields(one)]
        return all(same(getattr(one, name), getattr(other, name)) for name in names)
    if isinstance(one, (Registered, Mover)):
        return same(vars(one), vars(other))
    return bool(one == other)


CONTAINERS = {
    "tensor": (ONE, -ONE),
    "tuple": ((ONE, 1, "a"), (-ONE, 1, "a")),
    "list": ([ONE, None], [-ONE, None]),
    "dict": ({"a": ONE, 2: TWO}, {"a": -ONE, 2: -TWO}),
    "nested": ({"a": [ONE, (TWO, {"b": ONE})]}, {"a": [-ONE, (-TWO, {"b": -ONE})]}),
    "namedtuple": (Pair(ONE), Pair(-ONE)),
    "untyped": (Untyped(1, [ONE]), Untyped(1, [-ONE])),
    "dataclass": (Sample(ONE, 3), Sample(-ONE, 3)),
    "frozen": (Frozen(ONE, 3), Frozen(-ONE, 3)),
    "ordered": (OrderedDict(b=ONE, a=1), OrderedDict(b=-ONE, a=1)),
    "default": (filled(defaultdict, list), defaultdict(list, a=-ONE)),
    "user dict": (UserDict(a=ONE), UserDict(a=-ONE)),
    "user list": (UserList([ONE]), UserList([-ONE])),
    "named dict": (named(Named, {"a": ONE}), named(Named, {"a": -ONE})),
    "named list": (named(Listed, [ONE, 1]), named(Listed, [-ONE, 1])),
    "row": (Row([ONE, 1]), Row([-ONE, 1])),
    "proxy": (types.MappingProxyType({"a": ONE}), types.MappingProxyType({"a": -ONE})),
    "deque": (deque([ONE, 1], maxlen=3), deque([-ONE, 1], maxlen=3)),
    "named ordered": (named(OrderedDict, {"a": ONE}), named(OrderedDict, {"a": -ONE})),
    "named deque": (named(Line, [ONE, 1]), named(Line, [-ONE, 1])),
    "registered": (Registered(ONE, "note"), Registered(-ONE, "note")),
    "mover": ([Mover(ONE)], [Mover(ONE)]),
    "return type": (torch.tensor([[2.0, 1.0]]).max(1), -torch.tensor([[2.0]])),
}


@pytest.mark.parametrize("name", [name for name in CONTAINERS if name != "return type"])
def test_made_anew(name: str) -> None:
    before, expected = CONTAINERS[name]
    text = repr(before)
    after = replaced(before, minus)
    assert same(after, expected)
    assert after is not before
    assert repr(before) == text  # the loader's own is not written to


def test_made_anew_of_a_struct_sequence() -> None:
    before = torch.tensor([[2.0, 1.0]]).max(1)
    after = replaced(before, minus)
    assert type(after) is type(before)
    assert after.values.tolist() == [-2.0]
    assert before.values.tolist() == [2.0]


def test_batch_encoding_of_transformers() -> None:
    made = pytest.importorskip("transformers").BatchEncoding({"ids": TWO, "text": ["a"]})
    made.extra = "kept"
    after = replaced(made, minus)
    assert type(after) is type(made)
    assert torch.equal(after["ids"], -TWO)
    assert (after["text"], after.extra) == (["a"], "kept")
    assert made["ids"] is TWO  # its own `to` would have replaced it in place
    from transformers.feature_extraction_utils import BatchFeature
    from transformers.modeling_outputs import BaseModelOutput

    feature = replaced(BatchFeature({"pixels": [ONE, ONE]}), minus)
    assert type(feature) is BatchFeature
    assert feature["pixels"][0] is feature["pixels"][1]
    output = replaced(BaseModelOutput(last_hidden_state=ONE), minus)
    assert type(output) is BaseModelOutput
    assert torch.equal(output.last_hidden_state, -ONE)
    assert torch.equal(output["last_hidden_state"], -ONE)


@pytest.mark.parametrize("name", CONTAINERS)
def test_the_same_object_where_nothing_changes(name: str) -> None:
    before = CONTAINERS[name][0]
    if name != "mover":
        assert moved(before, torch.device("cpu")) is before


@pytest.mark.parametrize(
    "left",
    [
        *(3, 2.5, "text", b"bytes", None, True, 1j),
        *([], (), {}, set(), torch.Size([2, 3]), range(3), torch.float32, torch.device("cpu")),
        np.arange(3),
        {ONE},  # a set is no container of a batch
        Quantity(ONE),
        Sample,
        Mover,
        Tensor,
        object(),
        lambda: ONE,
        torch.ones(3).untyped_storage(),
    ],
    ids=lambda left: type(left).__name__,
)
def test_left_alone(left: Any) -> None:
    assert replaced(left, minus) is left
    assert replaced([left, ONE], minus)[0] is left


def test_a_keys_tensor_stays() -> None:
    before = {ONE: TWO}
    (key,) = replaced(before, minus)
    assert key is ONE


def test_one_object_twice_is_one_object_afterwards() -> None:
    calls: list[Any] = []

    def count(found: Any) -> Any:
        calls.append(found)
        return -found

    shared = [ONE]
    after = replaced((ONE, shared, {"a": ONE, "b": shared}, TWO), count)
    assert after[0] is after[1][0] is after[2]["a"]
    assert after[1] is after[2]["b"]
    assert len(calls) == 2


def test_no_object_is_taken_for_another_that_is_gone() -> None:
    class Fresh(UserDict):
        """Makes its tensors when asked: they can share an address, one after the other."""

        def __getitem__(self, key: int) -> Tensor:
            return torch.full((2,), float(key))

    after = replaced(Fresh(dict.fromkeys(range(50))), minus)
    assert [float(after.data[n][0]) for n in range(50)] == [-float(n) for n in range(50)]


def test_what_moves_itself() -> None:
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    after = moved({"packed": packed, "dict": MovingDict(keep=ONE, move=TWO)}, META)
    assert after["packed"].data.device == META
    assert after["packed"].batch_sizes.device.type == "cpu"  # as PackedSequence wants it
    assert (after["dict"]["keep"].device.type, after["dict"]["move"].device) == ("cpu", META)


def test_tensors_of_every_kind_reach_the_leaf() -> None:
    class Own(Tensor):
        pass

    kinds = [
        ONE.as_subclass(Own),
        torch.nn.Parameter(ONE),
        torch.eye(2).to_sparse(),
        torch.ones(0),
        torch.tensor(1),
        torch.ones(2, dtype=torch.complex64).conj(),
        torch.quantize_per_tensor(ONE, 0.1, 0, torch.quint8),
    ]
    found: list[Any] = []
    replaced(kinds, lambda one: found.append(one) or one)
    assert [one is other for one, other in zip(found, kinds, strict=True)] == [True] * len(kinds)


class Two(tuple):
    """A tuple that is not made of its items."""

    __slots__ = ()

    def __new__(cls, one: Any, other: Any) -> Two:
        return super().__new__(cls, (one, other))


class Fixed(collections.abc.Mapping):
    def __init__(self) -> None:
        self.tensor = ONE

    def __getitem__(self, key: str) -> Any:
        return self.tensor

    def __iter__(self) -> Any:
        return iter(["tensor"])

    def __len__(self) -> int:
        return 1


@pytest.mark.parametrize("value", [Two(ONE, 1), Fixed()], ids=["tuple", "mapping"])
def test_one_that_cannot_be_made(value: Any) -> None:
    with pytest.raises(errors.UnmovableBatch, match=type(value).__name__) as caught:
        replaced([value], minus)
    assert isinstance(caught.value.__cause__, TypeError)
    assert moved([value], torch.device("cpu"))[0] is value  # nothing to make


def test_fields_of_a_dataclass_that_is_a_dict() -> None:
    before = FieldsToo(ONE)
    before["item"] = TWO
    after = replaced(before, minus)
    assert type(after) is FieldsToo
    assert torch.equal(after.extra, -ONE)
    assert torch.equal(after["item"], -TWO)
    assert before.extra is ONE
    assert before["item"] is TWO


def test_a_container_that_contains_itself() -> None:
    before: list[Any] = [[ONE], {"a": 1}]
    before[1]["a"] = before
    assert moved(before, torch.device("cpu")) is before  # nothing to make anew
    with pytest.raises(errors.UnmovableBatch, match=r"list .* it contains itself"):
        moved(before, META)


def test_containers_nested_too_deeply() -> None:
    before: list[Any] = [ONE]
    for _ in range(5000):
        before = [before]
    with pytest.raises(errors.UnmovableBatch, match="nested too deeply"):
        moved(before, META)
