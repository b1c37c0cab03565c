"""An arm that hands on a tensor unchanged: the object that leaves the graph is eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fusepass

UP, DOWN = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([-1.0, 2.0, -3.0])


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, backend="fusepass", options={"codegen": "eager"} | options)


def assert_one_graph(function: Any) -> None:
    report = fusepass.last_report(function).to_dict()
    kept = [d["reason"] for d in report["decisions"] if d["treatment"] == "keep"]
    assert (report["graphs"], kept) == (1, [])


def accept(x: Tensor, proposal: Tensor) -> Tensor:
    if proposal.sum() > x.sum():
        x = proposal
    return x


def step(x: Tensor) -> Tensor:
    if x.sum() > 0:
        x = x * 2
    return x


def test_the_object_itself_comes_back() -> None:
    run = compiled(accept)
    x, y = UP.clone(), DOWN.clone()
    assert run(x, y) is x
    assert run(y, x) is x
    assert_one_graph(run)
    run = compiled(step)
    assert run(y) is y
    assert run(x) is not x
    assert_one_graph(run)


def test_a_write_by_the_caller_reaches_the_input_only_where_it_does_in_eager() -> None:
    for start in (UP, DOWN):
        seen = []
        for run in (step, compiled(step)):
            x = start.clone()
            version = x._version
            y = run(x)
            y.add_(1)
            seen.append((x, y, x._version - version, y is x))
        for eager, ours in zip(*seen, strict=True):
            assert torch.equal(eager, ours) if isinstance(eager, Tensor) else eager == ours


def test_leaves_and_gradients_are_eagers() -> None:
    for start in (UP, DOWN):
        seen = []
        for run in (step, compiled(step)):
            x = start.clone().requires_grad_()
            y = run(x)
            y.sum().backward()
            seen.append((y.is_leaf, y.requires_grad, y is x, x.grad))
        (*eager, grad), (*ours, our_grad) = seen
        assert eager == ours
        assert torch.equal(grad, our_grad)


def test_gradients_without_nan() -> None:
    def unit(x: Tensor) -> Tensor:
        norm = x.norm()
        if norm > 0:
            x = x / norm
        return x

    run = compiled(unit)
    for start in (UP, UP * 0):
        grads = []
        for one in (unit, run):
            x = start.clone().requires_grad_()
            one(x).sum().backward()
            grads.append(x.grad)
        torch.testing.assert_close(*grads, rtol=0, atol=0)


def test_a_hook_on_the_result_is_one_on_the_input_where_it_is_handed_on() -> None:
    run = compiled(step)
    for start in (UP, DOWN):
        x = start.clone().requires_grad_()
        y = run(x)
        seen: list[Tensor] = []
        (y * 1).register_hook(seen.append)
        y.register_hook(lambda grad: grad * 10)
        y.sum().backward()
        assert torch.equal(x.grad, torch.full((3,), 10.0 if start is DOWN else 20.0))


VIEWS: dict[str, Callable[[Tensor], Any]] = {
    "row": lambda y: y[1:],
    "chain": lambda y: y.view(3, 1).transpose(0, 1)[0],
    "chunks": lambda y: y.chunk(3)[1],
    "two": lambda y: (y, y[:2]),
    "detached": lambda y: y.detach(),
    "without_grad": torch.no_grad()(lambda y: y[1:]),
    "dropout": lambda y: F.dropout(y[1:], 0.3, training=False),
    "dictionary": lambda y: {"y": y, "more": [y.view(1, 3), y * 2]},
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("grad", [False, True])
def test_views_of_what_is_handed_on(name: str, grad: bool) -> None:
    def viewed(x: Tensor) -> Any:
        y = x
        if x.sum() > 0:
            y = x * 2
        return VIEWS[name](y)

    run = compiled(viewed)
    for start in (UP, DOWN, UP):
        seen = []
        for one in (viewed, run):
            x = start.clone().requires_grad_(grad)
            result = torch.utils._pytree.tree_leaves(one(x))
            facts = [
                (y.requires_grad, y._is_view(), y.shape, y.stride(), y.storage_offset())
                for y in result
            ]
            sharing = [y.untyped_storage().data_ptr() == x.data_ptr() for y in result]
            with torch.no_grad():
                result[0].add_(1)
            seen.append((facts, sharing, x.detach().tolist(), [y.tolist() for y in result]))
        assert seen[0] == seen[1]
    assert_one_graph(run)


@pytest.mark.parametrize("codegen", ["eager", "inductor"])
def test_a_view_of_a_leaf_is_one(codegen: str) -> None:
    def column(x: Tensor, y: Tensor) -> Tensor:
        z = x
        if x.sum() > 0:
            z = y
        return z.reshape(3, 1)

    run = compiled(column, codegen=codegen)
    for start in (UP, DOWN):
        leaves = [start.clone().requires_grad_(), UP.clone().requires_grad_()]
        z = run(*leaves)
        with pytest.raises(RuntimeError, match="a view of a leaf Variable"):
            z.add_(1)
        z.sum().backward()
        wanted = leaves[start is UP]
        assert z._base is wanted
        assert torch.equal(wanted.grad, torch.ones(3))
        assert leaves[start is not UP].grad is None
    assert_one_graph(run)


def nested(x: Tensor, y: Tensor) -> Tensor:
    if x.sum() > 0:
        if y.sum() > 0:
            x = x + y
        else:
            x = y
    return x


def chained(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    first = x
    if x.sum() > 0:
        first = x * 2
    second = first
    if y.sum() > 0:
        second = first + y
    return first, second


def both_arms(x: Tensor, y: Tensor) -> list[Tensor]:
    z = x if x.sum() > 0 else y
    return [z, z, x]


def shared_fresh(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    h = x + y
    if x.sum() > 0:
        a, b = h * 2, h
    else:
        a = b = h * 3
    return a, b


@pytest.mark.parametrize("function", [accept, nested, chained, both_arms, shared_fresh])
def test_who_is_who_among_inputs_and_results(function: Callable[..., Any]) -> None:
    run = compiled(function)
    for first in (UP, DOWN):
        for second in (UP + 1, DOWN - 1):
            seen = []
            for one in (function, run):
                x, y = first.clone(), second.clone()
                found = [x, y, *torch.utils._pytree.tree_leaves(one(x, y))]
                who = [[a is b for b in found] for a in found]
                seen.append((who, [one.tolist() for one in found]))
            assert seen[0] == seen[1]
    assert_one_graph(run)


class Kept(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.last: list[Tensor] = [torch.zeros(3)]

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight if x.sum() > 0 else self.weight * 2
        self.last[0] = weight
        return weight


def test_a_parameter_that_is_returned_and_bound() -> None:
    module = Kept().requires_grad_(False)
    run = compiled(module)
    assert run(UP) is module.weight
    assert module.last[0] is module.weight
    assert torch.equal(run(DOWN), module.weight * 2)
    assert module.last[0] is not module.weight
    assert_one_graph(run)


def test_with_a_line_and_an_exception_behind_it(capsys: pytest.CaptureFixture[str]) -> None:
    def told(x: Tensor) -> Tensor:
        y = x
        if x.sum() > 0:
            y = x * 2
        print("sum", y.sum().item())  # noqa: T201
        if x[0] > 5:
            raise ValueError("too large")
        return y

    run = compiled(told)
    x = DOWN.clone()
    assert run(x) is x
    assert torch.equal(run(UP), UP * 2)
    with pytest.raises(ValueError, match="too large"):
        run(UP * 9)
    assert capsys.readouterr().out == "sum -2.0\nsum 12.0\nsum 108.0\n"


def test_an_arm_that_draws_random_numbers() -> None:
    def noisy(x: Tensor) -> Tensor:
        if x.sum() > 0:
            x = x + torch.randn_like(x)
        return x

    run = compiled(noisy)
    x = DOWN.clone()
    assert run(x) is x
    torch.manual_seed(1)
    wanted = noisy(UP)
    torch.manual_seed(1)
    assert torch.equal(run(UP), wanted)
    assert_one_graph(run)


def test_with_any_size() -> None:
    run = torch.compile(step, backend="fusepass", options={"codegen": "eager"}, dynamic=True)
    for size in (3, 5, 8):
        x = -torch.ones(size)
        assert run(x) is x
        assert torch.equal(run(-x), -x * 2)


def written_later(x: Tensor) -> Tensor:
    y = x
    if x.sum() > 0:
        y = x * 2
    y.add_(1)
    return y


def hooked(x: Tensor) -> Tensor:
    y = x
    if x.sum() > 0:
        y = x * 2
    if y.requires_grad:
        y.register_hook(lambda grad: grad * 3)
    return y


@pytest.mark.parametrize("function", [written_later, hooked])
def test_near_misses_are_kept_and_right(function: Callable[..., Any]) -> None:
    run = compiled(function)
    for start in (UP, DOWN):
        seen = []
        for one in (function, run):
            x = start.clone().requires_grad_(function is hooked)
            y = one(x)
            if function is hooked:
                y.sum().backward()
            seen.append(
                (y.tolist(), x.tolist(), y is x, None if x.grad is None else x.grad.tolist())
            )
        assert seen[0] == seen[1]
    kept = [d for d in fusepass.last_report(run).to_dict()["decisions"] if d["treatment"] == "keep"]
    assert kept


def test_a_fresh_tensor_where_options_permit_one() -> None:
    run = compiled(step, allow_fresh_output=True)
    x = DOWN.clone()
    assert run(x) is not x
    assert torch.equal(run(x), x)
    assert_one_graph(run)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("function", [step, accept, chained, VIEWS["two"]])
def test_through_inductor(function: Callable[..., Any]) -> None:
    def program(x: Tensor, y: Tensor) -> Any:
        if function is VIEWS["two"]:
            return function(step(x))
        return function(x) if function is step else function(x, y)

    torch._dynamo.reset()
    run = torch.compile(program, backend="fusepass")
    for first, second in ((UP, DOWN), (DOWN, UP)):
        seen = []
        for one in (program, run):
            x, y = first.clone(), second.clone()
            found = [x, y, *torch.utils._pytree.tree_leaves(one(x, y))]
            seen.append(
                (
                    [[a is b for b in found] for a in found],
                    [one.tolist() for one in found],
                    [one.data_ptr() == x.data_ptr() for one in found],
                )
            )
        assert seen[0] == seen[1]
