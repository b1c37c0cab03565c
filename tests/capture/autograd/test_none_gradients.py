"""Gradients are None exactly where eager's are, whatever asks for them.

Each scenario uses a program in its own way, first in eager mode and then compiled, with all
outcomes of its branches. What it returns must be equal: values, and where there is None.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import fusepass

from ..support.check import fresh_compiler

Program = Callable[..., Any]
# What a scenario saw: it is given the callable and the module, and the outcomes of the branches.
Scenario = Callable[[Program, nn.Module, tuple[bool, ...]], Any]
CODEGENS = ["eager", "eager-decomposed"]


class Dropped(nn.Module):
    """Layers that are skipped, as tensors say; a result for the loss and one beside it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
        self.head, self.aside = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x: Tensor, on: Tensor) -> tuple[Tensor, Tensor]:
        for i, layer in enumerate(self.layers):
            if on[i] > 0:
                x = x + torch.tanh(layer(x))
        loss = self.head(x).square().mean()
        extra = x.detach().square().mean()
        if on.sum() > 0:
            extra = extra + self.aside(x.detach()).square().mean()
        return loss, extra * self.head.bias.sum()


def inputs(outcomes: tuple[bool, ...]) -> tuple[Tensor, Tensor]:
    torch.manual_seed(5)
    return torch.randn(3, 4), torch.tensor([1.0 if on else -1.0 for on in outcomes])


def gradients(module: nn.Module) -> list[Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in module.parameters()]


def same(wanted: Any, got: Any, where: str) -> None:
    if isinstance(wanted, (tuple, list)):
        assert len(wanted) == len(got), where
        for i, (one, other) in enumerate(zip(wanted, got, strict=True)):
            same(one, other, f"{where}[{i}]")
    elif isinstance(wanted, Tensor):
        assert isinstance(got, Tensor), f"{where}: {got}, not {wanted}"
        torch.testing.assert_close(got, wanted, msg=lambda text: f"{where}: {text}")
    else:
        assert wanted == got, f"{where}: {got}, not {wanted}"


def check(
    scenario: Scenario,
    codegen: str,
    make: Callable[[], nn.Module] = Dropped,
    *,
    captured: bool = True,
    twos: int = 2,
) -> None:
    with fresh_compiler():
        eager = make()
        module = copy.deepcopy(eager)
        compiled = torch.compile(module, backend="fusepass", options={"codegen": codegen})
        for outcomes in itertools.product((True, False), repeat=twos):
            eager.zero_grad(), module.zero_grad()
            same(
                scenario(eager, eager, outcomes),
                scenario(compiled, module, outcomes),
                f"{scenario.__name__}, {outcomes}",
            )
        report = fusepass.last_report(compiled).to_dict()
        if captured:
            assert report["graph_breaks"] == []


# --- What asks ------------------------------------------------------------------------------------


def one_result(call: Program, module: nn.Module, outcomes: tuple[bool, ...]) -> Any:
    loss, extra = call(*inputs(outcomes))
    loss.backward()
    return loss, extra, gradients(module)


def the_other_result(call: Program, module: nn.Module, outcomes: tuple[bool, ...]) -> Any:
    loss, extra = call(*inputs(outcomes))
    extra.backward()
    return loss, extra, gradients(module)


def both_results(call: Program, module: nn.Module, outcomes: tuple[bool, ...]) -> Any:
    loss, extra = call(*inputs(outcomes))
    (loss + extra).backward()
    return gradients(module)


def one_after_the_other(call: Program, module: nn.Module, outcomes: tuple[bool, ...]) -> Any:
    loss, extra = call(*inputs(outcomes))
    loss.backward(retain_graph=True)
    first = gradients(module)
    module.zero_grad()
    extra.backward(retain_graph=True)
    second = gradients(module)
    loss.backward()
    return first, second, gradients(module)


def asked_for(call: Program, module: nn.Module, outcomes: tuple[bool, ...]) -> Any:
    wanted = list(module.parameters())
    loss, extra = call(*inputs(outcomes))
    given = {"retain_graph": True, "allow_unused": True}
    each = [torch.autograd.grad(one, wanted, **given) for one in (loss, extra, loss * extra)]
    lone = [torch.autograd.grad(loss, leaf, **given) for leaf in wanted]
    zeros = torch.autograd.grad(extra, wanted, materialize_grads=True, retain_graph=True)
    return each, lone, zeros, gradients(module)


def asked_for_what_is_not_used(call: Program, module: nn.Module, outcomes: tuple[bool, ...]) -> Any:
    loss, _ = call(*inputs(outcomes))
    said = []
    for leaf in module.parameters():
        try:
            said.append(torch.autograd.grad(loss, leaf, retain_graph=True))
        except RuntimeError as error:
            said.append(str(error))
    return said


def backward_into_some(call: Program, module: nn.Module, outcomes: tuple[bool, ...]) -> Any:
    loss, _ = call(*inputs(outcomes))
    loss.backward(inputs=[*module.layers.parameters()])  # type: ignore[union-attr]
    return gradients(module)


def hooks_before(call: Program, module: nn.Module, outcomes: tuple[bool, ...]) -> Any:
    said: list[Any] = []
    handles = hooked(module, said)
    loss, _ = call(*inputs(outcomes))
    loss.backward()
    for handle in handles:
        handle.remove()
    return sorted(said), gradients(module)


def hooks_afterwards(call: Program, module: nn.Module, outcomes: tuple[bool, ...]) -> Any:
    said: list[Any] = []
    loss, extra = call(*inputs(outcomes))
    handles = hooked(module, said)
    loss.backward(retain_graph=True)
    (loss * extra).backward()
    for handle in handles:
        handle.remove()
    return sorted(said), gradients(module)


def hooked(module: nn.Module, said: list[Any]) -> list[Any]:
    """Hooks that fail if they are called with None, and note each call."""

    def doubled(name: str) -> Callable[[Tensor], Tensor]:
        def hook(gradient: Tensor) -> Tensor:
            said.append((name, "gradient", tuple(gradient.shape)))
            return gradient * 2

        return hook

    def kept(name: str) -> Callable[[Tensor], None]:
        def hook(leaf: Tensor) -> None:
            said.append((name, "leaf", tuple(leaf.grad.shape)))  # type: ignore[union-attr]

        return hook

    handles = []
    for name, leaf in module.named_parameters():
        handles.append(leaf.register_hook(doubled(name)))
        handles.append(leaf.register_post_accumulate_grad_hook(kept(name)))
        handles.append(leaf.register_hook(doubled(f"{name} again")))
    return handles


def hooks_of_a_leaf_used_elsewhere(
    call: Program, module: nn.Module, outcomes: tuple[bool, ...]
) -> Any:
    said: list[Any] = []
    loss, _ = call(*inputs(outcomes))
    handles = hooked(module, said)
    (loss + module.layers[0].weight.sum()).backward()  # type: ignore[index,union-attr]
    for handle in handles:
        handle.remove()
    return sorted(said), gradients(module)


def two_calls_in_one_loss(call: Program, module: nn.Module, outcomes: tuple[bool, ...]) -> Any:
    said: list[Any] = []
    first, _ = call(*inputs(outcomes))
    _, second = call(*inputs((outcomes[0], not outcomes[1])))
    handles = hooked(module, said)
    (first * second).backward()
    for handle in handles:
        handle.remove()
    return sorted(said), gradients(module)


class Failing(torch.autograd.Function):
    """Its backward fails."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise ValueError("this backward fails")


def hooks_after_a_backward_that_fails(
    call: Program, module: nn.Module, outcomes: tuple[bool, ...]
) -> Any:
    said: list[Any] = []
    handles = hooked(module, said)
    x, on = inputs(outcomes)
    x.requires_grad_()
    # The backward reaches the leaves first, and then fails.
    with pytest.raises(ValueError, match="this backward fails"):
        call(Failing.apply(x), on)[0].backward()
    left = [
        [type(hook).__name__ for hook in (held or {}).values()]
        for leaf in module.parameters()
        for held in (leaf._backward_hooks, leaf._post_accumulate_grad_hooks)
    ]
    handles += hooked(module, said)
    call(x, on)[0].backward()
    for handle in handles:
        handle.remove()
    return sorted(said), left, gradients(module)


def hook_that_runs_a_backward(call: Program, module: nn.Module, outcomes: tuple[bool, ...]) -> Any:
    loss, extra = call(*inputs(outcomes))
    found: list[Any] = []

    def hook(gradient: Tensor) -> None:
        wanted = list(module.parameters())
        with torch.enable_grad():
            found.append(torch.autograd.grad(extra, wanted, retain_graph=True, allow_unused=True))

    handle = module.head.weight.register_hook(hook)  # type: ignore[union-attr]
    loss.backward(retain_graph=True)
    handle.remove()
    return found, gradients(module)


def reentrant_checkpoint(call: Program, module: nn.Module, outcomes: tuple[bool, ...]) -> Any:
    x, on = inputs(outcomes)
    loss, extra = checkpoint(call, x.requires_grad_(), on, use_reentrant=True)
    (loss + extra).backward()
    return gradients(module), x.grad


def checkpoint_with_hooks(call: Program, module: nn.Module, outcomes: tuple[bool, ...]) -> Any:
    x, on = inputs(outcomes)
    loss, _ = checkpoint(call, x, on, use_reentrant=False)
    loss.backward()
    return gradients(module)


def accumulated(call: Program, module: nn.Module, outcomes: tuple[bool, ...]) -> Any:
    found = []
    for other in (outcomes, (outcomes[0], not outcomes[1]), (False, False)):
        loss, _ = call(*inputs(other))
        before = [None if p.grad is None else p.grad for p in module.parameters()]
        loss.backward()
        after = [p.grad for p in module.parameters()]
        found += [gradients(module), [a is b for a, b in zip(before, after, strict=True)]]
    return found


def without_autograd(call: Program, module: nn.Module, outcomes: tuple[bool, ...]) -> Any:
    with torch.no_grad():
        loss, extra = call(*inputs(outcomes))
    return loss, extra, loss.requires_grad


def frozen_in_part(call: Program, module: nn.Module, outcomes: tuple[bool, ...]) -> Any:
    module.layers[0].requires_grad_(False)  # type: ignore[index,union-attr]
    loss, _ = call(*inputs(outcomes))
    loss.backward()
    found = gradients(module)
    module.layers[0].requires_grad_()  # type: ignore[index,union-attr]
    return found


def written_between(call: Program, module: nn.Module, outcomes: tuple[bool, ...]) -> Any:
    # The tested tensor is the caller's: it may hold something else when the backward comes.
    x, on = inputs(outcomes)
    loss, _ = call(x, on)
    on.neg_()
    loss.backward()
    return gradients(module)


def copied_results(call: Program, module: nn.Module, outcomes: tuple[bool, ...]) -> Any:
    loss, extra = call(*inputs(outcomes))
    loss *= 2  # in place, on what the graph returned
    extra.mul_(3).add_(loss)
    extra.backward()
    return gradients(module), loss, extra


SCENARIOS = [
    one_result,
    the_other_result,
    both_results,
    one_after_the_other,
    asked_for,
    asked_for_what_is_not_used,
    backward_into_some,
    hooks_before,
    hooks_afterwards,
    hooks_of_a_leaf_used_elsewhere,
    hooks_after_a_backward_that_fails,
    two_calls_in_one_loss,
    hook_that_runs_a_backward,
    reentrant_checkpoint,
    checkpoint_with_hooks,
    accumulated,
    without_autograd,
    frozen_in_part,
    written_between,
    copied_results,
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("codegen", CODEGENS)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.__name__)
def test_as_eager(scenario: Scenario, codegen: str) -> None:
    # A checkpoint runs the layers without autograd first, where x may be handed on as it is.
    check(scenario, codegen, captured=scenario is not reentrant_checkpoint)


def penalty(call: Program, module: nn.Module, outcomes: tuple[bool, ...]) -> Any:
    x, on = inputs(outcomes)
    loss, extra = call(x.requires_grad_(), on)
    (gradient,) = torch.autograd.grad(extra + loss, x, create_graph=True)
    (loss + gradient.square().sum()).backward()
    return gradients(module)


def penalty_of_the_other_result(
    call: Program, module: nn.Module, outcomes: tuple[bool, ...]
) -> Any:
    # The second backward comes back to what the first result depends on, by way of the other.
    x, on = inputs(outcomes)
    loss, extra = call(x.requires_grad_(), on)
    bias = module.head.bias  # type: ignore[union-attr]
    given = {"create_graph": True, "allow_unused": True}
    (gradient,) = torch.autograd.grad(extra, bias, **given)  # type: ignore[call-overload]
    (loss + gradient.square().sum()).backward()
    return gradients(module)


@pytest.mark.parametrize("scenario", [penalty, penalty_of_the_other_result])
def test_second_derivatives(scenario: Scenario) -> None:
    check(scenario, "eager")


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("scenario", [both_results, one_after_the_other, hooks_afterwards])
def test_through_inductor(scenario: Scenario) -> None:
    import torch._functorch.config as settings

    with settings.patch(donated_buffer=False):  # so that a graph can be used twice
        check(scenario, "inductor")


# --- Inputs that are written ----------------------------------------------------------------------


def written_by_an_arm(x: Tensor, h: Tensor, w: Tensor) -> Tensor:
    if x.sum() > 0:
        h.add_(x * w)
    return x * 2


def written_anyway(x: Tensor, h: Tensor, w: Tensor) -> Tensor:
    if x.sum() > 0:
        w = w * 2
    h.copy_(w * x)
    return x * 2


@pytest.mark.parametrize("codegen", CODEGENS)
@pytest.mark.parametrize("program", [written_by_an_arm, written_anyway])
def test_a_backward_may_begin_in_what_is_written(program: Program, codegen: str) -> None:
    with fresh_compiler():
        compiled = torch.compile(program, backend="fusepass", options={"codegen": codegen})
        for sign, written in itertools.product((1.0, -1.0), (True, False)):
            found = []
            for call in (program, compiled):
                x = torch.full((3,), sign)
                start, w = (torch.ones(3, requires_grad=True) for _ in range(2))
                h = start * 1 if program is written_by_an_arm else torch.zeros(3)
                y = call(x, h, w)
                loss = h.sum() if written else y.sum() + h.sum() * 2
                loss.backward()
                found.append((y, h, start.grad, w.grad))
            same(*found, f"{sign}, {written}")


# --- Results that require grad for some outcomes only ---------------------------------------------


class Data(nn.Module):
    """Data that a learned scale may touch; a loss that may be a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor, on: Tensor) -> tuple[Tensor, ...]:
        scaled = x + 1
        if on[0] > 0:
            scaled = scaled * self.scale
        extra = x.new_zeros(())
        if on[1] > 0:
            extra = self.head(x).square().mean()
        return self.head(scaled).sum(), scaled, extra


def of_each_result(call: Program, module: nn.Module, outcomes: tuple[bool, ...]) -> Any:
    found: list[Any] = []
    for used in ((0,), (1,), (2,), (1, 2), (0, 1, 2)):
        results = call(*inputs(outcomes))
        found += [results, [(one.requires_grad, one.is_leaf) for one in results]]
        graded = [results[i].sum() for i in used if results[i].requires_grad]
        module.zero_grad()
        if graded:
            sum(graded).backward()  # type: ignore[union-attr]
        found.append(gradients(module))
    return found


def backward_of_a_constant(call: Program, module: nn.Module, outcomes: tuple[bool, ...]) -> Any:
    *_, extra = call(*inputs(outcomes))
    try:
        extra.backward()
    except RuntimeError as error:
        return str(error)
    return gradients(module)


def part_of_a_sum(call: Program, module: nn.Module, outcomes: tuple[bool, ...]) -> Any:
    _, scaled, extra = call(*inputs(outcomes))
    extra += scaled.sum()  # in place, on what may require grad or not
    (extra * module.scale).backward()
    return extra, gradients(module)


@pytest.mark.parametrize("codegen", CODEGENS)
@pytest.mark.parametrize("scenario", [of_each_result, backward_of_a_constant, part_of_a_sum])
def test_results_require_grad_as_in_eager(scenario: Scenario, codegen: str) -> None:
    check(scenario, codegen, Data)


# --- Near misses ----------------------------------------------------------------------------------


def asks(x: Tensor, w: Tensor) -> Tensor:
    y = x * w if x.sum() > 0 else x * 2
    return (y + 1 if (y * 2).requires_grad else y - 1) * w


def prints(x: Tensor, w: Tensor) -> Tensor:
    y = x * w if x.sum() > 0 else x * 2
    print(y * 2)  # noqa: T201 - a program of a user
    return y * w


def writes(x: Tensor, w: Tensor) -> Tensor:
    buffer = torch.zeros(3)
    if x.sum() > 0:
        buffer.copy_(w)
    return buffer * x


def of_a_result(x: Tensor, w: Tensor) -> Tensor:
    return x * w if x.sum() > 0 else x * 2


@pytest.mark.parametrize("program", [asks, prints, writes, of_a_result])
def test_kept(program: Program) -> None:
    with fresh_compiler():
        compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
        for sign in (1.0, -1.0):
            found = []
            for call in (program, compiled):
                x, leaf = torch.full((3,), sign), torch.ones(3, requires_grad=True)
                y = call(x, leaf * 1 if program is of_a_result else leaf)
                if y.requires_grad:
                    y.sum().backward()
                found.append((y, y.requires_grad, leaf.grad))
            same(*found, f"{sign}")
        decisions = fusepass.last_report(compiled).to_dict()["decisions"]
        kept = [d["reason_code"] for d in decisions if d["treatment"] == "keep"]
        assert "none_grad" in kept


def test_a_leaf_may_be_a_result_in_a_later_call() -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        h = x * 2
        if h.sum() > 0:
            h = h * w
        return h * x

    with fresh_compiler():
        compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
        for sign, is_leaf in itertools.product((1.0, -1.0), (True, False)):
            found = []
            for call in (program, compiled):
                x = torch.full((3,), sign, requires_grad=True)
                leaf = torch.ones(3, requires_grad=True)
                call(x, leaf if is_leaf else leaf * 1).sum().backward()
                found.append((x.grad, leaf.grad))
            same(*found, f"{sign}, {is_leaf}")


def of_one_operand(x: Tensor) -> Tensor:
    n = x.log()
    y = n * 2 if x.sum() > 0 else x * 3
    return torch.relu(y)


def of_a_slice(x: Tensor) -> Tensor:
    n = x.log()
    y = n * 2 if x.sum() > 0 else x * 3
    return y[1:]


@pytest.mark.parametrize("program", [of_one_operand, of_a_slice])
def test_a_result_is_any_operation(program: Program) -> None:
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    for value in (2.0, -2.0):
        sides = [torch.full((3,), value, requires_grad=True) for _ in range(2)]
        for run, x in zip((program, compiled), sides, strict=True):
            run(x).sum().backward()
        assert torch.equal(sides[0].grad, sides[1].grad)
