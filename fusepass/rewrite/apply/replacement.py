"""The replacement of one match, run on fake tensors and recorded before it is put into the graph.

What it returns must have the dtype, device, shape, strides and memory of what it stands for, and
gradients for the same operands; a replacement that does not fit here is a rejection of this match,
not a fault of the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from fusepass.graph.ops.op_names import tensor_value
from fusepass.graph.ops.schemas import SymbolicSize
from fusepass.report.decision import Reason
from fusepass.rewrite.apply.output_contract import replacement_mismatch
from fusepass.rewrite.match import trace
from fusepass.rewrite.match.binding import Binding
from fusepass.rewrite.match.legality import Cut
from fusepass.rewrite.match.pattern import Pattern
from fusepass.rewrite.reject import Accept, Reject
from fusepass.rewrite.rule import Match
from fusepass.torch_private.fx.graphs import known_equal


@dataclass(frozen=True)
class MatchSite:
    """A place where a rule may act.

    Attributes:
        pattern: of the rule.
        binding: what its parameters stand for.
        cut: what goes out of the graph.
        outputs: nodes whose values the replacement computes.
        match: what the rule's ``check`` was shown.
        verdict: what it had to say.
        graph: the recorded replacement; its placeholders are ``bases``.
        bases: nodes the replacement reads.
    """

    pattern: Pattern
    binding: Binding
    cut: Cut
    outputs: tuple[fx.Node, ...]
    match: Match
    verdict: Accept | None
    graph: fx.Graph
    bases: tuple[fx.Node, ...]


def fake_operands(
    binding: Binding, bases: Sequence[fx.Node], fake_mode: Any, *, grad: bool
) -> tuple[list[Any], dict[str, Any]]:
    """A fresh fake tensor for each base, and the operands as the pattern sees them."""
    fresh = {
        node: trace.fresh_like(tensor_value(node), fake_mode, requires_grad=grad) for node in bases
    }
    with fake_mode, torch.set_grad_enabled(grad):
        seen = {
            name: operand.shaped(fresh[operand.node]) for name, operand in binding.operands.items()
        }
    return [fresh[node] for node in bases], seen


def record_replacement(
    pattern: Pattern,
    binding: Binding,
    bases: Sequence[fx.Node],
    outputs: Sequence[fx.Node],
    fake_mode: Any,
    *,
    grad: bool,
    autocasts: Sequence[tuple[Any, ...]],
) -> fx.Graph | Reject:
    """Run the replacement on fake tensors; its graph, or why it does not fit.

    Raises:
        Exception: what the replacement raises.
    """
    originals = [tensor_value(node) for node in outputs]
    fresh, _ = fake_operands(binding, bases, fake_mode, grad=grad)
    versions = [tensor._version for tensor in fresh]
    rule = pattern.rule

    sizes = _symbolic([*binding.scalars.values(), *(s for o in originals for s in _shape(o))])

    def replaced(*given: Any) -> tuple[torch.Tensor, ...]:
        tensors = dict(zip(bases, given, strict=False))
        known = dict(zip(sizes, given[len(bases) :], strict=True))
        parts = [
            binding.operands[name].shaped(tensors[binding.operands[name].node])
            if name in binding.operands
            else known.get(str(binding.scalars[name]), binding.scalars[name])
            for name in pattern.names
        ]
        results = trace.as_outputs(rule.replacement(*parts))
        if not pattern.rowwise or len(results) != len(originals):
            return results
        shapes = [[known.get(str(size), size) for size in _shape(o)] for o in originals]
        return tuple(map(_as_rows_of, results, shapes))

    with trace.grad_and_autocast(autocasts, grad=grad):
        if rule.place == "before":
            graph = trace.record_torch(replaced, [*fresh, *sizes.values()], fake_mode)
        else:
            graph = trace.record_aten(replaced, [*fresh, *sizes.values()], fake_mode)
    if [tensor._version for tensor in fresh] != versions:
        return Reject(Reason.SIDE_EFFECT, "the replacement writes to its operands", outputs[0])
    return replacement_mismatch(graph, outputs, bases, fresh, grad=grad) or graph


def sizes_in(graph: fx.Graph) -> list[Any]:
    """The symbolic numbers that a recorded replacement is given, or computes with."""
    found: list[Any] = []

    def note(value: Any) -> Any:
        if isinstance(value, SymbolicSize):
            found.append(value.size)
        return value

    for node in graph.nodes:
        value = node.meta.get("val", node.meta.get("example_value"))
        if node.op == "placeholder" and isinstance(value, (torch.SymInt, torch.SymFloat)):
            found.append(value)
        fx.node.map_aggregate((node.args, node.kwargs), note)
    return found


def _symbolic(values: Sequence[Any]) -> dict[str, Any]:
    """The symbolic numbers among some values, each once: tracing must be given them."""
    found = [value for value in values if isinstance(value, (torch.SymInt, torch.SymFloat))]
    return {str(value): value for value in found}


def _shape(value: torch.Tensor | None) -> tuple[Any, ...]:
    return () if value is None else tuple(value.shape)


def _as_rows_of(result: torch.Tensor, shape: Sequence[Any]) -> torch.Tensor:
    """Rows split into the leading dimensions of what they stand for."""
    if result.dim() in (0, len(shape)) or not shape:
        return result
    if not known_equal(result.shape[-1], shape[-1]):
        return result
    return result.view(shape)
