"""F-strings of numbers that vary: texts, formatted as eager formats them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fusepass

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


TABLE = {"e0": 1.0, "e1": 2.0, ("e1", 0): 3.0}


def get(x: Tensor, key: str) -> Any:
    return x * TABLE.get(key, 9.0)


def item(x: Tensor, key: str) -> Any:
    return x * {**TABLE, "e2": 5.0}[key]


def contained(x: Tensor, key: str) -> Any:
    return x * (2.0 if key in TABLE else 3.0)


def stored(x: Tensor, key: str) -> Any:
    return x * {key: 5.0}.get("e1", 7.0)


def in_a_set(x: Tensor, key: str) -> Any:
    return x * (2.0 if "e1" in {key, "e3"} else 3.0)


def in_a_tuple(x: Tensor, key: str) -> Any:
    return x * TABLE.get((key, 0), 9.0)


def popped(x: Tensor, key: str) -> Any:
    table = dict(TABLE)
    return x * table.pop(key, 3.0), len(table)


def by_default(x: Tensor, key: str) -> Any:
    table = dict.fromkeys([key], 2.0)
    return x * table.setdefault("e1", 3.0), len(table)


LOOKUPS = [get, item, contained, stored, in_a_set, in_a_tuple, popped, by_default]
TEXTS: dict[str, Callable[[Tensor], str]] = {
    "number": lambda x: f"e{x.argmax().item()}",
    "format": lambda x: "e{}".format(x.argmax().item()),  # noqa: UP032
    "named": lambda x: "e{at}".format(at=x.argmax().item()),  # noqa: UP032
    "percent": lambda x: "e%d" % x.argmax().item(),  # noqa: UP031
    "float": lambda x: f"e{x.argmax().double().item():.0f}",
    "tensor": lambda x: f"e{x.argmax()}",
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("lookup", LOOKUPS)
def test_a_text_is_found_as_a_key(lookup: Callable[..., Any], text: str) -> None:
    def program(x: Tensor) -> Any:
        return lookup(x, TEXTS[text](x))

    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    for x in ([0.0, 2.0, 1.0], [3.0, 2.0, 1.0], [0.0, 1.0, 5.0]):
        assert str(compiled(torch.tensor(x))) == str(program(torch.tensor(x)))


@pytest.mark.skipif(torch.__version__ < "2.12", reason="Dynamo 2.11 asks for the value at a text")
def test_a_text_that_is_no_key_keeps_its_number_in_the_graph() -> None:
    def program(x: Tensor) -> tuple[Tensor, str]:
        return x * 2, f"e{x.argmax().item()}"

    with fusepass.options(codegen="eager"):
        report = fusepass.explain(program, torch.ones(3))
    assert report.graph_breaks == ()
