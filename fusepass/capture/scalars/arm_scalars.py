"""Replace Python numbers that differ between arms, where only tensor arithmetic uses them.

    s = 2.0 if p else 1.0        y = x * s    ->    y = where(p, x * 2.0, x * 1.0)

While tracing, the number is a symbol nobody knows (:func:`choice` stands for it in the graph). Once
the graph is complete each call that uses it is made twice, with either number, and a select takes
its place: type promotion, rounding and overflow are those of the numbers themselves. Where anything
else uses the number (Python, a size, the caller), the branch is taken back. A tensor in one arm and
a number in the other (``num / den if den != 0 else 0``) goes the same way.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from fusepass.capture.nodes.select_node import ARM, BRANCH, Branch, select, without_select
from fusepass.graph.dataflow.node_recorder import NodeRecorder, has_same_metadata
from fusepass.graph.dataflow.reached import reached
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.graph.safety.gradient_gates import zero_safe
from fusepass.graph.safety.tensor_kinds import special_or_transformed_reason
from fusepass.graph.safety.totality import POINTWISE, partial_reason
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.scalars.unbacked_scalars import unknown_number
from fusepass.torch_private.dynamo.stack import wrap_tensor
from fusepass.torch_private.fx.graphs import tree_map

_MOST = 512  # calls that are made with either number
_DIFFERS = "a Python number differs between the arms"
NUMBER = "fusepass_number"  # meta key on a choice node: its Branch


def choice(predicate: torch.Tensor, taken: Any, other: Any) -> Any:
    """``taken`` if the 0-d bool ``predicate`` holds, else ``other``: numbers, or one a tensor."""
    return taken if bool(predicate) else other


choice.fusepass_pure = True  # type: ignore[attr-defined]


def is_choice(node: fx.Node) -> bool:
    """Whether a node is a number that differs between arms, or arithmetic of such numbers."""
    made_of = reached([node], lambda one: () if NUMBER in one.meta else one.all_input_nodes)
    return all(
        NUMBER in one.meta or (one.op == "call_function" and bool(one.all_input_nodes))
        for one in made_of
    )


def record_choice(translator: Any, predicate: Any, sides: tuple[Any, Any], branch: Branch) -> Any:
    """Record a number that differs between the arms; returns the tracked number (or tensor)."""
    proxy = translator.output.create_proxy(
        "call_function", choice, (predicate.as_proxy(), *sides), {}
    )
    proxy.node.meta[NUMBER] = branch
    held = [s.node.meta["example_value"] if isinstance(s, fx.Proxy) else s for s in sides]
    for value in held:
        if isinstance(value, torch.Tensor):
            with translator.fake_mode:
                tested = predicate.as_proxy().node.meta["example_value"]
                fake = torch.where(tested, value, value)
            return wrap_tensor(translator, proxy, fake)
    integral = all(isinstance(value, (int, torch.SymInt)) for value in held)
    return unknown_number(translator, proxy, "int" if integral else "float")


def lower_numbers(
    graph: fx.Graph, fake_mode: Any, new_site: Callable[[int], int]
) -> dict[int, tuple[Reason, str]]:
    """Replace every choice in a complete graph; sites where that cannot be done, with the reason.

    A branch around another is treated first: its copies then use the inner number.
    """
    lost: dict[int, tuple[Reason, str]] = {}
    recorder = NodeRecorder(graph, fake_mode)
    todo = [node for node in graph.nodes if NUMBER in node.meta]
    doubled = 0
    while todo:
        node = todo.pop()
        for user in list(node.users):
            doubled += 1
            if doubled > _MOST:  # a number of many branches may be two to that power of numbers
                text = f"{_DIFFERS}, and it may be one of many"
                return {node.meta[NUMBER].site: (Reason.PYTHON_VALUE, text)}
            made = _number(node, user) or _tensor(node, user, recorder, new_site)
            if made is None:
                text = f"{_DIFFERS}, and {special_or_transformed_reason(user) or _use(user)}"
                lost[node.meta[NUMBER].site] = (Reason.PYTHON_VALUE, text)
            elif NUMBER in made.meta:
                todo.append(made)
        if not node.users:
            branch: Branch = node.meta[NUMBER]
            without_select(graph)[branch.site] = branch
            graph.erase_node(node)
    return lost


def _use(user: fx.Node) -> str:
    if user.op == "output":
        return "the program returns it, or holds on to it"
    name = op_name(user)
    return f"{name} needs it" if name else "Python needs it"


def _number(node: fx.Node, user: fx.Node) -> fx.Node | None:
    """Arithmetic of numbers alone: done for both, at once."""
    value = user.meta.get("example_value")
    if not isinstance(value, (torch.SymInt, torch.SymFloat)) or user.op != "call_function":
        return None
    if NUMBER in user.meta or user.all_input_nodes != [node]:
        return None
    sides: list[Any] = []
    with node.graph.inserting_before(user):
        for number in node.args[1:]:
            args = _with(user.args, node, number)
            if isinstance(number, fx.Node):  # itself a number that differs
                sides.append(node.graph.call_function(user.target, args))  # type: ignore[arg-type]
                sides[-1].meta = dict(user.meta)
                continue
            try:
                sides.append(user.target(*args))  # type: ignore[operator]
            except ArithmeticError:
                return None
        made = node.graph.call_function(choice, (node.args[0], *sides))
    made.meta = {**user.meta, NUMBER: node.meta[NUMBER]}
    user.replace_all_uses_with(made)
    node.graph.erase_node(user)
    return made


def _tensor(
    node: fx.Node, user: fx.Node, recorder: NodeRecorder, new_site: Callable[[int], int]
) -> fx.Node | None:
    """A call that gives a tensor: made with either number, and selected between.

    Numbers alone have nothing to do with the arms they were made in: the selection is a branch of
    its own. A tensor that only one arm made is part of that arm, gates included.
    """
    branch: Branch = node.meta[NUMBER]
    value = tensor_value(user)
    name = op_name(user)  # an in-place spelling ends in "_" and is not among them
    doubled = name in POINTWISE or name in ("div", "floor_divide", "remainder", "fmod", "rsub")
    if value is None or not doubled or special_or_transformed_reason(user) is not None:
        return None
    if tensor_value(node) is None:
        site, outer = new_site(branch.site), user.meta.get(ARM)
        branch = dataclasses.replace(branch, site=site, outer=outer, gated=False)
    elif user.meta.get(ARM) != branch.outer:
        return None
    graph = node.graph
    sides = []
    with graph.inserting_before(user):
        for arm, number in ((True, node.args[1]), (False, node.args[2])):
            args, kwargs = _with(user.args, node, number), _with(user.kwargs, node, number)
            side = graph.create_node(user.op, user.target, args, kwargs)
            side.meta = {**user.meta, ARM: (branch.site, arm)}
            sides.append(side)
            fake = _fake(side, value, recorder)
            if not has_same_metadata(fake, value) or partial_reason(side) is not None:
                for made in sides:
                    graph.erase_node(made)
                return None
            side.meta["example_value"] = fake
        chosen = graph.call_function(select, (node.args[0], (sides[0],), (sides[1],)))
        chosen.meta = {k: v for k, v in user.meta.items() if k != "example_value"}
        chosen.meta["example_value"] = (value,)
        chosen.meta[BRANCH] = _gated(branch, graph, sides, value)
        made = graph.call_function(operator.getitem, (chosen, 0))
        made.meta = dict(user.meta)
    user.replace_all_uses_with(made)
    graph.erase_node(user)
    return made


def _with(args: Any, node: fx.Node, number: Any) -> Any:
    return tree_map(lambda n: number if n is node else n, args)


def _fake(side: fx.Node, value: torch.Tensor, recorder: NodeRecorder) -> Any:
    recorder.grad = value.requires_grad
    try:
        return recorder.fake(side)
    except (TypeError, RuntimeError, ValueError, AttributeError):
        return None


def _gated(branch: Branch, graph: fx.Graph, sides: list[fx.Node], value: torch.Tensor) -> Branch:
    """The branch as one more select of it needs it: gates are put in once per site."""
    if not value.requires_grad:
        return dataclasses.replace(branch, gated=False)
    inside = [n for n in graph.nodes if n.meta.get(ARM, (None,))[0] == branch.site]
    others = [n.meta[BRANCH] for n in graph.nodes if BRANCH in n.meta]
    already = any(other.site == branch.site and other.gated for other in others)
    needed = not all(zero_safe(node) for node in [*inside, *sides])
    return dataclasses.replace(branch, gated=needed and not already)
