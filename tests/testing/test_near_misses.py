"""Near misses are the pattern's own operations, each with one thing changed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fusepass.testing.near_misses import near_misses

X, W, B = torch.randn(4, 8), torch.randn(16, 8), torch.randn(16)


def run(lines, **tensors):
    names = {name: value.clone() for name, value in tensors.items()}
    exec("\n".join(lines), {"torch": torch}, names)
    return names["y0"]


def test_flavour_bias_and_interior_users():
    found = dict(near_misses(lambda x, w, b: F.gelu(F.linear(x, w, b)), "xwb", (X, W, B)))
    flavour = run(found["torch.nn.functional.gelu: approximate=tanh"], x=X, w=W, b=B)
    torch.testing.assert_close(flavour, F.gelu(F.linear(X, W, B), approximate="tanh"))
    dropped = run(found["torch.nn.functional.linear: an operand left out"], x=X, w=W, b=B)
    torch.testing.assert_close(dropped, F.gelu(F.linear(X, W)))
    assert any("another user" in what for what in found)
    assert any("in place" in what for what in found)


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        (lambda x: x.softmax(-1), "softmax: argument 1"),
        (lambda x: x.mean(-1, keepdim=True), "mean: keepdim"),
        (lambda x: x * 2.0 - 1, "mul: argument 1"),
        (lambda x: torch.rsqrt(x.pow(2).mean(-1) + 1e-5), "add: argument 1"),
        (lambda x: torch.clamp(x, min=0.0, max=6.0), "clamp: max"),
        (lambda x: x.to(torch.float64).to(x.dtype), "in double precision"),
        (lambda x: x.T @ x, "operands exchanged"),
        (lambda x: x.chunk(2, -1)[0] * 3, "mul: another operation"),
    ],
)
def test_one_attribute_at_a_time(pattern, wanted):
    found = near_misses(pattern, "x", (X,))
    assert any(wanted in what for what, _ in found), [what for what, _ in found]
    assert len({tuple(lines) for _, lines in found}) == len(found)
    for _, lines in found:
        run(lines, x=X)  # each of them runs


def test_several_results():
    found = near_misses(lambda x: (x.sum(-1), x.mean(-1)), "x", (X,))
    assert found
    assert all(any(line.startswith("y1 = ") for line in lines) for _, lines in found)


def test_calls_that_hand_their_operand_back():
    found = near_misses(lambda x: x.float().contiguous() * 2, "x", (X,))
    assert any("mul" in what for what, _ in found)


def test_what_cannot_be_written_down_has_none():
    table = torch.randn(8)  # a tensor that is no operand
    assert near_misses(lambda x: x + table, "x", (X,)) == []
