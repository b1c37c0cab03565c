"""Saved-tensors hooks around a call meet what autograd saves in the run, and no fake tensor."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import fusepass
from fusepass.torch_private.dynamo.saved_tensors import saving_unhooked


def guarded(x: Tensor) -> Tensor:
    h = x.sin()
    if h.isnan().any():
        h = h.nan_to_num()
    return h * 2


def chained(x: Tensor) -> Tensor:
    h = x.sin()
    if h.sum() > 100:
        h = h * 3
    elif h.max() > 0.5 and h.min() < 0:
        h = h.exp()
    if h.mean() > 10 or h.abs().max() > 0.25:
        h = h.tanh()
    return h * h


def dropped(x: Tensor) -> Tensor:
    h = x.sin()
    if h.sum() > 100:
        h = F.dropout(h, 0.5)
    return h * h.cos()


def in_place(x: Tensor) -> Tensor:
    h = x.sin() + 1
    if h.sum() > 0:
        h.mul_(2)
    return h.exp()


def masked_store(x: Tensor) -> Tensor:
    h = x * 2
    m = h < 0
    if m.any():
        h[m] = 0
    return h.exp()


def masked_sum(x: Tensor) -> Tensor:
    return x[x > 0].sum() * x.sin()


def normed(x: Tensor) -> Tensor:
    return x.sin() / x.norm().item()


def listed(x: Tensor) -> Tensor:
    a, b = x.detach().flatten()[:2].tolist()
    return x.sin() * a + x.cos() * b


def spoken(x: Tensor) -> Tensor:
    y = x.sin()
    if y.max() > 100:
        raise ValueError(f"too large: {y.max()}")
    print("norm", y.detach().norm())  # noqa: T201
    return y.exp()


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
            if x.isnan().any():
                x = x.nan_to_num()
            x = x / x.abs().max().item()
        return x


PROGRAMS: list[Callable[[Tensor], Tensor]] = [
    guarded,
    chained,
    dropped,
    in_place,
    masked_store,
    masked_sum,
    normed,
    listed,
    spoken,
]


def _x() -> Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(3), requires_grad=True)


def _gradients(function: Any, leaves: list[Tensor], call: Callable[..., Tensor]) -> list[Tensor]:
    torch.manual_seed(0)
    result = call(function, leaves[0])
    return [result.detach(), *torch.autograd.grad(result.square().sum(), leaves)]


def _checkpointed(function: Any, x: Tensor) -> Tensor:
    result = checkpoint(function, x, use_reentrant=False)
    assert isinstance(result, Tensor)
    return result


def _in_numpy(function: Any, x: Tensor) -> Tensor:
    with saved_tensors_hooks(lambda t: t.detach().numpy().copy(), torch.from_numpy):
        result = function(x)
    assert isinstance(result, Tensor)
    return result


@pytest.mark.sampled(3)
@pytest.mark.parametrize("call", [_checkpointed, _in_numpy])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.filterwarnings("error::fusepass.errors.CaptureFault")
def test_programs_under_hooks(
    program: Callable[[Tensor], Tensor], call: Callable[..., Tensor]
) -> None:
    compiled = torch.compile(program, backend="fusepass")
    for _ in range(2):
        x = _x()
        want = _gradients(program, [x], lambda function, x: function(x))
        torch.testing.assert_close(_gradients(compiled, [x], call), want)
    report = fusepass.last_report(compiled)
    if program is dropped:  # its arm draws random numbers and is trained, so the branch is kept
        return
    assert report.graph_breaks == ()
    captured = [d for d in report.decisions if d.station == "capture"]
    assert captured
    assert all(d.outcome == "applied" for d in captured)


@pytest.mark.filterwarnings("error::fusepass.errors.CaptureFault")
def test_layers_in_a_checkpoint_each() -> None:
    layers, x = Layers(), _x()
    compiled = torch.compile(copy.deepcopy(layers), backend="fusepass")
    want = _gradients(layers, [x, *layers.parameters()], lambda function, x: function(x))
    found = _gradients(compiled, [x, *compiled.parameters()], _checkpointed)
    torch.testing.assert_close(found, want)
    assert fusepass.last_report(compiled).graph_breaks == ()


def test_a_checkpoint_inside() -> None:
    def outer(x: Tensor) -> Tensor:
        return _checkpointed(guarded, x.cos())

    x = _x()
    want = _gradients(outer, [x], lambda function, x: function(x))
    compiled = torch.compile(outer, backend="fusepass")
    torch.testing.assert_close(_gradients(compiled, [x], _checkpointed), want)


def test_hooks_meet_the_same_tensors_in_each_call() -> None:
    kinds: list[list[type]] = []

    def pack(tensor: Tensor) -> Tensor:
        kinds[-1].append(type(tensor))
        return tensor

    compiled = torch.compile(chained, backend="fusepass")
    for _ in range(2):
        kinds.append([])
        with saved_tensors_hooks(pack, lambda tensor: tensor):
            compiled(_x())
    assert kinds[0] == kinds[1]
    assert set(kinds[0]) == {Tensor}


def test_hooks_that_the_program_sets_are_called_as_in_eager() -> None:
    packed: list[list[float]] = []

    def pack(tensor: Tensor) -> list[float]:
        packed.append(tensor.flatten().tolist())
        return packed[-1]

    def program(x: Tensor) -> Tensor:
        y = guarded(x)
        with saved_tensors_hooks(pack, lambda numbers: 3 * torch.tensor(numbers).view(4, 8)):
            y = y.sin()
        return guarded(y)

    x = _x()
    want = _gradients(program, [x], lambda function, x: function(x))
    of_eager = list(packed)
    compiled = torch.compile(program, backend="fusepass")
    for _ in range(2):
        packed.clear()
        found = _gradients(compiled, [x], lambda function, x: function(x))
        torch.testing.assert_close(found, want)
        torch.testing.assert_close(packed, of_eager)


def _rests() -> bool:
    """Whether hooks are not called now."""
    called: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        called.append(tensor)
        return tensor

    with torch.enable_grad(), saved_tensors_hooks(pack, lambda tensor: tensor):
        torch.ones(1, requires_grad=True).exp()
    return not called


def test_they_rest_while_it_lasts_and_are_called_again_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), saving_unhooked():
        with saving_unhooked():
            assert _rests()
        assert _rests()
        raise ZeroDivisionError
    assert not _rests()


def test_a_trace_that_fails_leaves_them_called() -> None:
    def fails(x: Tensor) -> Tensor:
        return guarded(x) @ torch.ones(3, 3)

    with pytest.raises(RuntimeError):
        torch.compile(fails, backend="fusepass", fullgraph=True)(_x())
    assert not _rests()


def test_frames_of_other_backends_are_traced_as_ever() -> None:
    seen: list[bool] = []

    def asked(gm: torch.fx.GraphModule, inputs: Any, **_: Any) -> Any:
        seen.append(_rests())
        return gm.forward

    torch.compile(lambda x: x + 1, backend=asked)(_x())
    assert seen == [False]


@pytest.mark.parametrize("options", [{"codegen": "eager"}, {}], ids=["eager", "inductor"])
def test_hooks_that_save_in_another_type_do_not_get_predicates(options: dict[str, Any]) -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        y = x @ w
        if y.abs().max() > 1:
            y = y.sin()
        else:
            y = y.cos()
        z = y @ w
        if z.sum() > 0:
            z = z * y.exp()
        return z @ w

    compiled = torch.compile(program, backend="fusepass", options=options)
    torch.manual_seed(2)
    w = torch.randn(4, 4)
    for scale in (1.0, 0.01):
        gradients = []
        for run in (program, compiled):
            x = (scale * torch.arange(16.0).reshape(4, 4)).requires_grad_()
            with saved_tensors_hooks(Tensor.double, Tensor.float):
                y = run(x, w)
            y.sum().backward()
            gradients.append(x.grad)
        torch.testing.assert_close(gradients[1], gradients[0])
