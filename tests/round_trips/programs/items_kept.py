"""Numbers that Python itself must have, or whose arithmetic a device does otherwise: left alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..inputs import INF, NAN, beside, calls, floats, normal
from ..program import Calls, Family

FAMILY = Family("items_kept")


def counts() -> Calls:
    """A tensor, and whole numbers from 1 to 3."""
    return [(normal(3, 4), torch.tensor(n)) for n in (1, 3, 2)]


@FAMILY.program(counts)
def as_a_size(x: Tensor, n: Tensor) -> Tensor:
    return x.new_zeros(n.item(), 2) + 1  # expect: item keep size


@FAMILY.program(counts)
def as_an_index(x: Tensor, n: Tensor) -> Tensor:
    i = n.item() - 1  # expect: item keep size
    return x[i] * 2


@FAMILY.program(counts, grad=True)
def as_a_slice(x: Tensor, n: Tensor) -> Tensor:
    return x[:, : int(n)].sum(1)  # expect: item keep size


@FAMILY.program(counts)
def as_a_dimension(x: Tensor, n: Tensor) -> Tensor:
    return x.unsqueeze(0).sum(int(n) - 1)  # expect: item keep size|python_value


@FAMILY.program(counts)
def as_a_repeat(x: Tensor, n: Tensor) -> Tensor:
    return x.repeat(n.item(), 1), F.pad(x, (0, int(n)))  # expect: item keep size


@FAMILY.program(counts)
def as_a_range(x: Tensor, n: Tensor) -> Tensor:
    for _ in range(n.item()):  # expect: item keep python_value|size
        x = x * 2
    return x


NAMES = {1: "one", 2: "two", 3: "three"}


@FAMILY.program(counts)
def as_a_key(x: Tensor, n: Tensor) -> tuple[Tensor, str]:
    return x * 2, NAMES[n.item()]  # expect: item keep python_value


@FAMILY.program(counts)
def as_a_key_to_set(x: Tensor, n: Tensor) -> dict[Any, Tensor]:
    return {n.item(): x * 2}  # expect: item keep python_value


@FAMILY.program({"count": counts, "level": beside(0.5, NAN, 1e30)})
def in_a_string(x: Tensor, t: Tensor) -> tuple[Tensor, str]:
    return x * 2, f"<{t.item()}>"  # expect: item late after_graph or item keep python_value


@FAMILY.program({"count": counts, "level": beside(0.5, NAN, -0.0)})
def returned(x: Tensor, t: Tensor) -> tuple[Tensor, float]:
    return x * 2, t.item()  # expect: item late after_graph


@FAMILY.program(beside(0.5, NAN, 0.0))
def returned_and_used(x: Tensor, t: Tensor) -> dict[str, Any]:
    a = float(t)  # expect: item late after_graph
    return {"x": x * a, "scale": a}


@FAMILY.program(beside(0.5, 0.0, 2.0), state=lambda module: [type(module.last), module.last])
class Remembers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = 0.0

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        self.last = t.item()  # expect: item late after_graph
        return x * self.last


HELD: list[Any] = []
TOTAL = 0.0


def held(_: object) -> list[Any]:
    global TOTAL
    found = [*HELD, TOTAL]
    HELD.clear()
    TOTAL = 0.0
    return found


@FAMILY.program(beside(0.5, NAN, 2.0), state=held)
def appended(x: Tensor, t: Tensor) -> Tensor:
    HELD.append(t.item())  # expect: item late after_graph
    return x * 2


@FAMILY.program(beside(0.5, 0.0, 2.0), state=held)
def summed_in_a_global(x: Tensor, t: Tensor) -> Tensor:
    global TOTAL
    TOTAL += t.item()  # expect: item late after_graph
    return x * 2


@FAMILY.program(counts, state=held)
def held_as_a_list(x: Tensor, n: Tensor) -> Tensor:
    HELD.append(x[0, :2].tolist())  # expect: item late after_graph
    return x * 2


@FAMILY.program(beside(4.0, 0.25, 0.0, 1e300, dtype=torch.float64, like=torch.float32))
def to_math(x: Tensor, t: Tensor) -> Tensor:
    return x * math.sqrt(t.item())  # expect: item keep partial_op


@FAMILY.program(beside(4.0, -1.0, NAN), dynamo=True)
def root_of_a_negative_number(x: Tensor, t: Tensor) -> Tensor:
    return x * math.sqrt(t.item())  # expect: item keep partial_op|python_value|overflow


@FAMILY.program(beside(4.0, 1e3, -INF, NAN), dynamo=True)
def exponential_overflows(x: Tensor, t: Tensor) -> Tensor:
    return x * math.exp(t.item())  # expect: item keep partial_op|python_value|overflow


@FAMILY.program(
    {
        "float": beside(2.0, 0.0, -0.0, NAN),
        "int": beside(2, 0, dtype=torch.int64, like=torch.float32),
    },
    dynamo=True,
)
def divides_one(x: Tensor, t: Tensor) -> Tensor:
    return x * (1 / t.item())  # expect: item keep partial_op|python_value


@FAMILY.program(beside(2, 0, -3, dtype=torch.int64, like=torch.float32), dynamo=True, device="cpu")
def divides_whole_numbers(x: Tensor, t: Tensor) -> Tensor:
    return x * (7 // t.item()) + 7 % t.item()  # expect: item keep partial_op|python_value|overflow


@FAMILY.program(beside(2, -3, 2**62, dtype=torch.int64, like=torch.float32))
def beyond_64_bits(x: Tensor, t: Tensor) -> Tensor:
    return x * (t.item() * 4)  # expect: item keep overflow


@FAMILY.program(beside(2, 5, 70, dtype=torch.int64, like=torch.float32))
def power_of_integers(x: Tensor, t: Tensor) -> Tensor:
    return x * 2 ** t.item()  # expect: item keep overflow|python_value


@FAMILY.program(beside(2**40, 7, dtype=torch.int64, like=torch.int64))
def sum_within_64_bits(x: Tensor, t: Tensor) -> Tensor:
    return x + (t.item() + 1)  # expect: item keep overflow


@FAMILY.program(beside(2.5, -3.5, NAN, INF, 1e30))
def int_of_a_float(x: Tensor, t: Tensor) -> Tensor:
    return x * int(t)  # expect: item keep partial_op|overflow|python_value


@FAMILY.program(beside(2.5, -3.5, 0.5))
def rounded(x: Tensor, t: Tensor) -> Tensor:
    y = x * round(t.item())  # expect: item keep partial_op
    return y * round(t.item(), 1)  # expect: item keep python_value


@FAMILY.program(calls(lambda: [(normal(3, 4), torch.ones(2)), (normal(3, 4), torch.ones(3))]))
def float_of_two(x: Tensor, t: Tensor) -> Tensor:
    y = x * 2
    return y * float(t)  # expect: item keep partial_op|python_value


@FAMILY.program(calls(lambda: [(normal(3, 4), torch.ones(0)), (normal(3, 4), torch.ones(2))]))
def truth_of_none_and_two(x: Tensor, t: Tensor) -> Tensor:
    y = x * 2
    return y * bool(t)  # expect: item keep partial_op|python_value


@FAMILY.program(
    calls(lambda: [(normal(3, 4), torch.tensor(v)) for v in (1 + 2j, 0j, complex(NAN, 1))])
)
def complex_number(x: Tensor, t: Tensor) -> Tensor:
    return x * t.item()  # expect: item keep python_value|overflow|dtype_mismatch


@FAMILY.program(counts, device="cpu")
def through_numpy(x: Tensor, n: Tensor) -> tuple[Tensor, Any]:
    a = x.numpy().sum()
    return x * 2, float(a)  # expect: any


@FAMILY.program(counts)
def as_a_numpy_number(x: Tensor, n: Tensor) -> Tensor:
    return x * np.float32(n.item())  # expect: item keep python_value


@FAMILY.program(beside(0.5, 2.0, NAN))
def minimum_of_numbers(x: Tensor, t: Tensor) -> Tensor:
    return x * min(t.item(), 1.0), x * max(0.0, t.item(), 0.75)  # expect: item device on_device


@FAMILY.program(beside(3, -2, dtype=torch.int64, like=torch.float32), dynamo=True)
def minimum_of_two_kinds(x: Tensor, t: Tensor) -> Tensor:
    return x.long() * min(t.item(), 1.5)  # expect: item keep python_value


@FAMILY.program(beside(0.5, -0.5, NAN), grad=True)
def python_branch_that_stays(x: Tensor, t: Tensor) -> Tensor:
    a = t.item()  # expect: item keep python_value|alias
    y = x * a
    if a > 0:
        y = x
    return y * 2 if y is x else y


@FAMILY.program(beside(0.5, 1.5, 7.0))
def tested_with_a_set(x: Tensor, t: Tensor) -> Tensor:
    return x * 2 if t.item() in {0.5, 7.0} else x  # expect: item keep python_value or none


@FAMILY.program(beside(0.5, 1.5))
def asked_for_its_type(x: Tensor, t: Tensor) -> Tensor:
    a = t.item()  # expect: any
    return x * 2 if isinstance(a, float) else x * a


@FAMILY.program(beside(0.5, 1.5, 0.1))
def asked_for_its_parts(x: Tensor, t: Tensor) -> Tensor:
    top, bottom = t.item().as_integer_ratio()  # expect: item keep python_value
    return x * top / bottom


@FAMILY.program(counts, state=lambda module: module.scales)
class KeepsInADict(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scales: dict[str, float] = {}

    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        self.scales["last"] = float(n)  # expect: item late after_graph
        return x / self.scales["last"]


@FAMILY.program(calls(lambda: [(normal(3, 4),), (normal(3, 4) * 2,)]))
def number_of_dropout(x: Tensor) -> Tensor:
    return F.dropout(x, x.sigmoid().mean().item())  # expect: item keep random_op|python_value


@FAMILY.program(calls(lambda: [(normal(3, 4),), (normal(3, 4) * 2,)]))
def number_of_a_random_tensor(x: Tensor) -> Tensor:
    return x * torch.rand(()).item() + torch.rand(2, 3, 4, device=x.device)  # expect: any


@FAMILY.program(floats(3, 4), options={"rules": {"item": False}})
def switched_off(x: Tensor) -> Tensor:
    return x / x.norm().item()  # expect: item keep rule_off|forced


@FAMILY.program(floats(3, 4))
def handed_to_a_foreign_call(x: Tensor) -> Tensor:
    a = x.sum().item()  # expect: item keep python_value
    return x * len(str(np.array(a).dtype))


@FAMILY.program(calls(lambda: [(normal(3, 4).abs(),), (-normal(3, 4).abs(),)]))
def raises_with_the_number(x: Tensor) -> Tensor:
    a = x.sum().item()  # expect: item device on_device
    if a < 0:
        raise ValueError(f"sum {a}")
    return x * a


@FAMILY.program(floats(3, 4), grad=True)
def leaf_made_of_a_number(x: Tensor) -> Tensor:
    # On a GPU the tensor made of the number is the host's.
    number = x.sum().item()  # expect: item device on_device; cuda: item keep python_value
    return x * torch.tensor(number)


@FAMILY.program(beside(3, 1000, dtype=torch.int64, like=torch.int8))
def stored_into_small_integers(x: Tensor, t: Tensor) -> Tensor:
    y = x.clone()
    y[0] = t.item()  # expect: item keep overflow
    return y


@FAMILY.program(beside(3.0, 1e6, dtype=torch.float32, like=torch.float16))
def fill_that_overflows(x: Tensor, t: Tensor) -> Tensor:
    return torch.full_like(x, t.item())  # expect: item keep overflow


@FAMILY.program(beside(3.0, -0.5, dtype=torch.float32, like=torch.float32))
def exponents(x: Tensor, t: Tensor) -> Tensor:
    a = t.item()  # expect: any
    return x**a, a**x, x.abs().pow(a)


@FAMILY.program(beside(2, 3, dtype=torch.int64, like=torch.int64))
def integer_exponents(x: Tensor, t: Tensor) -> Tensor:
    return x ** t.item()  # expect: any


@FAMILY.program(beside(2, -3, dtype=torch.int64, like=torch.int64))
def negative_integer_exponents(x: Tensor, t: Tensor) -> Tensor:
    return x ** t.item()  # expect: any


@FAMILY.program(beside(2, 0, -3, dtype=torch.int64, like=torch.int64), device="cpu")
def remainder_of_integers(x: Tensor, t: Tensor) -> Tensor:
    return x % t.item()  # expect: item keep partial_op


@FAMILY.program(beside(2, 0, -3, dtype=torch.int64, like=torch.int64), device="cpu")
def floor_division_of_integers(x: Tensor, t: Tensor) -> Tensor:
    return x // t.item()  # expect: item keep partial_op


@FAMILY.program(beside(2, 5, dtype=torch.int64, like=torch.int64))
def shifts(x: Tensor, t: Tensor) -> Tensor:
    return x << t.item(), x & t.item()  # expect: item device on_device


@FAMILY.program(lambda: [(normal(3, 4) > 0, torch.tensor(0.5))])
def a_difference_that_raises(x: Tensor, t: Tensor) -> Tensor:
    return x - t.item()  # expect: item keep partial_op
