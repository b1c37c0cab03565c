"""Putting a recorded replacement into the graph, and taking the match out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from fusepass.graph.ops.schemas import SymbolicSize
from fusepass.rewrite.apply.replacement import MatchSite
from fusepass.torch_private.fx.size_nodes import size_as_node

REPLACED_BY_RULE = "fusepass_rules"
CANDIDATE = "fusepass_candidate"  # meta key: the option in force, for lowerings to read
_VALUE_META = frozenset(
    "example_value val tensor_meta unbacked_bindings original_aten eager_input_vals".split()
)


@dataclass
class Replaced:
    """What stands for what, after the splices so far.

    Attributes:
        outputs: outputs taken out, to the node that stands for each now.
        reads: what a call reads now where it read a name, ``(reader, name)``. Of calls that write
            one tensor in turn, each hands its own result to whoever reads the tensor afterwards.
    """

    outputs: dict[fx.Node, fx.Node] = field(default_factory=dict)
    reads: dict[tuple[fx.Node, fx.Node], fx.Node] = field(default_factory=dict)

    def read(self, reader: fx.Node, name: fx.Node) -> fx.Node:
        """What ``reader`` reads now where it read ``name``."""
        return self.reads.get((reader, name)) or self.outputs.get(name, name)


def splice(site: MatchSite, renamed: Replaced, symbols: dict[Any, fx.Node]) -> None:
    """Put a recorded replacement into the graph and take the match out.

    What is taken out is added to ``renamed``, and nodes made for sizes to ``symbols``.

    Raises:
        KeyError: the replacement computes with a size the graph does not hold.
    """
    graph = site.outputs[0].graph
    where = site.cut.before or site.cut.nodes[-1].next
    table: dict[fx.Node, Any] = {}
    inherited = {k: v for k, v in site.outputs[0].meta.items() if k not in _VALUE_META}
    rules = {site.pattern.rule.name}.union(
        *(n.meta.get(REPLACED_BY_RULE, ()) for n in site.cut.nodes)
    )
    bases = iter(site.bases)
    results: Sequence[fx.Node] = ()

    def argument(value: Any) -> Any:
        if isinstance(value, SymbolicSize):
            return size_as_node(value.size, symbols, graph)
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
                    table[node] = size_as_node(value, symbols, graph)
                    continue
                base = next(bases)
                table[node] = renamed.outputs.get(base, base)
            elif node.op == "output":
                results = [table[n] for n in node.args[0]]
            else:
                args = tuple(argument(a) for a in node.args)
                kwargs = {k: argument(v) for k, v in node.kwargs.items()}
                new = graph.create_node(node.op, node.target, args, kwargs, name=node.name)
                new.meta = {**inherited, **node.meta, REPLACED_BY_RULE: frozenset(rules)}
                new.meta[CANDIDATE] = site.match.options.candidate
                table[node] = new
    _redirect_readers(site, results, renamed)
    for node in reversed(site.cut.nodes):
        if not node.users:
            graph.erase_node(node)
        else:
            raise ValueError(f"{node.name} is still read after its match was taken out")


def _redirect_readers(site: MatchSite, results: Sequence[fx.Node], renamed: Replaced) -> None:
    """Let what is not in the match read the results in place of its outputs."""
    for output, result, readers in zip(site.outputs, results, site.cut.readers, strict=True):
        if result not in site.bases and REPLACED_BY_RULE in result.meta:
            _copy_memory_identity(result, output)
        for reader, name in readers:  # by a name that an earlier splice may have changed
            reader.replace_input_with(renamed.read(reader, name), result)
            renamed.reads[reader, name] = result
        renamed.outputs[output] = result
        for reader in set(output.users) - set(site.cut.nodes):  # put in by another site just now
            reader.replace_input_with(output, result)


def _copy_memory_identity(result: fx.Node, output: fx.Node) -> None:
    """What is known of views of the output must hold for views of its replacement."""
    for key in ("example_value", "val"):
        if key in output.meta:
            result.meta[key] = output.meta[key]
