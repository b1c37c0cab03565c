"""Programs modelled on public reports of silent wrong results under Inductor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Made = tuple[Callable[..., Any], tuple[Tensor, ...]]


def random(*shape: int, grad: bool = False, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).requires_grad_(grad)


@torch.library.custom_op("fusepass_test_faults::reversed_into", mutates_args=("into",))
def reversed_into(x: Tensor, into: Tensor) -> None:
    for at in range(len(x)):
        into[len(x) - 1 - at] = x[at]


def pool_and_where() -> Made:  # 185509
    def f(x: Tensor, w: Tensor) -> Tensor:
        made = F.conv2d(x, w, padding=1)
        most = F.max_pool2d(made, 3, 1, 1)
        return torch.where(made > most.mean((2, 3), keepdim=True), made, most)

    return f, (random(2, 3, 8, 8, grad=True), random(4, 3, 3, 3, grad=True, seed=1))


def scatter_and_transposed() -> Made:  # the same kind: a write in place, and a reader laid out anew
    def f(x: Tensor, i: Tensor, w: Tensor) -> Tensor:
        made = torch.zeros(4, 64).scatter_add(1, i, x.view(4, 64)).view(1, 4, 8, 8)
        return F.conv2d(torch.where(x > 0, x, made), w, padding=1)

    index = torch.arange(256).view(4, 64).flip(1) % 64
    return f, (random(1, 4, 8, 8), index, random(2, 4, 3, 3, seed=1))


def strided_copy() -> Made:  # 133512
    def f(x: Tensor) -> Tensor:
        x.add_(1)
        return torch.as_strided_copy(x, (3,), (2,))

    return f, (torch.arange(10)[::2],)


def strided_view_of_what_is_made() -> Made:  # 197431
    def f(x: Tensor) -> Tensor:
        made = x.repeat((3, 2))
        return torch.as_strided(made[:, ::2], (3, 2), made.stride())

    return f, (random(1, 1),)


def strided_channels_last() -> Made:  # 174963
    def f(x: Tensor) -> Tensor:
        return torch.as_strided(torch.roll(x, -1, 0), (5, 10), (4, 1), 0)

    x = torch.arange(100).reshape(2, 5, 2, 5)
    return f, (x.to(memory_format=torch.channels_last),)


def strided_and_written() -> Made:  # 104505
    def f(x: Tensor) -> Tensor:
        x.diagonal().as_strided((2,), (1,), 0).add_(1.0)
        return x

    return f, (random(2, 4),)


def given_back_beside_a_copy() -> Made:  # 195451
    def f(x: Tensor, v: Tensor) -> Tensor:
        made = torch.slice_scatter(x, v, 0, 1, 3)
        x.copy_(made)
        return made.clone()

    return f, (random(6), random(2, seed=1))


def copied_then_written() -> Made:  # 198131
    def f(into: Tensor, x: Tensor) -> Tensor:
        into[0:, :] = x[0:, :]
        return x.add_(1)

    return f, (torch.zeros(3, 4), torch.arange(12.0).view(3, 4))


def copy_for_an_operator() -> Made:  # 198031
    def f(x: Tensor) -> Tensor:
        y = x.clone()
        reversed_into(y, x)
        return x * 2

    return f, (torch.arange(8.0),)


def shifted_by_a_copy() -> Made:  # 197829
    def f(x: Tensor) -> Tensor:
        y = x.clone()
        x[1:] = y[:-1]
        return x * 2

    return f, (torch.arange(40.0),)


def scattered_copy() -> Made:  # 156786
    def f(x: Tensor, i: Tensor) -> Tensor:
        y = x.clone()
        x[i] = y
        return x.sum()

    return f, (torch.arange(40.0), torch.arange(39, -1, -1))


def index_of_transposed() -> Made:  # 197739
    return lambda x: (x.t() + 0.5).argmin(), (random(5, 7),)


def index_of_means() -> Made:  # 193661, 193492
    return lambda x: (x.mean(-1).argmax(), x.amax(-1).argmax()), (random(6, 5, 4).transpose(0, 1),)


def index_channels_last() -> Made:  # 193751
    x = random(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    return lambda x: (x * 2).argmax(), (x,)


def places_of_transposed() -> Made:  # 197434
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        places: Tensor = F.max_pool2d(x, 3, return_indices=True)[1]
        return places, F.adaptive_max_pool2d(x, (2, 2), return_indices=True)[1]

    return f, (random(2, 4, 12, 12).transpose(2, 3),)


def gradient_of_transposed() -> Made:  # 197434, in training
    x = random(2, 4, 12, 12).transpose(2, 3).requires_grad_()
    return lambda x: F.max_pool2d(x, 5).square(), (x,)


def long_range() -> Made:  # 175966, 183901
    def f(x: Tensor) -> Tensor:
        return torch.arange(0, 11) * torch.tensor([10**9]) + x.long()

    return f, (torch.zeros(1),)


def any_of_bytes() -> Made:  # 198081
    x = torch.tensor([[0, 3], [0, 0]], dtype=torch.uint8)
    return lambda x: (torch.any(x) * 200 + 100, x.any(0), torch.all(x)), (x,)


def clamp_out_of_range() -> Made:  # 195675
    return lambda x: torch.clamp(x, min=-3.4e39, max=3.4e39), (random(4),)


def dtype_of_scan() -> Made:  # 189518
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        ones = torch.ones((2, 4), dtype=torch.bool)
        return ones.cumsum(1, dtype=torch.bfloat16), torch.full((4,), 3).cumsum(0, dtype=x.dtype)

    return f, (torch.zeros(1),)


def dtype_of_ldexp() -> Made:  # 197091
    def f(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        return torch.ldexp(a, b), torch.ldexp(b, c)

    return f, (torch.ones(3, dtype=torch.bool), random(3).half(), random(3, seed=1))


def overhanging_mean() -> Made:  # 198119
    return lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), (random(1, 2, 6, 6, grad=True),)


def floor_division() -> Made:  # 197895
    a, b = torch.tensor([1.0, 0.5, 6.0, 1.0] * 5), torch.tensor([0.1, 0.1, 0.2, 1 / 3] * 5)
    return lambda a, b: (a // b, torch.div(a, 0.1, rounding_mode="floor")), (a, b)


def remainder() -> Made:  # 198057
    inf = float("inf")
    a = torch.tensor([5.5, -5.5, 0.0, 1e20, 2147483648.0, 7.0, 1.0, -0.0] * 4)
    b = torch.tensor([inf, -inf, inf, 3.0, 3.0, 0.7, 0.1, 1.0] * 4)
    return lambda a, b: (a % b, torch.remainder(a, 3.0), a % -0.1), (a, b)


def small_elu() -> Made:  # 189801
    return lambda x: 1 / F.elu(x), (torch.tensor([-1e-9, -1e-20, 1e-30, 0.5] * 8),)


def refused_dtype() -> Made:  # 197554
    return lambda x: torch.ceil(x), (torch.tensor([True, False]),)


def index_outside() -> Made:  # 185885
    given = (torch.zeros(4), torch.tensor([-1, 1]), torch.ones(2))
    return lambda x, i, s: torch.index_add(x, 0, i, s), given


def no_probabilities() -> Made:  # 193757
    return lambda x: F.binary_cross_entropy(torch.ones_like(x), x), (torch.ones(4, 4) * 1.5,)


def half_of_normal() -> Made:  # 194547
    given = (torch.zeros(8).half(), torch.zeros(8))
    return lambda mean, deviation: torch.normal(mean, deviation), given


def index_of_sum() -> Made:  # 178964
    return lambda a, b: (a + b).max(dim=1), (random(8, 8).t(), random(8, 8, seed=1))


def sine_of_angle() -> Made:  # 186018
    return lambda x: torch.sin(torch.atan(x)), (torch.full((1,), float("nan")),)


def store_into_a_gradient() -> Made:  # 180164, 180771
    def f(x: Tensor, y: Tensor) -> Tensor:
        return torch.slice_scatter(x, y, dim=1, start=0, end=6).sum(dim=1)

    return f, (random(4, 13, 5, grad=True), random(4, 6, 5, grad=True, seed=1))


def diagonal_of_a_gradient() -> Made:  # 182012
    def f(x: Tensor, y: Tensor) -> Tensor:
        return torch.diagonal_scatter(x, y).sum()

    return f, (random(8, 8, grad=True), random(8, grad=True, seed=1))


def scaled_sum() -> Made:
    def f(a: Tensor, x: Tensor, w: Tensor) -> Tensor:
        return torch.add(a, x @ w, alpha=0.5)

    return f, (random(4, 4), random(4, 4, seed=1), random(4, 4, seed=2))


def casts() -> Made:  # 185337, 183607, 181568
    def f(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        pair = x.to(torch.float16).float()
        overflows = (x.half() * x.half() * 1e4).float()
        return pair, overflows, x.to(torch.bfloat16) + w, pair.sum(1)

    return f, (random(33, 70, grad=True), random(33, 70, seed=1))


def tangent_of_halves() -> Made:  # 194357
    return lambda q: torch.tan(torch.pi * (q - 0.5)), (torch.tensor([0.0, 1.0] * 9).half(),)


def signs_of_zero() -> Made:  # 194347, 189799
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        low, high = torch.minimum(x, y), torch.maximum(y, x)
        sums = 1 / (x + torch.zeros_like(x))
        clamped = [
            x.clamp(min=0),
            x.clamp(min=y),
            y.clamp(-0.0, 0.0),
            F.relu6(x),
            high.clamp_max(y),
        ]
        return low, 1 / low, 1 / high, sums, *(1 / one for one in clamped)

    return f, (torch.full((35,), -0.0), torch.zeros(35))


def batched_integers() -> Made:  # 191308
    a = torch.full((2, 1, 20), 100, dtype=torch.int8)
    return torch.matmul, (a, a.transpose(1, 2).repeat(1, 1, 2))


def narrow_abs() -> Made:  # 187018
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        made = -x.abs()
        return torch.cat([made, made]).sum(), y.abs().long()

    low = torch.tensor([-128, 3], dtype=torch.int8)
    return f, (torch.tensor([200, 200], dtype=torch.uint8), low)


def compared_overflow() -> Made:  # 190764
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return (x + 1) > x, (y + 1) > y, x.neg() - 2 < x.neg(), (-x - 1).abs() >= 0

    return f, (torch.full((35,), 2**31 - 1, dtype=torch.int32), torch.full((35,), 2**63 - 1))


def times_zero() -> Made:  # 186281
    return lambda x: (x * 0, 0 / x, x * 0 + 1), (torch.tensor([float("nan"), float("inf"), 1.0]),)


def ignored_term() -> Made:  # 196596
    def f(x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return torch.addmm(x, a, b, beta=0), torch.addmm(x, a, b, beta=0.0, alpha=0.0)

    return f, (torch.full((4,), float("nan")), random(1, 4), random(4, 4, seed=1))


def inverse_functions() -> Made:  # 198133, 183767
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return torch.erfinv(x), torch.erfinv(x.double()), torch.acosh(y), y**-0.5

    given = torch.tensor([0.99, 0.9999, 0.999999, 0.99999994] * 5)
    return f, (given, torch.tensor([3e22, 7e25, 1.0, 1.5] * 9))


def roots_of_infinity() -> Made:
    return lambda x: x**-0.5, (torch.tensor([-float("inf"), -0.0, 0.0, 4.0] * 9),)


def no_chances() -> Made:  # 185246
    return lambda p: torch.bernoulli(p), (torch.tensor([1.5, -0.5]),)


def refused_argument() -> Made:  # 194501
    return lambda x: F.smooth_l1_loss(x, x + 1, beta=-1.0), (random(3),)


def dtypes_of_linear() -> Made:  # 141865
    return F.linear, (random(1, 1).half(), random(1, 1))


def softmax_of_integers() -> Made:  # 198155
    return lambda x: F.softmax(x, -1), (torch.tensor([[1, 2, 3]]),)


def scan_of_one_byte() -> Made:  # 197807
    return lambda x: torch.logcumsumexp(x, 0), (torch.tensor(0, dtype=torch.uint8),)


def places_of_floats() -> Made:  # 198155
    return lambda x: F.one_hot(x, 4), (torch.tensor([1.0, 2.0]),)


PROGRAMS: dict[str, Callable[[], Made]] = {
    one.__name__: one
    for one in (
        *(pool_and_where, scatter_and_transposed, strided_copy, strided_view_of_what_is_made),
        *(strided_channels_last, strided_and_written, given_back_beside_a_copy),
        *(copied_then_written, copy_for_an_operator, shifted_by_a_copy, scattered_copy),
        *(index_of_transposed, index_of_means, index_channels_last, places_of_transposed),
        *(gradient_of_transposed, long_range, any_of_bytes, clamp_out_of_range, dtype_of_scan),
        *(dtype_of_ldexp, overhanging_mean, floor_division, remainder, small_elu, refused_dtype),
        *(index_outside, no_probabilities, half_of_normal, scaled_sum),
        *(casts, tangent_of_halves, signs_of_zero, batched_integers, narrow_abs),
        *(compared_overflow, times_zero, ignored_term, inverse_functions, roots_of_infinity),
        *(no_chances, refused_argument, dtypes_of_linear, softmax_of_integers),
        *(scan_of_one_byte, places_of_floats),
        *(index_of_sum, sine_of_angle, store_into_a_gradient, diagonal_of_a_gradient),
    )
}
