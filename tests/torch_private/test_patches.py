"""Functions of ours in front of others, and theirs again behind."""

from __future__ import annotations

import types
from typing import Any

import pytest

from fusepass.torch_private.patches import Patches, once


class Base:
    def named(self, name: str) -> str:
        return f"base {name}"

    @classmethod
    def made(cls, name: str) -> str:
        return f"{cls.__name__} {name}"

    @staticmethod
    def plain(name: str) -> str:
        return f"plain {name}"


class Derived(Base):
    pass


def ours(theirs: Any, *args: Any) -> str:
    return f"ours, {theirs(*args)}"


def outer(theirs: Any, *args: Any) -> str:
    return f"outer, {theirs(*args)}"


def test_a_method_is_called_with_its_object() -> None:
    with Patches() as patches:
        patches.put(Base, "named", ours)
        assert Base().named("a") == "ours, base a"
        assert Base.named.__name__ == "named"
    assert Base().named("a") == "base a"


def test_an_inherited_method_is_inherited_again() -> None:
    with Patches() as patches:
        patches.put(Derived, "named", ours)
        assert Derived().named("a") == "ours, base a"
        assert Base().named("a") == "base a"
    assert "named" not in vars(Derived)


@pytest.mark.parametrize("owner", [Base, Derived])
def test_a_class_method_is_bound_to_its_class(owner: type[Base]) -> None:
    own = vars(owner).get("made")
    with Patches() as patches:
        patches.put(owner, "made", ours)
        assert owner.made("a") == owner().made("a") == f"ours, {owner.__name__} a"
    assert vars(owner).get("made") is own


def test_the_last_is_called_first_and_taken_out_first() -> None:
    module = types.ModuleType("module")
    function = module.named = lambda name: name  # type: ignore[attr-defined]
    with Patches() as patches:
        patches.put(module, "named", ours)
        patches.put(module, "named", outer)
        assert module.named("a") == "outer, ours, a"
    assert module.named is function


def test_an_entry_of_a_table() -> None:
    table = {"==": len}
    with Patches() as patches:
        patches.put_into(table, "==", lambda theirs, value: theirs(value) + 1)
        assert table["=="]("ab") == 3
    assert table == {"==": len}


def test_what_is_kept_is_taken_out_later() -> None:
    with Patches() as patches:
        patches.put(Base, "named", ours)
        undo = patches.pop_all().close
    assert Base().named("a") == "ours, base a"
    undo()
    assert Base().named("a") == "base a"


def test_a_static_method_stays_one() -> None:
    with Patches() as patches:
        patches.put(Base, "plain", ours)
        assert Base.plain("a") == Base().plain("a") == "ours, plain a"
    assert Base().plain("a") == "plain a"


def test_what_is_installed_once() -> None:
    calls = []
    install = once(lambda: calls.append(1))
    install()
    install()
    assert calls == [1]


def test_what_fails_is_installed_again() -> None:
    calls = []

    @once
    def install() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise ImportError

    with pytest.raises(ImportError):
        install()
    install()
    install()
    assert len(calls) == 2
