"""Linear layers followed by an activation, as people write them; and programs that only look so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

K, N = 6, 8


@dataclass(frozen=True)
class Spelling:
    """A program, what it is called with, and how it is compiled."""

    name: str
    run: Callable[..., Any]
    shape: tuple[int, ...] = (4, K)
    dynamic: bool = False
    autocast: bool = False


class Weights(nn.Module):
    """A weight and a bias that every spelling uses."""

    def __init__(self, spelling: Callable[..., Any]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.w = nn.Parameter(torch.randn(N, K, generator=generator))
        self.b = nn.Parameter(torch.randn(N, generator=generator))
        self.linear = nn.Linear(K, N)
        self.spelling = spelling
        with torch.no_grad():
            self.linear.weight.copy_(self.w)
            self.linear.bias.copy_(self.b)

    def forward(self, x: Tensor) -> Any:
        return self.spelling(self, x)


def in_place(m: Weights, x: Tensor) -> Tensor:
    y = F.linear(x, m.w, m.b)
    y.relu_()
    return y


def in_place_bias(m: Weights, x: Tensor) -> Tensor:
    y = x @ m.w.t()
    y += m.b
    return torch.relu(y)


def used_again_in_place(m: Weights, x: Tensor) -> Tensor:
    y = (x @ m.w.t()).add_(m.b).relu_()
    z = y + 1
    return z.mul_(y)


def rows_merged_by_hand(m: Weights, x: Tensor) -> Tensor:
    flat = x.reshape(-1, K)
    return F.relu(F.linear(flat, m.w, m.b)).view(*x.shape[:-1], N)


def several_layers(m: Weights, x: Tensor) -> Tensor:
    y = F.relu(m.linear(x))
    return F.relu(F.linear(y[..., :K], m.w, m.b))


def tied(m: Weights, x: Tensor) -> tuple[Tensor, Tensor]:
    return F.relu(F.linear(x, m.w, m.b)), F.relu(F.linear(x + 1, m.w, m.b))


# Each with the number of times a rule for linear + ReLU must act.
RELU: list[tuple[Spelling, int]] = [
    (Spelling("functional", lambda m, x: F.relu(F.linear(x, m.w, m.b))), 1),
    (Spelling("module", lambda m, x: F.relu(m.linear(x))), 1),
    (Spelling("sequential", lambda m, x: nn.Sequential(m.linear, nn.ReLU())(x)), 1),
    (Spelling("method", lambda m, x: m.linear(x).relu()), 1),
    (Spelling("keywords", lambda m, x: F.relu(input=F.linear(input=x, bias=m.b, weight=m.w))), 1),
    (Spelling("matmul_plus", lambda m, x: torch.relu(x @ m.w.t() + m.b)), 1),
    (Spelling("plus_matmul", lambda m, x: torch.relu(m.b + torch.matmul(x, m.w.T))), 1),
    (Spelling("mm", lambda m, x: torch.relu(torch.mm(x, m.w.mT).add(m.b))), 1),
    (Spelling("addmm", lambda m, x: torch.relu(torch.addmm(m.b, x, m.w.transpose(0, 1)))), 1),
    (Spelling("addmm_method", lambda m, x: torch.relu(m.b.addmm(x, m.w.permute(1, 0)))), 1),
    (Spelling("turned_twice", lambda m, x: F.relu(F.linear(x.t().t(), m.w.t().mT, m.b))), 1),
    (Spelling("in_place", in_place), 1),
    (Spelling("in_place_module", lambda m, x: nn.ReLU(inplace=True)(m.linear(x))), 1),
    (Spelling("in_place_bias", in_place_bias), 1),
    (Spelling("used_again_in_place", used_again_in_place), 1),
    (Spelling("no_op_between", lambda m, x: F.relu(m.linear(x).contiguous().view(4, N))), 1),
    (Spelling("dropout_off", lambda m, x: F.relu(F.dropout(m.linear(x), 0.5, False))), 1),
    (Spelling("three_dimensions", lambda m, x: F.relu(m.linear(x)), (2, 3, K)), 1),
    (Spelling("four_dimensions", lambda m, x: m.linear(x).relu(), (2, 1, 3, K)), 1),
    (Spelling("matmul_3d", lambda m, x: torch.relu(x @ m.w.t() + m.b), (2, 3, K)), 1),
    (Spelling("rows_merged_by_hand", rows_merged_by_hand, (2, 3, K)), 1),
    (Spelling("not_contiguous", lambda m, x: F.relu(m.linear(x.transpose(0, 1))), (3, 2, K)), 1),
    (Spelling("column_slice", lambda m, x: F.relu(m.linear(x[:, ::2])), (4, 2 * K)), 1),
    (Spelling("stored_turned", lambda m, x: torch.relu(x @ m.w.t().contiguous() + m.b)), 1),
    (Spelling("several_layers", several_layers), 2),
    (Spelling("tied", tied), 2),
    (Spelling("dynamic", lambda m, x: F.relu(m.linear(x)), dynamic=True), 1),
    (Spelling("dynamic_3d", lambda m, x: F.relu(m.linear(x)), (2, 3, K), dynamic=True), 1),
    (Spelling("autocast", lambda m, x: F.relu(m.linear(x)), autocast=True), 1),
    (Spelling("one_row", lambda m, x: F.relu(m.linear(x)), (1, K)), 1),
    (Spelling("no_rows", lambda m, x: F.relu(m.linear(x)), (0, K)), 1),
]


def also_returned(m: Weights, x: Tensor) -> tuple[Tensor, Tensor]:
    y = m.linear(x)
    return F.relu(y), y


def also_read(m: Weights, x: Tensor) -> Tensor:
    y = m.linear(x)
    return F.relu(y) + y.sum()


def written_in_part(m: Weights, x: Tensor) -> Tensor:
    y = m.linear(x)
    y[0] = 1.0
    return F.relu(y)


def written_through_a_view(m: Weights, x: Tensor) -> Tensor:
    y = m.linear(x)
    row = y[0]
    z = F.relu(y, inplace=True)
    return z + row


def written_as_another_shape(m: Weights, x: Tensor) -> Tensor:
    y = m.linear(x)
    y.view(-1).mul_(2)
    return F.relu(y)


def operand_written_between(m: Weights, x: Tensor) -> Tensor:
    x = x.detach() + 0.5
    y = x @ m.w.detach().t()
    x.mul_(2)
    return F.relu(y + m.b)


def autocast_switched(m: Weights, x: Tensor) -> Tensor:
    y = m.linear(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return F.relu(y @ y.t() if y.dim() < 2 else y)


def another_bias(m: Weights, x: Tensor) -> Tensor:
    return F.relu(x @ m.w.t() + x.sum(1, keepdim=True))


def square_with_column_bias(m: Weights, x: Tensor) -> Tensor:
    return F.relu(x @ m.w.t() + m.b[:4, None])


# Programs a rule for linear (with bias) + ReLU must leave alone, and why.
RELU_NEAR_MISSES: list[tuple[Spelling, str]] = [
    (Spelling("also_returned", also_returned), "extra_user"),
    (Spelling("also_read", also_read), "extra_user"),
    (Spelling("written_in_part", written_in_part), "alias"),
    (Spelling("written_through_a_view", written_through_a_view), "extra_user"),
    (Spelling("written_as_another_shape", written_as_another_shape), "alias"),
    (Spelling("operand_written_between", operand_written_between), "alias"),
    (Spelling("autocast_switched", autocast_switched), "variant"),
    (Spelling("bias_of_columns", square_with_column_bias), "shape_mismatch"),
    (Spelling("bias_per_row", another_bias), "shape_mismatch"),
    (
        Spelling("full_addend", lambda m, x: F.relu(torch.addmm(x @ m.w.t(), x, m.w.t()))),
        "shape_mismatch",
    ),
    (Spelling("scalar_bias", lambda m, x: F.relu(x @ m.w.t() + 1.0)), "variant"),
    (Spelling("beta", lambda m, x: F.relu(torch.addmm(m.b, x, m.w.t(), beta=2))), "other_op"),
    (Spelling("alpha", lambda m, x: F.relu(torch.add(x @ m.w.t(), m.b, alpha=2))), "variant"),
    (Spelling("minus", lambda m, x: F.relu(x @ m.w.t() - m.b)), "other_op"),
    (Spelling("no_bias", lambda m, x: F.relu(F.linear(x, m.w))), "other_op"),
    (Spelling("leaky", lambda m, x: F.leaky_relu(m.linear(x))), "other_op"),
    (Spelling("relu6", lambda m, x: F.relu6(m.linear(x))), "other_op"),
    (Spelling("gelu", lambda m, x: F.gelu(m.linear(x))), "other_op"),
    (
        Spelling("dropout_between", lambda m, x: F.relu(F.dropout(m.linear(x), 0.5, True))),
        "other_op",
    ),
    (Spelling("slice_between", lambda m, x: F.relu(m.linear(x)[:, :4])), "other_op"),
    (Spelling("turned_between", lambda m, x: F.relu(m.linear(x).t())), "other_op"),
    (
        Spelling(
            "batched_weight", lambda m, x: F.relu(x @ m.w.t().expand(2, K, N) + m.b), (2, 3, K)
        ),
        "shape_mismatch",
    ),
    (
        Spelling("mixed_dtype", lambda m, x: F.relu((x.double() @ m.w.double().t()) + m.b)),
        "dtype_mismatch",
    ),
]
