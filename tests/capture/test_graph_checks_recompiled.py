"""Graphs compiled again for sizes of ``specialize_on``, with what capture put around them."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fusepass
import fusepass.backend
from fusepass.errors import BranchRuleError, CaptureFault
from fusepass.testing.compare import assert_same
from fusepass.torch_private.dynamo.compile_state import transparent


def branch(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x - 1


def line(x: Tensor) -> Tensor:
    print("sum", x.sum().item())  # noqa: T201
    return x + 1


def check(x: Tensor) -> Any:
    n = x.sum().item()
    torch._check(n > 0)
    if n > 1000:
        raise ValueError(f"big {n}")
    return x * n, n


def masked(x: Tensor) -> Any:
    return x[x > 0].sum(), len(x[x > 1])


def plain(x: Tensor) -> Tensor:
    return x + 1


def _marked(rows: int, sign: int, grad: bool) -> Tensor:
    x = torch.full((rows, 3), float(sign), requires_grad=grad)
    one_of = [lambda n: n == 8, lambda n: n == 16, lambda n: n % 10 == 0]
    torch._dynamo.mark_dynamic(x, 0, specialize_on=one_of)
    return x


def _seen(function: Callable[..., Any], x: Tensor) -> tuple[Any, ...]:
    written = io.StringIO()
    result: Any = None
    error: Any = None
    with contextlib.redirect_stdout(written):
        try:
            result = function(x)
            first = result[0] if isinstance(result, tuple) else result
            if x.requires_grad:
                first.sum().backward()
        except (RuntimeError, ValueError) as caught:
            error = type(caught), str(caught)
    return result, error, written.getvalue(), x.grad


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("program", [branch, line, check, masked, plain])
def test_each_size_runs_as_eager_mode_does(program: Callable[..., Any], grad: bool) -> None:
    fusepass.reset()
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    for rows in (8, 8, 16, 5, 20, 8):
        for sign in (1, -1, 50):
            eager = _seen(program, _marked(rows, sign, grad))
            other = _seen(compiled, _marked(rows, sign, grad))
            assert eager[1:3] == other[1:3]
            assert_same(eager[0], other[0], "result")
            assert_same(eager[3], other[3], "gradient")


def test_the_report_has_each_compile() -> None:
    fusepass.reset()
    compiled = torch.compile(branch, backend="fusepass", options={"codegen": "eager"})
    compiled(_marked(8, 1, grad=False))
    report = fusepass.last_report(compiled).to_dict()
    treatments = [d["treatment"] for d in report["decisions"] if d["rule"] == "branch"]
    assert treatments == ["where", "where"]  # for any size, and for 8
    assert report["graph_breaks"] == []


@pytest.mark.slow
def test_inductor_compiles_each_size() -> None:
    fusepass.reset()
    compiled = torch.compile(check, backend="fusepass")
    for rows in (8, 16, 5):
        for sign in (1, -1):
            eager = _seen(check, _marked(rows, sign, grad=True))
            other = _seen(compiled, _marked(rows, sign, grad=True))
            assert eager[1:3] == other[1:3]
            assert_same(eager[0], other[0], "result")
            assert_same(eager[3], other[3], "gradient")


def test_a_rule_that_fails_then_leaves_the_graph_for_any_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fusepass.reset()
    compiled = torch.compile(branch, backend="fusepass", options={"codegen": "eager"})
    rewrite, calls = fusepass.backend.rewrite, []

    def fails_late(gm: Any, *rest: Any) -> Any:
        calls.append(gm)
        if len(calls) == 2:
            raise transparent(BranchRuleError("branch_to_where", "here", "boom"))
        return rewrite(gm, *rest)

    monkeypatch.setattr(fusepass.backend, "rewrite", fails_late)
    with pytest.warns(CaptureFault, match="boom"):
        found = compiled(_marked(8, -1, grad=False))
    assert torch.equal(found, branch(_marked(8, -1, grad=False)))
    assert len(calls) == 2
