"""Operators with a number read from a tensor, of each kind beside each dtype: eager's errors too.

What raises for the kind of a number (``x - True``) is left to eager: its error comes at its line,
nothing is written before it, and no warning says that fusepass failed.
"""

from __future__ import annotations

import itertools
import operator
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fusepass.errors import FusepassWarning

from ..support.side_by_side import side_by_side
from .test_deferred_items import is_read, stays

DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int64,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.complex64,
)
NUMBERS = {"bool": True, "int": 3, "float": 0.5}
_BINARY = """
    add sub mul truediv floordiv mod pow eq ne lt le gt ge and_ or_ xor lshift rshift
    iadd isub imul itruediv ifloordiv imod ipow iand ior ixor ilshift irshift
""".split()
_FUNCTIONS = """
    add sub rsub mul div floor_divide remainder fmod pow eq lt bitwise_and bitwise_left_shift
    copysign xlogy float_power isin clamp_min clamp_max full_like
""".split()
_METHODS = "sub_ mul_ div_ add_ remainder_ fmod_ pow_ lt_ fill_ clamp_ floor_divide_".split()


def of(function: Callable[..., Any]) -> Callable[[Tensor, Tensor], Any]:
    return lambda x, t: function(x, t.item())


def from_the_right(function: Callable[..., Any]) -> Callable[[Tensor, Tensor], Any]:
    return lambda x, t: function(t.item(), x)


def by_method(name: str) -> Callable[[Tensor, Tensor], Any]:
    return lambda x, t: getattr(x, name)(t.item())


FORMS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    **{name: of(getattr(operator, name)) for name in _BINARY},
    **{f"r{n}": from_the_right(getattr(operator, n)) for n in _BINARY[: _BINARY.index("iadd")]},
    **{f"torch.{name}": of(getattr(torch, name)) for name in _FUNCTIONS},
    **{f"x.{name}": by_method(name) for name in _METHODS},
    "torch.sub from the right": lambda x, t: torch.rsub(x, t.item(), alpha=2),
    "sub of a sum": lambda x, t: x + t.item() - t.item(),
    "add alpha": lambda x, t: torch.add(x, x, alpha=t.item()),
    "sub alpha": lambda x, t: x.sub(x, alpha=t.item()),
    "lerp": lambda x, t: torch.lerp(x, x + 1, t.item()),
    "addcmul": lambda x, t: torch.addcmul(x, x, x, value=t.item()),
    "addcdiv": lambda x, t: torch.addcdiv(x, x, x, value=t.item()),
    "leaky_relu": lambda x, t: torch.nn.functional.leaky_relu(x, t.item()),
    "clamp both": lambda x, t: x.clamp(0, t.item()),
    "masked_fill": lambda x, t: x.masked_fill(x == x, t.item()),
    "index_fill": lambda x, t: x.index_fill(0, torch.tensor([0]), t.item()),
    "where": lambda x, t: torch.where(x == x, x, t.item()),
    "where from the left": lambda x, t: torch.where(x == x, t.item(), x),
    "stored": lambda x, t: x.__setitem__(0, t.item()),
    "stored by a mask": lambda x, t: x.__setitem__(x == x, t.item()),
    "full": lambda x, t: torch.full((2,), t.item(), dtype=x.dtype),
    "new_full": lambda x, t: x.new_full((2,), t.item()),
    "new_tensor": lambda x, t: x.new_tensor([t.item()]),
    "tensor": lambda x, t: torch.tensor(t.item(), dtype=x.dtype),
}


def inputs(dtype: torch.dtype, kind: str) -> tuple[Tensor, Tensor]:
    return torch.tensor([1, 3, 1]).to(dtype), torch.tensor(NUMBERS[kind])


def compared(form: str, dtype: torch.dtype, kind: str) -> Any:
    """Results, errors and what is written are eager's (side_by_side), and nothing of ours warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", FusepassWarning)
        return side_by_side(FORMS[form], inputs(dtype, kind))


def is_dynamos_own(form: str, dtype: torch.dtype, kind: str) -> bool:
    """Whether plain torch.compile ends with an error of Dynamo's own where eager raises another.

    Or with none: it makes a quotient and a sum of ``addcdiv``.
    """
    torch.compiler.reset()
    try:
        torch.compile(FORMS[form], backend="eager")(*inputs(dtype, kind))
    except torch._dynamo.exc.TorchDynamoException:
        return True
    except (RuntimeError, TypeError):
        return False
    return True


def refuses(form: str, dtype: torch.dtype, kind: str) -> bool:
    try:
        FORMS[form](*inputs(dtype, kind))
    except (RuntimeError, TypeError):
        return True
    return False


QUICK = ("sub", "rsub", "isub", "torch.sub", "torch.rsub", "x.sub_", "lerp", "sub of a sum")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("dtype", "kind"), itertools.product(DTYPES, NUMBERS), ids=str)
@pytest.mark.parametrize("form", QUICK)
def test_errors_for_a_kind(form: str, dtype: torch.dtype, kind: str) -> None:
    if refuses(form, dtype, kind) and not is_dynamos_own(form, dtype, kind):
        compared(form, dtype, kind)


@pytest.mark.parametrize(
    ("form", "dtype"),
    [
        ("full", torch.complex64),
        ("x.fill_", torch.complex64),
        ("where", torch.complex64),
        ("tensor", torch.complex64),
        ("rlshift", torch.bool),
        ("rrshift", torch.bool),
    ],
    ids=str,
)
def test_a_dtype_without_a_form_for_tensors(form: str, dtype: torch.dtype) -> None:
    compared(form, dtype, "int")


@pytest.mark.slow
@pytest.mark.parametrize("kind", NUMBERS)
@pytest.mark.parametrize("form", FORMS)
def test_every_form_beside_every_dtype(form: str, kind: str) -> None:
    for dtype in DTYPES:
        if not (refuses(form, dtype, kind) and is_dynamos_own(form, dtype, kind)):
            compared(form, dtype, kind)


@pytest.mark.parametrize("form", ["sub", "rsub", "isub", "x.sub_"])
def test_items_that_may_raise_are_read(form: str) -> None:
    is_read(compared(form, torch.float32, "bool"), "partial_op")


@pytest.mark.parametrize("form", ["sub", "rsub", "isub", "x.sub_", "lerp"])
def test_items_that_cannot_raise_stay_on_the_device(form: str) -> None:
    """The same calls, with numbers that eager takes."""
    stays(compared(form, torch.float32, "float"))


ON_DEVICE: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "copysign": lambda x, t: torch.copysign(x, t.item()) + x.clone().copysign_(-t.item()),
    "xlogy": lambda x, t: torch.special.xlogy(t.item(), x.abs()) + x.abs().xlogy(t.item()),
    "isin": lambda x, t: torch.isin(x, t.item(), invert=True) & torch.isin(x, t.item() + 1),
    "float_power": lambda x, t: torch.float_power(x, t.item()) + torch.float_power(t.item(), x),
    "as_tensor": lambda x, t: x * torch.as_tensor(t.item()),
    "as_tensor of a dtype": lambda x, t: torch.as_tensor(t.item(), dtype=torch.float64),
}


@pytest.mark.parametrize("codegen", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ON_DEVICE)
def test_functions_of_two_tensors(name: str, codegen: str) -> None:
    calls = [(torch.tensor([1.0, -2.0, 0.0]), torch.tensor(value)) for value in (0.5, 2.0, 0.0)]
    if codegen == "inductor":
        calls = calls[1:2]  # values that round to the same everywhere
    stays(side_by_side(ON_DEVICE[name], *calls, codegen=codegen))


@pytest.mark.parametrize("name", ["copysign", "xlogy", "as_tensor"])
def test_gradients_of_functions_of_two_tensors(name: str) -> None:
    stays(side_by_side(ON_DEVICE[name], (torch.tensor([1.0, -2.0]), torch.tensor(0.5)), grad=True))


TAKE_NUMBERS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "layer_norm": lambda x, t: functional.layer_norm(x, (3,), eps=t.item()),
    "pad": lambda x, t: functional.pad(x, (1, 1), value=t.item()),
    "isclose": lambda x, t: torch.isclose(x, x + 1, atol=t.item()),
    "index_add": lambda x, t: x.index_add(0, torch.tensor([0]), x[:1], alpha=t.item()),
    "softplus": lambda x, t: functional.softplus(x, t.item()),
}


@pytest.mark.parametrize("kind", ["int", "float"])
@pytest.mark.parametrize("name", TAKE_NUMBERS)
def test_the_reason_names_the_operation(name: str, kind: str) -> None:
    outcome = side_by_side(TAKE_NUMBERS[name], inputs(torch.float32, kind))
    if name == "softplus" and kind == "int":  # by position, where a size could stand as well
        is_read(outcome, "size")
        return
    is_read(outcome, "python_value")
    (reason,) = (d["reason"] for d in outcome.decisions if d["rule"] == "item")
    assert name in reason
    assert "no form of" in reason
    assert "asks for its value" not in reason


def test_near_misses_of_the_reason() -> None:
    def asked(x: Tensor, t: Tensor) -> Tensor:
        return x * {0.5: 2, 1.5: 3}[t.item()]

    def sized(x: Tensor, t: Tensor) -> Tensor:
        return functional.pad(x, (0, int(t)), value=1.0)

    outcome = side_by_side(asked, (torch.ones(3), torch.tensor(0.5)))
    assert not any("no form of" in reason for reason in outcome.reasons), outcome.reasons
    outcome = side_by_side(sized, (torch.ones(3), torch.tensor(2)))
    is_read(outcome, "size")
