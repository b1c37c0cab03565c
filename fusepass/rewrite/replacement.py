"""The replacement of one match: run on fake tensors first, put into the graph only if it fits.

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

from fusepass import torch_private
from fusepass.graph.arguments import SymbolicSize
from fusepass.graph.calls import call_of
from fusepass.graph.canonical import tensor_value
from fusepass.graph.memory import memory_of
from fusepass.report.decision import Reason
from fusepass.rewrite import trace
from fusepass.rewrite.bind import Binding
from fusepass.rewrite.legality import Cut
from fusepass.rewrite.pattern import Pattern
from fusepass.rewrite.reject import Accept, Reject
from fusepass.rewrite.rule import Match


@dataclass(frozen=True)
class Site:
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


def autocasts_at(target: fx.Node) -> list[tuple[Any, ...]]:
    """Arguments of the autocast regions of its graph that a node stands in, outermost first."""
    open_regions: list[fx.Node] = []
    for node in target.graph.nodes:
        if node is target:
            break
        name = getattr(node.target, "__name__", "")
        if name == "_enter_autocast":
            open_regions.append(node)
        elif name == "_exit_autocast" and node.args and node.args[0] in open_regions:
            open_regions.remove(node.args[0])
    return [tuple(node.args) for node in open_regions]


def fakes_of(
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


def record(
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
    fresh, _ = fakes_of(binding, bases, fake_mode, grad=grad)
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
        results = trace.returned(rule.replacement(*parts))
        if not pattern.rowwise or len(results) != len(originals):
            return results
        shapes = [[known.get(str(size), size) for size in _shape(o)] for o in originals]
        return tuple(map(_as_rows_of, results, shapes))

    with trace.state_of(autocasts, grad=grad):
        if rule.place == "before":
            graph = trace.record_torch(replaced, [*fresh, *sizes.values()], fake_mode)
        else:
            graph = trace.record_aten(replaced, [*fresh, *sizes.values()], fake_mode)
    if [tensor._version for tensor in fresh] != versions:
        return Reject(Reason.SIDE_EFFECT, "the replacement writes to its operands", outputs[0])
    return _fits(pattern, graph, outputs, bases, fresh, grad=grad) or graph


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
    if not torch_private.known_equal(result.shape[-1], shape[-1]):
        return result
    return result.view(shape)


def _fits(
    pattern: Pattern,
    graph: fx.Graph,
    outputs: Sequence[fx.Node],
    bases: Sequence[fx.Node],
    fresh: Sequence[torch.Tensor],
    *,
    grad: bool,
) -> Reject | None:
    returned = next(n for n in reversed(graph.nodes) if n.op == "output").args[0]
    if len(returned) != len(outputs):
        text = f"the replacement returns {len(returned)} tensors, the pattern {len(outputs)}"
        return Reject(Reason.SHAPE_MISMATCH, text, outputs[0])
    for node, output in zip(returned, outputs, strict=True):
        new, old = tensor_value(node), tensor_value(output)
        if new is None or old is None:
            return Reject(Reason.OTHER_OP, "an output is no tensor", output)
        problem = _differs(new, old)
        if problem is not None:
            code, what = problem
            return Reject(code, f"the replacement of {output.name} {what}", output)
        if _memory_among(new, fresh) != _memory_among_nodes(output, bases):
            text = f"the replacement of {output.name} shares memory with other operands than it did"
            return Reject(Reason.ALIAS, text, output)
    if not grad:
        return None
    return _gradients(pattern, graph, outputs, fresh)


def _differs(new: torch.Tensor, old: torch.Tensor) -> tuple[Reason, str] | None:
    if new.dtype != old.dtype:
        hint = ""
        if new.dtype.is_floating_point and old.dtype.is_floating_point:
            hint = " (an operator of your own needs torch.library.register_autocast)"
        return Reason.DTYPE_MISMATCH, f"is {new.dtype}, was {old.dtype}{hint}"
    if new.device != old.device:
        return Reason.DEVICE_MISMATCH, f"is on {new.device}, was on {old.device}"
    equal = torch_private.known_equal
    if new.dim() != old.dim() or not all(map(equal, new.shape, old.shape)):
        return Reason.SHAPE_MISMATCH, f"has shape {tuple(new.shape)}, had {tuple(old.shape)}"
    if not all(map(equal, new.stride(), old.stride())):
        return Reason.STRIDE_MISMATCH, f"has strides {new.stride()}, had {old.stride()}"
    return None


def _memory_among(tensor: torch.Tensor, fresh: Sequence[torch.Tensor]) -> set[int]:
    key = torch_private.storage_key(tensor)
    return {place for place, base in enumerate(fresh) if torch_private.storage_key(base) == key}


def _memory_among_nodes(output: fx.Node, bases: Sequence[fx.Node]) -> set[int]:
    call = call_of(output)
    if call is not None and call.inplace:  # it wrote memory of this graph that nobody else sees
        return set()
    key = memory_of(output)
    return {place for place, base in enumerate(bases) if memory_of(base) == key}


def _gradients(
    pattern: Pattern, graph: fx.Graph, outputs: Sequence[fx.Node], fresh: Sequence[torch.Tensor]
) -> Reject | None:
    """Every operand that had a gradient must have one still."""
    for node in graph.nodes:
        if node.op == "call_function" and torch_private.lacks_backward(node.target):
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


def _leaves(tensors: Sequence[torch.Tensor]) -> set[int]:
    found = {id(t) for t in tensors if t.is_leaf}
    todo = [t.grad_fn for t in tensors if t.grad_fn is not None]
    seen = set(todo)
    while todo:
        node = todo.pop()
        variable = getattr(node, "variable", None)
        if variable is not None:
            found.add(id(variable))
        following = [n for n, _ in node.next_functions if n is not None and n not in seen]
        seen.update(following)
        todo += following
    return found


def splice(site: Site, renamed: dict[fx.Node, fx.Node], symbols: dict[Any, fx.Node]) -> None:
    """Put a recorded replacement into the graph and take the match out.

    Args:
        site: from :func:`record`, in a graph that is otherwise unchanged.
        renamed: output taken out earlier to the node that stands for it now; added to.
        symbols: nodes that hold symbolic sizes.

    Raises:
        KeyError: the replacement computes with a size the graph does not hold.
    """
    graph = site.outputs[0].graph
    where = site.cut.before or site.cut.nodes[-1].next
    table: dict[fx.Node, Any] = {}
    origin = site.outputs[0]
    inherited = {k: v for k, v in origin.meta.items() if k not in _OF_THE_VALUE}
    rules = {site.pattern.rule.name}.union(*(n.meta.get(MADE_BY, ()) for n in site.cut.nodes))
    bases = iter(site.bases)
    results: Sequence[fx.Node] = ()

    def argument(value: Any) -> Any:
        if isinstance(value, SymbolicSize):
            return torch_private.size_as_node(value.size, symbols, graph)
        if isinstance(value, fx.Node):
            return table[value]
        if isinstance(value, slice):
            return slice(*map(argument, (value.start, value.stop, value.step)))
        if isinstance(value, (tuple, list)):
            return (
                type(value)(map(argument, value))
                if type(value) in (tuple, list)
                else tuple(map(argument, value))
            )
        return value

    with graph.inserting_before(where):
        for node in site.graph.nodes:
            if node.op == "placeholder":
                value = node.meta.get("val", node.meta.get("example_value"))
                if isinstance(value, (torch.SymInt, torch.SymFloat)):
                    table[node] = torch_private.size_as_node(value, symbols, graph)
                    continue
                base = next(bases)
                table[node] = renamed.get(base, base)
            elif node.op == "output":
                results = [table[n] for n in node.args[0]]
            else:
                args = tuple(argument(a) for a in node.args)
                kwargs = {k: argument(v) for k, v in node.kwargs.items()}
                new = graph.create_node(node.op, node.target, args, kwargs, name=node.name)
                new.meta = {**inherited, **node.meta, MADE_BY: frozenset(rules)}
                new.meta[CANDIDATE] = site.match.options.candidate
                table[node] = new
    for output, result, readers in zip(site.outputs, results, site.cut.readers, strict=True):
        if result not in site.bases and MADE_BY in result.meta:
            _name_the_same_memory(result, output)
        for reader, name in readers:  # by a name that an earlier splice may have changed
            reader.replace_input_with(renamed.get(name, name), result)
        renamed[output] = result
        for reader in set(output.users) - set(site.cut.nodes):  # put in by another site just now
            reader.replace_input_with(output, result)
    for node in reversed(site.cut.nodes):
        if not node.users:
            graph.erase_node(node)
        else:
            raise ValueError(f"{node.name} is still read after its match was taken out")


def _name_the_same_memory(result: fx.Node, output: fx.Node) -> None:
    """What is known of views of the output must hold for views of its replacement."""
    for key in ("example_value", "val"):
        if key in output.meta:
            result.meta[key] = output.meta[key]


MADE_BY = "fusepass_rules"
CANDIDATE = "fusepass_candidate"  # meta key: the option in force, for lowerings to read
_OF_THE_VALUE = frozenset(
    "example_value val tensor_meta unbacked_bindings original_aten eager_input_vals".split()
)
