"""A branch whose arms are too expensive to run both becomes ``torch.cond``: one graph, one arm run.

    ``select(p, f(x), g(x))  ->  torch.cond(p, f, g, x)``

AOTAutograd refuses a ``cond`` whose arm hands back an operand, so such results are cloned inside
the arm; capture has already made sure that nobody could see the difference. Arms write nothing
that existed before them. Under Inductor a cond reads its predicate back to the host, which is why
this is only for expensive arms. Op by op it is a call of one of the arms, as in eager.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator

import torch
from torch import fx

from fusepass.capture.nodes.select_node import ARM, BRANCH, Branch, arm_of, one_arm
from fusepass.graph.dataflow.effects import written_nodes
from fusepass.graph.dataflow.memory import memories, memory_of, tensors_of
from fusepass.graph.dataflow.reached import reached
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.patterns.branch_to_where import erase_select, known_branches, settled, treated_as
from fusepass.rewrite.rule import GraphRule, RuleSite
from fusepass.torch_private.fx.graphs import cond_operator


def _replace(site: RuleSite) -> None:
    gm, node = site.gm, site.anchor
    graph = gm.graph
    branch: Branch = node.meta[BRANCH]
    branches = known_branches(graph)
    predicate, taken, other = node.args
    arms = {
        arm: [n for n in graph.nodes if arm_of(n, branch.site, branches) is arm]
        for arm in (True, False)
    }
    results: dict[bool, tuple[fx.Node, ...]] = {True: taken, False: other}  # type: ignore[dict-item]
    shared = _shared_numbers(arms, node)
    for nodes in arms.values():
        nodes[:0] = _numbers_outside(nodes)
    operands = _free_inputs(arms, results)
    names = []
    for arm, label in ((True, "taken"), (False, "other")):
        name = f"fusepass_{label}_{branch.site}"
        gm.add_submodule(name, _extract_body(gm, arms[arm], results[arm], operands))
        names.append(name)
    with graph.inserting_before(node):
        bodies = [graph.get_attr(name) for name in names]
        for body in bodies:  # they stand in the same outer arm as the branch
            body.meta = {ARM: node.meta[ARM]} if ARM in node.meta else {}
        handed = tuple(_cond_operands(operands, node, _with_gradient(results)))
        by_op = site.options.codegen == "eager"
        operator_of_arms = one_arm if by_op else cond_operator()
        call = graph.call_function(operator_of_arms, (predicate, *bodies, handed))
        call.meta = {k: v for k, v in node.meta.items() if k != BRANCH}
        for position, value in enumerate(node.meta["example_value"]):
            item = graph.call_function(operator.getitem, (call, position))
            item.meta = dict(call.meta, example_value=value)
            if not by_op and not value.requires_grad and value.is_floating_point():
                # torch.cond lets every result require grad as soon as one operand does.
                item = graph.call_method("detach", (item,))
                item.meta = dict(call.meta, example_value=value)
            for user in [u for u in node.users if u.args[1] == position]:
                user.replace_all_uses_with(item)
                graph.erase_node(user)
    erase_select(node)
    for arm, nodes in arms.items():
        for inner in reversed(nodes):
            if arm_of(inner, branch.site, branches) is arm:
                if inner not in shared:
                    graph.erase_node(inner)
                elif ARM in node.meta:
                    inner.meta[ARM] = node.meta[ARM]
                else:
                    del inner.meta[ARM]


def _shared_numbers(arms: dict[bool, list[fx.Node]], site: fx.Node) -> set[fx.Node]:
    """What an arm computes and others read, too, with what that is made of.

    Torch computes each number that is made of sizes once in a graph, where it is met first.
    """
    found: set[fx.Node] = set()
    for nodes in arms.values():
        inside = {*nodes, site}
        for node in reversed(nodes):
            if found.intersection(node.users) or not inside.issuperset(node.users):
                found.add(node)
    return found


def _numbers_outside(nodes: list[fx.Node]) -> list[fx.Node]:
    """The numbers an arm reads that are no integers, which torch.cond does not take as operands."""
    found: dict[fx.Node, None] = {}
    todo, inside = list(nodes), set(nodes)
    while todo:
        for node in todo.pop().all_input_nodes:
            kind = node.meta.get("example_value")
            if node not in inside and isinstance(kind, (torch.SymFloat, torch.SymBool)):
                found = {node: None, **{k: v for k, v in found.items() if k is not node}}
                todo.append(node)
    return list(found)


def _free_inputs(
    arms: dict[bool, list[fx.Node]], results: dict[bool, tuple[fx.Node, ...]]
) -> list[fx.Node]:
    found: dict[fx.Node, None] = {}
    for arm, nodes in arms.items():
        inside = set(nodes)
        for node in nodes:
            found.update((n, None) for n in node.all_input_nodes if n not in inside)
        found.update((n, None) for n in results[arm] if n not in inside)
    return list(found)


def _with_gradient(results: dict[bool, tuple[fx.Node, ...]]) -> set[fx.Node]:
    """What gets a gradient from the results: the others, eager leaves at None."""

    def requires_grad(node: fx.Node) -> bool:
        return any(value.requires_grad for value in tensors_of(node))

    last = filter(requires_grad, [node for nodes in results.values() for node in nodes])
    return {*reached(last, lambda node: filter(requires_grad, node.all_input_nodes))}


def _cond_operands(
    operands: list[fx.Node], site: fx.Node, trained_operands: set[fx.Node]
) -> Iterator[fx.Node]:
    """The operands as the cond gets them: it sends each one that requires grad a gradient.

    In training it also keeps them all, so that what is written behind the site is copied, and what
    others see, who may write it before the backward.
    """
    trained = any(value.requires_grad for node in operands for value in tensors_of(node))
    written = _escaping_memory(site.graph) if trained else set()
    following = site.next
    while trained and following.op != "output":
        written.update(memories(written_nodes(following)))
        following = following.next
    for operand in operands:
        value, made = tensor_value(operand), operand
        if value is not None and value.requires_grad and operand not in trained_operands:
            made = _call(site, "detach", made, value.detach())
        if not written.isdisjoint(memories([operand])):
            made = _call(site, "clone", made, made.meta["example_value"])
        yield made


def _escaping_memory(graph: fx.Graph) -> set[int]:
    """Memory that leaves the graph or comes into it, but for leaves.

    Autograd lets nobody write a leaf, unless under no_grad as optimizers do, after the backward.
    """
    inputs = graph.find_nodes(op="placeholder")
    leaves = [n for n in inputs if any(v.requires_grad and v.is_leaf for v in tensors_of(n))]
    seen = [n for n in inputs if n not in leaves] + graph.output_node().all_input_nodes
    return set(memories(seen)) - set(memories(leaves))


def _call(site: fx.Node, method: str, operand: fx.Node, value: torch.Tensor) -> fx.Node:
    call = site.graph.call_method(method, (operand,))
    call.meta = {k: v for k, v in site.meta.items() if k != BRANCH}
    call.meta["example_value"] = value
    return call


def _extract_body(
    gm: fx.GraphModule, nodes: list[fx.Node], results: tuple[fx.Node, ...], operands: list[fx.Node]
) -> fx.GraphModule:
    body = fx.Graph()
    known_branches(body).update(known_branches(nodes[0].graph) if nodes else {})
    env: dict[fx.Node, fx.Node] = {}
    for operand in operands:
        env[operand] = body.placeholder(operand.name)
        env[operand].meta = {k: v for k, v in operand.meta.items() if k == "example_value"}
    for node in nodes:
        env[node] = copied = body.node_copy(node, env.__getitem__)
        if op_name(node) == "sum":
            _with_dense_gradient(copied)
    handed: list[fx.Node] = []
    seen = set(memories(operands))
    for result in results:
        out = env[result]
        key = memory_of(result)
        if key in seen:  # an operand, a view of one, or of an earlier result
            out = body.call_function(torch.clone, (out,))
            out.meta = {"example_value": result.meta["example_value"]}
        if key is not None:
            seen.add(key)
        handed.append(out)
    body.output(tuple(handed))
    return fx.GraphModule(gm, body)


def _with_dense_gradient(total: fx.Node) -> None:
    """Multiply what is summed by 1, so that its gradient is a tensor with memory of its own.

    The backward of a sum gives a view of one number for all, and torch cannot bring an operand's
    gradients together where that of one arm is such a view and the other's is not.
    """
    summed = total.args[0] if total.args else None
    value = tensor_value(summed) if isinstance(summed, fx.Node) else None
    if value is None or not value.requires_grad:
        return
    with total.graph.inserting_before(total):
        made = total.graph.call_function(torch.mul, (summed, 1))
    made.meta = {**total.meta, "example_value": value * 1}
    total.args = (made, *total.args[1:])


RULE = GraphRule("branch_to_cond", treated_as("cond"), settled, _replace, settled_by_capture=True)
