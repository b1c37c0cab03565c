"""Pooling with pointwise work around it: what is taken, near misses, unchanged results."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import fusepass
from fusepass.fusion.kernel_ir.epilogue import Epilogue, EpilogueStep, Output
from fusepass.graph.ops.op_names import op_name
from fusepass.inductor.passes import rewrite_aten
from fusepass.kernels.pointwise import pool as kernel
from fusepass.kernels.pointwise.pool_source import PoolShape
from fusepass.options import Options
from fusepass.patterns import pool
from fusepass.torch_private.inductor import lowering
from fusepass.tune import INDUCTOR, Choice, PoolProblem, decide, timing
from tests.patterns.conv_programs import OPTIONS, applied

RULE = "pool"
Program = Callable[[Tensor], Any]
LEAKY = Epilogue(
    1,
    (),
    (
        EpilogueStep("gt", ("%0", 0.0)),
        EpilogueStep("mul", ("%0", 0.5)),
        EpilogueStep("where", ("%1", "%0", "%2")),
    ),
    (Output("%3", "float32"),),
)
CPU = torch.device("cpu")
PROBLEM = PoolProblem("pool", "", False, torch.float16, 6, 32, 4, (0, 0), (0, 0), CPU)


def images(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    x = torch.randn(shape).to(dtype)
    if x.numel() > 40:
        flat = x.view(-1)
        flat[3], flat[17], flat[29], flat[31] = math.nan, math.inf, -math.inf, -0.0
    return x


def found_in(program: Program, x: Tensor, options: dict[str, Any] = OPTIONS) -> int:
    """How often the rule acted; values, shapes, dtypes and strides are eager's."""
    torch.compiler.reset()
    compiled = torch.compile(program, backend="fusepass", options=options)
    with torch.no_grad():
        got, want = compiled(x), program(x)
    for mine, theirs in zip(
        *(torch.utils._pytree.tree_leaves(one) for one in (got, want)), strict=True
    ):
        assert mine.stride() == theirs.stride()
        rtol = {torch.float32: 1e-5, torch.float64: 1e-10}.get(mine.dtype, 2e-2)
        torch.testing.assert_close(mine, theirs, rtol=rtol, atol=rtol, equal_nan=True)
    return applied(compiled, RULE)


TAKEN: dict[str, Program] = {
    "relu": lambda x: F.max_pool2d(F.relu(x), 2),
    "relu behind": lambda x: F.relu(F.max_pool2d(x, 2)),
    "alone": lambda x: F.max_pool2d(x, 3, 2, 1),
    "leaky": lambda x: F.max_pool2d(F.leaky_relu(x, 0.2), 3, 2),
    "silu": lambda x: F.max_pool2d(F.silu(x), (2, 3)),
    "falling": lambda x: F.max_pool2d(1 - x, 2),
    "scaled": lambda x: F.max_pool2d(F.relu6(x * 2 + 1), 3, 1, 1),
    "turned round": lambda x: F.max_pool2d(x * -2, 3, 1, 1),
    "average": lambda x: F.avg_pool2d(F.relu(x), 2),
    "average behind": lambda x: torch.sigmoid(F.avg_pool2d(x, 3, 2, 1)),
    "average inside": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "average of some": lambda x: F.avg_pool2d(x, (3, 1), 2, (1, 0), divisor_override=2),
    "steps that differ": lambda x: F.max_pool2d(x, (3, 2), (1, 3), (1, 0)),
    # Not gelu: eager's gives NaN for infinity where its CPU kernel is oneDNN's (AVX-512).
    "both sides": lambda x: F.silu(F.max_pool2d(F.relu(x), 2)) * 3,
    "two of them": lambda x: (F.max_pool2d(F.relu(x), 2), F.avg_pool2d(x, 3)),
    "one after the other": lambda x: F.max_pool2d(F.max_pool2d(x, 2), 2),
    "ceiling without an edge": lambda x: F.max_pool2d(x, (5, 1), ceil_mode=True),
    "another dtype": lambda x: F.max_pool2d(x.float(), 2).half(),
    "of a product": lambda x: F.max_pool2d(  # of sizes that Inductor does not pad
        (x[:, :, :8, :8].reshape(-1, 8) @ x.new_ones(8, 16)).view(2, 3, -1, 16), 2
    ),
}
TIMES = {"two of them": 2, "one after the other": 2}


@pytest.mark.sampled(3)  # each of them once, with one dtype or another
@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_what_is_taken(name: str, dtype: torch.dtype) -> None:
    assert found_in(TAKEN[name], images(2, 3, 10, 13, dtype=dtype)) == TIMES.get(name, 1)


@pytest.mark.parametrize("shape", [(3, 10, 12), (1, 1, 4, 4), (5, 2, 7, 64)])
def test_other_images(shape: tuple[int, ...]) -> None:
    assert found_in(TAKEN["relu"], images(*shape)) == 1


CLOSE: dict[str, Program] = {
    "places wanted": lambda x: F.max_pool2d(x, 2, return_indices=True),
    "gaps": lambda x: F.max_pool2d(x, 2, dilation=2),
    "beyond the edge": lambda x: F.max_pool2d(x, 2, ceil_mode=True),
    "average beyond the edge": lambda x: F.avg_pool2d(x, 2, ceil_mode=True),
    "of two tensors": lambda x: F.max_pool2d(x * x.mean(), 2),
    "of columns": lambda x: F.max_pool2d(x.mT, 2),
    "channels last": lambda x: F.max_pool2d(x.contiguous(memory_format=torch.channels_last), 2),
    "generated before": lambda x: F.max_pool2d(x.softmax(-1), 2),
    "generated behind": lambda x: F.max_pool2d(x, 2).softmax(-1),
    "read elsewhere": lambda x: (F.max_pool2d(y := F.silu(x), 2), y),
    "read elsewhere before": lambda x: (F.max_pool2d((y := F.silu(x)) * 2, 2), y),
    "a comparison behind": lambda x: F.max_pool2d(x, 2) > 0,
    "a convolution behind": lambda x: F.conv2d(F.max_pool2d(x, 2), x.new_ones(2, 3, 1, 1)),
    "two of one image": lambda x: (F.max_pool2d(F.relu(x), 2), F.avg_pool2d(x, 2)),
    "with another behind": lambda x: F.max_pool2d(x, 2) + x[..., :5, :6],
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, 1),
    "of a convolution": lambda x: F.max_pool2d(F.conv2d(x, x.new_ones(2, 3, 1, 1)), 2),
    "double precision": lambda x: F.max_pool2d(x.double(), 2),
}


@pytest.mark.parametrize("name", CLOSE)
def test_what_comes_close(name: str) -> None:
    assert found_in(CLOSE[name], images(2, 3, 11, 13).nan_to_num(0, 1, 1)) == 0


def test_a_batch_of_nothing() -> None:
    assert found_in(TAKEN["relu"], torch.empty(0, 3, 8, 8)) == 0


@pytest.mark.parametrize("written", [False, True])
def test_what_is_written_in_between(written: bool) -> None:
    """What is read in front of the last call must not have changed since the first one."""
    x = torch.randn(2, 3, 8, 8)
    gm = make_fx(lambda x: F.relu(F.avg_pool2d(x, 2)))(x)
    last = next(node for node in gm.graph.nodes if op_name(node) == "relu")
    image = next(iter(gm.graph.nodes))
    with FakeTensorMode() as mode:
        for node in gm.graph.nodes:
            node.meta["val"] = mode.from_tensor(torch.empty(2, 3, 8, 8))
            if node is not image:
                node.meta["val"] = F.avg_pool2d(node.meta["val"], 2)
    if written:
        with gm.graph.inserting_before(last):
            made = gm.graph.call_function(torch.ops.aten.mul_.Tensor, (image, 2))
        made.meta["val"] = image.meta["val"]
    rewrite_aten(gm.graph, Options(candidate="reference"), ())
    assert ("fusepass.pool" in str(gm.graph)) != written


def test_zeros_that_are_told_apart() -> None:
    """Numbers underflow to 0 and -0: the first one is taken, as in eager."""
    x = torch.tensor([-1e-20, 0.0]).view(1, 1, 1, 2)
    assert found_in(lambda x: 1 / F.max_pool2d(x * 1e-30, (1, 2)), x) == 1


def test_a_batch_that_depends_on_data() -> None:
    def program(n: Tensor, x: Tensor) -> Tensor:
        count = n.item()
        images = (x.new_ones(count * 192, 1) @ x).view(count, 3, 8, 8)
        return F.max_pool2d(images, 2)

    with torch._dynamo.config.patch(capture_scalar_outputs=True), warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = torch.compile(program, backend="fusepass", options=OPTIONS)
        with torch.no_grad():
            got = compiled(torch.tensor(2), torch.ones(1, 1))
    torch.testing.assert_close(got, torch.ones(2, 3, 4, 4))
    decisions = fusepass.last_report(compiled).decisions
    assert "depends on data" in next(one.reason for one in decisions if one.rule == RULE)


@pytest.mark.parametrize(
    ("name", "times"), [("average inside", 1), ("average of some", 1), ("relu", 0), ("leaky", 0)]
)
def test_gradients(name: str, times: int) -> None:
    program = TAKEN[name]
    x = torch.randn(2, 3, 8, 12)
    compiled = torch.compile(program, backend="fusepass", options=OPTIONS)
    grads = []
    for one in (compiled, program):
        given = x.clone().requires_grad_()
        one(given).square().sum().backward()
        grads.append(given.grad)
    torch.testing.assert_close(*grads)
    assert applied(compiled, RULE) == times


def test_batches_that_vary() -> None:
    compiled = torch.compile(TAKEN["alone"], backend="fusepass", options=OPTIONS)
    for batch in (2, 5, 3):
        x = images(batch, 3, 8, 9)
        torch._dynamo.mark_dynamic(x, 0)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), TAKEN["alone"](x), equal_nan=True)
    assert applied(compiled, RULE) == 1


@pytest.mark.parametrize("name", ["relu", "silu", "average inside", "both sides"])
def test_through_inductor(name: str) -> None:
    options = {"candidate": "reference"}
    assert found_in(TAKEN[name], images(2, 3, 10, 12), options) == 1
    fusepass.reset()


@pytest.mark.parametrize("largest", [True, False])
def test_candidates(largest: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Inductor would do is compiled to be timed, on the image that the tuner draws."""
    monkeypatch.setattr(timing, "_ensure_room", lambda needed, device: None)
    shape = PoolShape(
        largest,
        image=(8, 16),
        result=(4, 8),
        kernel=(2, 2),
        stride=(2, 2),
        padding=(0, 0),
        divisor=4,
        given="float16",
        made="float16",
    )
    problem = replace(PROBLEM, shape=shape, before=LEAKY.text(), behind=LEAKY.text())
    theirs, *ours = pool.candidates(problem, every=False)
    inputs = timing.make_inputs(problem)
    with lowering.real_tensors():
        (got,) = decide._call(theirs, inputs, "default")()
    image = F.leaky_relu(inputs[0].float(), 0.5)
    want = F.leaky_relu(F.max_pool2d(image, 2) if largest else F.avg_pool2d(image, 2), 0.5)
    torch.testing.assert_close(got, want.half(), rtol=2e-3, atol=2e-3)
    assert theirs.name == INDUCTOR
    assert len(ours) == kernel.TIMED
    every = [one.name for one in pool.candidates(problem, every=True)]
    assert set(every) > {one.name for one in ours}


@pytest.mark.gpu
@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_on_a_device(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken whatever it costs, through Inductor."""

    def first_of_ours(problem: Any, options: Any, candidates: Any) -> Choice:
        return Choice(candidates[1].name, {}, "forced", "the test asks for it")

    monkeypatch.setattr(pool, "choose", first_of_ours)
    x = images(2, 3, 10, 13, dtype=dtype).cuda()
    assert found_in(TAKEN[name], x, {}) == TIMES.get(name, 1)
