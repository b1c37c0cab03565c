"""F-strings of numbers that vary: texts, formatted as eager formats them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

NUMBERS = (1.0, -1.0, 2.5, 3.0)


def added(x: Tensor, n: float) -> tuple[Any, ...]:
    text = f"{n}"
    return x * n, text + text, text * 2, "a" + f"{n}"


def as_a_text(x: Tensor, n: float) -> tuple[Any, ...]:
    return x * n, f"{n}"[0], f"{n}".upper(), "".join([f"{n}", f"{n}"])


def compared(x: Tensor, n: float) -> tuple[Any, ...]:
    return x * n, f"{n}" == "2.5", f"{n}" < f"{n + 1}", len(f"{n}")


def as_a_key(x: Tensor, n: float) -> tuple[Any, ...]:
    return x * n, {f"{n}" + f"{n}": 1, f"{n:6.1f}": 2}


def in_formats(x: Tensor, n: float) -> tuple[Any, ...]:
    return x * n, f"{n:.2f}", f"{n:8}|", f"{n!r:8}|", f"{n!s}", f"{n:+}", f"<{n:6.1f}>"


def of_integers(x: Tensor, n: float) -> tuple[Any, ...]:
    whole = int(n)
    return x * whole, f"{whole}", f"{whole:03d}", f"{whole:5}|", f"a{whole}b"


def across_a_break(x: Tensor, n: float) -> tuple[Any, ...]:
    text = f"{n}"
    torch._dynamo.graph_break()
    return x * n, text + text


def behind_a_branch(x: Tensor, n: float) -> tuple[Any, ...]:
    y = x * n
    text = f"{n:6.1f}" if y.sum() > 0 else f"{n}"
    return y, text


def of_a_number_read(x: Tensor, n: float) -> tuple[Any, ...]:
    read = x.sum().item() * n
    return x * 2, f"{read}" + f"{read}", f"{read:8}|"


def printed(x: Tensor, n: float) -> tuple[Any, ...]:
    text = f"{n}"
    text += f"{x.sum().item()}" + text
    print(text)  # noqa: T201
    return (x * n,)


PROGRAMS: list[Callable[..., Any]] = [
    added,
    as_a_text,
    compared,
    as_a_key,
    in_formats,
    of_integers,
    across_a_break,
    behind_a_branch,
    of_a_number_read,
    printed,
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_text_of_a_number_is_a_text(
    program: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    for number in NUMBERS:
        x = torch.tensor([number, 2.0])
        wanted = str(program(x, number)), capsys.readouterr().out
        assert (str(compiled(x, number)), capsys.readouterr().out) == wanted


def test_a_name_made_of_a_number_ends_no_graph() -> None:
    layers = torch.nn.ModuleDict({f"layer{i}": torch.nn.Linear(2, 2) for i in range(3)})

    def program(x: Tensor, i: int) -> Tensor:
        return layers[f"layer{i}"](x)

    compiled = torch.compile(
        program, backend="fusepass", fullgraph=True, options={"codegen": "eager"}
    )
    for i in range(3):
        assert torch.equal(compiled(torch.ones(2), i), program(torch.ones(2), i))
