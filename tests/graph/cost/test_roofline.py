"""Estimates against figures counted by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from fusepass.graph.cost import roofline
from fusepass.graph.cost.roofline import KernelCost, flops, modeled_kernels
from fusepass.graph.dataflow.memory import stored_bytes
from fusepass.torch_private.fx.graphs import fake_mode_of
from fusepass.tune.device.measure_peaks import RESUME, Peaks

from ..arms import captured

PEAKS = Peaks(flops16=8e12, flops32=2e12, bandwidth=1e12, launch=1e-6, read_back=1e-5)
TRIP = 1e6 * (PEAKS.read_back + RESUME)
X = torch.ones(64, 32)
KIB = 64 * 32 * 4  # bytes of X


@pytest.fixture(autouse=True)
def _peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "peaks_of", lambda device: PEAKS)


def only(program: Callable[..., Any], *inputs: Any) -> KernelCost:
    (launch,) = modeled_kernels(captured(program, *inputs))
    return launch


def test_element_wise_work_is_one_kernel_that_reads_and_writes_once() -> None:
    nodes = captured(lambda x: (x * 2 + 1).relu() - x, X)
    (launch,) = modeled_kernels(nodes)
    assert (launch.flops, launch.moved) == (0, 2 * KIB)
    assert roofline.microseconds(nodes) == pytest.approx(1 + 2 * KIB / 1e6)


def test_views_are_free_and_expanded_operands_are_read_once() -> None:
    assert modeled_kernels(captured(lambda x: x.view(32, 64).t()[1:], X)) == []
    row = torch.ones(32)
    launch = only(lambda x, row: x.t().t() * row.expand(64, 32), X, row)
    assert launch.moved == 2 * KIB + 32 * 4
    assert stored_bytes(row.expand(64, 32)) == 32 * 4


def test_a_copying_reshape_is_work() -> None:
    assert only(lambda x: x.t().reshape(-1), X).moved == 2 * KIB


def test_two_views_of_one_tensor_are_read_once() -> None:
    x = torch.ones(32, 32)
    assert only(lambda x: x * x.t(), x).moved == 2 * 32 * 32 * 4


def test_a_reduction_ends_the_kernel_it_reads_from() -> None:
    first, second = modeled_kernels(captured(lambda x: x.exp().sum() + x, X))
    assert first.moved == KIB + 4
    assert second.moved == KIB + 4 + KIB


def test_what_lies_between_two_products_is_a_kernel_of_its_own() -> None:
    square = torch.ones(32, 32)
    found = modeled_kernels(captured(lambda x, w: (x @ w).relu() @ w, X, square))
    assert [launch.flops > 0 for launch in found] == [True, False, True]


def test_a_value_read_before_and_after_a_product_does_not_join_the_two() -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        y = x * 2
        return y @ w + y

    scaled, product, added = modeled_kernels(captured(program, X, torch.ones(32, 32)))
    assert [scaled.moved, product.moved, added.moved] == [2 * KIB, 2 * KIB + 4096, 3 * KIB]


def test_sorts_go_over_their_operands_several_times_and_results_in_tuples_count() -> None:
    nodes = captured(lambda x: x.sort().values, X)
    (launch,) = modeled_kernels(nodes)
    assert launch.moved == KIB + KIB + 2 * KIB  # int64 positions too
    assert launch.passes == 8
    assert roofline.microseconds(nodes) == pytest.approx(8 * (1 + 4 * KIB / 1e6))


A, B, V = torch.ones(6, 5), torch.ones(5, 7), torch.ones(5)
BATCH_A, BATCH_B = torch.ones(3, 6, 5), torch.ones(3, 5, 7)
PRODUCTS: list[tuple[str, Callable[..., Any], tuple[Tensor, ...], float]] = [
    ("mm", lambda a, b: a @ b, (A, B), 2 * 6 * 5 * 7),
    ("same operand", lambda a: a @ a, (torch.ones(4, 4),), 2 * 4**3),
    ("keywords", lambda a, b: torch.mm(input=a, mat2=b), (A, B), 2 * 6 * 5 * 7),
    ("linear", lambda a, b: F.linear(a, b.t()), (A, B), 2 * 6 * 5 * 7),
    ("addmm", lambda c, a, b: torch.addmm(c, a, b), (torch.ones(7), A, B), 2 * 6 * 5 * 7),
    ("bmm", torch.bmm, (BATCH_A, BATCH_B), 2 * 3 * 6 * 5 * 7),
    ("addbmm", torch.addbmm, (torch.ones(6, 7), BATCH_A, BATCH_B), 2 * 3 * 6 * 5 * 7),
    ("broadcast", torch.matmul, (BATCH_A, B), 2 * 3 * 6 * 5 * 7),
    ("mv", torch.mv, (A, V), 2 * 6 * 5),
    ("einsum", lambda a, b: torch.einsum("bij,bjk->bik", a, b), (BATCH_A, BATCH_B), 630 * 2),
    ("tensordot", lambda a, b: torch.tensordot(a, b, 1), (A, B), 2 * 6 * 5 * 7),
    ("conv", F.conv2d, (torch.ones(2, 4, 9, 9), torch.ones(8, 4, 3, 3)), 2 * 2 * 8 * 49 * 4 * 9),
    (
        "grouped conv",
        lambda x, w: F.conv2d(x, w, groups=2),
        (torch.ones(2, 4, 9, 9), torch.ones(8, 2, 3, 3)),
        2 * 2 * 8 * 49 * 2 * 9,
    ),
    (
        "transposed conv",
        F.conv_transpose1d,
        (torch.ones(2, 4, 9), torch.ones(4, 8, 3)),
        2 * 2 * 4 * 9 * 8 * 3,
    ),
    (
        "attention",
        F.scaled_dot_product_attention,
        (torch.ones(2, 4, 6, 8), torch.ones(2, 4, 10, 8), torch.ones(2, 4, 10, 16)),
        2 * 2 * 4 * 6 * 10 * (8 + 16),
    ),
    ("nothing", torch.add, (A, A), 0),
]


@pytest.mark.parametrize(
    ("program", "inputs", "expected"), [p[1:] for p in PRODUCTS], ids=[p[0] for p in PRODUCTS]
)
def test_operations(program: Callable[..., Any], inputs: Any, expected: float) -> None:
    nodes = captured(lambda *args: program(*args), *inputs)
    assert sum(map(flops, nodes)) == pytest.approx(expected)


def test_the_larger_of_compute_time_and_memory_time_counts() -> None:
    large = torch.empty(1024, 1024)
    nodes = captured(torch.mm, large, large.t())
    assert roofline.microseconds(nodes) == pytest.approx(1 + 1e6 * 2 * 1024**3 / 2e12)
    thin = torch.empty(1 << 20, 1)
    nodes = captured(lambda a: a.t() @ a, thin)
    assert roofline.microseconds(nodes) == pytest.approx(1 + (4 * (1 << 20) + 4) / 1e6, rel=1e-3)


def test_sixteen_bits_have_a_peak_of_their_own() -> None:
    half = torch.empty(1024, 1024, dtype=torch.bfloat16)
    nodes = captured(torch.mm, half, half.t())
    assert roofline.microseconds(nodes) == pytest.approx(1 + 1e6 * 2 * 1024**3 / 8e12)


def test_a_backward_is_counted_where_something_requires_grad() -> None:
    weight = torch.empty(1024, 1024, requires_grad=True)
    nodes = captured(lambda x, w: x @ w, torch.empty(1024, 1024), weight)
    product = 1e6 * 2 * 1024**3 / 2e12
    assert roofline.microseconds(nodes, training=True) == pytest.approx(3 + 3 * product)
    nodes = captured(lambda x: x * 2, X)
    assert roofline.microseconds(nodes, training=True) == roofline.microseconds(nodes)


def arms(
    taken: Callable[..., Any], other: Callable[..., Any], *inputs: Tensor
) -> tuple[dict[bool, list[fx.Node]], list[tuple[fx.Node, fx.Node]]]:
    """Two arms over the same inputs, as capture leaves them, and what they leave."""

    def both(*args: Tensor) -> tuple[Tensor, Tensor]:
        return taken(*args), other(*args)

    nodes = captured(both, *inputs)
    (output,) = nodes[0].graph.find_nodes(op="output")
    # An arm that hands its input on is no output of the graph: eager returns the input itself.
    (given, *_) = nodes[0].graph.find_nodes(op="placeholder")
    left, right = (*output.args[0], given)[:2]
    nodes[0].graph.erase_node(output)  # at the join nothing reads them yet
    after = nodes.index(left) + 1
    return {True: nodes[:after], False: nodes[after:]}, [(left, right)]


CPU = torch.device("cpu")


def test_the_select_is_part_of_the_kernel_of_element_wise_arms() -> None:
    sides, pairs = arms(lambda x: x * 2, lambda x: x - 1, X)
    found = roofline.estimates(sides, pairs, CPU)
    assert found["where"] == pytest.approx(1 + 2 * KIB / 1e6, abs=0.01)
    assert found["cond"] == pytest.approx(TRIP + 1 + 2 * KIB / 1e6, abs=0.01)
    assert found["break"] == pytest.approx(TRIP + 1 + 4 * KIB / 1e6, abs=0.01)


def test_an_expensive_arm_beside_an_empty_one_runs_only_where_taken() -> None:
    big = torch.empty(2048, 2048)
    sides, pairs = arms(lambda x: x @ x, lambda x: x, big)
    found = roofline.estimates(sides, pairs, CPU)
    assert found["where"] > found["cond"] == pytest.approx(TRIP, abs=0.01)
    sides, pairs = arms(lambda x: x.clamp(0, 1), lambda x: x, X)
    found = roofline.estimates(sides, pairs, CPU)
    assert found["where"] < found["cond"] < found["break"]


@pytest.mark.parametrize("side", [64, 256, 512, 1024, 2048])
def test_where_is_the_least_only_if_it_never_loses_more_than_a_round_trip(side: int) -> None:
    sides, pairs = arms(lambda x: x @ x @ x, lambda x: x @ x, torch.empty(side, side))
    found = roofline.estimates(sides, pairs, CPU)
    one, two = (roofline.microseconds(nodes) for nodes in sides.values())
    select = found["where"] - one - two
    assert (found["where"] <= found["cond"]) == (max(one, two) + select <= TRIP)


def test_in_training_a_cond_asks_twice() -> None:
    x = torch.ones(64, 32, requires_grad=True)
    sides, pairs = arms(lambda x: x * 2, lambda x: x - 1, x)
    once = roofline.estimates(sides, pairs, CPU)
    trained = roofline.estimates(sides, pairs, CPU, training=True)
    assert trained["cond"] - once["cond"] > TRIP
    assert trained["where"] > once["where"]


def test_the_round_trip_is_that_of_the_device() -> None:
    assert roofline.host_round_trip(CPU) == pytest.approx(TRIP)


def test_symbolic_sizes_count_as_their_hints_and_add_no_guard() -> None:
    weight = torch.ones(32, 48)

    def program(x: Tensor, w: Tensor) -> Tensor:
        y = (x @ w).relu().reshape(-1)
        return y.sort().values.sum() + F.softmax(x.expand(3, -1, -1), -1).amax()

    static = captured(program, X, weight)
    torch._dynamo.reset()
    nodes = captured(program, X, weight, dynamic=True)
    (product,) = [node for node in nodes if flops(node)]
    value = product.meta["example_value"]
    assert not isinstance(value.shape[0], int)
    environment = fake_mode_of(nodes[0].graph.owning_module).shape_env
    before = (len(environment.guards), dict(environment.replacements))
    assert roofline.microseconds(nodes, training=True) == pytest.approx(
        roofline.microseconds(static)
    )
    assert (len(environment.guards), dict(environment.replacements)) == before
