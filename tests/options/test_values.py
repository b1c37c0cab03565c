"""Every option: the values it takes, what it says about the others, and that they reach the user."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fusepass
from fusepass import errors
from fusepass.options import Options, resolve
from fusepass.rewrite.option_scope import resolve_checked

GOOD: dict[str, list[Any]] = {
    "mode": [None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"],
    "rules": [{}, {"branch": False}, {"constant_attention_mask": True, "branch": True}],
    "treatment": ["auto", "where", "cond", "keep"],
    "candidate": ["auto", "reference", "inductor"],
    "codegen": ["inductor", "eager", "eager-decomposed"],
    "verify": [True, False],
    "defer_prints": [True, False],
    "allow_zero_grad": [True, False],
    "allow_fresh_output": [True, False],
    "allow_hidden_nan": [True, False],
    "reuse_regions": [True, False],
    "host_random": [True, False],
    "non_blocking": [True, False],
    "frozen": [True, False],
    "max_saved_bytes": [0, 1 << 30],
}
WRONG_TYPE: dict[str, list[Any]] = {
    "mode": [3, True, ["default"]],
    "rules": ["branch", ["branch"], {"branch": "off"}, {"branch": 0}, {1: True}],
    "treatment": [None, 1, True],
    "candidate": [None, 1],
    "codegen": [None, b"eager"],
    "verify": ["yes", 1, None],
    "defer_prints": [0, "no"],
    "allow_zero_grad": [1, "True"],
    "allow_fresh_output": [None, 1.0],
    "allow_hidden_nan": [0, "yes"],
    "reuse_regions": ["auto", 1],
    "host_random": ["auto", 1],
    "non_blocking": ["auto", 1],
    "frozen": [None, "weights"],
    "max_saved_bytes": ["1 GiB", 1e9, True],
}
WRONG_VALUE = {
    "mode": ("reduce_overhead", "reduce-overhead"),
    "treatment": ("wher", "where"),
    "candidate": ("refrence", "reference"),
    "codegen": ("eagr", "eager"),
}
KEYS = sorted(GOOD)


def cases(table: dict[str, list[Any]]) -> list[tuple[str, Any]]:
    return [(key, value) for key, values in table.items() for value in values]


def compiled(options: dict[str, Any]) -> Callable[[Tensor], Tensor]:
    def double(x: Tensor) -> Tensor:
        return x * 2

    return torch.compile(double, backend="fusepass", options=options)


def test_the_keys_are_these() -> None:
    names = {field.name for field in dataclasses.fields(Options)}
    assert names == {*KEYS, "inductor"}
    assert set(WRONG_TYPE) == set(GOOD)


@pytest.mark.parametrize(("key", "value"), cases(GOOD))
def test_good_value(key: str, value: Any) -> None:
    expected = "default" if value is None else value
    assert getattr(resolve(given={key: value}), key) == expected
    with fusepass.options(**{key: value}) as inside:
        assert getattr(inside, key) == expected


@pytest.mark.parametrize(("key", "value"), cases(WRONG_TYPE))
def test_wrong_type(key: str, value: Any) -> None:
    with pytest.raises(errors.OptionType, match=key) as caught:
        resolve(given={key: value})
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, errors.FusepassError)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(("key", "given", "meant"), [(k, *v) for k, v in WRONG_VALUE.items()])
def test_wrong_value_names_the_nearest_and_all(key: str, given: str, meant: str) -> None:
    with pytest.raises(errors.OptionValue, match=f"Did you mean '{meant}'") as caught:
        resolve(given={key: given})
    assert isinstance(caught.value, ValueError)
    for allowed in GOOD[key]:
        assert allowed is None or allowed in str(caught.value)


@pytest.mark.parametrize(
    ("given", "meant"),
    [("treatmnt", "treatment"), ("rule", "rules"), ("zero_grad", "allow_zero_grad")],
)
def test_unknown_key_names_the_nearest_and_lists_all(given: str, meant: str) -> None:
    with pytest.raises(errors.UnknownOption, match=meant) as caught:
        resolve(given={given: True})
    assert isinstance(caught.value, ValueError)
    assert all(key in str(caught.value) for key in (*KEYS, "inductor."))


def test_max_saved_bytes_is_none_or_a_number_of_bytes() -> None:
    assert resolve(given={"max_saved_bytes": None}).max_saved_bytes is None
    with pytest.raises(errors.OptionValue, match="0 or more bytes"):
        resolve(given={"max_saved_bytes": -1})


def test_unknown_key_that_is_near_to_none() -> None:
    with pytest.raises(errors.UnknownOption) as caught:
        resolve(given={"zzzzzz": 1})
    assert "Did you mean" not in str(caught.value)


def test_unknown_rule_is_named() -> None:
    with pytest.raises(errors.UnknownOption, match="Did you mean 'constant_attention_mask'"):
        resolve_checked(options={"rules": {"constant_atention_mask": False}})


def test_key_that_is_no_string() -> None:
    with pytest.raises(errors.OptionType, match="string keys"):
        resolve(given={1: True})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"treatmnt": "where"}, errors.UnknownOption),
        ({"verify": "yes"}, errors.OptionType),
        ({"treatment": "wher"}, errors.OptionValue),
        ({"inductor.max_fusion_siz": 3}, errors.UnknownOption),
        ({"inductor.max_fusion_size": "3"}, errors.OptionType),
        ([("mode", "default")], errors.ArgumentType),
        ("default", errors.ArgumentType),
        (3, errors.ArgumentType),
    ],
)
@pytest.mark.parametrize("branching", [False, True])
def test_user_meets_the_error_itself(options: Any, kind: type[Exception], branching: bool) -> None:
    def branch(x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x

    program = (
        torch.compile(branch, backend="fusepass", options=options)
        if branching
        else compiled(options)
    )
    with pytest.raises(kind) as caught:
        program(torch.ones(2))
    assert not isinstance(caught.value, torch._dynamo.exc.BackendCompilerFailed)
    assert str(caught.value).startswith("fusepass: ")
    with pytest.raises(kind):
        program(torch.ones(2))  # and not once only


def test_good_options_after_an_error() -> None:
    """An error leaves nothing behind that the next compile trips over."""
    with pytest.raises(errors.UnknownOption):
        compiled({"treatmnt": "where"})(torch.ones(2))
    assert compiled({"codegen": "eager"})(torch.ones(2)).tolist() == [2.0, 2.0]


def test_mode_of_torch_compile_is_checked() -> None:
    program = torch.compile(lambda x: x + 1, backend="fusepass", mode="reduce_overhead")
    with pytest.raises(errors.OptionValue, match="reduce-overhead"):
        program(torch.ones(2))


@pytest.mark.parametrize("key", ["verify", "treatment", "candidate", "codegen", "mode", "rules"])
def test_fingerprint_tells_options_apart(key: str) -> None:
    """What may change generated code is in the cache keys."""
    prints = {resolve(given={key: value}).fingerprint() for value in GOOD[key]}
    assert len(prints) >= len([v for v in GOOD[key] if v is not None])


def test_options_are_frozen() -> None:
    options = resolve(given={"rules": {"branch": False}})
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.mode = "default"  # type: ignore[misc]
    with pytest.raises(TypeError):
        options.rules["branch"] = True  # type: ignore[index]
