"""A captured loop becomes ``torch.while_loop`` for Inductor; op by op it runs as it stands.

    ``run_loop(body, carried, operands)  ->  torch.while_loop(flag, body, carried, operands)``

``torch.while_loop`` forbids that a result of a round is an input, or a view of one, and that two
results are one tensor. Such results are copied. It has no form for a key that is a 0-d tensor,
whose number Python would read. Such a key becomes a tensor of one element. Under Inductor the host
reads the condition back in each round.
"""

from __future__ import annotations

import operator
from typing import Any

from torch import fx

from fusepass.capture.nodes.loop_node import KEYED, run_loop
from fusepass.graph.dataflow.memory import memories
from fusepass.graph.dataflow.node_recorder import NodeRecorder
from fusepass.graph.ops.op_names import tensor_value
from fusepass.rewrite.rule import GraphRule, RuleSite
from fusepass.torch_private.fx.graphs import while_loop_operator


def _is_loop(node: fx.Node) -> bool:
    return node.target is run_loop


def _settled(site: RuleSite) -> None:
    """Go on: capture settled legality while Dynamo could still restart."""


def _replace(site: RuleSite) -> None:
    if site.options.codegen == "eager":
        return
    gm, node = site.gm, site.anchor
    held, carried, operands = node.args
    name = str(held.target)  # type: ignore[union-attr]
    body = getattr(gm, name)
    _rewrite_keys(body, site.fake_mode)
    _copy_results(body)
    gm.add_submodule(f"{name}_goes_on", _condition(gm, body))
    with gm.graph.inserting_before(node):
        goes_on = gm.graph.get_attr(f"{name}_goes_on")
        first: list[fx.Node] = []
        seen: set[int] = set()
        for value in carried:  # type: ignore[union-attr]
            keys = memories([value])
            if not seen.isdisjoint(keys):
                copy = gm.graph.call_method("clone", (value,))
                copy.meta = dict(value.meta)  # type: ignore[union-attr]
                value = copy  # noqa: PLW2901  # a copy in its place
            seen.update(keys)
            first.append(value)  # type: ignore[arg-type]
        call = gm.graph.call_function(
            while_loop_operator(), (goes_on, held, tuple(first), operands)
        )
        call.meta = dict(node.meta)
    node.replace_all_uses_with(call)
    gm.graph.erase_node(node)


def _condition(gm: fx.GraphModule, body: fx.GraphModule) -> fx.GraphModule:
    """The graph that says whether another round is made: a copy of the first value."""
    graph = fx.Graph()
    given = [node for node in body.graph.nodes if node.op == "placeholder"]
    made = []
    for node in given:
        one = graph.placeholder(node.name)
        one.meta = {key: value for key, value in node.meta.items() if key == "example_value"}
        made.append(one)
    flag = graph.call_method("clone", (made[0],))
    flag.meta = dict(made[0].meta)
    graph.output(flag)
    return fx.GraphModule(gm, graph)


def _copy_results(body: fx.GraphModule) -> None:
    graph = body.graph
    output = graph.output_node()
    seen = set(memories(n for n in graph.nodes if n.op == "placeholder"))
    results: list[fx.Node] = []
    for result in output.args[0]:  # type: ignore[union-attr]
        keys = memories([result])
        made: Any = result
        if not seen.isdisjoint(keys):
            with graph.inserting_before(output):
                made = graph.call_method("clone", (result,))
            made.meta = dict(result.meta)  # type: ignore[union-attr]
        seen.update(keys)
        results.append(made)
    output.args = (tuple(results),)
    graph.lint()
    body.recompile()


def _rewrite_keys(body: fx.GraphModule, fake_mode: Any) -> None:
    recorder = NodeRecorder(body.graph, fake_mode)
    for node in list(body.graph.nodes):
        if node.meta.get(KEYED):
            _rewrite_key(node, recorder)
            body.graph.erase_node(node)


def _rewrite_key(node: fx.Node, recorder: NodeRecorder) -> None:
    """``x[:, i]`` is ``x[:, [i]]`` without the axis of one element."""
    source, key, *value = node.args
    plain = tuple(slice(None) if isinstance(part, fx.Node) else part for part in key)  # type: ignore[union-attr]
    base = recorder.before(node, operator.getitem, source, plain)
    axes = _axes(key, tensor_value(source).dim())  # type: ignore[union-attr]
    parts: list[Any] = [slice(None)] * (max(axes) + 1)
    for axis, index in axes.items():
        parts[axis] = recorder.before(node, "reshape", index, (1,))
    together = max(axes) - min(axes) + 1 == len(axes)
    place = min(axes) if together else 0
    if not value:
        made = recorder.before(node, operator.getitem, base, tuple(parts))
        node.replace_all_uses_with(recorder.before(node, "squeeze", made, place))
        return
    stored: Any = value[0]
    if isinstance(stored, fx.Node):
        held = tensor_value(base)
        assert held is not None
        shape = [size for axis, size in enumerate(held.shape) if axis not in axes]
        stored = recorder.before(node, "to", stored, held.dtype)
        stored = recorder.before(node, "expand", stored, shape)
        stored = recorder.before(node, "unsqueeze", stored, place)
    recorder.before(node, operator.setitem, base, tuple(parts), stored)


def _axes(key: Any, dims: int) -> dict[int, fx.Node]:
    """The 0-d tensors of a key, by the axis that each indexes in the view by the other parts."""
    used = sum(part is not None and part is not Ellipsis for part in key)
    axes: dict[int, fx.Node] = {}
    axis = 0
    for part in key:
        if isinstance(part, fx.Node):
            axes[axis] = part
        if part is Ellipsis:
            axis += dims - used
        elif not isinstance(part, int) or isinstance(part, bool):
            axis += 1
    return axes


RULE = GraphRule("loop_to_while", _is_loop, _settled, _replace, settled_by_capture=True)
