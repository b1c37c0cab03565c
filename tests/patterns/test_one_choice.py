"""A linear layer and its activation: one question to the tuner, whichever rule acts on the answer.

With a device that is not there: graphs of fake CUDA tensors, and a tuner that answers as it is told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from fusepass import tune
from fusepass.inductor.passes import rewrite_aten
from fusepass.kernels.gemm import tiles
from fusepass.options import Options
from fusepass.patterns import gemm_region, linear_activation
from fusepass.torch_private.inductor import kernel_call

PINGPONG = "triton pingpong128x128x64w4s5"
Activation = Callable[[Tensor], Tensor]


def gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


class Tuner:
    """Answers every question about a region in the same way, and writes down who was asked for."""

    def __init__(self, answer: str, *, timed: bool = True) -> None:
        self.answer, self.timed = answer, timed
        self.regions: list[list[str]] = []
        self.keys: list[str] = []
        self.layers: list[list[str]] = []

    def region(self, problem: Any, options: Any, candidates: Sequence[Any]) -> tune.Choice:
        self.regions.append([one.name for one in candidates])
        self.keys.append(problem.key("default"))
        times = dict.fromkeys(self.regions[-1], 1.0) if self.timed else {}
        return tune.Choice(self.answer, times, "measured", "a test says so")

    def layer(self, problem: Any, options: Any, candidates: Sequence[Any]) -> tune.Choice:
        self.layers.append([one.name for one in candidates if one.refuses(problem) is None])
        best = self.layers[-1][-1]
        return tune.Choice(best, {best: 1.0}, "model", "a test says so")


@pytest.fixture
def tuner(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Tuner]:
    """A Hopper device, with a tuner that gives one answer."""
    monkeypatch.setattr(gemm_region, "shared_memory", lambda device: 227 << 10)
    monkeypatch.setattr(gemm_region, "multiprocessors", lambda device: 132)
    monkeypatch.setattr(tiles, "on_hopper", lambda device: True)
    monkeypatch.setattr(tiles, "is_hopper", lambda device: True)
    monkeypatch.setattr(kernel_call, "kernel_calls_tested", lambda: True)
    monkeypatch.setattr(gemm_region, "known_choice", lambda problem, options: None)

    def answering(answer: str, **how: Any) -> Tuner:
        made = Tuner(answer, **how)
        monkeypatch.setattr(gemm_region, "choose", made.region)
        monkeypatch.setattr(linear_activation, "choose", made.layer)
        return made

    return answering


def rewritten(
    act: Activation,
    *,
    bias: bool = True,
    dtype: torch.dtype = torch.bfloat16,
    rows: tuple[int, ...] = (8192,),
    **options: Any,
) -> tuple[set[str], list[str]]:
    """The rules that acted on a feed-forward block, and the operations that are left."""
    with FakeTensorMode():
        sizes = (*rows, 1024), (4096, 1024), (4096,), (1024, 4096)
        given = [torch.empty(size, dtype=dtype, device="cuda") for size in sizes]

        def block(x: Tensor, w: Tensor, b: Tensor, down: Tensor) -> Tensor:
            return F.linear(act(F.linear(x, w, b if bias else None)), down)

        graph = make_fx(block, select_decomp_table())(*given).graph
    decisions = rewrite_aten(graph, Options(**options), linear_activation.RULES)
    applied = {one.rule for one in decisions if one.outcome.value == "applied"}
    return applied, [str(node.target) for node in graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("act", "name"), [(F.relu, "relu"), (gelu_tanh, "gelu_tanh")])
def test_who_acts(act: Activation, name: str, bias: bool, tuner: Callable[..., Tuner]) -> None:
    rule = f"linear_{name}" + "_no_bias" * (not bias)
    for answer, acting in (
        ("inductor", set()),
        ("cublaslt", {rule}),
        (PINGPONG, {"gemm_epilogue"}),
    ):
        asked = tuner(answer)
        applied, left = rewritten(act, bias=bias)
        assert applied == acting
        assert {"inductor", "cublaslt", PINGPONG} <= set(asked.regions[0])
        assert not asked.layers
        assert ("fusepass.gemm_region.default" in left) == (answer == PINGPONG)


def test_where_our_kernels_cannot_be_asked(tuner: Callable[..., Tuner]) -> None:
    """The library's rule then asks for itself."""
    for how in (
        {"dtype": torch.float32},
        {"rules": {"gemm_epilogue": False}},
    ):
        asked = tuner(PINGPONG)
        applied, _ = rewritten(F.relu, **how)
        assert applied == {"linear_relu"}
        assert not asked.regions
        assert asked.layers == [["inductor", "cublaslt"]]


def test_reshapes_do_not_count(tuner: Callable[..., Tuner]) -> None:
    asked = tuner("cublaslt")
    applied, _ = rewritten(F.relu, rows=(8, 1024))
    assert applied == {"linear_relu"}
    assert "cublaslt" in asked.regions[0]


MORE: dict[str, tuple[Activation, dict[str, Any]]] = {
    "a mask": (lambda h: F.relu(h) * torch.ones_like(h).cumsum(0), {}),
    "a sum": (lambda h: F.relu(h) + torch.ones_like(h).cumsum(0), {}),
    "a number": (lambda h: F.relu(h) * 0.5, {}),
    "a row, without a bias": (
        lambda h: F.relu(h) * torch.ones(4096).cumsum(0).to(h),
        {"bias": False},
    ),
    "few rows, and a reduction": (lambda h: F.relu(h) + h.sum(-1, keepdim=True), {"rows": (16,)}),
    "the product itself, too": (lambda h: F.relu(h) @ h.t() @ h, {}),
}


@pytest.mark.parametrize("name", MORE)
def test_a_region_that_is_not_what_the_library_computes(
    name: str, tuner: Callable[..., Tuner]
) -> None:
    """There the library would be timed for one thing and Inductor for another."""
    act, how = MORE[name]
    asked = tuner("inductor")
    rewritten(act, **how)
    assert all("cublaslt" not in names for names in asked.regions)


def test_the_two_questions_have_keys_of_their_own(tuner: Callable[..., Tuner]) -> None:
    """An answer of one may be a candidate that the other has not."""
    asked = tuner(PINGPONG)
    rewritten(F.relu)
    with_library = {
        k for k, names in zip(asked.keys, asked.regions, strict=True) if "cublaslt" in names
    }
    without = {
        k for k, names in zip(asked.keys, asked.regions, strict=True) if "cublaslt" not in names
    }
    assert with_library
    assert without
    assert not with_library & without


@pytest.mark.parametrize("wrapper", ["cpp_wrapper", "fx_wrapper"])
def test_a_wrapper_that_is_not_python(wrapper: str, tuner: Callable[..., Tuner]) -> None:
    """The library's call has a place there, ours has none."""
    asked = tuner(PINGPONG)
    applied, _ = rewritten(F.relu, inductor={wrapper: True})
    assert applied == {"linear_relu"}
    assert not asked.regions


def test_where_nothing_can_be_timed(tuner: Callable[..., Tuner]) -> None:
    """A model knows something of the library's kernel, and nothing of ours."""
    asked = tuner("inductor", timed=False)
    assert rewritten(F.relu)[0] == {"linear_relu"}
    assert len(asked.layers) == 1


def test_a_tile_that_was_best_before_stays_a_candidate(
    tuner: Callable[..., Tuner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else an entry of the table could not be used, and everything would be timed again."""
    older = "triton 128x128x64w4s3c2h"
    asked = tuner("inductor")
    rewritten(F.silu)
    assert all(older not in names for names in asked.regions)
    entry = tune.ChoiceEntry(older, {older: 1.0, "inductor": 2.0}, "shipped")
    monkeypatch.setattr(gemm_region, "known_choice", lambda problem, options: entry)
    asked = tuner(older)
    applied, left = rewritten(F.silu)
    assert applied == {"gemm_epilogue"}
    assert all(older in names for names in asked.regions)
    assert "fusepass.gemm_region.default" in left


def test_an_activation_the_library_has_not(tuner: Callable[..., Tuner]) -> None:
    asked = tuner(PINGPONG)
    applied, _ = rewritten(F.gelu)
    assert applied == {"gemm_epilogue"}
    assert all("cublaslt" not in names for names in asked.regions)
