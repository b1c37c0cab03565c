"""Code behind a join that looks at a value of which the arms left two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..support.side_by_side import side_by_side, signed

TURNS = signed(1.5, -0.5, 2.0, 0.25)
# One predicate true, then another, both, none.
FOUR = [
    (torch.tensor([a, b, 0.5, 2.0]),)
    for a, b in ((1.0, -1.0), (-1.0, 1.0), (1.0, 1.0), (-1.0, -1.0))
] * 2


def is_none(x: Tensor) -> Tensor:
    h = None
    if x[0] > 0:
        h = x * 2
    if h is not None:
        return h + 1
    return x - 1


def is_none_nested(x: Tensor) -> Tensor:
    h = g = None
    if x[0] > 0:
        h = x * 2
        if x[1] > 0:
            g = h + 1
    y = x * 3
    if h is not None:
        y = y + h
        if g is not None:
            y = y * g
    return y


def flags(x: Tensor) -> Tensor:
    ok, strong = True, False
    if x[0] > 0:
        ok = False
    if x[1] > 0:
        strong = True
    if ok and not strong:
        return x * 2
    if ok or strong:
        return x * 3
    return x * 5


def flag_of_flags(x: Tensor) -> tuple[Tensor, Any]:
    a = x[0] > 0
    ok = False
    if a:
        ok = True
    both = ok and x[1] > 0
    either = not ok or both
    return x * 2 if either else x * 3, ok


def flag_implies(x: Tensor) -> Tensor:
    ok, h = True, x * 4
    if x[0] > 0:
        ok, h = False, None  # type: ignore[assignment]
    if x[1] > 0:
        ok = False
    if ok:
        return h + 1
    return x + 1


def passes(x: Tensor) -> bool:
    if x[0] > 0:
        return True
    return bool(x[1] > 0)


def helpers_bool(x: Tensor) -> Tensor:
    if passes(x) and not passes(-x):
        return x * 2
    return x * 3


def first_positive(x: Tensor) -> int:
    for i in range(3):
        if x[i] > 0:
            return i
    return -1


def exit_index(x: Tensor) -> Any:
    i = first_positive(x)
    if i == 0:
        return x * 2, "first"
    if i < 0:
        return x * 3, f"none {i}"
    return x * i, i + 1


def list_length(x: Tensor) -> Tensor:
    parts = [x * 2]
    if x[0] > 0:
        parts = [x * 2, x + 1, x * 4]
    return sum(parts) / len(parts)  # type: ignore[return-value]


def loop_over_range(x: Tensor) -> Tensor:
    n = 3 if x[0] > 0 else 1
    y = x * 1
    for i in range(n):
        y = y * 2 + i
    return y


def key(x: Tensor) -> Tensor:
    mode = "fast" if x[0] > 0 else "slow"
    table = {"fast": 2.0, "slow": 3.0}
    return x * table[mode] if mode in table else x * 4


def to_drop(x: Tensor) -> Tensor:
    drop = False
    if x[0] > 0:
        drop = True
    for scale in (2.0, 3.0):
        if not drop:
            x = x * scale
        x = x + 1
    return x


def options_of_a_call(x: Tensor) -> Tensor:
    weight = None
    if x[0] > 0:
        weight = x * 2
    return F.layer_norm(x, (4,), weight=weight)


def in_a_list_of_tensors(x: Tensor) -> Tensor:
    other: Any = 0.5
    if x[0] > 0:
        other = x.sum()
    return torch.stack([x[0] * 1, torch.as_tensor(other)]) * 2


def function(x: Tensor) -> Tensor:
    act = F.relu if x[0] > 0 else F.silu
    return act(x * 2)


def closure(x: Tensor) -> Tensor:
    if x[0] > 0:

        def scaled(v: Tensor) -> Tensor:
            return v * 2
    else:

        def scaled(v: Tensor) -> Tensor:
            return v * 3

    return scaled(x)


def shape_of_it(x: Tensor) -> Tensor:
    h = x * 2 if x[0] > 0 else None
    n = 0 if h is None else h.shape[0]
    return x * n + 1


def unpacked(x: Tensor) -> Tensor:
    pair = (x * 2, 3) if x[0] > 0 else (x * 5, 4)
    a, b = pair
    return a * b


def same_object(x: Tensor) -> Any:
    y = x * 2
    h = y if x[0] > 0 else None
    return y, h is y, h is None, h is not None


def types(x: Tensor) -> Any:
    h: Any = x * 2 if x[0] > 0 else (1, 2)
    kind = "tensor" if isinstance(h, Tensor) else "tuple"
    return x * 3, kind, type(h) is tuple, len(h), callable(h), hasattr(h, "shape")


def must_not_be_none(x: Tensor) -> Tensor:
    h = None
    if x[0] > 0:
        h = x * 2
    if h is None:
        raise ValueError("nothing")
    return h.exp()


def prints(x: Tensor) -> Tensor:
    name = "positive" if x[0] > 0 else "negative"
    print(name, f"{name}!")  # noqa: T201
    return x * 2


def formatted(x: Tensor) -> Any:
    n = 3 if x[0] > 0 else 12
    return x * 2, f"{n:04d}", str(n), f"{n}"


def slices(x: Tensor) -> Tensor:
    s = slice(0, 2) if x[0] > 0 else slice(2, 4)
    return x[s] * 2


def random_numbers(x: Tensor) -> Tensor:
    p = 0.5 if x[0] > 0 else None
    y = F.dropout(x, p) if p is not None else x * 2
    return y + torch.rand(4)


def fails_in_one_arm(x: Tensor) -> Tensor:
    m = torch.outer(x, x) + torch.eye(4) * 5
    inverse = torch.linalg.inv(m) if x[0] > 0 else None
    return m * 2 if inverse is None else inverse * 3


def container_with_one(x: Tensor) -> Any:
    out = {"loss": None, "n": 1}
    if x[0] > 0:
        out = {"loss": x.sum(), "n": 2}
    total = x * 2
    if out["loss"] is not None:
        total = total + out["loss"]
    out["more"] = x * 3  # type: ignore[assignment]
    return total


def appended(x: Tensor) -> Any:
    h = x * 2 if x[0] > 0 else None
    kept = [x * 3]
    kept.append(h)  # type: ignore[arg-type]
    return kept, len(kept)


def filtered(x: Tensor) -> Tensor:
    h = x * 2 if x[0] > 0 else None
    g = x * 3 if x[1] > 0 else None
    return torch.stack([x * 1, *[v for v in (h, g) if v is not None]]).sum(0)


def default(x: Tensor) -> Tensor:
    h = x * 2 if x[0] > 0 else None
    g = h or x * 3 if h is None else h
    return g + 1


def minimum(x: Tensor) -> Any:
    n = 3 if x[0] > 0 else 5
    m = 4 if x[1] > 0 else 2
    return x * min(n, m), max(n, m), n * m, n - m > 0, [0] * n


def written_predicate(x: Tensor) -> Any:
    p = x[0] > 0
    h = x * 2 if p else None
    p.logical_not_()
    y = x * 3
    if p:
        y = y + 1
    if h is not None:
        y = y + h
    return y


def comprehension(x: Tensor) -> Tensor:
    n = 2 if x[0] > 0 else 3
    return sum([x * i for i in range(1, n)])  # type: ignore[return-value]


def under_no_grad(x: Tensor) -> Any:
    with torch.no_grad():
        h = x * 2 if x[0] > 0 else None
    y = x * 3
    return y if h is None else y * h


PROGRAMS = [
    is_none,
    is_none_nested,
    flags,
    flag_of_flags,
    flag_implies,
    helpers_bool,
    exit_index,
    list_length,
    loop_over_range,
    key,
    to_drop,
    options_of_a_call,
    in_a_list_of_tensors,
    function,
    closure,
    shape_of_it,
    unpacked,
    same_object,
    types,
    must_not_be_none,
    prints,
    formatted,
    slices,
    random_numbers,
    fails_in_one_arm,
    container_with_one,
    appended,
    filtered,
    default,
    minimum,
    written_predicate,
    comprehension,
    under_no_grad,
]
# What is kept, in training only or always, and a part of the reason.
KEPT = {
    fails_in_one_arm: "strides",
    container_with_one: "writes a dictionary",
    filtered: "writes a list",
}
KEPT_IN_TRAINING = {
    in_a_list_of_tensors: "requires grad in one arm only",
    random_numbers: "draws random numbers",
    fails_in_one_arm: "linalg_inv",
    appended: "only one arm depends on x",
}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("grad", [False, True])
def test_equal_to_eager_and_one_graph(program: Callable[[Tensor], Any], grad: bool) -> None:
    outcome = side_by_side(program, *FOUR, grad=grad)
    kept = {**KEPT, **(KEPT_IN_TRAINING if grad else {})}
    if program in kept:
        assert "keep" in {treatment for treatment, _ in outcome.treatments}
        assert kept[program] in " ".join(outcome.reasons)
    else:
        assert "keep" not in {treatment for treatment, _ in outcome.treatments}, outcome.reasons
        assert outcome.breaks == []
        assert len(outcome.graphs) == 1


COMPILED = [is_none, flags, exit_index, loop_over_range, options_of_a_call, must_not_be_none]


@pytest.mark.parametrize("program", COMPILED)
def test_inductor(program: Callable[[Tensor], Any]) -> None:
    side_by_side(program, *FOUR, by_rule=True, codegen="inductor")
    side_by_side(program, *FOUR, by_rule=True, codegen="inductor", grad=True)


@pytest.mark.parametrize("program", [is_none, options_of_a_call, shape_of_it, list_length])
def test_dynamic_shapes(program: Callable[[Tensor], Any]) -> None:
    side_by_side(program, *FOUR, dynamic=True)


@pytest.mark.parametrize("program", [is_none, flags, exit_index, key, types])
def test_fullgraph(program: Callable[[Tensor], Any]) -> None:
    torch._dynamo.reset()
    options = {"codegen": "eager"}
    compiled = torch.compile(program, backend="fusepass", fullgraph=True, options=options)
    for (x,) in FOUR:
        assert str(compiled(x.clone())) == str(program(x.clone()))


class Encoder(nn.Module):
    """A mask that is dropped, a flag that later layers ask, a projection used in one arm."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        mask = x > 0
        if mask.all():
            mask = None  # type: ignore[assignment]
        skip = False
        for layer in self.layers:
            y = layer(x)
            if mask is not None:
                y = y.masked_fill(~mask, 0.0)
            if not skip:
                x = x + y
            if x.sum() > 3:
                skip = True
        return self.norm(x) * 2


@pytest.mark.parametrize("grad", [False, True])
def test_a_module_whose_layers_ask(grad: bool) -> None:
    torch.manual_seed(0)
    rows = [(torch.randn(4) + shift,) for shift in (3.0, 0.0, -1.0, 1.0)]
    outcome = side_by_side(Encoder().requires_grad_(grad), *rows, grad=grad)
    if not grad:
        assert outcome.breaks == []


def test_twenty_flags_take_at_most_three_times_as_many_operations_as_ten() -> None:
    def program(count: int) -> Callable[[Tensor], Tensor]:
        def flags_in_a_row(x: Tensor) -> Tensor:
            ok = True
            for i in range(count):
                if x[i] > 0.5:
                    ok = False
            return x * 2 if ok else x * 3

        return flags_in_a_row

    torch.manual_seed(0)
    rows = [(torch.zeros(20),), (torch.rand(20),), (torch.full((20,), 0.4),)]
    few, many = (side_by_side(program(count), *rows) for count in (10, 20))
    assert sum(many.ops.values()) <= 3 * sum(few.ops.values())
    assert many.breaks == []


def test_work_is_bounded() -> None:
    """A loop in a loop, each over one of two ranges, would be traced again and again."""

    def program(x: Tensor) -> Tensor:
        counts = [400 if x[i] > 0 else 401 for i in range(4)]
        for count in counts:
            for i in range(count):
                x = x + i
        return x

    side_by_side(program, *FOUR[:2])
