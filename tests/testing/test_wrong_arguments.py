"""What ``check_rule`` and the assertions say to arguments that are wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusepass
from fusepass.errors import FusepassError, OptionType, UnknownOption, UnknownRule
from fusepass.testing import (
    assert_error,
    assert_rewrites,
    assert_untouched,
    check_rule,
)
from tests.fuzz.program import Program
from tests.fuzz.strategy import check_program

X = torch.ones(4)
SINE: Any = fusepass.Rule(
    "my_sine", lambda x: torch.sin(x) * 2, lambda x: 2 * torch.sin(x), (torch.randn(4),)
)
ANY: Any = None


def program(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) * 2


CALLS: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "check_rule: unknown option": (
        lambda: check_rule(SINE, options={"verfy": True}),
        UnknownOption,
        "Did you mean 'verify'",
    ),
    "check_rule: wrong type of option": (
        lambda: check_rule(SINE, options={"verify": 3}),
        OptionType,
        "'verify' must be True or False",
    ),
    "check_rule: a text": (lambda: check_rule("s"), TypeError, "must be a fusepass.Rule"),  # type: ignore[arg-type]
    "check_rule: options no dict": (
        lambda: check_rule(SINE, options=3),  # type: ignore[arg-type]
        TypeError,
        "must be a dict",
    ),
    "assert_rewrites: misspelled rule": (
        lambda: assert_rewrites(program, X, rules={"my_sin": 1}),
        UnknownRule,
        "unknown rule 'my_sin' in rules of assert_rewrites. Did you mean 'my_sine'?",
    ),
    "assert_rewrites: a list": (
        lambda: assert_rewrites(program, X, rules=["sine"]),  # type: ignore[arg-type]
        TypeError,
        "must be a dict of rule name",
    ),
    "assert_rewrites: unknown option": (
        lambda: assert_rewrites(program, X, rules={}, options={"verfy": True}),
        UnknownOption,
        "'verify'",
    ),
    "assert_untouched: a text": (
        lambda: assert_untouched(program, X, rules="sine"),
        TypeError,
        "must be a list of rule names",
    ),
    "assert_error: a name": (
        lambda: assert_error(program, X, error="IndexError"),  # type: ignore[arg-type]
        TypeError,
        "must be a type of exception",
    ),
    "assert_error: no program": (lambda: assert_error("s", X), TypeError, "is no program"),
    "rules: a list": (lambda: fusepass.rules([SINE]).__enter__(), ValueError, "one by one"),  # type: ignore[arg-type]
    "check_program: a text": (
        lambda: check_program("x = 1"),  # type: ignore[arg-type]
        TypeError,
        "must be a tests.fuzz.program.Program; one with a text of yours is Program(text)",
    ),
    "check_program: a text without make": (
        lambda: check_program(Program("x = 1")),
        TypeError,
        "must be one that defines make() and inputs(); it lacks make()",
    ),
    "unregister: a number": (lambda: fusepass.unregister(5), ValueError, "that int is neither"),  # type: ignore[arg-type]
    "unregister: None": (lambda: fusepass.unregister(None), ValueError, "nor the name of one"),  # type: ignore[arg-type]
    "register: a text": (lambda: fusepass.register("s"), ValueError, "no fusepass.Rule"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", CALLS)
def test_wrong_argument(name: str) -> None:
    call, kind, words = CALLS[name]
    with fusepass.rules(SINE) if name.startswith("assert") else fusepass.rules():
        with pytest.raises(kind, match=re.escape(words)) as caught:
            call()
    assert isinstance(caught.value, FusepassError)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (fusepass.Rule("r", lambda x: x * 2, ANY, (X,), devices=("gpu",)), "'gpu'"),
        (fusepass.Rule("r", lambda x: x * 2, ANY, (X,), devices=("cuda:0",)), "'cuda:0'"),
        (fusepass.Rule("r", lambda x, *, s: x * s, ANY, (X, 2.0)), "takes s by keyword only"),
    ],
)
def test_wrong_rule(rule: Any, words: str) -> None:
    rule = fusepass.Rule("r", rule.pattern, lambda x: x + x, rule.example, devices=rule.devices)
    with pytest.raises(fusepass.FusepassError, match=re.escape(words)):
        fusepass.register(rule)


@pytest.mark.parametrize("name", ["Program", "ProgramDiffers", "check_program", "programs"])
def test_what_left_the_package_says_where_it_is(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"tests\.fuzz\.\w+\.{name} now"):
        getattr(fusepass.testing, name)
