"""When kernels in CUDA C++ are candidates for a product, and what becomes of one that is chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from fusepass.errors import CandidateFailed
from fusepass.fusion.kernel_ir.epilogue import parse
from fusepass.inductor.passes import rewrite_aten
from fusepass.kernels.gemm import tiles
from fusepass.kernels.gemm.hopper.row_source import RowKernel
from fusepass.options import Options
from fusepass.patterns import gemm_region, linear_activation
from fusepass.torch_private.cuda import nvrtc
from fusepass.torch_private.inductor import kernel_call
from tests.patterns.test_one_choice import Tuner, tuner

__all__ = ["tuner"]
JOINT = "cuda joint128x128x64w8s6"


@pytest.fixture(autouse=True)
def there(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """NVRTC, and what it is asked to compile."""
    asked: list[Any] = []
    monkeypatch.setattr(nvrtc, "is_there", lambda: True)
    monkeypatch.setattr(gemm_region, "prepare", lambda *given: asked.append(given))
    return asked


def rewritten(
    act: Callable[[Tensor], Tensor] = F.silu,
    *,
    rows: int = 1024,
    apart: int = 1024,
    transposed: bool = True,
) -> list[Any]:
    """Decisions on a linear layer, and the arguments of the calls of ours."""
    with FakeTensorMode():
        room = torch.empty(2048 * 1024, dtype=torch.bfloat16, device="cuda")
        weight = torch.empty(1024, 1024, dtype=torch.bfloat16, device="cuda")

        def layer(room: Tensor, w: Tensor) -> Tensor:
            return act(room.as_strided((rows, 1024), (apart, 1)) @ (w.t() if transposed else w))

        graph = make_fx(layer, select_decomp_table())(room, weight).graph
    decisions = rewrite_aten(graph, Options(), linear_activation.RULES)
    calls = [node.args for node in graph.nodes if "fusepass.gemm_region" in str(node.target)]
    return [decisions, calls]


def offered(asked: Tuner) -> set[str]:
    return {name for names in asked.regions for name in names if name.startswith("cuda ")}


def test_one_is_offered_and_written(tuner: Callable[..., Tuner], there: list[Any]) -> None:
    """Compiled before the call stands in the graph, under its name without its language."""
    asked = tuner(JOINT)
    _, calls = rewritten()
    assert offered(asked) == {JOINT}
    assert [call[-1] for call in calls] == ["joint128x128x64w8s6"]
    ((text, shape, dtype, device),) = there
    assert (shape.rows, shape.columns, dtype, device.type) == (128, 128, torch.bfloat16, "cuda")
    assert len(parse(text).outputs) == 1


def test_weights_are_streamed_for_few_rows(tuner: Callable[..., Tuner], there: list[Any]) -> None:
    """By the tile for just as many; of more than 128 by none; of one by a kernel of its own."""
    named = "ring1x1x2048w12s3", "stream16x32x128w5s8", "stream96x48x128w5s5x4"
    for rows, name in zip((1, 13, 65), named, strict=True):
        asked = tuner(f"cuda {name}")
        _, calls = rewritten(rows=rows)
        assert offered(asked) == {f"cuda {name}"}
        assert [call[-1] for call in calls] == [name]
    row, *cuts = (cut for _, cut, *_ in there)
    assert isinstance(row, RowKernel)
    assert [cut.rows for cut in cuts] == [16, 96]
    for rows in (128, 129):
        asked = tuner("inductor")
        rewritten(rows=rows)
        assert any("stream128" in name for name in offered(asked)) == (rows == 128)


@pytest.mark.parametrize("rows", [96, 128])
def test_up_to_128_rows_a_product_is_taken_alone(
    tuner: Callable[..., Tuner], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of fewer: what counts is how fast weights are read. A sum over 128 rows stays with it."""
    asked = tuner("inductor")
    rewritten(lambda h: h, rows=rows)
    assert any("stream" in name for name in offered(asked))
    asked = tuner("inductor")
    rewritten(lambda h: F.silu(h).sum(0), rows=rows)
    assert any("stream" in name for name in offered(asked)) == (rows == 96)
    assert any(region for region in asked.regions)
    monkeypatch.setattr(tiles, "is_hopper", lambda device: False)
    asked = tuner("inductor")
    rewritten(lambda h: h, rows=rows)
    assert not asked.regions


@pytest.mark.parametrize("rows", [64, 127, 128])
def test_in_front_of_a_norm_it_is_taken_alone(tuner: Callable[..., Tuner], rows: int) -> None:
    """Which computes what is behind it anyway."""
    asked = tuner("inductor")
    rewritten(lambda h: F.silu(h).softmax(-1), rows=rows)
    assert any("stream" in name for name in offered(asked))


def test_few_rows_of_other_weights_keep_their_tiles(
    tuner: Callable[..., Tuner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As (K, N), on a device that is no Hopper."""
    monkeypatch.setattr(tiles, "is_hopper", lambda device: False)
    monkeypatch.setattr(tiles, "on_hopper", lambda device: False)
    monkeypatch.setattr(gemm_region, "shared_memory", lambda device: 163 << 10)
    asked = tuner("inductor")
    rewritten(rows=16, transposed=False)
    assert asked.regions


@pytest.mark.parametrize("rows", [65, 127])
def test_where_no_kernel_for_few_takes_65_rows(tuner: Callable[..., Tuner], rows: int) -> None:
    """Weights that lie as (K, N) are not streamed, and others do not beat cuBLAS."""
    asked = tuner("inductor")
    decisions, _ = rewritten(rows=rows, transposed=False)
    assert not asked.regions
    assert any("no kernel for few" in one.reason for one in decisions)


def test_without_nvrtc(tuner: Callable[..., Tuner], monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one would fail in each process, and no choice would be kept."""
    monkeypatch.setattr(nvrtc, "is_there", lambda: False)
    asked = tuner("inductor")
    rewritten()
    assert asked.regions
    assert not offered(asked)


def test_rows_that_overlap(tuner: Callable[..., Tuner]) -> None:
    """The host makes no descriptors of such; a matrix whose rows lie apart has one."""
    for apart, found in ((512, set()), (1032, {JOINT})):
        asked = tuner("inductor")
        rewritten(apart=apart)
        assert asked.regions
        assert offered(asked) == found


def test_a_torch_without_gluon(
    tuner: Callable[..., Tuner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Launches of kernels in Gluon were tried with one version; these need no launcher of torch."""
    asked = tuner("inductor")
    monkeypatch.setattr(kernel_call, "kernel_calls_tested", lambda: False)
    rewritten()
    assert offered(asked) == {JOINT}
    assert not any("cooperative" in name for names in asked.regions for name in names)


def test_one_that_cannot_be_compiled(
    tuner: Callable[..., Tuner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table may know of it from another machine: the layer is Inductor's, with one warning."""

    def refused(*given: Any) -> None:
        raise RuntimeError("no kernel image")

    monkeypatch.setattr(gemm_region, "prepare", refused)
    tuner(JOINT)
    with pytest.warns(CandidateFailed, match="no kernel image"):
        decisions, calls = rewritten()
    assert not calls
    assert any("cannot be made" in one.reason for one in decisions)


@pytest.mark.parametrize("first", [1, 16, 1024])
def test_behind_a_product_of_few_rows_launches_overlap(
    tuner: Callable[..., Tuner], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second product of an MLP may begin with the first's end: that counts when it is timed."""
    monkeypatch.setattr(nvrtc, "begins_early", lambda: True)
    few = {1: "triton row1x8x512w4s3", 16: "cuda stream16x32x128w5s8"}
    asked = tuner(few.get(first, JOINT))
    problems: list[Any] = []
    offers: list[Any] = []

    def taken(problem: Any, options: Any, candidates: Any) -> Any:
        problems.append(problem)
        offers.append(candidates)
        return asked.region(problem, options, candidates)

    monkeypatch.setattr(gemm_region, "choose", taken)
    with FakeTensorMode():
        x, w, v = (
            torch.empty(shape, dtype=torch.bfloat16, device="cuda")
            for shape in ((first, 1024), (1024, 1024), (1024, 1024))
        )

        def layers(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
            return F.silu(F.silu(x @ w.t()) @ v.t())

        graph = make_fx(layers, select_decomp_table())(x, w, v).graph
    rewrite_aten(graph, Options(), linear_activation.RULES)
    assert [problem.overlaps for problem in problems] == [False, first < 1024]
    keys = [problem.key("default") for problem in problems]
    assert ["overlaps" in key for key in keys] == [False, first < 1024]
    for problem, candidates in zip(problems, offers, strict=True):
        for one in candidates:
            begins = problem.overlaps and ("stream" in one.name or "ring" in one.name)
            assert one.overhead_us == pytest.approx(-(2 * 1024**2) / 6e6 if begins else 0.0)
