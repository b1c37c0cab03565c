"""Which chains of calls give the same bits on every device, and what is known of their numbers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from fusepass.host_tensors.cpu_chain import CpuChain, GraphPositions, chain_of
from fusepass.host_tensors.exact_ops import EXCLUDED, Inexact
from fusepass.host_tensors.host_constant import value_of
from fusepass.host_tensors.replay import check_exact
from fusepass.host_tensors.value_sets import NumberSet, ValueSets

Program = Callable[[Tensor], Any]


def chain(program: Program, *, dynamic: bool = False) -> CpuChain:
    """The chain of the last result of a program that gets a tensor of shape [5]."""
    graphs: list[fx.Graph] = []

    def keep(gm: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        graphs.append(gm.graph)
        return gm.forward

    torch.compiler.reset()
    torch.compile(program, backend=keep, dynamic=dynamic)(torch.ones(5))
    output = next(node for node in reversed(graphs[-1].nodes) if node.op == "output")
    return chain_of(output.all_input_nodes[-1], output, GraphPositions(graphs[-1]))


def written(kind: torch.dtype) -> Tensor:
    m = torch.zeros(4, 4, dtype=kind)
    m[1, :2] = 3
    m[2:].fill_(2)
    m.fill_diagonal_(1)
    m -= 1
    m.mul_(2).clamp_(max=3)
    m.masked_fill_(m > 2, 0)
    return m


def ramp() -> Tensor:
    return torch.arange(-3, 9)


def stored_where() -> Tensor:
    t = ramp()
    t[t > 3] = 0
    return t


EXACT: dict[str, Program] = {
    "fills": lambda x: torch.cat([torch.zeros(3), torch.ones(2), torch.full((2,), -0.5)]),
    "full of a third": lambda x: torch.full((3,), 1 / 3),
    "like": lambda x: torch.full_like(x, 7, dtype=torch.int32),
    "new": lambda x: x.new_ones(3).double(),
    "steps of three": lambda x: torch.arange(0, 20, 3),
    "downwards": lambda x: torch.arange(5, -5, -2).to(torch.int8),
    "whole floats": lambda x: torch.arange(0.0, 10.0, 2),
    "triangles": lambda x: torch.ones(4, 4).tril(-1) + torch.full((4, 4), -float("inf")).triu(1),
    "where": lambda x: torch.where(ramp() > 2, -1.5, 2.5),
    "where of tensors": lambda x: torch.where(ramp() % 2 == 0, ramp(), -ramp()),
    "masked": lambda x: torch.zeros(12).masked_fill(ramp() < 0, float("-inf")).half(),
    "half": lambda x: (1.0 - torch.eye(4, dtype=torch.float16)) * -1024.0,
    "bfloat16": lambda x: torch.arange(200).bfloat16(),
    "remainders": lambda x: (ramp() % 5 + ramp() // -2) * 3,
    "magnitudes": lambda x: ramp().neg().abs().clamp(1, 4).to(torch.uint8),
    "counts": lambda x: torch.ones(4, 6, dtype=torch.bool).tril().sum(1),
    "running counts": lambda x: torch.ones(4, 6, dtype=torch.bool).cumsum(1) - 1,
    "any": lambda x: torch.eye(3).bool().any(0) & torch.zeros(3).logical_not(),
    "extremes": lambda x: ramp().view(3, 4).amax(1) + ramp().view(3, 4).amin(1),
    "bits": lambda x: ramp() & 3 | ~ramp() ^ 5,
    "places": lambda x: ramp().view(3, 4).t().flip(0).roll(1, 0)[1:, None].expand(3, 2, 3),
    "split": lambda x: torch.stack(ramp().chunk(3)[1:], -1).repeat(2, 1),
    "written": lambda x: written(torch.float32),
    "written integers": lambda x: written(torch.int16),
    "written half": lambda x: written(torch.float16),
    "uninitialised and filled": lambda x: torch.empty(3, dtype=torch.float16).fill_(2.0),
    "int8 to float": lambda x: ramp().char().float() * 0.5,
    "comparison with a float": lambda x: ramp().float() <= 2.5,
    "one number": lambda x: torch.tensor(3) + torch.zeros(2, dtype=torch.long),
    "copied into": lambda x: torch.zeros(3).copy_(torch.arange(3)),
    "minimum": lambda x: torch.minimum(ramp(), torch.full((12,), 4)).maximum(torch.tensor(0)),
    "a literal among others": lambda x: torch.tensor([1, 2, 3]) * 4 - torch.arange(3),
}
INEXACT: dict[str, tuple[Program, str]] = {
    "rounding product": (lambda x: torch.arange(5) * 0.1, "round"),
    "product of what rounds": (lambda x: torch.full((3,), 0.1) * torch.full((3,), 0.1), "round"),
    "sum of thirds": (lambda x: torch.full((3,), 1 / 3) + 1 / 7, "round"),
    "quotient": (lambda x: torch.ones(3) / 3, "reciprocal"),
    "linspace": (lambda x: torch.linspace(0, 1, 5), "steps"),
    "fractions": (lambda x: torch.arange(0, 1, 0.25), "steps"),
    "sine": (lambda x: torch.arange(3.0).sin(), "math library"),
    "root": (lambda x: torch.ones(3).sqrt(), "math library"),
    "product of matrices": (lambda x: torch.eye(3) @ torch.ones(3, 3), "order"),
    "mean": (lambda x: torch.ones(3).mean(), "order"),
    "sum of floats": (lambda x: torch.ones(3, 3).sum(0), "order"),
    "half of too much": (lambda x: torch.arange(3000).half(), "round"),
    "half of a tenth": (lambda x: torch.full((3,), 0.1, dtype=torch.float16), "round"),
    "infinite in half": (lambda x: torch.full((3,), -3e38).half(), "round"),
    "wrapped": (lambda x: torch.full((3,), 100, dtype=torch.int8) + 100, "overflow"),
    "narrowed": (lambda x: torch.full((3,), 300).to(torch.uint8), "overflow"),
    "large integers": (lambda x: torch.arange(4) * 2**30, "overflow"),
    "large steps": (lambda x: torch.arange(0, 2**40, 2**38), "overflow"),
    "fraction to integer": (lambda x: torch.full((3,), 2.5).long(), "round"),
    "NaN": (lambda x: torch.full((3,), float("nan")), "round"),
    "NaN of infinities": (lambda x: torch.full((3,), -float("inf")) * torch.zeros(3), "round"),
    "denormal": (lambda x: torch.full((3,), 1e-40), "denormal"),
    "index": (lambda x: ramp()[torch.tensor([0, 1])], "out of range"),
    "list as an index": (lambda x: ramp()[[0, 1]], "out of range"),
    "stored where a mask is": (lambda x: stored_where(), "indexing by a tensor"),
    "fraction of much": (lambda x: torch.arange(200).float() * 0.5, "round"),
    "division of integers": (lambda x: ramp() // torch.full((12,), 2), "not of integers"),
    "remainder of floats": (lambda x: ramp().float() % 2, "not of integers"),
    "one-hot": (lambda x: torch.tril_indices(3, 3), "square roots"),
    "complex": (lambda x: torch.ones(3, dtype=torch.complex64), "complex64"),
    "scaled sum": (lambda x: torch.add(ramp(), ramp(), alpha=2), "is exact is not known"),
    "bytes as integers": (lambda x: torch.ones(4).view(torch.int32), "view_dtype"),
    "joined dtypes": (lambda x: torch.cat([torch.ones(2), torch.ones(2).half()]), "dtype"),
    "compared with a tenth": (lambda x: torch.full((3,), 0.5) < 0.1, "round"),
    "unknown": (lambda x: torch.ones(3).lgamma(), "is exact is not known"),
}


@pytest.mark.parametrize("name", EXACT)
def test_exact(name: str) -> None:
    found = chain(EXACT[name])
    wanted = found.wanted.meta["example_value"]
    check_exact(found, wanted.dtype)
    assert_sound(found)


@pytest.mark.parametrize("name", INEXACT)
def test_inexact(name: str) -> None:
    program, text = INEXACT[name]
    found = chain(program)
    with pytest.raises(Inexact, match=text):
        check_exact(found, found.wanted.meta["example_value"].dtype)


def assert_sound(found: CpuChain) -> None:
    """Every number that a call leaves behind is among those it may hold."""
    held = ValueSets(lambda size: None)
    for position, node in enumerate(found.nodes):
        if node.op == "call_function" and node.target is torch.tensor:
            value = torch.tensor(*node.args)
            held.set_from_value(node, value) if value.dim() else held.admit(node)
        else:
            held.admit(node)
        so_far = found.nodes[: position + 1]
        if isinstance(node.meta.get("example_value"), Tensor) and node.target is not torch.empty:
            value = value_of(CpuChain(node, so_far, found.sizes, found.shapes, found.written))
            numbers = held.of(node)
            if numbers is not None:
                assert all(holds(numbers, v) for v in value.double().unique().tolist()), node


def holds(numbers: NumberSet, number: float) -> bool:
    if numbers.members is None:
        return number == int(number) and numbers.low <= number <= numbers.high
    return number in numbers.members


def test_sizes_in_sums_get_a_bound() -> None:
    """The sum of positions fits as long as there are at most 2**20."""
    found = chain(lambda x: torch.arange(x.shape[0]).float() - x.shape[0], dynamic=True)
    check_exact(found, torch.float32)
    found = chain(lambda x: torch.arange(x.shape[0]).float() * 100, dynamic=True)
    with pytest.raises(Inexact, match="round"):
        check_exact(found, torch.float32)
    found = chain(lambda x: torch.arange(x.shape[0]) <= 3, dynamic=True)
    check_exact(found, torch.bool)


def test_every_exclusion_says_why() -> None:
    assert all(len(why) > 20 for why in EXCLUDED.values())


_STEPS = [
    "t = t + {k}", "t = t * {k}", "t = 1 - t", "t = -t", "t = t.abs()", "t = t.clamp({k}, {l})",
    "t = t % 3", "t = t // 2", "t = t.flip(0)", "t = t[1:]", "t = t[:, None].expand(-1, 2)[:, 0]",
    "t = torch.cat([t, t])", "t = torch.where(t > {k}, t, {l})", "t = t.masked_fill(t == {k}, {l})",
    "t = t.float()", "t = t.int()", "t = t.to(torch.int8)", "t = t.half()", "t = (t > {k}).long()",
    "t += {k}", "t[0] = {l}", "t[1:].mul_({k})", "t.fill_({k})", "t.clamp_(max={l})",
    "t = torch.minimum(t, torch.full_like(t, {k}))", "t = t.cumsum(0)", "t = t.roll(1)",
    "t = t * 0.5", "t = t.bool()", "t = t.neg_()",
]  # fmt: skip


@pytest.mark.parametrize("seed", range(60))
def test_random_chains_hold_what_is_said(seed: int) -> None:
    """As far as the chain is exact; where it stops being, nothing is said."""
    draw = random.Random(seed)
    steps = [
        draw.choice(_STEPS).format(k=draw.randint(-3, 3), l=draw.choice([0, 1, 7, -200]))
        for _ in range(draw.randint(2, 7))
    ]
    source = "\n    ".join(["def program(x):", "t = torch.arange(-2, 6)", *steps, "return t"])
    scope: dict[str, Any] = {"torch": torch}
    exec(compile(source, f"<chain {seed}>", "exec"), scope)
    try:
        scope["program"](torch.ones(5))
    except RuntimeError:
        return  # arithmetic of truth values, a number that does not fit
    found = chain(scope["program"])
    try:
        check_exact(found, found.wanted.meta["example_value"].dtype)
    except Inexact:
        return
    assert_sound(found)
