"""An operator becomes a call of a function that fills its outputs; here one that runs anywhere."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch._inductor.lowering  # the rewrite has imported it when it asks
from torch import Tensor, fx
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.utils import run_and_get_code
from torch._subclasses.fake_tensor import FakeTensorMode

from fusepass.graph.library_calls import stays_inside
from fusepass.torch_private.host_call import HostCall, lower_to_host_call

CALLS: list[list[Tensor]] = []
OWN: list[list[Tensor]] = []


def filler(factor: float, device: str) -> Callable[..., None]:
    """Of two outputs: the first tensor times a factor, and the sum of the others."""
    assert device == "cpu"

    def fill(rows: int, x: Tensor, *rest: Tensor) -> None:
        *others, first, second = rest
        assert rows == first.shape[0]
        CALLS.append([x, *rest])
        flat = torch.as_strided(x, first.shape, first.stride())  # x may be what it is a view of
        first.copy_(flat * factor)
        second.zero_()
        for one in others:
            second += one.flatten()[: second.numel()].view(second.shape)

    return fill


def giver(factor: float) -> Callable[..., list[Tensor]]:
    """The same with memory of its own for its first output, the same in each call."""
    kept: list[Tensor] = []
    OWN.append(kept)

    def fill(rows: int, x: Tensor, *rest: Tensor) -> list[Tensor]:
        if not kept:
            kept.append(torch.empty(x.shape))
        *others, second = rest
        filler(factor, "cpu")(rows, x, *others, kept[0], second)
        return kept

    return fill


def _reference(x: Tensor, others: Sequence[Tensor], factor: float) -> list[Tensor]:
    total = torch.zeros_like(others[0])
    for one in others:
        total += one
    return [x * factor, total]


def _fake(x: Tensor, others: Sequence[Tensor], factor: float) -> list[Tensor]:
    return [torch.empty_like(x), torch.empty_like(others[0])]


def _plan(x: Tensor, others: Sequence[Tensor], factor: float) -> HostCall | None:
    if factor == 0.0:
        return None
    outputs = [(one.dtype, one.shape, one.stride()) for one in (x, others[0])]
    return HostCall(__name__, "filler", (factor, "cpu"), outputs, x.shape[:1])


def _own_plan(
    x: Tensor, others: Sequence[Tensor], factor: float, own: Collection[int]
) -> HostCall | None:
    outputs = [(one.dtype, one.shape, one.stride()) for one in (x, others[0])]
    if 0 not in own:
        return HostCall(__name__, "filler", (factor, "cpu"), outputs, x.shape[:1])
    return HostCall(__name__, "giver", (factor,), outputs, x.shape[:1], returned=[0])


@pytest.fixture(scope="module")
def operator() -> Iterator[Any]:
    library = torch.library.Library("fusepass", "FRAGMENT")
    library.define(
        "test_fill(Tensor x, Tensor[] others, float factor) -> Tensor[]",
        tags=(torch.Tag.needs_exact_strides,),
    )
    library.impl("test_fill", _reference, "CompositeExplicitAutograd")
    torch.library.register_fake("fusepass::test_fill", _fake, lib=library)
    found = torch.ops.fusepass.test_fill.default
    lower_to_host_call(found, _plan)
    yield found
    library._destroy()


@pytest.fixture
def with_own(operator: Any) -> Iterator[Any]:
    OWN.clear()
    lower_to_host_call(operator, _own_plan, stays_inside)
    yield operator
    lower_to_host_call(operator, _plan)


def _compiled(function: Callable[..., Any], *inputs: Tensor, **how: Any) -> tuple[Any, str]:
    torch._dynamo.reset()
    CALLS.clear()
    with torch.no_grad():
        results, (code,) = run_and_get_code(torch.compile(function, **how), *inputs)
    for one, expected in zip(results, function(*inputs), strict=True):
        torch.testing.assert_close(one, expected, rtol=1e-6, atol=1e-6)
        assert one.stride() == expected.stride()
    return results, code


def test_a_call_of_the_function_with_memory_of_inductors(operator: Any) -> None:
    def program(x: Tensor, y: Tensor, z: Tensor) -> list[Tensor]:
        first, second = operator(x + 1, [y, z], 3.0)
        return [first.relu(), second * 2]

    x, y, z = torch.randn(5, 7), torch.randn(11), torch.randn(11)
    _, code = _compiled(program, x, y, z)
    assert "filler(3.0, 'cpu')" in code
    assert "fusepass.test_fill" not in code.split("def call")[1]
    assert len(CALLS) == 1
    assert len(CALLS[0]) == 5
    assert CALLS[0][1] is y


def test_a_view_from_the_beginning_is_given_as_what_it_is_of(operator: Any) -> None:
    def program(x: Tensor, y: Tensor) -> list[Tensor]:
        return list(operator(x, [y.view(3, 4), y.view(3, 4)], 2.0))

    y = torch.randn(12)
    _, code = _compiled(program, torch.randn(2, 3), y)
    assert CALLS[0][1] is y
    assert CALLS[0][2] is y
    assert "reinterpret_tensor" not in code.split("def call")[1]


def test_a_view_from_elsewhere_is_a_tensor_of_its_own(operator: Any) -> None:
    def program(x: Tensor, y: Tensor) -> list[Tensor]:
        return list(operator(x, [y[4:8], y[8:]], 2.0))

    y = torch.randn(12)
    _compiled(program, torch.randn(2, 3), y)
    assert [one.data_ptr() - y.data_ptr() for one in CALLS[0][1:3]] == [16, 32]


def test_one_function_for_equal_calls_and_another_for_others(operator: Any) -> None:
    def program(x: Tensor, y: Tensor) -> list[Tensor]:
        a, b = operator(x, [y], 2.0)
        c, d = operator(a, [b], 2.0)
        return list(operator(c, [d], 5.0))

    _, code = _compiled(program, torch.randn(4), torch.randn(6))
    assert code.count("filler(2.0, 'cpu')") == 1
    assert code.count("filler(5.0, 'cpu')") == 1
    assert len(CALLS) == 3


def test_what_the_plan_leaves_stays_the_operators(operator: Any) -> None:
    def program(x: Tensor, y: Tensor) -> list[Tensor]:
        return list(operator(x, [y], 0.0))

    _, code = _compiled(program, torch.randn(4), torch.randn(6))
    assert "fusepass.test_fill" in code
    assert not CALLS


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

    _compiled(program, torch.randn(4, 6), torch.randn(6))
    assert CALLS[0][0].stride() == (1, 4)


def test_inside_an_arm_of_a_cond(operator: Any) -> None:
    def program(flag: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
        def calls(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
            return tuple(one + 1 for one in operator(x, [y], 2.0))

        def does_not(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
            return x.clone(), y.clone()

        return list(torch.cond(flag, calls, does_not, (x, y)))

    for flag in (True, False):
        _compiled(program, torch.tensor(flag), torch.randn(4), torch.randn(6))
        assert len(CALLS) == int(flag)


def test_memory_is_used_again_only_behind_it(operator: Any) -> None:
    """A chain in which Inductor can use buffers again: nothing reads what is overwritten."""

    def program(x: Tensor, y: Tensor) -> list[Tensor]:
        for _ in range(4):
            x, y = operator(x.sin(), [y.cos(), y], 1.5)
        return [x + 1, y]

    _compiled(program, torch.randn(8, 8), torch.randn(8, 8))
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


def _multiplied(operator: Any, x: Tensor, y: Tensor, z: Tensor) -> list[Tensor]:
    """What is made of x goes into products alone, one of them of a view."""
    weight, total = operator(x, [y], 3.0)
    again = weight.view(-1).view(x.shape)
    made = (weight @ z).relu() + (z @ again).sum()
    return [made, made * total[0]]


def test_memory_of_the_functions_own(with_own: Any) -> None:
    def program(x: Tensor, y: Tensor, z: Tensor) -> list[Tensor]:
        return _multiplied(with_own, x, y, z)

    torch._dynamo.reset()
    CALLS.clear()
    compiled = torch.compile(program)
    for _ in range(3):
        given = torch.randn(6, 6), torch.randn(11), torch.randn(6, 6)
        with torch.no_grad():
            got = compiled(*given)
        for one, expected in zip(got, program(*given), strict=True):
            torch.testing.assert_close(one, expected, rtol=1e-5, atol=1e-5)
    assert len(CALLS) == 3
    (kept,) = OWN
    assert {one[2].data_ptr() for one in CALLS} == {kept[0].data_ptr()}
    torch.testing.assert_close(kept[0], given[0] * 3)  # nothing else was written there


def _before_both(operator: Any, x: Tensor, y: Tensor, z: Tensor) -> list[Tensor]:
    one, _ = operator(x, [y], 3.0)
    other, total = operator(x + 1, [y], 3.0)
    return [z @ one, z @ other, total]


def _one_of_the_other(operator: Any, x: Tensor, y: Tensor, z: Tensor) -> list[Tensor]:
    one, _ = operator(x, [y], 3.0)
    other, total = operator(z @ one, [y], 3.0)
    return [z @ other @ one, total]


def _in_an_arm(operator: Any, x: Tensor, y: Tensor, z: Tensor) -> list[Tensor]:
    one, total = operator(x, [y], 3.0)
    made = torch.cond(
        x.sum() < torch.inf, lambda z, y: z @ operator(z, [y], 3.0)[0], lambda z, y: z + 1, (z, y)
    )
    return [made @ one, total]


@pytest.mark.parametrize("program", [_before_both, _one_of_the_other, _in_an_arm])
def test_two_equal_calls_do_not_share_memory(with_own: Any, program: Callable[..., Any]) -> None:
    """One function each: what the first has made is still to be read when the second comes."""
    given = torch.randn(6, 6), torch.randn(11), torch.randn(6, 6)
    _compiled(partial(program, with_own), *given)
    assert len(OWN) == len({kept[0].data_ptr() for kept in OWN}) == 2


def test_nothing_is_kept_under_cuda_graphs(with_own: Any) -> None:
    """On the CPU that setting changes nothing else."""
    from torch._inductor import config

    given = torch.randn(6, 6), torch.randn(11), torch.randn(6, 6)
    with config.patch({"triton.cudagraphs": True}):
        _, code = _compiled(partial(_before_both, with_own), *given)
    assert "filler(3.0, 'cpu')" in code
    assert not OWN


NOT_ITS_OWN: dict[str, Callable[..., Any]] = {
    "it leaves the graph": lambda w, z: (w @ z, w),
    "a view of it leaves the graph": lambda w, z: (w @ z, w.t()),
    "element by element": lambda w, z: (w @ z, w.sin()),
    "nothing reads it": lambda w, z: (z @ z, z),
}


@pytest.mark.parametrize("name", NOT_ITS_OWN)
def test_what_the_function_may_not_keep(with_own: Any, name: str) -> None:
    def program(x: Tensor, y: Tensor, z: Tensor) -> list[Tensor]:
        weight, total = with_own(x, [y], 3.0)
        return [*NOT_ITS_OWN[name](weight, z), total]

    _, code = _compiled(program, torch.randn(6, 6), torch.randn(11), torch.randn(6, 6))
    assert "filler(3.0, 'cpu')" in code
    assert not OWN


def test_not_where_code_of_the_users_comes_between(with_own: Any) -> None:
    """It could run the same compiled code, which would write the same memory."""

    @torch.library.custom_op("fusepass_test::between", mutates_args=())
    def between(z: Tensor) -> Tensor:
        return z + 1

    @between.register_fake
    def _(z: Tensor) -> Tensor:
        return torch.empty_like(z)

    def program(x: Tensor, y: Tensor, z: Tensor, *, nested: bool) -> list[Tensor]:
        weight, total = with_own(x, [y], 3.0)
        if nested:
            z = torch.cond(z.sum() > 0, lambda z: between(z), lambda z: z * 2, (z,))
        else:
            z = between(z)
        return [z @ weight, total]

    given = torch.randn(6, 6), torch.randn(11), torch.randn(6, 6)
    for nested in (False, True):
        _, code = _compiled(partial(program, nested=nested), *given)
        assert "filler(3.0, 'cpu')" in code
        assert not OWN


def test_what_autograd_saves_is_not_kept(with_own: Any) -> None:
    def program(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        weight, _ = with_own(x, [y], 3.0)
        return (weight @ z).sum()

    torch._dynamo.reset()
    z = torch.randn(6, 6, requires_grad=True)
    x, y = torch.randn(6, 6), torch.randn(11)
    torch.compile(program)(x, y, z).backward()
    assert not OWN
    assert z.grad is not None
    torch.testing.assert_close(z.grad, (x * 3).t() @ torch.ones(6, 6))
