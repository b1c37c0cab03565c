"""Joining containers: what must agree, which names must be those of one object."""

from __future__ import annotations

from typing import Any

import pytest

from fusepass.capture.branch import merge as merging
from fusepass.capture.branch import one_sided
from fusepass.capture.branch.merge import merge_containers
from fusepass.capture.branch.outputs import (
    Outputs,
    PendingContainer,
    PendingPhi,
    Results,
    settle,
)
from fusepass.capture.refusal import Refusal
from fusepass.torch_private.dynamo import containers
from fusepass.torch_private.dynamo.containers import Container
from fusepass.torch_private.dynamo.phi import PhiVariable


class Held:
    """Stands for a tracked value: a container, or a leaf when it holds nothing."""

    def __init__(self, kind: str = "", of: type = object, items: Any = None, **attributes: Any):
        self.parts = Container(self, kind, of, items, attributes, dict.fromkeys(attributes))


@pytest.fixture(autouse=True)
def stubs(monkeypatch: pytest.MonkeyPatch) -> None:
    def container_of(value: Any, effects: Any) -> Container | None:
        return value.parts if isinstance(value, Held) and value.parts.kind else None

    def fill_object(like: Container, effects: Any, items: Any, attributes: dict[str, Any]) -> Any:
        effects[like.value] = (items, attributes)
        return like.value

    monkeypatch.setattr(merging, "merge", merge)
    monkeypatch.setattr(containers, "container_of", container_of)
    monkeypatch.setattr(one_sided, "_exported", lambda value, *_: value)
    monkeypatch.setattr(containers, "fill_object", fill_object)
    monkeypatch.setattr(containers, "rebuilt", lambda like, items: (like.of, items))


def merge(taken: Any, other: Any, what: str, outputs: Outputs) -> Any:
    joined = merge_containers(taken, other, what, outputs)
    return f"{what}: {taken}|{other}" if joined is None else joined


def joined(taken: Any, other: Any) -> Any:
    pending = merge_containers(taken, other, "it", Outputs())
    effects: dict[Any, Any] = {}
    return settle(pending, Results([], [], effects, phi=PhiVariable, number=max)), effects


def test_items_by_position_and_key() -> None:
    value, _ = joined(Held("list", list, ["a", "b"]), Held("list", list, ["c", "d"]))
    assert value == (list, ["it[0]: a|c", "it[1]: b|d"])
    value, _ = joined(Held("dict", dict, {"k": "a"}), Held("dict", dict, {"k": "c"}))
    assert value == (dict, {"k": "it[…]: a|c"})


def test_the_object_of_the_other_arm_goes_on_with_joined_attributes() -> None:
    taken, other = Held("object", Held, n=1, x="a"), Held("object", Held, n=1, x="b")
    value, effects = joined(taken, other)
    assert value is other
    assert effects[other] == (
        [],
        {"n": "attribute 'n' of it: 1|1", "x": "attribute 'x' of it: a|b"},
    )


def test_an_object_that_holds_itself() -> None:
    taken, other = Held("object", Held, me=None), Held("object", Held, me=None)
    for held in (taken, other):
        held.parts.attributes["me"] = held
    value, effects = joined(taken, other)
    assert effects[value][1]["me"] is value


def test_one_pair_becomes_one_container() -> None:
    outputs = Outputs()
    a, b = Held("object", Held), Held("object", Held)
    first = merge_containers(a, b, "it", outputs)
    assert isinstance(first, PendingContainer)
    assert merge_containers(a, b, "it again", outputs) is first


@pytest.mark.parametrize("kind", ["list", "dict", "object"])
def test_aliases_in_one_arm_only_are_refused(kind: str) -> None:
    outputs = Outputs()
    items = {} if kind == "dict" else []
    a, b, c = (Held(kind, object, items) for _ in range(3))
    merge_containers(a, b, "it", outputs)
    with pytest.raises(Refusal, match="one object with another in one arm only"):
        merge_containers(a, c, "it", outputs)


def test_tuples_are_values() -> None:
    outputs = Outputs()
    a, b, c = (Held("tuple", tuple, ["x"]) for _ in range(3))
    assert merge_containers(a, b, "it", outputs) is not None
    assert merge_containers(a, c, "it", outputs) is not None


@pytest.mark.parametrize(
    ("taken", "other", "text"),
    [
        (Held("list", list, ["a"]), Held("list", list, []), "a list of 1 items in one arm and 0"),
        (Held("dict", dict, {"a": 1}), Held("dict", dict, {"b": 1}), "different keys"),
        (Held("dict", dict, {"a": 1, "b": 1}), Held("dict", dict, {"b": 1, "a": 1}), "keys"),
        (Held("object", Held, x=1), Held("object", Held, x=1, y=2), "different attributes"),
        (Held("object", Held, x=1, y=2), Held("object", Held, y=2, x=1), "different attributes"),
    ],
)
def test_containers_of_different_structure_are_one_of_two(
    taken: Any, other: Any, text: str
) -> None:
    outputs = Outputs()
    made = merge_containers(taken, other, "it", outputs)
    assert isinstance(made, PendingPhi)
    assert text in made.told
    assert merge_containers(taken, other, "it", outputs) is made


def test_containers_of_different_classes_are_refused() -> None:
    assert merge_containers(Held("list", list, []), Held(), "it", Outputs()) is None
    pair = Held("object", Held), Held("object", Container)
    assert merge_containers(*pair, "it", Outputs()) is None
    pair = Held("dict", dict, {}), Held("object", dict, {})
    assert merge_containers(*pair, "it", Outputs()) is None
