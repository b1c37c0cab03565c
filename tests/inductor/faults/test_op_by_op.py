"""Which graphs with ``as_strided`` run op by op, and which Inductor may have."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fusepass
from fusepass.torch_private.versions import torch_version

Program = Callable[[Tensor], Any]


def written(x: Tensor) -> Tensor:
    x.add_(1)
    return torch.as_strided_copy(x, (3,), (2,))


def computed(x: Tensor) -> Tensor:
    return torch.as_strided(x * 2, (2, 2), (2, 1))


EVEN, ROWS = torch.arange(10.0)[::2], torch.arange(12.0).view(3, 4)
MET: dict[str, tuple[Program, Tensor]] = {
    "written": (written, EVEN),
    "a view that is written": (lambda x: (x[1:].mul_(2), x.as_strided((2,), (3,)) + 1), EVEN),
    "a view of what is computed": (lambda x: (x * 2)[:, ::2].as_strided((2,), (4,)), ROWS),
    "transposed": (lambda x: torch.as_strided(x.t() + 1, (2, 2), (2, 1)), ROWS),
    "with gaps": (lambda x: torch.as_strided(x[1:], (2,), (1,)) * 2, ROWS),
    "a view of what is given": (lambda x: x.diagonal().as_strided((2,), (1,), 0).add_(1), ROWS),
    "outside": (lambda x: torch.as_strided(x * 2, (9, 9), (2, 1)), ROWS),
}
NOT_MET: dict[str, tuple[Program, Tensor]] = {
    "computed": (computed, ROWS),
    "given": (lambda x: x.as_strided((3,), (2,)) + 1, EVEN),
    "overlapping windows": (lambda x: (x + 1).view(12).as_strided((5, 4), (2, 1)) * 2, ROWS),
    "written and dense": (lambda x: (x.add_(1), x.as_strided((2, 2), (4, 1)) * 2), ROWS),
    "no such call": (lambda x: x[:, ::2].t() * 2, ROWS),
}


def outcome(program: Program, x: Tensor) -> Any:
    memory = torch.as_strided(x, (x.untyped_storage().nbytes() // 4,), (1,), 0).clone()
    given = torch.as_strided(memory, x.shape, x.stride(), x.storage_offset())
    try:
        made = program(given)
    except RuntimeError as error:
        return type(error)
    return made, memory


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [*MET, *NOT_MET])
def test_run_op_by_op(name: str) -> None:
    program, x = {**MET, **NOT_MET}[name]
    compiled = torch.compile(program, backend="fusepass")
    wanted, got = outcome(program, x), outcome(compiled, x)
    if isinstance(wanted, type):
        assert got is wanted
    else:
        torch.testing.assert_close(got, wanted)
    found = [d for d in fusepass.last_report(compiled).decisions if d.rule == "strided_memory"]
    assert bool(found) is (name in MET)
    assert all(d.station == "hand_off" and "#133512" in d.reason for d in found)


BOOL, BYTES = torch.tensor([True, False]), torch.tensor([[1, 2]], dtype=torch.int8)
# Torch 2.11 turns the call down while it traces, and the graph breaks there.
ON_FAKES = "refused_dtype" if torch_version() >= (2, 13) else None
OTHERS: dict[str, tuple[str | None, Program, Tensor]] = {
    "ceil of bool": ("refused_dtype", torch.ceil, BOOL),
    "decimals of bytes": ("refused_dtype", lambda x: torch.round(x, decimals=1), BYTES),
    "glu of bytes": ("refused_dtype", F.glu, BYTES),
    "ceil of bytes": (None, torch.ceil, BYTES),
    "decimals": (None, lambda x: torch.round(x, decimals=1), ROWS),
    "two dtypes": ("dtype_of_normal", lambda x: torch.normal(x.half(), x * 0), ROWS),
    "scan of a byte": ("refused_dtype", lambda x: torch.logcumsumexp(x[0, 0], 0), BYTES),
    "layer of two dtypes": ("refused_dtype", lambda x: F.linear(x.half(), x), ROWS),
    "layer of halves": (None, lambda x: F.linear(x.half(), x.half()), ROWS),
    "softmax of integers": ("refused_dtype", lambda x: F.softmax(x.long(), -1), ROWS),
    "softmax of integers as floats": (None, lambda x: F.softmax(x, -1, dtype=torch.float32), BYTES),
    "places of floats": (ON_FAKES, lambda x: F.one_hot(x, 12), ROWS),
    "places": (None, lambda x: F.one_hot(x.long(), 12), ROWS),
    "negative": ("refused_argument", lambda x: F.smooth_l1_loss(x, -x, beta=-1.0), ROWS),
    "not negative": (None, lambda x: F.smooth_l1_loss(x, -x, beta=0.0), ROWS),
    "one dtype": (None, lambda x: torch.normal(x, x * 0), ROWS),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", OTHERS)
def test_unaffected_programs_go_to_inductor(name: str) -> None:
    rule, program, x = OTHERS[name]
    compiled = torch.compile(program, backend="fusepass")
    try:
        wanted = program(x)
    except RuntimeError as error:
        with pytest.raises(type(error), match=re.escape(str(error))):
            compiled(x)
    else:
        torch.testing.assert_close(compiled(x), wanted)
    met = {d.rule for d in fusepass.last_report(compiled).decisions}
    known = {"refused_dtype", "refused_argument", "dtype_of_normal"}
    assert met & known == ({rule} if rule else set())
