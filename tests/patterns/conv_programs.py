"""Programs with convolutions, batch norms and ReLUs, compared with eager."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._inductor.decomposition import select_decomp_table
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import fusepass
from fusepass.inductor.passes import rewrite_aten
from fusepass.numerics import error_bound, half_ulp, passes, rms, rms_error
from fusepass.options import Options

OPTIONS = {"codegen": "eager-decomposed", "candidate": "reference"}
CHANNELS = 12


def norm(channels: int = CHANNELS, **given: Any) -> nn.BatchNorm2d:
    """One that has been trained: no number of it is 0 or 1."""
    made = nn.BatchNorm2d(channels, **given)
    if made.running_mean is not None and made.running_var is not None:
        made.running_mean.normal_(0, 0.3)
        made.running_var.uniform_(0.5, 2)
    if made.affine:
        nn.init.uniform_(made.weight, -1.5, 1.5)
        nn.init.normal_(made.bias)
    return made


class Layer(nn.Module):
    """Convolution, what follows it, ReLU; ``around`` is given both and the input."""

    def __init__(
        self,
        around: Callable[[Layer, Tensor, Tensor], Tensor],
        *,
        channels: int = CHANNELS,
        inputs: int = 0,
        width: int = 3,
        bias: bool = False,
        **given: Any,
    ) -> None:
        super().__init__()
        given.setdefault("padding", width // 2)
        inputs = inputs or channels
        self.conv = nn.Conv2d(inputs, channels, width, bias=bias, **given)
        self.shortcut = nn.Conv2d(inputs, channels, 1, bias=False)
        self.norm, self.norm2, self.around = norm(channels), norm(channels), around
        self.scale = nn.Parameter(torch.randn(channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.around(self, self.conv(x), x)


def plain(layer: Layer, y: Tensor, x: Tensor) -> Tensor:
    return F.relu(layer.norm(y))


def residual(layer: Layer, y: Tensor, x: Tensor) -> Tensor:
    return F.relu(layer.norm(y) + x)


def residual_first(layer: Layer, y: Tensor, x: Tensor) -> Tensor:
    return F.relu(x + layer.norm(y))


def shortcut(layer: Layer, y: Tensor, x: Tensor) -> Tensor:
    return F.relu(layer.norm(y) + layer.norm2(layer.shortcut(x)))


def shortcut_without_norm(layer: Layer, y: Tensor, x: Tensor) -> Tensor:
    return F.relu(layer.shortcut(x) + layer.norm(y))


def bare(layer: Layer, y: Tensor, x: Tensor) -> Tensor:
    return y.relu()


def scaled(layer: Layer, y: Tensor, x: Tensor) -> Tensor:
    return torch.relu(0.5 - layer.scale * y / 3)


def normed_twice(layer: Layer, y: Tensor, x: Tensor) -> Tensor:
    return F.relu(layer.norm2(layer.norm(y)))


def shared_norm(layer: Layer, y: Tensor, x: Tensor) -> Tensor:
    return F.relu(layer.norm(y) + layer.norm(layer.shortcut(x)))


AROUND: dict[str, Callable[[Layer, Tensor, Tensor], Tensor]] = {
    function.__name__: function
    for function in (
        plain,
        residual,
        residual_first,
        shortcut,
        shortcut_without_norm,
        bare,
        scaled,
        normed_twice,
        shared_norm,
    )
}


def aten_graph(module: nn.Module, x: Tensor, *rules: str) -> str:
    """The graph of a module after autograd, as some rules for convolutions leave it."""
    given = dict(module.named_parameters()) | dict(module.named_buffers())
    call = partial(torch.func.functional_call, module)
    with torch.no_grad():
        gm = make_fx(call, select_decomp_table(), tracing_mode="fake")(given, (x,))
    names = ("conv_relu", "depthwise", "conv_1x1", "conv_region", "horizontal")
    options = Options(candidate="reference", rules={name: name in rules for name in names})
    rewrite_aten(gm.graph, options, ())
    gm.graph.lint()
    return str(gm.graph)


def applied(compiled: Any, rule: str = "conv_relu") -> int:
    """How often a rule was applied."""
    decisions = fusepass.last_report(compiled).decisions
    return Counter(one.rule for one in decisions if one.outcome == "applied")[rule]


def agrees(
    module: nn.Module, x: Tensor, *, train: bool = False, options: Any = OPTIONS
) -> tuple[Tensor, int]:
    """The result, held to eager's in value, dtype and strides; and how often the rule acted.

    With ``train``, gradients of x and of all parameters, too.
    """
    compiled = torch.compile(module, backend="fusepass", options=options)
    wide = copy.deepcopy(module).double()
    if not train:
        with torch.no_grad():
            got, want, exact = compiled(x), module(x), wide(x.double())
        check(got, want, exact)
        return got, applied(compiled)
    gradient = torch.randn_like(module(x))

    def stepped(call: Callable[[Tensor], Tensor], dtype: torch.dtype) -> list[Tensor]:
        given = x.to(dtype).detach().clone().requires_grad_()
        of = wide if dtype is torch.float64 else module
        of.zero_grad()
        out = call(given)
        out.backward(gradient.to(dtype))
        grads = [p.grad for p in of.parameters() if p.grad is not None]
        return [out.detach(), given.grad, *grads]  # type: ignore[list-item]

    made = stepped(compiled, x.dtype), stepped(module, x.dtype), stepped(wide, torch.float64)
    for got, want, exact in zip(*made, strict=True):
        check(got, want, exact)
    return made[0][0], applied(compiled)


def check(got: Tensor, want: Tensor, exact: Tensor) -> None:
    """The error rule, and everything about a tensor besides its values."""
    assert (got.dtype, got.shape, got.stride()) == (want.dtype, want.shape, want.stride())
    if not got.numel():
        return
    finite = exact.isfinite()
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.isfinite(), want.isfinite())
    got, want, exact = got[finite], want[finite], exact[finite]
    if not got.numel():
        return
    bound = error_bound(half_ulp(got.dtype, rms(exact)), rms_error(want, exact), None)
    assert passes(rms_error(got, exact), bound), (rms_error(got, exact), bound)
