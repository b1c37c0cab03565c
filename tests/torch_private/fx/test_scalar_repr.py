"""The text of one number against torch's own, over bit patterns of every dtype."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fusepass.torch_private.fx.scalar_repr import text_of_number

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
WHOLE = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
LIMITS = (0.0, -0.0, 1.0, 0.5, 1e-4, 9.9999e-5, 1e8, 99999999.0, 0.99995, 5e-5, 65504.0, 1e-5)


def text(tensor: Tensor) -> str | None:
    shown = type(tensor.grad_fn).__name__ if tensor.grad_fn is not None else None
    return text_of_number(tensor, tensor.device, shown, tensor.requires_grad)


def assert_torchs(tensor: Tensor) -> None:
    ours = text(tensor)
    assert ours is not None
    assert ours == str(tensor)


@pytest.mark.parametrize("dtype", FLOATS)
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_bit_patterns(dtype: torch.dtype, data: Any) -> None:
    half = 1 << (8 * dtype.itemsize - 1)
    bits = data.draw(st.integers(-half, half - 1))
    tensor = torch.tensor(bits, dtype=BITS[dtype.itemsize]).view(dtype)
    assert text(tensor) in (None, str(tensor))


@pytest.mark.parametrize("dtype", FLOATS)
@settings(max_examples=300, deadline=None)
@given(
    value=st.one_of(
        st.floats(-1e5, 1e5),
        st.integers(-(10**12), 10**12).map(float),
        st.sampled_from(LIMITS),
        st.floats(-12, 12).map(lambda power: 10.0**power),
    ),
    steps=st.integers(-3, 3),
)
def test_numbers_near_the_limits(dtype: torch.dtype, value: float, steps: int) -> None:
    bits = torch.tensor(value, dtype=torch.float64).to(dtype).view(BITS[dtype.itemsize])
    tensor = (bits + steps).view(dtype)
    assert text(tensor) in (None, str(tensor))


@pytest.mark.parametrize("dtype", FLOATS)
def test_common_numbers_need_no_torch(dtype: torch.dtype) -> None:
    for value in (*LIMITS, float("nan"), float("inf"), -float("inf"), -3.25, 1234.5):
        assert_torchs(torch.tensor(value, dtype=torch.float64).to(dtype))


@pytest.mark.parametrize("dtype", WHOLE)
def test_whole_numbers(dtype: torch.dtype) -> None:
    least = 0 if dtype is torch.bool else torch.iinfo(dtype).min
    most = 1 if dtype is torch.bool else torch.iinfo(dtype).max
    for value in (least, most, 0, 1):
        assert_torchs(torch.tensor(value, dtype=dtype))


def test_gradients_and_dtypes_are_said() -> None:
    x = torch.tensor(2.5, requires_grad=True)
    assert_torchs(x)
    assert_torchs(x * 2)
    assert_torchs(x.double().sum())
    assert_torchs(torch.tensor(True) & True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_another_default_dtype(dtype: torch.dtype) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        for own in FLOATS:
            assert_torchs(torch.tensor(1.5, dtype=own))
    finally:
        torch.set_default_dtype(before)


def test_a_number_said_to_be_elsewhere() -> None:
    given = torch.tensor(1.5)
    cuda = torch.device("cuda", 1)
    if not torch.cuda.is_available():
        assert text_of_number(given, cuda, None, False) == "tensor(1.5000, device='cuda:1')"
    assert text_of_number(given, torch.device("meta"), None, False) is None
    assert text_of_number(given, torch.device("mps"), None, False) is None


@pytest.mark.parametrize(
    "options",
    [
        {"precision": 2},
        {"linewidth": 20},
        {"sci_mode": True},
        {"sci_mode": False},
        {"edgeitems": 0},
    ],
    ids=str,
)
def test_print_options_are_left_to_torch(options: dict[str, Any]) -> None:
    with torch._tensor_str.printoptions(**options):
        assert text(torch.tensor(1.5)) is None
    assert_torchs(torch.tensor(1.5))


def test_long_texts_are_left_to_torch() -> None:
    x = torch.tensor(1e30, dtype=torch.float64, requires_grad=True).exp()
    name = "ABackwardFunctionWithAVeryLongNameIndeed"
    for length in range(len(name)):
        type_name = name[:length]
        ours = text_of_number(x.detach(), x.device, type_name, True)
        fake = type("tensor", (Tensor,), {"grad_fn": property(lambda _, n=type_name: _made(n))})
        expected = str(x.detach().as_subclass(fake))
        assert ours == (None if "\n" in expected else expected)


def _made(name: str) -> Any:
    return type(name, (), {})()


def test_a_text_of_somebody_elses_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "__repr__", lambda self: "patched")
    assert text(torch.tensor(1.5)) is None


def test_what_is_not_one_plain_number_is_left_to_torch() -> None:
    class Own(Tensor):
        pass

    given = torch.tensor([1.5])
    others = [given, torch.tensor(1j), given[0].as_subclass(Own), torch.nn.Parameter(given[0])]
    others.append(torch.tensor(3.0).to(torch.float8_e4m3fn))
    assert [text(tensor) for tensor in others] == [None] * len(others)


def test_modes_that_look_on_are_not_passed_over() -> None:
    class Notes(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, f: Any, t: Any, args: Any = (), kwargs: Any = None) -> Any:
            return f(*args, **(kwargs or {}))

    given = torch.tensor(1.5)
    with Notes():
        assert text(given) is None
    with torch.autograd.forward_ad.dual_level():
        assert text(given) is None
