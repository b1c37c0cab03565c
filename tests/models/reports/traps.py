"""Programs where a rewrite by hand goes wrong."""

from __future__ import annotations

import logging
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .report import InputSets, Reports, drawn

REPORTS = Reports()
GITHUB = "https://github.com/"
log = logging.getLogger("outside")


def signs() -> InputSets:
    return [(drawn(3).abs() + 0.1,), (-drawn(3).abs() - 0.1,), (torch.zeros(3),)]


@REPORTS.of(GITHUB + "pytorch/pytorch/issues/187297", signs, grad=True)
def square_root_of_positive(x: Tensor) -> Tensor:
    if (x > 0).all():
        return x.sqrt().sum()
    return (x * 2).sum()


@REPORTS.of(GITHUB + "jax-ml/jax/issues/347", signs, grad=True)
def divides_if_not_zero(x: Tensor) -> Tensor:
    total = x.sum()
    if total != 0:
        x = x / total
    return x.exp()


@REPORTS.of(GITHUB + "pytorch/pytorch/issues/2421", signs, grad=True)
def normalizes_a_norm(x: Tensor) -> Tensor:
    n = x.pow(2).sum().sqrt()
    return x / n if n > 0 else x


@REPORTS.of(GITHUB + "tinygrad/tinygrad/issues/12409", signs, grad=True)
def power_of_a_learned(x: Tensor) -> Tensor:
    y = x**2
    if y.sum() > 1e-3:
        y = y.log().mean() + y.sum() ** 0.3
    return y


@REPORTS.of(GITHUB + "pytorch/pytorch/issues/153832", signs)
def result_is_the_input(x: Tensor) -> tuple[Tensor, bool]:
    y = x if x.sum() > 0 else x.clone()
    y.add_(1)
    return y, y is x


@REPORTS.of(GITHUB + "pytorch/pytorch/issues/153832", signs)
def adds_in_place_or_not(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x
    if x.sum() > 0:
        y += 1
    else:
        y = y + 1
    return x * 2, y


@REPORTS.of(GITHUB + "pytorch/pytorch/issues/98533", signs)
def writes_through_a_view(x: Tensor) -> tuple[Tensor, Tensor]:
    view = x[1:]
    if x.sum() > 0:
        view.mul_(0)
    return x, view


@REPORTS.of(GITHUB + "pytorch/pytorch/issues/193810", signs)
def view_or_copy(x: Tensor) -> Tensor:
    out = x.view(3, 1)
    if x.sum() < 0:
        out = out.expand(3, 2)
    return out


@REPORTS.of(GITHUB + "pytorch/pytorch/pull/180406", signs)
def half_in_one_arm(x: Tensor) -> Tensor:
    if x.sum() > 0:
        x = x.half()
    return x + 1


@REPORTS.of(GITHUB + "pytorch/pytorch/pull/157161", signs)
def integer_in_one_arm(x: Tensor) -> Tensor:
    return x.long() if x.sum() > 0 else x


@REPORTS.of(GITHUB + "pytorch/pytorch/issues/95425", signs)
def draws_in_one_arm(x: Tensor) -> tuple[Tensor, Tensor]:
    if x.sum() > 0:
        x = F.dropout(x, 0.5)
    return x, torch.rand(2)


@REPORTS.of(GITHUB + "pytorch/pytorch/issues/121350", signs)
def draws_by_generator(x: Tensor) -> Tensor:
    g = torch.Generator().manual_seed(1)
    if x.sum() > 0:
        x = x + torch.rand(3, generator=g)
    return x + torch.rand(3, generator=g)


@REPORTS.of(GITHUB + "pytorch/pytorch/pull/93415", signs)
def raises_after_a_write(x: Tensor) -> Tensor:
    x.add_(1)
    if x.sum() < 0:
        raise ValueError("negative")
    return x.sqrt()


@REPORTS.of(GITHUB + "pytorch/pytorch/pull/93415", signs)
class CountsThenRaises(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bad", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        if not (x > 0).all():
            self.bad += 1
            raise ValueError("not positive")
        return x.log()


@REPORTS.of(
    GITHUB + "pytorch/pytorch/issues/147672",
    lambda: [(torch.tensor([7, 8]), torch.tensor(2)), (torch.tensor([7, 8]), torch.tensor(0))],
)
def integer_division(x: Tensor, by: Tensor) -> Tensor:
    if by != 0:
        return x // by
    return x


@REPORTS.of(
    GITHUB + "pytorch/pytorch/issues/173915",
    lambda: [
        (drawn(4), torch.tensor(2)),
        (drawn(4), torch.tensor(9)),
        (drawn(4), torch.tensor(-1)),
    ],
)
def index_in_range(x: Tensor, i: Tensor) -> Tensor:
    if 0 <= i < 4:
        return x[i]
    return x.new_zeros(())


@REPORTS.of(
    GITHUB + "huggingface/transformers",
    lambda: [(torch.tensor([0, 2]),), (torch.tensor([0, 7]),)],
)
class EmbedsKnownTokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 2)

    def forward(self, ids: Tensor) -> Tensor:
        if (ids < 4).all():
            return self.table(ids)
        return torch.zeros(2, 2)


@REPORTS.of(
    GITHUB + "cornellius-gp/gpytorch/pull/610", lambda: [(torch.eye(2),), (torch.ones(2, 2),)]
)
def inverts_or_not(m: Tensor) -> Tensor:
    if torch.linalg.det(m) != 0:
        return torch.linalg.inv(m)
    return torch.linalg.pinv(m)


@REPORTS.of(
    GITHUB + "cornellius-gp/gpytorch/pull/765", lambda: [(torch.eye(2),), (torch.ones(2, 2),)]
)
def inverts_in_a_try(m: Tensor) -> Tensor:
    try:
        if m.sum() > 2:
            m = torch.linalg.inv(m)
    except RuntimeError:
        m = torch.zeros(2, 2)
    return m * 2


@REPORTS.of(GITHUB + "pytorch/pytorch/issues/193810", signs)
def asks_for_identity(x: Tensor) -> tuple[Tensor, bool]:
    y = x
    if x.sum() > 0:
        y = x * 2
    changed = y is not x
    return y, changed


@REPORTS.of(GITHUB + "pytorch/pytorch/issues/141301", signs, grad=True)
def detached_in_one_arm(x: Tensor) -> tuple[Tensor, bool]:
    y = x.detach() if x.sum() > 0 else x * 1
    return y, y.requires_grad


@REPORTS.of(GITHUB + "pytorch/pytorch/issues/141301", signs, grad=True)
def no_grad_in_one_arm(x: Tensor) -> Tensor:
    y = x.exp()
    if y.sum() > 4:
        with torch.no_grad():
            y = y / y.sum()
    return y * 2 + x


@REPORTS.of(
    GITHUB + "pytorch/pytorch/issues/141259", lambda: [(drawn(2, 3),), (-drawn(2, 3).abs(),)]
)
def transposed_in_one_arm(x: Tensor) -> tuple[Tensor, bool]:
    y = x.t() if x.sum() > 0 else x.reshape(3, 2)
    return y, y.is_contiguous()


@REPORTS.of(
    GITHUB + "pytorch/pytorch/issues/141259",
    lambda: [(drawn(1, 2, 2, 2),), (-drawn(1, 2, 2, 2).abs(),)],
)
def channels_last_in_one_arm(x: Tensor) -> Tensor:
    if x.mean() > -0.3:
        x = x.contiguous(memory_format=torch.channels_last)
    return x * 2


@REPORTS.of(GITHUB + "kornia/kornia/pull/4109", signs)
def empty_in_one_arm(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x[:0]
    return x


@REPORTS.of(
    GITHUB + "open-mmlab/mmdeploy/pull/42",
    lambda: [(drawn(3), torch.tensor(True)), (torch.empty(0), torch.tensor(False))],
)
def largest_of_maybe_none(x: Tensor, some: Tensor) -> Tensor:
    if some:
        return x.max()
    return torch.tensor(-1.0)


@REPORTS.of(
    GITHUB + "ultralytics/ultralytics/pull/25097",
    lambda: [(drawn(2, 3), drawn(3)), (drawn(2, 3), -drawn(3))],
)
def autocast_in_one_arm(x: Tensor, w: Tensor) -> Tensor:
    if w.sum() > 0:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ x.T
    else:
        y = x @ x.T
    return y.float()


@REPORTS.of(GITHUB + "pytorch/pytorch/issues/119186", signs)
def predicate_of_many(x: Tensor) -> Tensor:
    if x > 0:
        return x
    return -x


@REPORTS.of(
    GITHUB + "pytorch/torchdynamo/issues/1767",
    lambda: [(torch.tensor(v), drawn(2)) for v in (0.0, 2.0, float("nan"))],
)
def truth_of_a_number(x: Tensor, y: Tensor) -> Tensor:
    z = x or y.sum()
    if not x:
        z = z + 1
    return z


@REPORTS.of(
    GITHUB + "pytorch/torchdynamo/issues/1767",
    lambda: [(torch.tensor(v), torch.tensor(w)) for v, w in ((0.0, 1.0), (2.0, 0.0), (2.0, 3.0))],
)
def and_returns_an_operand(x: Tensor, y: Tensor) -> Tensor:
    z = x and y
    return z


@REPORTS.of(GITHUB + "pytorch/torchdynamo/issues/96", signs)
def unbound_in_one_arm(x: Tensor) -> Tensor:
    if x.sum() > 0:
        scale = x.max()
    return x * scale


@REPORTS.of(GITHUB + "pytorch/torchdynamo/issues/1883", signs)
def walrus(x: Tensor) -> Tensor:
    if (largest := x.max()) > 0:
        x = x / largest
    return x + largest


@REPORTS.of(GITHUB + "pytorch/pytorch/issues/119186", signs)
def comprehension_over_items(x: Tensor) -> Tensor:
    return torch.stack([v if v > 0 else -2 * v for v in x])


@REPORTS.of(GITHUB + "pytorch/pytorch/issues/46849", signs)
def builtin_any(x: Tensor) -> Tensor:
    parts = [x, x * 2, x - 1]
    if any(torch.isnan(p).any() or (p < -2).any() for p in parts):
        return x * 0
    return sum(parts)


@REPORTS.of(GITHUB + "pytorch/pytorch/issues/46849", signs)
def builtin_all_of_list(x: Tensor) -> tuple[Tensor, bool]:
    ok = all([torch.isfinite(x).all(), (x > 0).all()])
    return x * 2, ok


@REPORTS.of(GITHUB + "pytorch/pytorch/issues/135632", signs)
def builtin_max(x: Tensor) -> Tensor:
    a, b, c = x.unbind()
    return max(a, b, c) - min([a, b, c])


@REPORTS.of(GITHUB + "pytorch/pytorch/issues/135632", signs)
def sorts_tensors(x: Tensor) -> Tensor:
    return torch.stack(sorted(x.unbind()))


@REPORTS.of(GITHUB + "rosinality/glow-pytorch/issues/46", signs)
class PropertyFlag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("_init", torch.tensor(False))
        self.register_buffer("offset", torch.zeros(3))

    @property
    def initialized(self) -> bool:
        return bool(self._init.item())

    @initialized.setter
    def initialized(self, value: bool) -> None:
        self._init.fill_(value)

    def forward(self, x: Tensor) -> Tensor:
        if not self.initialized:
            self.offset.copy_(x)
            self.initialized = True
        return x - self.offset


@REPORTS.of(GITHUB + "lucidrains/vector-quantize-pytorch/issues/162", signs)
class RebindsData(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.weight.norm() > 1:
            self.weight.data = self.weight.data * 0.5
        return x * self.weight


@REPORTS.of(GITHUB + "pytorch/pytorch/issues/158643", signs, grad=True)
def saved_then_written(x: Tensor) -> Tensor:
    y = x.exp()
    if x.sum() > 0:
        y.mul_(2)
    return y


@REPORTS.of(GITHUB + "pytorch/pytorch/issues/141301", signs, grad=True)
def hook_in_one_arm(x: Tensor) -> Tensor:
    y = x * 2
    if x.sum() > 0:
        if y.requires_grad:
            y.register_hook(lambda g: g * 0.5)
    return y.sin()


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 3


@REPORTS.of(GITHUB + "EnzymeAD/Enzyme.jl/issues/2285", signs, grad=True)
def custom_function_in_one_arm(x: Tensor) -> Tensor:
    if x.sum() > 0:
        x = Double.apply(x)
    return x + 1


SEEN: list[float] = []
COUNT = 0


@REPORTS.of(GITHUB + "pytorch/torchdynamo/issues/96", signs, state=lambda m: COUNT)
def binds_a_global(x: Tensor) -> Tensor:
    global COUNT
    if x.sum() > 0:
        COUNT = 1
    return x * 2


@REPORTS.of(GITHUB + "pytorch/pytorch/issues/18133", signs)
def message_with_values(x: Tensor) -> Tensor:
    if (x <= 0).any():
        raise ValueError(f"need positive values, got {x.tolist()} of shape {tuple(x.shape)}")
    return x.log()


@REPORTS.of(GITHUB + "pytorch/pytorch/issues/18133", signs)
def raises_from_another(x: Tensor) -> Tensor:
    if x.max() <= 0:
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise ValueError("outer") from error
    return x


@REPORTS.of(GITHUB + "pytorch/pytorch/issues/93739", signs)
def logs_with_arguments(x: Tensor) -> Tensor:
    if x.min() < 0:
        log.warning("min is %s, max is %.3f", x.min(), x.max().item())
    return x.abs()


@REPORTS.of(GITHUB + "pytorch/pytorch/issues/93739", signs)
def prints_a_tensor_then_changes_it(x: Tensor) -> Tensor:
    if x.min() < 0:
        print("before", x)
        x.abs_()
        print("after", x)
    return x


@REPORTS.of(GITHUB + "pytorch/pytorch/issues/93579", signs)
def finally_runs(x: Tensor) -> Tensor:
    out = x
    try:
        if x.sum() > 0:
            return out * 2
        out = out - 1
    finally:
        out.add_(1)
    return out


@REPORTS.of(GITHUB + "pytorch/torchdynamo/issues/96", signs)
def matches(x: Tensor) -> Tensor:
    kind = "none"
    if x.sum() > 0:
        kind = "up"
    elif x.sum() < 0:
        kind = "down"
    match kind:
        case "up":
            return x * 2
        case "down":
            return x * 3
    return x + 7


@REPORTS.of(GITHUB + "pytorch/pytorch/issues/105863", signs)
def pops_a_key(x: Tensor) -> dict[str, Tensor]:
    out = {"a": x, "b": x + 1}
    if x.sum() > 0:
        out.pop("b")
    out.setdefault("b", x - 1)
    return out


@REPORTS.of(GITHUB + "pytorch/pytorch/issues/105863", signs)
def defaults_from_get(x: Tensor) -> Tensor:
    options: dict[str, Any] = {}
    if x.sum() > 0:
        options["scale"] = 2.0
    return x * options.get("scale", 1.0)


@REPORTS.of(GITHUB + "huggingface/trl/pull/6842", signs)
def is_a_tensor(x: Tensor) -> Any:
    loss: Any = 0.0
    if x.sum() > 0:
        loss = loss + x.mean()
    if isinstance(loss, Tensor):
        return loss * 2
    return loss


@REPORTS.of(
    GITHUB + "pytorch/pytorch/issues/153832",
    lambda: [(x := drawn(3), x), (drawn(3), -drawn(3)), (x := drawn(3), x[:])],
)
def same_memory_twice(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    if a.sum() == b.sum():
        a.add_(1)
    return a * 2, b * 3


@REPORTS.of(
    GITHUB + "ultralytics/ultralytics/pull/25097",
    lambda: [(torch.tensor([0.1, 0.3]).half(),), (torch.tensor([0.1, 2.0]).half(),)],
)
def half_against_a_number(x: Tensor) -> Tensor:
    if x.max().item() > 0.3:
        return x * 2
    return x + 1e-5


@REPORTS.of(
    GITHUB + "pytorch/tutorials/pull/3244", lambda: [(torch.tensor(2**53 + 1),), (torch.tensor(5),)]
)
def large_integer(n: Tensor) -> Tensor:
    if n.item() > 2.0**53:
        return n + 1
    return n - 1


@REPORTS.of(
    GITHUB + "pytorch/pytorch/issues/144691",
    lambda: [(torch.tensor(v),) for v in (0, 3, 5)],
    state=None,
)
def number_in_a_shape(n: Tensor) -> Tensor:
    if n > 2:
        return torch.zeros(2)
    return torch.ones(int(n) + 1)


@REPORTS.of(GITHUB + "pytorch/pytorch/issues/158642", signs)
def rounds_a_number(x: Tensor) -> str:
    value = round(x.mean().item(), 3)
    return f"{value:.3f}" if value > 0 else "none"


@REPORTS.of(GITHUB + "pytorch/pytorch/issues/98533", signs)
def swaps(x: Tensor) -> tuple[Tensor, Tensor]:
    a, b = x, x + 1
    if x.sum() > 0:
        a, b = b, a
    a = a * 2
    return a, b


@REPORTS.of(GITHUB + "pytorch/pytorch/issues/141259", signs)
def complex_in_one_arm(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return torch.fft.rfft(x).real
    return x[:2] * 1


@REPORTS.of(GITHUB + "pytorch/pytorch/issues/158642", signs, grad=True)
def requires_grad_in_one_arm(x: Tensor) -> Tensor:
    y = x.detach() * 2
    if x.sum() > 0:
        y.requires_grad_(True)
    return y


@REPORTS.of(GITHUB + "pytorch/pytorch/issues/105863", signs)
def set_default_in_one_arm(x: Tensor) -> Tensor:
    if x.sum() > 0:
        torch.set_num_threads(torch.get_num_threads())
        x = x * 2
    return x


@REPORTS.of(GITHUB + "tensorflow/tensorflow/issues/38349", signs, grad=True)
def clamps_by_learned_bounds(x: Tensor) -> Tensor:
    low, high = x.min(), x.max()
    if low < high:
        x = (x - low) / (high - low)
    return x.clamp(0, 1)


@REPORTS.of(GITHUB + "pytorch/pytorch/issues/2421", signs, grad=True)
def norm_then_scale(x: Tensor) -> Tensor:
    n = x.norm()
    if n > 1.0:
        x = x * (1.0 / n)
    return x


@REPORTS.of(GITHUB + "tensorflow/tensorflow/issues/38349", signs, grad=True)
def acos_of_a_clamped(x: Tensor) -> Tensor:
    c = x.sum()
    if c.abs() >= 1:
        return torch.zeros(()) * c
    return torch.acos(c)


@REPORTS.of(GITHUB + "leggedrobotics/rsl_rl/pull/66", signs, grad=True)
def std_of_constant(x: Tensor) -> Tensor:
    s = x.std()
    return (x - x.mean()) / s if s > 0 else x - x.mean()
