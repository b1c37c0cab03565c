"""An operator becomes a call of a function that fills its outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch._inductor.lowering  # the rewrite has imported it when it asks
from torch import Tensor, fx
from torch._inductor.compile_fx import compile_fx_inner
from torch._subclasses.fake_tensor import FakeTensorMode

from fusepass.torch_private.inductor.host_call import HostCall, lower_to_host_call
from tests.torch_private.host_operator import CALLS, compiled_code, operator

__all__ = ["operator"]


def test_a_call_of_the_function_with_memory_of_inductors(operator: Any) -> None:
    def program(x: Tensor, y: Tensor, z: Tensor) -> list[Tensor]:
        first, second = operator(x + 1, [y, z], 3.0)
        return [first.relu(), second * 2]

    x, y, z = torch.randn(5, 7), torch.randn(11), torch.randn(11)
    _, code = compiled_code(program, x, y, z)
    assert "make_launcher(3.0, 'cpu')" in code
    assert "fusepass.test_fill" not in code.split("def call")[1]
    assert len(CALLS) == 1
    assert len(CALLS[0]) == 5
    assert CALLS[0][1] is y


def test_a_view_from_the_beginning_is_given_as_what_it_is_of(operator: Any) -> None:
    def program(x: Tensor, y: Tensor) -> list[Tensor]:
        return list(operator(x, [y.view(3, 4), y.view(3, 4)], 2.0))

    y = torch.randn(12)
    _, code = compiled_code(program, torch.randn(2, 3), y)
    assert CALLS[0][1] is y
    assert CALLS[0][2] is y
    assert "reinterpret_tensor" not in code.split("def call")[1]


def test_a_view_from_elsewhere_is_a_tensor_of_its_own(operator: Any) -> None:
    def program(x: Tensor, y: Tensor) -> list[Tensor]:
        return list(operator(x, [y[4:8], y[8:]], 2.0))

    y = torch.randn(12)
    compiled_code(program, torch.randn(2, 3), y)
    assert [one.data_ptr() - y.data_ptr() for one in CALLS[0][1:3]] == [16, 32]


def test_one_function_for_equal_calls_and_another_for_others(operator: Any) -> None:
    def program(x: Tensor, y: Tensor) -> list[Tensor]:
        a, b = operator(x, [y], 2.0)
        c, d = operator(a, [b], 2.0)
        return list(operator(c, [d], 5.0))

    _, code = compiled_code(program, torch.randn(4), torch.randn(6))
    assert code.count("make_launcher(2.0, 'cpu')") == 1
    assert code.count("make_launcher(5.0, 'cpu')") == 1
    assert len(CALLS) == 3


def test_what_the_plan_leaves_stays_the_operators(operator: Any) -> None:
    def program(x: Tensor, y: Tensor) -> list[Tensor]:
        return list(operator(x, [y], 0.0))

    _, code = compiled_code(program, torch.randn(4), torch.randn(6))
    assert "fusepass.test_fill" in code
    assert not CALLS


@pytest.mark.sampled(2)
@pytest.mark.parametrize("as_view", [False, True])
def test_sizes_that_vary(operator: Any, as_view: bool) -> None:
    def program(x: Tensor, y: Tensor) -> list[Tensor]:
        lines = (x * 2).sin().view(-1, 1, 3) if as_view else x * 2
        return [one + 1 for one in operator(lines, [y], 2.0)]

    compiled = torch.compile(program, dynamic=True)
    torch._dynamo.reset()
    CALLS.clear()
    with torch.no_grad():
        for size in (4, 9, 1):
            x, y = torch.randn(size, 3), torch.randn(size)
            for one, expected in zip(compiled(x, y), program(x, y), strict=True):
                torch.testing.assert_close(one, expected)
    assert len(CALLS) == 3


def test_an_operand_keeps_its_strides(operator: Any) -> None:
    """Also where Inductor would rather have computed it in another order."""

    def program(x: Tensor, y: Tensor) -> list[Tensor]:
        made = (x + 1).t().contiguous().t()  # which is what Inductor leaves out if it may
        return list(operator(made, [y], 2.0))

    compiled_code(program, torch.randn(4, 6), torch.randn(6))
    assert CALLS[0][0].stride() == (1, 4)


def test_inside_an_arm_of_a_cond(operator: Any) -> None:
    def program(flag: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
        def calls(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
            return tuple(one + 1 for one in operator(x, [y], 2.0))

        def does_not(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
            return x.clone(), y.clone()

        return list(torch.cond(flag, calls, does_not, (x, y)))

    for flag in (True, False):
        compiled_code(program, torch.tensor(flag), torch.randn(4), torch.randn(6))
        assert len(CALLS) == int(flag)


def test_memory_is_used_again_only_behind_it(operator: Any) -> None:
    """A chain in which Inductor can use buffers again: nothing reads what is overwritten."""

    def program(x: Tensor, y: Tensor) -> list[Tensor]:
        for _ in range(4):
            x, y = operator(x.sin(), [y.cos(), y], 1.5)
        return [x + 1, y]

    compiled_code(program, torch.randn(8, 8), torch.randn(8, 8))
    assert len(CALLS) == 4


@pytest.fixture(scope="module")
def writing() -> Iterator[Any]:
    """Adds a tensor to each of some others, in place."""
    library = torch.library.Library("fusepass", "FRAGMENT")
    library.define(
        "test_add_to(Tensor(a!)[] these, Tensor x) -> ()", tags=(torch.Tag.needs_exact_strides,)
    )

    def add_to(these: Sequence[Tensor], x: Tensor) -> None:
        for one in these:
            one.add_(x)

    library.impl("test_add_to", add_to, "CompositeExplicitAutograd")
    torch.library.register_fake("fusepass::test_add_to", lambda these, x: None, lib=library)
    found = torch.ops.fusepass.test_add_to.default

    def plan(these: Sequence[Tensor], x: Tensor) -> HostCall:
        return HostCall(__name__, "adder", (), [], written=len(these))

    lower_to_host_call(found, plan)
    yield found
    library._destroy()


def adder() -> Callable[..., None]:
    def add(x: Tensor, *these: Tensor) -> None:
        CALLS.append([x, *these])
        for one in these:
            one.add_(x)

    return add


def test_tensors_that_are_written_where_they_are(writing: Any) -> None:
    """Inputs, as a pass behind autograd puts them there; what reads them before sees them before."""
    graph = fx.Graph()
    x, y, z = map(graph.placeholder, "xyz")
    before = graph.call_function(torch.ops.aten.mm.default, (y, z))
    graph.call_function(writing, ([y, z], x))
    graph.output((before,))
    given = [torch.randn(4, 4) for _ in range(3)]
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(one) for one in given]
        for node, fake in zip((x, y, z), fakes, strict=True):
            node.meta["val"] = fake
        before.meta["val"] = fakes[1] @ fakes[2]
    mine = [one.clone() for one in given]
    CALLS.clear()
    compiled = compile_fx_inner(fx.GraphModule({}, graph), mine)
    (got,) = compiled([*mine])
    torch.testing.assert_close(got, given[1] @ given[2])
    torch.testing.assert_close(mine[1], given[1] + given[0])
    torch.testing.assert_close(mine[2], given[2] + given[0])
    assert [one.data_ptr() for one in CALLS[0]] == [one.data_ptr() for one in mine]
