"""``torch.normal`` of two dtypes: what the program is told of the dtype, too."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import fusepass
from fusepass.errors import DtypeOfTrace
from fusepass.torch_private.versions import torch_version

LOC, SCALE = torch.zeros(8).half(), torch.ones(8)


def drawn(loc: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
    made = torch.distributions.Normal(loc, scale, validate_args=False).sample()
    more = made + 1 if made.dtype is torch.float16 else made - 1
    return made, more, torch.ones(2, dtype=made.dtype)


def in_an_arm(loc: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
    if scale.sum() > 0:
        made = torch.normal(loc, scale) * 2
        return made, torch.ones(2, dtype=made.dtype)
    return loc, scale


def same(program: Any, *given: Tensor, **options: Any) -> Any:
    torch.manual_seed(0)
    wanted = program(*given)
    torch.manual_seed(0)
    compiled = torch.compile(program, backend="fusepass", **options)
    torch.testing.assert_close(compiled(*given), wanted, rtol=0, atol=0)
    return compiled


@pytest.mark.parametrize("program", [drawn, in_an_arm])
def test_draws_have_eagers_dtypes(program: Any) -> None:
    same(program, LOC, SCALE, options={"codegen": "eager"})


@pytest.mark.skipif(torch_version() >= (2, 15), reason="mended in torch 2.15")
def test_the_graph_ends_there() -> None:
    compiled = same(drawn, LOC, SCALE, options={"codegen": "eager"})
    found = [d for d in fusepass.last_report(compiled).decisions if d.rule == "dtype_of_normal"]
    assert len(found) == 1
    assert found[0].treatment == "keep"
    assert found[0].file == __file__
    assert "float16 here, the dtype of the mean" in found[0].reason


@pytest.mark.parametrize("given", [(SCALE, LOC), (SCALE, SCALE), (LOC, LOC)])
def test_draws_with_correct_fake_dtypes_are_unchanged(given: tuple[Tensor, Tensor]) -> None:
    compiled = same(lambda a, b: (torch.normal(a, b),), *given, options={"codegen": "eager"})
    rules = {d.rule for d in fusepass.last_report(compiled).decisions}
    assert "dtype_of_normal" not in rules


@pytest.mark.skipif(torch_version() >= (2, 15), reason="mended in torch 2.15")
def test_warns_where_the_graph_may_not_break() -> None:
    compiled = torch.compile(drawn, backend="fusepass", fullgraph=True)
    for _ in range(2):
        torch._dynamo.reset()
        with pytest.warns(DtypeOfTrace) as warned:
            compiled(LOC, SCALE)
        texts = [str(one.message) for one in warned if one.category is DtypeOfTrace]
        assert len(texts) == 1
        assert re.search(r"test_fake_dtypes.py:\d+: torch.normal gives float16", texts[0])


@pytest.mark.xfail(torch_version() < (2, 15), strict=True, reason="pytorch #194547")
def test_draws_have_eagers_dtypes_with_fullgraph() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DtypeOfTrace)
        same(drawn, LOC, SCALE, fullgraph=True)
