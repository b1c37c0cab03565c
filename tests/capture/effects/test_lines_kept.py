"""Lines that stay where they are: other files, objects with a text of their own, what may fail."""

# ruff: noqa: T201 - the programs print

from __future__ import annotations

import collections
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from ..support.written import assert_kept, assert_same_text, treatments


def inputs() -> tuple[Tensor]:
    return (torch.linspace(-1.5, 4, 15).reshape(3, 5),)


def test_to_another_file_is_kept(tmp_path: Any) -> None:
    def program(x: Tensor, file: Any) -> Tensor:
        print(x, file=file)
        return x * 2

    paths = [tmp_path / "eager", tmp_path / "compiled"]
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    for path, target in zip(paths, (program, compiled), strict=True):
        with path.open("w") as file:
            target(*inputs(), file)
    assert paths[0].read_text() == paths[1].read_text()
    assert_kept(compiled, "side_effect")


class Point:
    def __init__(self, x: Tensor) -> None:
        self.x = x

    def __repr__(self) -> str:
        return f"Point({self.x.sum()})"


class Named(NamedTuple):
    x: Tensor

    def __repr__(self) -> str:
        return "named"


OBJECTS: dict[str, Any] = {
    "of_the_program": Point,
    "named_tuple": Named,
    "ordered_dict": lambda x: collections.OrderedDict(x=x),
    "default_dict": lambda x: collections.defaultdict(list, x=[x]),
    "set": lambda x: {1, 2},
    "function": lambda x: inputs,
    "module": lambda x: torch.nn.functional,
}


@pytest.mark.parametrize("name", OBJECTS)
def test_objects_with_a_text_of_their_own_are_kept(name: str) -> None:
    make = OBJECTS[name]

    def program(x: Tensor) -> Tensor:
        held = make(x * 2)
        print("held", held)
        return x * 3

    assert_kept(assert_same_text(program, inputs), "untraceable")


def transformed(x: Tensor) -> Tensor:
    def one(row: Tensor) -> Tensor:
        print("row", row)
        return row.sum()

    return torch.vmap(one)(x)


def test_a_transformed_tensor_is_kept() -> None:
    assert_kept(assert_same_text(transformed, inputs), "untraceable")


def shows_a_tensor(x: Tensor) -> Tensor:
    y = x * 2
    print("y", y, y.sum())
    return y


def test_options_turn_it_off() -> None:
    for options, reason in (
        ({"defer_prints": False}, "forced"),
        ({"rules": {"print": False}}, "rule_off"),
    ):
        torch.compiler.reset()
        compiled = assert_same_text(shows_a_tensor, inputs, options=options)
        assert set(treatments(compiled)) == {("keep", reason)}


def test_a_generator_is_kept() -> None:
    def items(x: Tensor) -> Any:
        print("first")
        yield x * 2
        print("second")
        yield x * 3

    def program(x: Tensor) -> Tensor:
        return sum(items(x))  # type: ignore[return-value]

    assert_same_text(program, inputs)


def test_prints_that_may_fail_are_kept() -> None:
    def divides(x: Tensor) -> Tensor:
        print(1 / x.sum().item(), x.max().item() % x.min().item())
        return x * 2

    def whole(x: Tensor) -> Tensor:
        print(int(x.sum().item()))
        return x * 2

    def wide(x: Tensor) -> Tensor:
        print(f"{'a' if x.dim() > 1 else 'b'} {x.double().sum().item() ** 3}")
        return x * 2

    for program in (divides, whole, wide):
        torch.compiler.reset()
        compiled = assert_same_text(program, inputs, times=1)
        assert_kept(compiled, "partial_op")
