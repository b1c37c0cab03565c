"""Random chains of CPU calls with copies in between: what is left behind is as in eager."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import fx

import fusepass
from fusepass.testing.compare import assert_same, sharing

from .pretend import THERE, in_eager, pretended

__all__ = ["pretended"]
_FACTORIES = [
    "torch.arange(4 * n)", "torch.arange(-4, 4 * n - 4)", "torch.ones(4 * n, dtype=torch.long)",
    "torch.zeros(4 * n)", "torch.full((4 * n,), {k})", "torch.empty(4 * n).fill_({k})",
    "torch.zeros(2 * n, 2).t().reshape(-1)", "torch.linspace(0, 1, 4 * n)",
    "torch.tensor([{k}, 1.5, 2, -3] * n)",
]  # fmt: skip
_STEPS = [
    "{t} = {t} + {k}", "{t} = {t} * {k}", "{t} = {t}.flip(0)", "{t} = {t}.view(4, -1).t()[0]",
    "{t} = {t}.view(-1)", "{t} = {t}.float()", "{t} = {t} + {s}", "{t} = torch.where({s} > 0, {t}, {s})",
    "{t} = {s}[:4 * n]", "{t} = {t}.masked_fill({s} > {k}, 2)", "{t} = {t}.clone()",
    "{t}.add_({k})", "{t}[0] = {k}", "{t}[1:].mul_({k})", "{t}.fill_({k})", "{t} += {s}",
    "{t}.copy_({s})", "{t}.neg_()", "{t} = {t}.to(torch.float64)", "{t} = {t}.expand(2, 4 * n)[0]",
    "{t} = {t}.sin()", "{t} = {t}.detach()", "{t} = {t}.contiguous()", "{t} = {t}.long()",
    "out.append({t}.to(there))", "out.append({t}.to(there, torch.float32))", "out.append({t})",
    "out.append({t}.expand(2, -1).to(there))", "out[{i}] = out[{i}] * 2", "out[{i}].mul_(2)",
    "out.append({t}.view(2, -1).t().to(there))", "y = y + {t}.to(there)", "y[{t}.to(there) > 1] = 0",
    "y.copy_({t})", "y[:4] = {t}[:4]", "out.append(y[torch.arange(4) % 3])",
]  # fmt: skip


def written(draw: random.Random) -> str:
    """The source of a program ``program(x, there)``; x has 4n elements."""
    numbers = [0, 1, 2, -3, 0.5]

    def filled(template: str) -> str:
        names = draw.sample(["a", "b", "c"], 2)
        return template.format(t=names[0], s=names[1], k=draw.choice(numbers), i=draw.randint(0, 1))

    lines = ["n = x.shape[0] // 4", "y = x.to(there).clone()"]
    lines += [f"{name} = {filled(draw.choice(_FACTORIES))}" for name in "abc"]
    lines += ["out = [a.to(there), b.to(there)]"]
    lines += [filled(draw.choice(_STEPS)) for _ in range(draw.randint(3, 9))]
    return "\n    ".join(["def program(x, there):", *lines, "return y, out"]) + "\n"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_random_chains(seed: int, dynamic: bool, pretended: list[fx.GraphModule]) -> None:
    draw = random.Random(seed * 2 + dynamic)
    source = written(draw)
    scope: dict[str, Any] = {"torch": torch}
    exec(compile(source, f"<chain {seed}>", "exec"), scope)
    program = scope["program"]
    compiled = torch.compile(program, backend="fusepass", dynamic=dynamic)
    for size in (8, 12) if dynamic else (8, 8):
        x = torch.randn(size)
        try:
            expected = in_eager(program, x, THERE)
        except (RuntimeError, IndexError):
            return  # dtypes or shapes that do not go together
        found = compiled(x, THERE)
        assert_same(expected, found, source)
        assert sharing(expected) == sharing(found), source
    decisions = fusepass.last_report(compiled).decisions
    assert all(d.reason_code != "internal" for d in decisions), source
    assert any(d.rule == "host_tensor" and d.outcome == "applied" for d in decisions), source
