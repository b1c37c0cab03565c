"""The replacement of one match, run on fake tensors and recorded before it is put into the graph.

What it returns must have the dtype, device, shape, strides and memory of what it stands for, and
gradients for the same operands; a replacement that does not fit here is a rejection of this match,
not a fault of the graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from fusepass.graph.dataflow.memory import memory_of
from fusepass.graph.ops.normal_call import normal_call
from fusepass.graph.ops.op_names import tensor_value
from fusepass.graph.ops.schemas import SymbolicSize
from fusepass.report.decision import Reason
from fusepass.rewrite.match import trace
from fusepass.rewrite.match.binding import Binding
from fusepass.rewrite.match.legality import Cut
from fusepass.rewrite.match.pattern import Pattern
from fusepass.rewrite.rule import Accept, Match, Reject
from fusepass.torch_private.fx.graphs import known_equal, storage_key
from fusepass.torch_private.fx.tracing import lacks_backward

# --- Whether a replacement returns what the match returned: dtype, shape, strides, aliases --------


def replacement_mismatch(
    graph: fx.Graph,
    outputs: Sequence[fx.Node],
    bases: Sequence[fx.Node],
    fresh: Sequence[torch.Tensor],
    *,
    grad: bool,
) -> Reject | None:
    """Why the recorded replacement does not fit; None if it does.

    ``fresh`` are the fake tensors that the replacement was run on, one for each base.
    """
    returned = next(n for n in reversed(graph.nodes) if n.op == "output").args[0]
    if len(returned) != len(outputs):
        text = f"the replacement returns {len(returned)} tensors, the pattern {len(outputs)}"
        return Reject(Reason.SHAPE_MISMATCH, text, outputs[0])
    for node, output in zip(returned, outputs, strict=True):
        new, old = tensor_value(node), tensor_value(output)
        if new is None or old is None:
            return Reject(Reason.OTHER_OP, "an output is no tensor", output)
        problem = _metadata_difference(new, old)
        if problem is not None:
            code, what = problem
            return Reject(code, f"the replacement of {output.name} {what}", output)
        if _memory_among(new, fresh) != _memory_among_nodes(output, bases):
            text = f"the replacement of {output.name} shares memory with other operands than it did"
            return Reject(Reason.ALIAS, text, output)
    return _changes_aliasing(returned, outputs) or (
        _gradients(graph, outputs, fresh) if grad else None
    )


def _changes_aliasing(returned: Sequence[fx.Node], outputs: Sequence[fx.Node]) -> Reject | None:
    """Results that share memory now and did not, or the other way: a write to one would tell."""
    for (one, new), (other, old) in itertools.combinations(zip(outputs, returned, strict=True), 2):
        was = memory_of(one) == memory_of(other) and not _is_updated_in_place(one, other)
        tensors = tensor_value(new), tensor_value(old)
        if any(tensor is None for tensor in tensors):
            continue
        keys = {storage_key(tensor) for tensor in tensors if tensor is not None}
        if was != (len(keys) == 1):
            shares = "do not share" if was else "share"
            text = f"the replacements of {one.name} and {other.name} {shares} memory, unlike these"
            return Reject(Reason.ALIAS, text, other)
    return None


def _is_updated_in_place(one: fx.Node, other: fx.Node) -> bool:
    """Whether the later of two values is made in place, of the earlier one's memory.

    Readers of the earlier one read it before that: legality refuses a view that is read later.
    """
    call = normal_call(max(one, other))
    return call is not None and call.inplace


def _metadata_difference(new: torch.Tensor, old: torch.Tensor) -> tuple[Reason, str] | None:
    if new.dtype != old.dtype:
        hint = ""
        if new.dtype.is_floating_point and old.dtype.is_floating_point:
            hint = " (an operator of your own needs torch.library.register_autocast)"
        return Reason.DTYPE_MISMATCH, f"is {new.dtype}, was {old.dtype}{hint}"
    if new.device != old.device:
        return Reason.DEVICE_MISMATCH, f"is on {new.device}, was on {old.device}"
    equal = known_equal
    if new.dim() != old.dim() or not all(map(equal, new.shape, old.shape)):
        return Reason.SHAPE_MISMATCH, f"has shape {tuple(new.shape)}, had {tuple(old.shape)}"
    if not all(map(equal, new.stride(), old.stride())):
        return Reason.STRIDE_MISMATCH, f"has strides {new.stride()}, had {old.stride()}"
    return None


def _memory_among(tensor: torch.Tensor, fresh: Sequence[torch.Tensor]) -> set[int]:
    key = storage_key(tensor)
    return {place for place, base in enumerate(fresh) if storage_key(base) == key}


def _memory_among_nodes(output: fx.Node, bases: Sequence[fx.Node]) -> set[int]:
    call = normal_call(output)
    if call is not None and call.inplace:  # it wrote memory of this graph that nobody else sees
        return set()
    key = memory_of(output)
    return {place for place, base in enumerate(bases) if memory_of(base) == key}


def _gradients(
    graph: fx.Graph, outputs: Sequence[fx.Node], fresh: Sequence[torch.Tensor]
) -> Reject | None:
    """Every operand that had a gradient must have one still."""
    for node in graph.nodes:
        if node.op == "call_function" and lacks_backward(node.target):
            text = (
                f"{node.target} has no backward; give it one with torch.library.register_autograd"
            )
            return Reject(Reason.NO_GRADIENT, text, outputs[0])
    returned = next(n for n in reversed(graph.nodes) if n.op == "output").args[0]
    tensors = [tensor_value(node) for node in returned]
    for tensor, output in zip(tensors, outputs, strict=True):
        old = tensor_value(output)
        if tensor is not None and old is not None and tensor.requires_grad != old.requires_grad:
            does = "has" if tensor.requires_grad else "has no"
            text = f"the replacement of {output.name} {does} gradient, unlike the original"
            return Reject(Reason.NO_GRADIENT, text, output)
    reached = _leaves([t for t in tensors if t is not None])
    missing = [t for t in fresh if t.requires_grad and id(t) not in reached]
    if missing and all(v.dtype.is_floating_point for v in missing):
        text = "an operand loses its gradient in the replacement"
        return Reject(Reason.NO_GRADIENT, text, outputs[0])
    return None


def saves_a_result(graph: fx.Graph) -> bool:
    """Whether the backward of a recorded replacement reads memory of one of its results."""
    returned = next(n for n in reversed(graph.nodes) if n.op == "output").args[0]
    tensors = [t for t in map(tensor_value, returned) if t is not None]
    results = {storage_key(tensor) for tensor in tensors}
    return any(
        storage_key(kept) in results
        for node in _backward_of(tensors)
        for kept in _tensors_saved_by(node)
    )


def _tensors_saved_by(node: Any) -> Iterator[torch.Tensor]:
    """Tensors that a node of autograd keeps; one of a library's operator has a tuple of them."""
    for name in dir(node):
        if name == "saved_tensors" or name.startswith("_saved_"):
            value = getattr(node, name)
            for part in value if isinstance(value, (tuple, list)) else (value,):
                if isinstance(part, torch.Tensor):
                    yield part


def _backward_of(tensors: Sequence[torch.Tensor]) -> list[Any]:
    """The nodes of autograd behind some tensors."""
    found = list(dict.fromkeys(t.grad_fn for t in tensors if t.grad_fn is not None))
    seen = set(found)
    for node in found:
        following = dict.fromkeys(n for n, _ in node.next_functions if n is not None)
        new = [n for n in following if n not in seen]
        seen.update(new)
        found += new
    return found


def _leaves(tensors: Sequence[torch.Tensor]) -> set[int]:
    found = {id(t) for t in tensors if t.is_leaf}
    variables = (getattr(node, "variable", None) for node in _backward_of(tensors))
    return found | {id(variable) for variable in variables if variable is not None}


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
