"""NaN and infinity in front of attention whose mask is known: what reaches a row in eager does."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as attention

import fusepass
from fusepass.report.decision import Decision


def causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
    return attention(query, key, value, attn_mask=mask)


def all_true(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool)
    return attention(query, key, value, attn_mask=mask)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", ["query", "key", "value"])
@pytest.mark.parametrize("program", [causal, all_true])
def test_nan_and_infinity_reach_what_they_reach_in_eager(
    program: Callable[..., Tensor], place: str, value: float
) -> None:
    """Through Inductor, whose call of attention is torch's."""
    given = {name: torch.randn(1, 2, 64, 16) for name in ("query", "key", "value")}
    given[place][:, :, 32] = value
    compiled = torch.compile(program, backend="fusepass")
    with torch.no_grad():
        got, want = compiled(**given), program(**given)
    torch.testing.assert_close(got, want, equal_nan=True)
    hidden = want[:, :, :32].isnan()
    if program is causal and place == "key":
        assert hidden.all()
    report = fusepass.last_report(compiled)
    decisions = [d for d in report.decisions if d.rule == "constant_attention_mask"]
    kept = "inexact" if program is causal else "proved"
    assert [d.reason_code.value for d in decisions] == [kept]


def test_with_the_option_it_reaches_the_rows_that_see_it() -> None:
    """What is accepted: of the rows before, eager makes NaN, too."""
    given = {name: torch.randn(1, 2, 64, 16) for name in ("query", "key", "value")}
    given["key"][:, :, 32] = float("nan")
    compiled = torch.compile(causal, backend="fusepass", options={"allow_hidden_nan": True})
    with torch.no_grad():
        got = compiled(**given)
        given["key"][:, :, 32] = 0
        want = causal(**given)
    assert got[:, :, 32:].isnan().all()
    torch.testing.assert_close(got[:, :, :32], want[:, :, :32])


MASKING = """
import torch


def create_causal_mask(query):
    n = query.shape[-2]
    places = torch.arange(n)
    return places[None, :] <= places[:, None]
"""


def module_at(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of that name in a folder that is called as transformers is."""
    (folder / "transformers").mkdir()
    path = folder / "transformers" / f"{name}.py"
    path.write_text(MASKING)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def decided(program: Callable[[Tensor], Tensor]) -> Decision:
    """What became of the mask, the result being eager's."""
    query = torch.randn(1, 2, 64, 16)
    compiled = torch.compile(program, backend="fusepass")
    with torch.no_grad():
        torch.testing.assert_close(compiled(query), program(query))
    report = fusepass.last_report(compiled)
    (decision,) = (d for d in report.decisions if d.rule == "constant_attention_mask")
    return decision


@pytest.mark.parametrize("name", ["masking_utils", "other_utils"])
def test_masks_that_are_made_because_the_program_is_traced(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of transformers, which in eager says is_causal: told by where they are made."""
    module = module_at(tmp_path, name, monkeypatch)

    def program(query: Tensor) -> Tensor:
        mask = module.create_causal_mask(query)[None, None].expand(1, 1, -1, -1)
        return attention(query, query, query, attn_mask=mask)

    decision = decided(program)
    assert decision.reason_code.value == ("proved" if name == "masking_utils" else "inexact")


def test_a_mask_of_ones_own_that_is_made_like_one_of_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = module_at(tmp_path, "masking_utils", monkeypatch)

    def program(query: Tensor) -> Tensor:
        mask = torch.ones_like(theirs.create_causal_mask(query)).tril()
        return attention(query, query, query, attn_mask=mask)

    decision = decided(program)
    assert decision.reason_code.value == "inexact"
