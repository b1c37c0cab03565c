"""Every graph break has a decision, at the program's line, with a cause in plain words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fusepass

X = torch.arange(1.0, 4.0)
INSIDE = ("Variable", "SymNode", "HOP", "L[", "proxy", "0x")


def gaussian(x: Tensor) -> Tensor:
    return F.gaussian_nll_loss(x, x * 2, x) + 1


def indexed(x: Tensor) -> Tensor:
    return x[x.argmax()] * 2


def stored(x: Tensor) -> Tensor:
    y = x * 2
    y[x.argmax()] = 0.0
    return y


def counted(x: Tensor) -> Tensor:
    return x * len(torch.unique(x))


def binned(x: Tensor) -> Tensor:
    return torch.bincount(x.long()) + 1


def retained(x: Tensor) -> Tensor:
    y = x * 2
    y.retain_grad()
    return y.sum()


def compared(x: Tensor) -> Tensor:
    return x * float(torch.equal(x, x + 1))


def sparse(x: Tensor) -> Tensor:
    return (x.to_sparse() * 2).to_dense()


def ordered(x: Tensor) -> Tensor:
    return sorted([x.sum(), x.max()])[0]  # noqa: FURB192


def opened(x: Tensor) -> Tensor:
    y = x + 1
    open("/dev/null").close()  # noqa: PTH123
    return y * 2


@torch.compiler.disable  # type: ignore[untyped-decorator]
def disabled(x: Tensor) -> Tensor:
    return x * 2


def calls_disabled(x: Tensor) -> Tensor:
    return disabled(x) + 1


def asked_for(x: Tensor) -> Tensor:
    x = x + 1
    torch._dynamo.graph_break()
    return x * 2


def objects(x: Tensor) -> Tensor:
    return x + hash(object()) * 0


def in_a_try(x: Tensor) -> Tensor:
    x = x.sin()
    try:
        n = int(x.sum().item())
        y = x[:n]
    except ValueError:
        y = x
    return y + 1


CASES: list[tuple[Callable[[Tensor], Any], str, str]] = [
    (gaussian, "python_value", "v = var.clamp(min=eps)"),
    (indexed, "python_value", "x[i.reshape(1)].squeeze(0)"),
    (stored, "python_value", "x[i.reshape(1)] = v"),
    (counted, "size", "(s[1:] != s[:-1]).sum() + 1"),
    (binned, "size", "one_hot"),
    (retained, "untraceable", "retain_grad outside"),
    (compared, "python_value", "(a == b).all()"),
    (sparse, "untraceable", "a sparse tensor"),
    (ordered, "untraceable", ""),
    (opened, "untraceable", "close"),
    (calls_disabled, "untraceable", "torch.compiler.disable"),
    (asked_for, "untraceable", "the program asks for a graph break"),
    (objects, "untraceable", ""),
    (in_a_try, "size", "a size, an index or a count"),
]


@pytest.mark.parametrize(
    ("program", "code", "text"), CASES, ids=lambda c: getattr(c, "__name__", "")
)
def test_a_break_has_a_decision(program: Callable[[Tensor], Any], code: str, text: str) -> None:
    fusepass.reset()
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    x = X.clone().requires_grad_(program is retained)
    assert torch.equal(compiled(x), program(x))
    report = fusepass.last_report(compiled)
    assert report.graph_breaks
    decisions = [d for d in report.decisions if d.treatment == "keep"]
    assert code in [d.reason_code for d in decisions if text in d.reason], decisions
    first = program.__code__.co_firstlineno
    for decision in decisions:
        assert decision.file == __file__
        assert first < decision.line < first + 8
        assert not any(word in decision.reason for word in INSIDE)


def test_a_break_that_capture_decided_has_no_second_decision() -> None:
    def kept(x: Tensor) -> Tensor:
        while x.sum() < 10:
            x = x * 2
        return x

    fusepass.reset()
    compiled = torch.compile(kept, backend="fusepass", options={"codegen": "eager"})
    compiled(X)
    stations = [d.station for d in fusepass.last_report(compiled).decisions if d.treatment]
    assert set(stations) == {"capture"}


def test_the_text_says_that_the_rest_runs_in_eager() -> None:
    fusepass.reset()
    compiled = torch.compile(retained, backend="fusepass", options={"codegen": "eager"})
    compiled(X.clone().requires_grad_())
    (decision,) = [d for d in fusepass.last_report(compiled).decisions if d.station == "trace"]
    assert decision.reason.endswith("; `retained` runs in eager mode")


def explained(program: Callable[..., Any], *args: Any) -> fusepass.Report:
    with fusepass.options(codegen="eager"):
        return fusepass.explain(program, *args)


def test_an_exception_that_passes_functions_is_one_break_where_it_arose() -> None:
    def inner(x: Tensor, table: dict[str, Tensor]) -> Tensor:
        return x * table["missing"]

    def outer(x: Tensor, table: dict[str, Tensor]) -> Tensor:
        try:
            return inner(x, table)
        finally:
            x.add_(0)

    def program(x: Tensor) -> Tensor:
        try:
            return outer(x + 1, {})
        except KeyError:
            return x

    def uncaught(x: Tensor, table: dict[str, Tensor]) -> Tensor:
        return outer(x + 1, table)

    assert not explained(program, X).graph_breaks
    compiled = torch.compile(uncaught, backend="fusepass", options={"codegen": "eager"})
    with pytest.raises(KeyError):
        compiled(X, {})
    (found,) = fusepass.last_report(compiled).graph_breaks
    assert found["line"] == inner.__code__.co_firstlineno + 1


def test_a_key_made_of_a_tensor() -> None:
    layers = torch.nn.ModuleDict({"a0": torch.nn.Linear(3, 3), "a1": torch.nn.Linear(3, 3)})

    def program(x: Tensor, which: Tensor) -> Tensor:
        for i in which:
            x = layers[f"a{i}"](x)
        return x

    told = [b["reason"] for b in explained(program, X, torch.tensor([0, 1])).graph_breaks]
    assert any("key or text made of a tensor" in one for one in told)


def test_a_comprehension_by_itself_is_no_break() -> None:
    def program(x: Tensor, table: dict[str, int]) -> Tensor:
        for _ in range(2):
            torch._dynamo.graph_break()
            x = x * len({f"_{key}": key for key in table})
        return x

    report = explained(program, X, {"a": 1})
    assert [b["line"] for b in report.graph_breaks] == [program.__code__.co_firstlineno + 2]


def test_a_selection_in_front_of_a_loop_that_breaks_says_where() -> None:
    def program(x: Tensor, mask: Tensor) -> Tensor:
        y = x[mask]
        for _ in range(2):
            torch._dynamo.graph_break()
            x = x + 1
        return x * y.sum()

    report = explained(program, X, X > 1)
    line = program.__code__.co_firstlineno + 3
    (masked,) = [d for d in report.decisions if d.rule == "masked"]
    assert masked.reason == f"a graph break in a loop follows, at test_graph_breaks.py:{line}"
    assert masked.reason_code == "loop"
    assert line in [b["line"] for b in report.graph_breaks]


def test_the_line_of_a_write_in_a_round_behind_a_break() -> None:
    seen: list[int] = []

    def program(x: Tensor) -> Tensor:
        for i in range(3):
            x = x + 1
            if x.sum() > 100:
                seen.append(i)
            x = x + len(seen)
        return x

    report = explained(program, X)
    (kept,) = {d.reason for d in report.decisions if d.treatment == "keep"}
    assert f"line {program.__code__.co_firstlineno + 5} looks at" in kept
