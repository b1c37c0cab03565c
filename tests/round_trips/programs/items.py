"""Numbers read from tensors whose values only reach tensor arithmetic: they stay on the device."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..inputs import INF, NAN, beside, calls, every_float, floats, layouts, normal, pairs
from ..program import Family

FAMILY = Family("items")
KINDS = {
    "f32": (torch.float32, torch.float32),
    "f16_f64": (torch.float16, torch.float64),
    "f16_f32": (torch.float16, torch.float32),
    "bf16_f32": (torch.bfloat16, torch.float32),
    "f64_f16": (torch.float64, torch.float16),
    "f32_i64": (torch.float32, torch.int64),
    "i64_i64": (torch.int64, torch.int64),
    "i8_i32": (torch.int8, torch.int32),
    "u8_u8": (torch.uint8, torch.uint8),
    "i32_bool": (torch.int32, torch.bool),
    "f16_bool": (torch.float16, torch.bool),
    "bool_bool": (torch.bool, torch.bool),
    "i64_f32": (torch.int64, torch.float32),
    "bool_f16": (torch.bool, torch.float16),
}
FRACTIONS = {name: kind for name, kind in KINDS.items() if kind[1].is_floating_point}
# A bool tensor has no difference, with a number of any kind: that is kept.
SUBTRACTED = {name: kind for name, kind in FRACTIONS.items() if kind[0] is not torch.bool}


@FAMILY.program(every_float(3, 4), grad=True, tags="inductor contexts")
def divides_by_norm(x: Tensor) -> Tensor:
    return x / x.norm().item()  # expect: item device on_device


@FAMILY.program(every_float(3, 4), grad=True, tags="inductor")
def scales_by_float(x: Tensor) -> Tensor:
    return x * float(x.abs().max()) + 1  # expect: item device on_device


@FAMILY.program(pairs(KINDS, 1, 0, 3), grad=True)
def adds_number(x: Tensor, t: Tensor) -> Tensor:
    return x + t.item()  # expect: item device on_device


@FAMILY.program(pairs(KINDS, 1, 0, 3), grad=True)
def multiplies_by_number(x: Tensor, t: Tensor) -> Tensor:
    return t.item() * x  # expect: item device on_device


@FAMILY.program(pairs(SUBTRACTED, 6e-8, 0.1, -0.0, NAN, INF), grad=True)
def number_beyond_half(x: Tensor, t: Tensor) -> Tensor:
    a = t.item()  # expect: item device on_device
    return x * a, x + a, x - a, a - x, x / a


@FAMILY.program(pairs(FRACTIONS, 0.5, -2.25, 1e5), grad=True)
def comparisons_in_doubles(x: Tensor, t: Tensor) -> Tensor:
    a = t.item()  # expect: item device on_device; cuda: any
    return x > a, x <= a, a == x, x.ne(a), torch.where(x > a, x, a)


@FAMILY.program(pairs({"i8": (torch.int8, torch.int64), "u8": (torch.uint8, torch.int64)}, 300, 5))
def integer_of_300_beside_small(x: Tensor, t: Tensor) -> Tensor:
    return x + t.item()  # expect: any


@FAMILY.program(
    pairs({"i64": (torch.int64, torch.float32), "bool": (torch.bool, torch.float64)}, 2.5, -1.0)
)
def fraction_beside_integers(x: Tensor, t: Tensor) -> Tensor:
    a = float(t)  # expect: item device on_device
    return x * a, x / a, x + a


@FAMILY.program(
    {
        "f16": calls(
            lambda: [(torch.tensor(1.5, dtype=torch.float16), torch.tensor(v)) for v in (1e-8, 7e4)]
        ),
        "i64": calls(lambda: [(torch.tensor(3), torch.tensor(v)) for v in (0.5, 2.0)]),
        "one": calls(
            lambda: [(torch.ones(1, dtype=torch.bfloat16), torch.tensor(v)) for v in (0.1, 3.0)]
        ),
    },
    grad=True,
)
def beside_without_axes(x: Tensor, t: Tensor) -> Tensor:
    a = t.item()  # expect: item device on_device
    return x * a, x + a, x / a


@FAMILY.program(every_float(3, 4), grad=True)
def arguments_of_operations(x: Tensor) -> Tensor:
    a = x.abs().mean().item()  # expect: item device on_device
    return x.clamp(-a, a), x.pow(2) * a, torch.where(x > 0, x, a), x.masked_fill(x > 0, a)


@FAMILY.program(every_float(3, 4), grad=True)
def alpha_of_a_sum(x: Tensor) -> Tensor:
    a = x.abs().mean().item()  # expect: item device on_device; f16: any; bf16: any
    return torch.add(x, x, alpha=a), x.add(x * 2, alpha=a)


@FAMILY.program(every_float(3, 4), grad=True)
def weight_of_a_mean(x: Tensor) -> Tensor:
    return torch.lerp(x, x * 2, x.abs().mean().item())  # expect: item device on_device


@FAMILY.program(floats(3, 4), grad=True)
def clamps_at(x: Tensor) -> Tensor:
    top = x.max().item()  # expect: item device on_device
    return x.clamp(max=top), x.clamp(min=top), x.clamp_min(0) + top * 0.5


@FAMILY.program({"f32": floats(3, 4), "f16": floats(3, 4, dtype=torch.float16)})
def fills(x: Tensor) -> Tensor:
    a = x.sum().item()  # expect: item device on_device
    return torch.full_like(x, a), x.new_full((2,), a), x.masked_fill(x > 0, a)


@FAMILY.program(
    {"i64": beside(3, -2, dtype=torch.int64), "bool": beside(True, False, dtype=torch.bool)}
)
def full_takes_its_dtype(x: Tensor, t: Tensor) -> Tensor:
    return torch.full((2, 3), t.item(), device=x.device)  # expect: any


@FAMILY.program(floats(3, 4))
def in_place_forms(x: Tensor) -> Tensor:
    a = x.abs().max().item()  # expect: item device on_device
    y = x.clone()
    y.mul_(a).add_(a)
    y /= a + 1
    y[0] = a
    y[:, 1].fill_(a)
    return y.sub_(x, alpha=a)


@FAMILY.program({"f32": floats(4), "f16": floats(4, dtype=torch.float16)}, grad=True)
def list_of_three(x: Tensor) -> Tensor:
    a, b, c = x[:3].tolist()  # expect: item device on_device
    return x * a + b - c


@FAMILY.program(floats(2, 2))
def nested_list(x: Tensor) -> Tensor:
    (a, b), (c, d) = x.tolist()  # expect: item device on_device
    return x * a + b, x / c - d


@FAMILY.program(floats(3, 4), grad=True, tags="inductor")
def arithmetic_of_numbers(x: Tensor) -> Tensor:
    a = x.sum().item()  # expect: item device on_device
    b = x.abs().max().item()  # expect: item device on_device
    return x * (a + b), x * (a - 2 * b) + -a


@FAMILY.program(
    {
        "f32": beside(0.1, 3.0, 1e30, NAN),
        "f16": beside(0.1, 300.0, 6e4, dtype=torch.float16),
        "bf16": beside(0.1, 300.0, 3e38, dtype=torch.bfloat16, like=torch.float16),
    }
)
def squares_in_doubles(x: Tensor, t: Tensor) -> Tensor:
    a = t.item()  # expect: item device on_device
    return x + a * a * 1e-6


@FAMILY.program(floats(3, 4))
def written_afterwards(x: Tensor) -> Tensor:
    y = x * 2
    a = y[0, 0].item()  # expect: item device on_device
    y[0, 0] = 100.0
    y.add_(1)
    return y * a


@FAMILY.program(calls(lambda: [(normal(3, 4), torch.ones(())), (normal(3, 4), torch.zeros(()))]))
def argument_written_afterwards(x: Tensor, t: Tensor) -> Tensor:
    a = t.item()  # expect: item device on_device
    t.add_(5)
    b = t.item()  # expect: item device on_device
    t.fill_(a)
    return x * a - b


@FAMILY.program(floats(3, 4), grad=True)
def no_gradient_through_a_number(x: Tensor) -> Tensor:
    y = x * 2
    a = y.sum().item()  # expect: item device on_device
    return y * a + y.sum()


@FAMILY.program(floats(3, 4), grad=True)
class Normalises(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 4))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = x / (x.norm().item() + 1)  # expect: item device on_device
            x = x * self.weight
        self.seen.add_(x.detach().sum().item())  # expect: item device on_device
        return x


@FAMILY.program(
    calls(lambda: [(normal(3, 4).abs(),), (-normal(3, 4).abs(),), (normal(3, 4).abs() * 2,)]),
    grad=True,
)
def in_an_arm(x: Tensor) -> Tensor:
    if x.sum() > 0:
        x = x * x.max().item()  # expect: item device on_device
    else:
        x = x + 1
    return x * 2


@FAMILY.program(calls(lambda: [(normal(3, 4).abs(),), (-normal(3, 4).abs(),)]), grad=True)
def tested_and_used(x: Tensor) -> Tensor:
    a = x.sum().item()  # expect: any
    if a > 0:
        return x * a
    return x - a


@FAMILY.program(floats(3, 4))
def number_from_the_cpu(x: Tensor) -> Tensor:
    return x * x.sum().cpu().item()  # expect: item device on_device


@FAMILY.program(floats(3, 4), grad=True)
def number_of_detached(x: Tensor) -> Tensor:
    return x * x.detach().sum().item()  # expect: item device on_device


def scale_of(t: Tensor) -> float:
    return t.abs().amax().item()  # expect: item device on_device


@FAMILY.program(floats(3, 4), helpers=(scale_of,), grad=True)
def through_a_helper(x: Tensor) -> Tensor:
    return x / (scale_of(x) + 1e-6)


@FAMILY.program(floats(3, 4))
def truth_as_a_factor(x: Tensor) -> Tensor:
    return x * bool((x > 0).any())  # expect: any


@FAMILY.program(floats(3, 4))
def count_as_an_int(x: Tensor) -> Tensor:
    return x / int((x > 0).sum())  # expect: any


@FAMILY.program(layouts())
def many_numbers_of_views(x: Tensor) -> Tensor:
    a = x[0, 0].item()  # expect: item device on_device
    b = float(x[-1, -1])  # expect: item device on_device
    return F.relu(x) * a - b


@FAMILY.program(calls(lambda: [(normal(0, 4),), (normal(0, 4),)]))
def of_nothing(x: Tensor) -> Tensor:
    return x * x.sum().item(), x.new_ones(2) * x.sum().item()  # expect: item device on_device


@FAMILY.program(
    calls(lambda: [(normal(3),), (normal(3, seed=1),), (normal(3, seed=2),)]), dynamic=True
)
def under_dynamic_shapes(x: Tensor) -> Tensor:
    return x * x.sum().item() + x.shape[0]  # expect: item device on_device
