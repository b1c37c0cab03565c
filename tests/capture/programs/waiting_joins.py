"""Joins that wait: the arms leave different Python values, and code behind the join asks."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..support.program import WHERE, Family

FAMILY = Family("waiting_joins")
# One predicate true, then another, both, none.
SIGNS = ((1.0, -1.0), (-1.0, 1.0), (1.0, 1.0), (-1.0, -1.0))


def turns(seed: int) -> list[tuple[Tensor]]:
    """Each outcome of two predicates, twice."""
    scale = 1.0 + seed % 3
    return [(torch.tensor([a * scale, b, 0.5, 2.0]),) for a, b in SIGNS] * 2


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
    print(name, f"{name}!")
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


def iterators(x: Tensor) -> Any:
    h = 2 if x[0] > 0 else 0
    g = 0 if x[1] > 0 else 3
    total = x * 1
    for v in filter(None, [h, 5, g]):
        total = total + v
    later = iter([h, 1, g])
    return total, any([h, g]), sorted([h, g, 1]), next(later), list(later)


# With how many lines of each test a tensor, and are one graph in training, too.
WHOLE = {
    is_none: 1,
    is_none_nested: 2,
    flags: 2,
    flag_implies: 2,
    list_length: 1,
    loop_over_range: 1,
    key: 1,
    to_drop: 1,
    options_of_a_call: 1,
    function: 1,
    closure: 1,
    shape_of_it: 1,
    unpacked: 1,
    same_object: 1,
    types: 1,
    must_not_be_none: 1,
    prints: 1,
    formatted: 1,
    slices: 1,
    container_with_one: 1,
    appended: 1,
    default: 1,
    minimum: 2,
    written_predicate: 2,
    comprehension: 1,
    under_no_grad: 1,
    iterators: 2,
}
OTHERS = [
    in_a_list_of_tensors,
    flag_of_flags,
    helpers_bool,
    exit_index,
    random_numbers,
    fails_in_one_arm,
    filtered,
]

for _program, _count in WHOLE.items():
    FAMILY.add(
        _program.__name__,
        lambda program=_program: program,
        turns,
        *[WHERE] * _count,
        grad=True,
        extra=_program is flags,  # the chains of flags
    )
