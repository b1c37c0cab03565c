"""Numbers where a tensor in their place would come out differently: promotion, rounding, errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..inputs import NAN, beside, calls, floats, normal, pairs
from ..program import Calls, Family

FAMILY = Family("item_traps")
INT64 = {"dtype": torch.int64, "like": torch.float32}


def one_element() -> Calls:
    """Numbers in tensors of one element, beside tensors without axes and with some."""
    shapes = ((1,), (1, 1), ())
    beside_them = (torch.tensor(1.5), normal(2, 3), torch.tensor([2], dtype=torch.int32))
    return [(x.clone(), torch.full(shape, 0.3)) for shape in shapes for x in beside_them]


@FAMILY.program(one_element, grad=True)
def axes_of_the_number_are_lost(x: Tensor, t: Tensor) -> Tensor:
    a = t.item()  # expect: item device on_device
    return x * a, x + float(t)  # expect: item device on_device


@FAMILY.program(beside(2.0**53 + 1, 2.0**60 + 1, -7, dtype=torch.int64, like=torch.float64))
def true_division_of_large_integers(x: Tensor, t: Tensor) -> Tensor:
    return x * (t.item() / 3)  # expect: any


@FAMILY.program(beside(-(2**63), 5, dtype=torch.int64, like=torch.float64))
def negates_the_smallest(x: Tensor, t: Tensor) -> Tensor:
    return x * -t.item(), x * abs(t.item())  # expect: item keep overflow


@FAMILY.program(beside(True, False, dtype=torch.bool, like=torch.float32))
def truth_values_add_up(x: Tensor, t: Tensor) -> Tensor:
    b = t.item()  # expect: any
    return x * (b + b + 1), x * (not b), x - (b | True)


@FAMILY.program(beside(0.5, -2.0, NAN))
def comparison_as_a_factor(x: Tensor, t: Tensor) -> Tensor:
    a = t.item()  # expect: any
    return x * (a > 0), x + (a != a), x.long() * (a <= 0.5)


@FAMILY.program(beside(1.0, 0.25, 1e200, dtype=torch.float64, like=torch.float32))
def power_of_a_float(x: Tensor, t: Tensor) -> Tensor:
    return x * t.item() ** 2  # expect: item keep partial_op|overflow|python_value


@FAMILY.program(beside(1, 3, 10, **INT64))
def bias_correction(x: Tensor, t: Tensor) -> Tensor:
    return x / (1 - 0.9 ** t.item())  # expect: any


@FAMILY.program(floats(3, 4))
def running_total(x: Tensor) -> Tensor:
    total = 0
    for row in x:
        total += row.sum().item()  # expect: any
    return x * total


@FAMILY.program(floats(4), grad=True)
def loop_over_a_list(x: Tensor) -> Tensor:
    y = x
    for value in x.tolist():  # expect: item device on_device
        y = y * 0.5 + value
    return y


@FAMILY.program(floats(4), dynamo=True)
def python_over_a_list(x: Tensor) -> Tensor:
    values = x.tolist()  # expect: any
    return x * sum(values) + max(values) + len(values)


@FAMILY.program(floats(4), breaks=True)
def sorted_list(x: Tensor) -> Tensor:
    low, *_, high = sorted(x.tolist())  # expect: item late after_graph
    return x.clamp(low * 0.5, high + 1)


@FAMILY.program(floats(4), grad=True)
def comprehension(x: Tensor) -> Tensor:
    a, b, *_ = [value.item() * 2 for value in x]  # expect: any
    return x * a + b


@FAMILY.program(floats(3, 4), grad=True)
def held_in_containers(x: Tensor) -> Tensor:
    scales = {"a": x.sum().item(), "b": [x.max().item()]}  # expect: any
    return x * scales["a"] + scales["b"][0]


@FAMILY.program(floats(3, 4), grad=True)
def caught_by_a_closure(x: Tensor) -> Tensor:
    a = x.abs().max().item()  # expect: any

    def scaled(y: Tensor, by: float = a) -> Tensor:
        return y * by + a

    return scaled(x) + (lambda y: y - a)(x)


@dataclass
class Settings:
    scale: float
    shift: float = 0.5


@FAMILY.program(floats(3, 4), grad=True)
def held_by_an_object(x: Tensor) -> Tensor:
    settings = Settings(x.mean().item())  # expect: any
    return x * settings.scale + settings.shift


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, by: float) -> Tensor:
        ctx.by = by
        return x * by

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.by * 2, None


@FAMILY.program(floats(3, 4), grad=True)
def argument_of_a_function_with_backward(x: Tensor) -> Tensor:
    return Scaled.apply(x, x.detach().abs().max().item())  # expect: any


@FAMILY.program(beside(0.5, 3.0), grad=True)
class ArgumentOfAModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.inner(x, scale=t.item())  # expect: item device on_device


class Inner(nn.Module):
    def forward(self, x: Tensor, *, scale: float) -> Tensor:
        return F.relu(x) * scale


@FAMILY.program(beside(0.5, 1e-5, 3.0), grad=True)
def parameters_of_functions(x: Tensor, t: Tensor) -> Tensor:
    a = t.item()  # expect: any
    return (
        F.layer_norm(x, (5,), eps=a),
        F.leaky_relu(x, a),
        F.pad(x, (1, 1), value=a),
        F.softplus(x, beta=a),
        F.hardtanh(x, -a, a),
        torch.linspace(0, a, 4),
        torch.addmm(x[:, :3], x[:, :3], x[:, :3], beta=a, alpha=a),
    )


@FAMILY.program(beside(0.5, 3.0), grad=True)
def alpha_of_a_difference(x: Tensor, t: Tensor) -> Tensor:
    a = t.item()  # expect: any
    return x.sub(x * 2, alpha=a), torch.sub(x, 1.5, alpha=a), x.clone().sub_(x, alpha=a)


@FAMILY.program(beside(0.5, 3.0))
def by_keyword(x: Tensor, t: Tensor) -> Tensor:
    a = t.item()  # expect: item device on_device
    return torch.add(input=x, other=a), torch.clamp(x, min=-a, max=a), torch.mul(x, other=a)


@FAMILY.program(beside(2.75, -1.5, dtype=torch.float32, like=torch.int64))
def in_place_on_integers(x: Tensor, t: Tensor) -> Tensor:
    a = t.item()  # expect: any
    y = x.clone()
    y[0] = a
    y.mul_(a)
    return y


@FAMILY.program(beside(2.75, 300.0, -1.5, dtype=torch.float32, like=torch.int64))
def fraction_stored_into_integers(x: Tensor, t: Tensor) -> Tensor:
    y = x.clone()
    y[0] = t.item()  # expect: any
    y[:, 1].fill_(t.item())  # expect: any
    return y


@FAMILY.program(calls(lambda: [(normal(3, 4), torch.ones(3)), (normal(3, 4), torch.ones(0))]))
def item_of_several(x: Tensor, t: Tensor) -> Tensor:
    y = x + 1
    return y * t.item()  # expect: any


@FAMILY.program(
    calls(
        lambda: [(torch.complex(normal(3), normal(3, seed=1)), torch.tensor(v)) for v in (0.1, 2.0)]
    )
)
def beside_complex_numbers(x: Tensor, t: Tensor) -> Tensor:
    a = t.item()  # expect: any
    return x * a, x + a, x == a


@FAMILY.program(pairs({"f32": (torch.float32, torch.float32)}, 0.5, 2.0), grad=True)
class UpdatesAParameter(nn.Module):
    """A number of a parameter that is written before the number is used."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0, 1, 5))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        size = self.weight.norm().item()  # expect: item device on_device
        with torch.no_grad():
            self.weight.add_(t)
        return x * size + self.weight.detach()


@FAMILY.program(floats(3, 4))
def view_written_through_its_base(x: Tensor) -> Tensor:
    y = x.clone()
    corner = y[1:, 1:]
    a = corner.sum().item()  # expect: item device on_device
    b = y[0].tolist()  # expect: any
    y.zero_()
    return corner + a, y + b[1]


@FAMILY.program(floats(3, 4))
def tensor_made_of_numbers(x: Tensor) -> Tensor:
    a, b = x.sum().item(), x.max().item()  # expect: any
    c = torch.as_tensor(b, dtype=torch.float64)  # expect: any
    return torch.tensor([a, b]), x.new_tensor(a), c  # expect: any


@FAMILY.program(beside(0.5, -0.5, NAN), grad=True)
def chosen_by_python(x: Tensor, t: Tensor) -> Tensor:
    a = t.item()  # expect: any
    b = a if a > 0 else 1 - a
    return x * b


@FAMILY.program(beside(3, 1, **INT64), grad=True)
def number_of_a_sum_of_truth_values(x: Tensor, t: Tensor) -> Tensor:
    n = (x > 0).sum().item()  # expect: item device on_device
    return x.sum() / n, x.long() * n, x + int(t)  # expect: item device on_device


@FAMILY.program(floats(3, 4), grad=True, tags="float64")
def of_the_default_dtype(x: Tensor) -> Tensor:
    a = x.abs().sum().item()  # expect: item device on_device
    n = torch.arange(4, device=x.device)
    return n * a, n / 2 + a, torch.full((2,), a, device=x.device), x * a


@FAMILY.program(beside(0.1, 3.0, dtype=torch.float32, like=torch.bfloat16), grad=True)
def under_autocast(x: Tensor, t: Tensor) -> Tensor:
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        y = x @ x.t().contiguous()
        return y * t.item(), y.float() / t.item()  # expect: item device on_device


@FAMILY.program(floats(2, 3), grad=True)
def only_looked_at(x: Tensor) -> Tensor:
    x.sum().item()  # expect: any
    float(x.max())  # expect: any
    return x * 2


@FAMILY.program(beside(3.0, -0.5, 0.0, NAN), grad=True)
def exponent_of_a_tensor(x: Tensor, t: Tensor) -> Tensor:
    a = t.item()  # expect: item device on_device; grad: item keep inexact
    return x.abs() ** a, x.pow(a)


@FAMILY.program(beside(3.0, 0.5, 0.0), grad=True)
def tensor_of_exponents(x: Tensor, t: Tensor) -> Tensor:
    return t.item() ** x  # expect: item device on_device
