"""Pairs of tensors that share memory in many ways, and programs that write and read them."""

from __future__ import annotations

import importlib.util
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Pair = tuple[Any, Any]


def _arrays(t: Tensor) -> Pair:
    array = t.detach().numpy().copy()
    return torch.from_numpy(array[:3]), torch.from_numpy(array[1:])


def _halves(t: Tensor) -> Pair:
    twice = torch.cat([t, t])
    return twice[:3], twice[3:6]


# Each has three rows, so that one compiled frame may meet them all.
THREE_ROWS: dict[str, Callable[[Tensor], Pair]] = {
    "apart": lambda t: (t[:3].clone(), t[1:].clone()),
    "head_and_tail": lambda t: (t[:3], t[1:]),
    "tail_and_head": lambda t: (t[1:], t[:3]),
    "one_object": lambda t: (t[1:],) * 2,
    "detached": lambda t: (t[1:], t[1:].detach()),
    "data": lambda t: (t[1:].data, t[1:]),
    "arrays": _arrays,
    "halves": _halves,
    "pieces": lambda t: torch.cat([t, t]).split(3)[:2],
    "inside_another": lambda t: (torch.cat([t, t])[2:5], t[1:]),
}
PAIRS: dict[str, Callable[[Tensor], Pair]] = {
    **THREE_ROWS,
    "whole_and_tail": lambda t: (t, t[1:]),
    "tail_and_whole": lambda t: (t[1:], t),
    "columns": lambda t: (t[:, :4], t[:, 2:]),
    "every_other": lambda t: (t[:, ::2], t[:, 1::2]),
    "flat": lambda t: (t, t.view(-1)),
    "turned": lambda t: (t, t.t()),
    "expanded": lambda t: (t, t[0].expand(4, 6)),
    "expanded_first": lambda t: (t[1].expand(4, 6), t),
    "strided": lambda t: (t, torch.as_strided(t, (2, 3), (3, 1), 5)),
    "bits": lambda t: (t, t.detach().view(torch.int32)),
}


def numbers(sign: int) -> Tensor:
    return (torch.arange(24.0).reshape(4, 6) + 1) * sign


_TESTS = ("a.sum() > 0", "b.sum() > 0", "c.sum() > 0", "(a.sum() > 0) & (b.sum() < 100)")
_WRITES = (
    *("{}.add_(100)", "{}.mul_(2)", "{}[0] = {}[-1]", "{}.copy_({} * 3)", "{} += 7", "{}.zero_()"),
    *("{}[{} > 3] = 5", "{}[{} > 3] *= 2", "{}.masked_fill_({} > 10, 1)", "{}[..., 0].add_(3)"),
    *("{}.clamp_(max=4)", "{}.data.add_(2)", "{}.detach().mul_(3)", "helped({})"),
)
_READS = (
    *("c = c + b.sum()", "c = c + a.sum()", "c = b.sum() * c", "c = c + a.flatten()[0]"),
    *("w = b[0]", "w = a[-1]", "w = b[1:]", "w = a", "w = b", "w = a * 2", "c = c + w.sum()"),
)
_RESULTS = ("b[0]", "c", "(a, c)", "b", "w", "(w, b[1:])", "a[0]", "(a + 1, c, w)", "b.sum() + c")
_HEAD = "import torch\n\n\ndef helped(x):\n    x.add_(1)\n\n\n"
_PLACES = {
    "argument": (
        "def called(a, b, c):\n{body}\n\ndef program(a, b, c):\n    return RUN(a, b, c)\n"
    ),
    "global": (
        "B = None\n\n\ndef called(a, c):\n    b = B\n{body}\n\ndef program(a, b, c):\n"
        "    global B\n    B = b\n    return RUN(a, c)\n"
    ),
    "buffer": (
        "class Model(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.register_buffer('held', torch.zeros(1))\n\n    def forward(self, a, c):\n"
        "        b = self.held\n        return inner(a, b, c)\n\n\ndef inner(a, b, c):\n{body}\n\n"
        "called = Model()\n\n\ndef program(a, b, c):\n    called.held = b\n    return RUN(a, c)\n"
    ),
    "closure": (
        "def around():\n    b = None\n\n    def put(x):\n        nonlocal b\n        b = x\n\n"
        "    def called(a, c):\n        return inner(a, b, c)\n\n    return put, called\n\n\n"
        "def inner(a, b, c):\n{body}\n\nput, called = around()\n\n\n"
        "def program(a, b, c):\n    put(b)\n    return RUN(a, c)\n"
    ),
}


def drawn(seed: int) -> str:
    """The source of a program of two tensors ``a`` and ``b`` and a number ``c``."""
    draw = random.Random(seed)
    lines: list[str] = [f"    w = {draw.choice(('a', 'b[0]', 'a * 1'))}"]

    def branch(depth: int) -> None:
        indent = "    " * (depth + 1)
        lines.append(f"{indent}if {draw.choice(_TESTS)}:")
        block(depth + 1)
        if draw.random() < 0.4:
            lines.append(f"{indent}else:")
            block(depth + 1)

    def block(depth: int) -> None:
        indent = "    " * (depth + 1)
        for _ in range(draw.randint(1, 3)):
            kind = draw.random()
            if kind < 0.35:
                lines.append(indent + draw.choice(_WRITES).replace("{}", draw.choice("ab")))
            elif kind < 0.65 or depth > 1:
                lines.append(indent + draw.choice(_READS))
            elif kind < 0.93:
                branch(depth)
            else:
                lines.append(f"{indent}for _ in range(2):")
                block(depth + 1)

    branch(0)
    block(0)
    lines.append(f"    return {draw.choice(_RESULTS)}")
    form = _PLACES[draw.choice(sorted(_PLACES))]
    return _HEAD + form.replace("{body}", "\n".join(lines) + "\n")


def loaded(source: str, folder: Path, name: str, compiled: Callable[[Any], Any]) -> Any:
    """The program of a source; what it calls is compiled."""
    path = folder / f"{name}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
    module.RUN = compiled(module.called)  # type: ignore[attr-defined]
    return module.program
