"""Tensors that are no ordinary ones: what has to do with them is kept, with the reason that holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fusepass
from fusepass.testing.compare import assert_same

from .support.side_by_side import Outcome, side_by_side
from .support.special_tensors import BASE, NOT_COPIED, SPECIAL, Pair, Quantized, Tagged

PHRASES = {
    "pair": "is a Pair, a subclass of torch.Tensor",
    "quantized": "is a Quantized, a subclass of torch.Tensor",
    "tagged": "is a Tagged, a subclass of torch.Tensor",
    "jagged": "is a nested tensor",
    "quint8": "is quantized (torch.quint8)",
}


def both_ways(function: Any, kind: str) -> Outcome:
    """Called with a special tensor and with a plain one, which decides."""
    calls = [(SPECIAL[kind](sign), sign * BASE) for sign in (1.0, -1.0, 1.0)]
    return side_by_side(function, *calls)


def joined(x: Tensor, p: Tensor) -> Tensor:
    y = x
    if p.sum() > 0:
        y = x.clone()
    return y


def used_in_an_arm(x: Tensor, p: Tensor) -> Tensor:
    if p.sum() > 0:
        y = p + x.abs().sum()
    else:
        y = p
    return y


def left_unused(x: Tensor, p: Tensor) -> Tensor:
    y = p
    if p.sum() > 0:
        x.abs()
        y = p * 2
    return y


def written(x: Tensor, p: Tensor) -> Tensor:
    if p.sum() > 0:
        x.mul_(2)
    return p * 2


def is_asked(x: Tensor, p: Tensor) -> Tensor:
    return p * 2 if x.sum() > 0 else p + 1


def number_is_asked(x: Tensor, p: Tensor) -> Tensor:
    return p * 2 if x.sum().item() > 0 else p + 1


def a_number_of_it(x: Tensor, p: Tensor) -> Tensor:
    return p / x.sum().item()


def beside_a_number(x: Tensor, p: Tensor) -> Tensor:
    return x * p.sum().item()


def beside_a_choice(x: Tensor, p: Tensor) -> Tensor:
    factor = 2.0 if p.sum() > 0 else 3.0
    return x * factor


def selected(x: Tensor, p: Tensor) -> Tensor:
    return p * x[x > 0].max()


def stored(x: Tensor, p: Tensor) -> Tensor:
    y = x.clone()
    y[p > 0] = 0.0
    return y


def printed(x: Tensor, p: Tensor) -> Tensor:
    print("sum", x.sum().item(), x.shape == p.shape)  # noqa: T201
    return p * 2


def printed_in_an_arm(x: Tensor, p: Tensor) -> Tensor:
    if p.sum() > 0:
        print("sum", x.sum())  # noqa: T201
    return p * 2


def raised(x: Tensor, p: Tensor) -> Tensor:
    if p.sum() < 0:
        raise ValueError(f"sum {x.sum().item()}")
    return p * 2


def checked(x: Tensor, p: Tensor) -> Tensor:
    torch._check(x.sum().item() > 0)
    return p * 2


def compared(x: Tensor, p: Tensor) -> Tensor:
    return p * 2 if torch.equal(x, x) else p + 1


def decompressed(x: Tensor, p: Tensor) -> Tensor:
    if p.sum() > 0:
        y = x.to_dense() * 2
    else:
        y = x.to_dense() + 1
    return y


ALL = [
    joined,
    used_in_an_arm,
    left_unused,
    written,
    is_asked,
    number_is_asked,
    a_number_of_it,
    beside_a_number,
    beside_a_choice,
    selected,
    stored,
    printed,
    printed_in_an_arm,
    raised,
    checked,
    compared,
    decompressed,
]


COPIED = [kind for kind in SPECIAL if kind not in NOT_COPIED]


@pytest.mark.sampled(2)  # each use, with half of the kinds
@pytest.mark.parametrize("kind", COPIED)
@pytest.mark.parametrize("function", ALL, ids=lambda one: one.__name__)
def test_every_use_of_every_kind_does_what_eager_does(
    function: Callable[..., Any], kind: str
) -> None:
    if function is stored and kind == "jagged":
        pytest.skip("eager's error names a symbol that is another one for each nested tensor")
    both_ways(function, kind)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", NOT_COPIED)
@pytest.mark.parametrize("function", ALL, ids=lambda one: one.__name__)
def test_every_use_of_what_dynamo_does_not_trace(function: Callable[..., Any], kind: str) -> None:
    compiled = torch.compile(function, backend="fusepass", options={"codegen": "eager"})
    for sign in (1.0, -1.0, 1.0):
        seen = []
        for target in (function, compiled):
            x, p = SPECIAL[kind](sign), sign * BASE
            try:
                seen.append([target(x, p), x])
            except Exception as error:  # noqa: BLE001
                seen.append([type(error), x])
        assert_same(seen[0], seen[1], "call")


KEPT = [joined, used_in_an_arm, left_unused, written]


@pytest.mark.parametrize("kind", ["pair", "quantized", "jagged"])
@pytest.mark.parametrize("function", KEPT, ids=lambda one: one.__name__)
def test_a_branch_that_has_to_do_with_one_is_kept_and_says_so(
    function: Callable[..., Any], kind: str
) -> None:
    outcome = both_ways(function, kind)
    kept = [d for d in outcome.decisions if d["rule"] == "branch"]
    assert {d["treatment"] for d in kept} <= {"keep"}
    if kind != "jagged":  # of which few calls can be traced
        assert any(PHRASES[kind] in d["reason"] for d in outcome.decisions), outcome.reasons


@pytest.mark.parametrize("kind", ["pair", "quantized", "tagged"])
def test_numbers_are_read_by_the_subclass(kind: str) -> None:
    outcome = both_ways(a_number_of_it, kind)
    if kind != "quantized":  # whose sum is an ordinary tensor
        assert f"the tensor that it is read from {PHRASES[kind]}" in outcome.reasons
    outcome = both_ways(beside_a_number, kind)
    if kind != "tagged":  # whose functions Dynamo has traced through
        assert any(PHRASES[kind] in reason for reason in outcome.reasons), outcome.reasons


def test_what_a_subclass_gives_is_ordinary_where_its_type_says_so() -> None:
    both_ways(is_asked, "pair").only("keep", "predicate")
    both_ways(is_asked, "quantized").only("where", "pure_total")


def tagged_in_one_arm(x: Tensor) -> Tensor:
    y = x
    if x.sum() > 0:
        y = x.as_subclass(Tagged)
    return y


def test_one_tensor_of_two_classes_is_two_values() -> None:
    outcome = side_by_side(tagged_in_one_arm, (BASE,), (-BASE,), (BASE,))
    outcome.only("keep", "python_value")
    assert "'y' is a Tagged, a subclass of torch.Tensor in an arm" in outcome.reasons


def plain_beside_it(x: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2 if isinstance(x, Tensor) else x
    if p.sum() > 0:
        z = p * 2
    else:
        z = p + 1
    return y, z


@pytest.mark.parametrize("kind", ["pair", "quantized", "tagged", "jagged", "weight"])
def test_a_branch_beside_one_is_captured(kind: str) -> None:
    both_ways(plain_beside_it, kind).only("where", "pure_total")


def reads_before_a_write(x: Pair, p: Tensor) -> Tensor:
    inner = x.a
    number = inner[0, 0].item()
    x.mul_(3)
    return p * number


def hands_on_what_is_written(x: Pair, p: Tensor) -> Tensor:
    y = x.a
    if p.sum() > 0:
        y = p * 2
    x.mul_(3)
    return y * 1


@pytest.mark.parametrize("function", [reads_before_a_write, hands_on_what_is_written])
def test_memory_of_a_wrapper_is_that_of_what_it_wraps(function: Callable[..., Any]) -> None:
    both_ways(function, "pair")


class WithBuffer(nn.Module):
    def __init__(self, held: Tensor) -> None:
        super().__init__()
        self.register_buffer("held", held)

    def forward(self, p: Tensor) -> Tensor:
        if p.sum() > 0:
            self.held = self.held * 2
        return p * 1


def test_a_buffer_that_is_one() -> None:
    for held in (Pair(BASE, BASE * 2), Quantized(BASE.to(torch.int8), torch.tensor(0.5))):
        side_by_side(WithBuffer(held), (BASE,), (-BASE,), (BASE,))


def test_the_function_of_a_subclass_may_be_a_frame_of_its_own() -> None:
    def outside(x: Tensor) -> Any:
        return x.sum().item()

    hidden = torch.compiler.disable(outside, recursive=False)

    def program(x: Tensor, p: Tensor) -> Tensor:
        return p * hidden(x)

    side_by_side(program, (BASE.as_subclass(Tagged), BASE), (-BASE.as_subclass(Tagged), BASE))


@pytest.fixture
def distributed() -> Iterator[Callable[[Tensor], Tensor]]:
    """Makes a DTensor of a tensor, on a mesh of one process that talks to nobody."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    yield lambda value: DTensor.from_local(value, mesh, [Replicate()])
    torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("error::fusepass.errors.CaptureFault")
@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")
def test_dtensors(distributed: Callable[[Tensor], Tensor]) -> None:
    expected = {joined: "keep", written: "keep", is_asked: "keep", beside_a_choice: "keep"}
    for function, treatment in {**expected, plain_beside_it: "where", is_raised: "sink"}.items():
        fusepass.reset()
        compiled = torch.compile(function, backend="fusepass", options={"codegen": "eager"})
        for sign in (1.0, -1.0, 1.0):
            seen = []
            for target in (function, compiled):
                x = distributed(sign * BASE)
                try:
                    seen.append([target(x, sign * BASE), x])
                except ValueError as error:
                    seen.append([str(error), x])
            assert_same(seen[0], seen[1], function.__name__)
        decisions = fusepass.last_report(compiled).to_dict()["decisions"]
        branches = [d for d in decisions if d["rule"] == "branch"]
        assert {d["treatment"] for d in branches} == {treatment}, branches
        if treatment == "keep":
            assert any("is a DTensor, a subclass" in d["reason"] for d in branches), branches


def is_raised(x: Tensor, p: Tensor) -> Tensor:
    if p.sum() < 0:
        raise ValueError("negative")
    return x * 2


# inside transforms of torch.func


def squares_if(x: Tensor, p: Tensor) -> Tensor:
    def inner(v: Tensor) -> Tensor:
        return (v * v).sum() if v.sum() > 0 else v.sum()

    return torch.func.grad(inner)(x * p)


def writes_if(x: Tensor, p: Tensor) -> Tensor:
    flag = p.sum() > 0

    def inner(v: Tensor) -> Tensor:
        v = v * 1
        if flag:
            v.add_(1)
        return (v * v).sum()

    return torch.func.grad(inner)(x)


def rows_if(x: Tensor, p: Tensor) -> Tensor:
    flag = p.sum() > 0
    return torch.vmap(lambda row: row * 2 if flag else row + 1)(x)


def tangents_if(x: Tensor, p: Tensor) -> Any:
    return torch.func.jvp(lambda v: v * v if v.sum() > 0 else v, (x,), (p,))


@pytest.mark.parametrize(
    ("function", "phrase"),
    [
        (squares_if, "is inside torch.func.grad, vjp or jvp"),
        (writes_if, "is inside torch.func.grad, vjp or jvp"),
        (rows_if, "is that of each row inside torch.vmap"),
        (tangents_if, "is inside torch.func.grad, vjp or jvp"),
    ],
    ids=["grad", "write", "vmap", "jvp"],
)
def test_a_branch_inside_a_transform_says_so(function: Callable[..., Any], phrase: str) -> None:
    x = torch.tensor([[1.0, -0.5], [2.0, 0.25]])
    outcome = side_by_side(function, (x, x.abs()), (x, -x.abs()), (-x, x.abs()))
    assert outcome.decisions
    assert {d["treatment"] for d in outcome.decisions} == {"keep"}
    assert all(phrase in reason for reason in outcome.reasons), outcome.reasons


class PassesOn(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


def updated_where(x: Tensor, special: Tensor) -> Tensor:
    z = special * 1
    z[special > 0.5] *= 2
    return z + x


def test_a_mask_inside_the_function_of_a_subclass_is_left() -> None:
    """Dynamo takes the subclass for an ordinary tensor where it is written there."""
    torch._dynamo.reset()
    compiled = torch.compile(updated_where, backend="fusepass", options={"codegen": "eager"})
    x, special = torch.ones(3), torch.tensor([0.0, 1.0, 2.0]).as_subclass(PassesOn)
    got, want = compiled(x, special), updated_where(x, special)
    assert type(got) is type(want) is PassesOn
    assert torch.equal(got, want)


def doubled_or_moved(x: Tensor, special: Tensor) -> Tensor:
    h = torch.zeros_like(special)
    for _ in range(2):
        if float(x.mean()) > 1 or len(h) == 2:
            return x * 2
        x = x + 1
    return x


def test_an_arm_that_asks_a_subclass_for_its_length() -> None:
    special = torch.rand(3, 3).as_subclass(PassesOn)
    compiled = torch.compile(doubled_or_moved, backend="fusepass", options={"codegen": "eager"})
    for value in (0.0, 5.0):
        x = torch.full((3,), value)
        assert torch.equal(compiled(x, special), doubled_or_moved(x, special))
