"""Programs with guards of masked stores: compiled, compared with eager, and what was decided."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

import fusepass
import fusepass.backend
from fusepass.graph.ops.op_names import op_name
from fusepass.testing.compare import assert_same

NAN, INF = float("nan"), float("inf")
SOME = torch.linspace(-1, 1, 12).reshape(3, 4)
ODD = torch.tensor([[NAN, INF, -INF, -0.0]]).repeat(3, 1)
CALLS = [SOME, -SOME.abs() - 1, SOME.abs() + 1, ODD, SOME, torch.full((3, 4), NAN)]


def compiled_with_rules(
    program: Callable[..., Any], calls: list[Tensor], *, grad: bool = False, **options: Any
) -> tuple[list[tuple[str, str]], Counter[str]]:
    """Compare each call with eager; returns what was decided and the operations left."""
    seen: list[fx.GraphModule] = []

    def keep(gm: fx.GraphModule, inputs: Any) -> Any:
        result = fusepass.backend.fusepass(gm, inputs)
        seen.append(gm)
        return result

    keep.compiler_fn = fusepass.backend.fusepass  # type: ignore[attr-defined]
    fusepass.reset()
    with fusepass.options(**{"codegen": "eager", **options}):
        run = torch.compile(program, backend=keep)
        for index, x in enumerate(calls):
            mine, theirs = (copy.deepcopy(x).requires_grad_(grad) for _ in range(2))
            got, want = run(mine), program(theirs)
            assert_same(want, got, f"call {index}")
            if grad:
                (want if isinstance(want, Tensor) else want[0]).sum().backward()
                (got if isinstance(got, Tensor) else got[0]).sum().backward()
            assert_same(theirs, mine, f"input of call {index}")
            assert_same(theirs.grad, mine.grad, f"gradient of call {index}")
        report = fusepass.last_report(run).to_dict()
    decided = [
        (d["treatment"], d["reason_code"]) for d in report["decisions"] if d["station"] == "capture"
    ]
    names = [op_name(n) for gm in seen for n in gm.graph.nodes]
    return decided, Counter(name for name in names if name)
