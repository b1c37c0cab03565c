"""Programs with products and pointwise work around them, compared with eager."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fusepass
from fusepass.numerics import error_bound, half_ulp, passes, rms, rms_error

OPTIONS = {"codegen": "eager-decomposed", "candidate": "reference"}
RULES = ("gated_gemm", "gemm_epilogue")
M, K, N = 72, 16, 24  # more rows than are few
Activation = Callable[[Tensor], Tensor]


class Gated(nn.Module):
    """The first half of a gated MLP, with two weights or one packed."""

    def __init__(
        self,
        act: Activation,
        combine: Callable[..., Tensor],
        packed: str,
        *,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.act, self.combine, self.packed = act, combine, packed
        if packed:
            self.both = nn.Linear(K, 2 * N, bias=bias)
        else:
            self.gate, self.up = nn.Linear(K, N, bias=bias), nn.Linear(K, N, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.packed == "chunk":
            gate, up = self.both(x).chunk(2, dim=-1)
        elif self.packed == "split":
            gate, up = self.both(x).split(N, dim=-1)
        elif self.packed == "slices":
            both = self.both(x)
            gate, up = both[..., :N], both[..., N:]
        elif self.packed == "alternating":
            both = self.both(x)
            gate, up = both[..., ::2], both[..., 1::2]
        elif self.packed == "alternating, taken apart":
            gate, up = self.both(x).unflatten(-1, (N, 2)).unbind(-1)
        elif self.packed == "alternating, each taken":
            both = self.both(x).view(*x.shape[:-1], N, 2)
            gate, up = both[..., 0], both[..., 1]
        elif self.packed == "second":
            up, gate = self.both(x).chunk(2, dim=-1)
        else:
            gate, up = self.gate(x), self.up(x)
        return self.combine(self.act(gate), up)


def gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


PACKED = (
    "",
    "chunk",
    "split",
    "slices",
    "second",
    "alternating",
    "alternating, taken apart",
    "alternating, each taken",
)
ACTIVATIONS: dict[str, Activation] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": gelu_tanh,
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "squared_relu": lambda x: F.relu(x).square(),
    "leaky": lambda x: F.leaky_relu(x, 0.1),
    "elu": F.elu,
    "hardswish": F.hardswish,
    "clamped": lambda x: x.clamp(-1, 2),
    "bilinear": lambda x: x + 0,
}
COMBINED: dict[str, Callable[..., Tensor]] = {
    "product": torch.mul,
    "difference": lambda a, b: b - a,
    "maximum": torch.maximum,
    "scaled": lambda a, b: 0.5 * a * (b + 1),
}


class Linear(nn.Module):
    """One linear layer, with what stands around it."""

    def __init__(self, after: Callable[[Tensor, Tensor], Any], *, bias: bool = True) -> None:
        super().__init__()
        self.linear, self.after = nn.Linear(K, N, bias=bias), after
        self.scale = nn.Parameter(torch.rand(N) + 0.5)
        self.out = nn.Linear(N, K)

    def forward(self, x: Tensor) -> Any:
        return self.after(self.linear(x), self.scale)


AROUND: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "hardswish": lambda h, s: F.hardswish(h),
    "scaled by a row": lambda h, s: F.relu6(h * s),
    "half of it": lambda h, s: h * 0.5,
    "two results": lambda h, s: (h * 2, F.relu(h)),
    "itself too": lambda h, s: (h, F.hardswish(h) * s),
    # at the bound a rounding decides whether there is a gradient: it stays out of reach
    "clamped, of a power": lambda h, s: (h**2).clamp_max(1e3) - h,
    "a comparison": lambda h, s: torch.where(h > 0.2, h, h.abs() / 4),
    "of its columns": lambda h, s: h / (1 + s.abs()),
    "a number per row": lambda h, s: h * torch.arange(h.shape[-2]).to(h.dtype).unsqueeze(-1),
}
SCALED: dict[str, Callable[..., Tensor]] = {
    "both": lambda b, x, w: F.elu(torch.addmm(b, x, w, alpha=0.5, beta=3)),
    "without the bias": lambda b, x, w: F.elu(torch.addmm(b * float("nan"), x, w, beta=0)),
    "the product": lambda b, x, w: F.elu(torch.addmm(b, x, w, alpha=-2)),
    "a matrix": lambda b, x, w: torch.addmm(b.expand(x.shape[0], -1).clone(), x, w, beta=0.5) + 1,
}
REDUCED: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "a sum per row": lambda h, s: F.elu(h).sum(-1),
    "a sum per column": lambda h, s: (h * s).sum(tuple(range(h.dim() - 1))),
    "kept dimensions": lambda h, s: (h, F.hardswish(h).sum(-1, keepdim=True)),
    "the product alone": lambda h, s: (h, h.sum(-1)),
    "the largest of each row": lambda h, s: (h * 2, (h * 2).amax(-1)),
    "the largest of each column": lambda h, s: h.abs().flatten(0, -2).amax(0, keepdim=True),
    "both ways": lambda h, s: (h.square().sum(-1), (h * h).flatten(0, -2).sum(0)),
    "in single precision": lambda h, s: (h.float() ** 2).sum(-1),
    "another dtype": lambda h, s: (h * s).sum(-1, dtype=torch.float32),
    "more than can be taken": lambda h, s: (h * 2, h.sum(-1), h.amax(-1), (h * 2).sum(-1)),
    "of an operand too": lambda h, s: (h * s.relu(), s.relu().expand_as(h).sum(-1)),
    "what follows is outside": lambda h, s: h * 2 + (h * 2).sum(-1, keepdim=True),
}
NOT: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "a sum of everything": lambda h, s: h.sum(),
    "a sum of some rows": lambda h, s: h.view(3, -1, h.shape[-1]).sum(1),
    "a mean": lambda h, s: h.mean(-1),
    "the largest before it is rounded": lambda h, s: h.float().amax(-1),
    "in double precision": lambda h, s: h.sum(-1, dtype=torch.float64),
    "its transpose": lambda h, s: h.transpose(-1, -2) * 2,
    "other columns": lambda h, s: h.roll(1, -1) * 2,
    "a sort": lambda h, s: h.sort(-1).values,
    "another shape": lambda h, s: h.reshape(-1)[: K * 2].reshape(K, 2) * 2,
    "integers": lambda h, s: h.int() * 2,
    "nothing": lambda h, s: h,
    "too many results": lambda h, s: (h, h * 2, h * 3, h * 4),
}


def applied(compiled: Any, rules: tuple[str, ...] = RULES) -> Counter[str]:
    report = fusepass.last_report(compiled)
    found = (one.rule for one in report.decisions if one.outcome == "applied" and one.rule in rules)
    return Counter(found)


def agrees(
    module: nn.Module,
    x: Tensor,
    *,
    train: bool,
    codegen: str = "eager-decomposed",
    rules: tuple[str, ...] = RULES,
) -> tuple[Any, Counter[str]]:
    """Compare with eager by the error rule, gradients included."""
    module = module.to(x.dtype)
    options = {**OPTIONS, "codegen": codegen}
    compiled = torch.compile(module, backend="fusepass", options=options)
    x = x.requires_grad_(train)
    leaves = [x, *module.parameters()] if train else []

    def run(function: Callable[..., Any], x: Tensor) -> list[Tensor]:
        with torch.set_grad_enabled(train):
            outs = function(x)
            outs = list(outs) if isinstance(outs, (tuple, list)) else [outs]
        if train:
            floating = [out for out in outs if out.requires_grad]
            total = sum((out.double() * out.double().cos().detach()).sum() for out in floating)
            given = [x, *module.parameters()]
            outs += [
                g for g in torch.autograd.grad(total, given, allow_unused=True) if g is not None
            ]
        return [out.detach() for out in outs]

    got, eager = run(compiled, x), run(module, x)
    module.double()
    exact = run(module, x.detach().double().requires_grad_(train))
    module.to(x.dtype)
    for mine, theirs, truth in zip(got, eager, exact, strict=True):
        assert mine.dtype == theirs.dtype
        assert mine.shape == theirs.shape
        assert mine.stride() == theirs.stride()
        if mine.dtype.is_floating_point:
            bound = error_bound(half_ulp(mine.dtype, rms(truth)), rms_error(theirs, truth), None)
            assert passes(rms_error(mine, truth), bound)
        else:
            assert torch.equal(mine, theirs)
    assert len(leaves) == 0 or x.grad is None
    return compiled, applied(compiled, rules)


# Without Inductor's choice of what to save (codegen="eager-decomposed") every value between is saved
# in training: then there are too many results, and only the numbers are compared.
