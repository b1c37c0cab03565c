"""One function, run in eager and compiled, call after call: what was decided, and what is left.

Everything a caller can see is compared after each call; what the tests of single modules ask
besides is what was decided, why, and which operations the graph has in the end.
"""

from __future__ import annotations

import copy
import functools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

import fusepass
import fusepass.backend
from fusepass.graph.ops.op_names import op_name
from fusepass.testing.compare import assert_same, tensors
from tests.harness.call import Seen, call
from tests.harness.precision import doubled, in_precision
from tests.harness.same_call import assert_same_call

ROUNDINGS = 8  # half ulps for a few roundings where eager happens to have none


@dataclass
class Outcome:
    """What came of compiling one function.

    Attributes:
        decisions: of capture, as the report has them.
        graphs: after all rules before autograd.
        breaks: of the graph, as the report has them.
    """

    decisions: list[dict[str, Any]]
    graphs: list[fx.GraphModule]
    breaks: list[Any]

    @property
    def treatments(self) -> list[tuple[str, str]]:
        """(treatment, reason code) of each decision, in the order of the report."""
        return [(d["treatment"], d["reason_code"]) for d in self.decisions]

    @property
    def reasons(self) -> list[str]:
        """The sentence of each decision."""
        return [d["reason"] for d in self.decisions]

    @property
    def ops(self) -> Counter[str]:
        """How often each operation stands in the graphs, by its canonical name."""
        nodes = [node for gm in self.graphs for node in gm.graph.nodes]
        return Counter(name for name in map(op_name, nodes) if name is not None)

    def only(self, treatment: str, code: str) -> None:
        """Assert that all sites were decided like this, and that there is one."""
        assert self.decisions, "no branch was met"
        assert set(self.treatments) == {(treatment, code)}, self.decisions
        if treatment != "keep":
            assert self.breaks == []
            assert len(self.graphs) == 1


def side_by_side(
    function: Callable[..., Any],
    *inputs: tuple[Any, ...],
    grad: bool = False,
    dynamic: bool | None = None,
    by_rule: bool = False,
    warned: str = "always",
    zeros: bool = False,
    **options: Any,
) -> Outcome:
    """Call a function (or module) with each of the inputs, in eager and compiled; compare.

    Args:
        function: a module is copied for the compiled side.
        inputs: one tuple of arguments per call; each side gets copies.
        grad: floating-point arguments require grad, and gradients are compared.
        dynamic: as for torch.compile.
        by_rule: sums may be taken in another order: numbers are held to the error rule.
        warned: which warnings are shown, as for :func:`warnings.simplefilter`.
        zeros: signs of zero count in gradients, too, and how these lie in memory.
        options: of fusepass; code is run op by op unless ``codegen`` says otherwise.
    """
    seen: list[fx.GraphModule] = []

    def keep(gm: fx.GraphModule, example_inputs: Any) -> Any:
        result = fusepass.backend.fusepass(gm, example_inputs)
        seen.append(gm)
        return result

    keep.compiler_fn = fusepass.backend.fusepass  # type: ignore[attr-defined]
    fusepass.reset()  # options are read when something is compiled
    mine = copy.deepcopy(function) if isinstance(function, torch.nn.Module) else function
    context = "grad" if grad else "plain"
    with fusepass.options(**{"codegen": "eager", **options}):
        compiled = torch.compile(mine, backend=keep, dynamic=dynamic)
        for index, args in enumerate(inputs):
            eager = call(function, _copied(args, grad), function, context, warned=warned)
            other = call(compiled, _copied(args, grad), mine, context, warned=warned)
            exact = _exactly(function, args, context) if by_rule else None
            assert_same_call(eager, other, exact, where=f"call {index}", roundings=ROUNDINGS)
            if zeros:
                assert_same(eager.grads, other.grads, f"call {index}: gradients")
        report = fusepass.last_report(compiled).to_dict()
    captured = [d for d in report["decisions"] if d["station"] == "capture"]
    return Outcome(captured, seen, report["graph_breaks"])


by_error_rule = functools.partial(side_by_side, by_rule=True)


def _exactly(function: Callable[..., Any], args: tuple[Any, ...], context: str) -> Seen:
    """A call in float64."""
    target = copy.deepcopy(function) if isinstance(function, torch.nn.Module) else function
    given = _copied(doubled(copy.deepcopy(args)), context == "grad")
    float64 = functools.partial(in_precision, torch.float64, same_draws=True)
    return call(doubled(target), given, target, context, around=float64)


def _copied(args: tuple[Any, ...], grad: bool) -> tuple[Any, ...]:
    """Copies that share memory as the arguments do."""
    made = copy.deepcopy(args)
    for tensor in tensors(made) if grad else ():
        if tensor.is_floating_point() and tensor.is_leaf:
            tensor.requires_grad_()
    return made


def signed(*values: float, dtype: torch.dtype = torch.float32) -> list[tuple[Tensor]]:
    """A call with these values, one with their negatives, and each again: both ways, in turn."""
    x = torch.tensor(values, dtype=dtype)
    return [(x,), (-x,), (x * 1,), (-x,)]
