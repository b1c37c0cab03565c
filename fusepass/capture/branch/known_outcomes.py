"""Say what is known of a predicate at the instruction being traced.

Inside an arm its own predicate is known, and so is all that follows from it: ``not p`` is false
where ``p`` is true, and both are true where ``p & q`` is. Behind a branch of which one arm only
raises, the other outcome is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import fx

from fusepass.capture.frame_state import Frame
from fusepass.capture.nodes.select_node import select
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.torch_private.dynamo.phi import PhiVariable, is_phi

Outcome = tuple[fx.Node, bool]
_SAME = ("clone", "reshape", "detach")
_BOTH = ("logical_and", "bitwise_and", "and_")
_EITHER = ("logical_or", "bitwise_or", "or_")
_NOT = ("logical_not", "bitwise_not", "invert")
_MOST = 4096
TRUTH = "fusepass_truth"  # meta key of a tensor that is always true, or false: the value


def outcomes(frame: Frame, more: Iterable[Outcome] = ()) -> dict[fx.Node, bool]:
    """The predicates whose outcome is known, those in ``more`` among them."""
    found: dict[fx.Node, bool] = {}
    todo: list[Outcome] = [*more]
    todo += ((frame.predicates[site].as_proxy().node, arm) for site, arm in frame.arms)
    depth = len(frame.arms)
    todo += (
        (node, outcome)
        for arms, node, outcome in frame.passed
        if len(arms) <= depth and list(arms) == frame.arms[: len(arms)]
    )
    while todo and len(found) < _MOST:
        node, outcome = todo.pop()
        if node not in found and _is_truth(node) and not frame.written.contain(node):
            found[node] = outcome
            todo += _implied(node, outcome)
    return found


def resolved(value: Any, known: dict[fx.Node, bool]) -> Any:
    """What a value that is one of two is, where that is known."""
    while is_phi(value):
        nodes = (tested.as_proxy().node for tested in (value.predicate, value.held))
        outcome = next((known[node] for node in nodes if node in known), None)
        if outcome is None:
            return value
        value = value.taken if outcome else value.other
    return value


def tested_now(frame: Frame, phi: PhiVariable) -> Any:
    """The tracked tensor that says which of two a value is, as it was at the join."""
    written = frame.written.contain(phi.predicate.as_proxy().node)
    return phi.held if written else phi.predicate


def _is_truth(node: fx.Node) -> bool:
    value = tensor_value(node)
    return value is not None and value.dtype is torch.bool and value.dim() == 0


def _implied(node: fx.Node, outcome: bool) -> Iterator[Outcome]:
    """What follows for other predicates from the outcome of one."""
    name, args = op_name(node), [arg for arg in node.args if isinstance(arg, fx.Node)]
    if name in _NOT:
        yield args[0], not outcome
    elif name in _SAME:
        yield args[0], outcome
    elif (name in _BOTH and outcome) or (name in _EITHER and not outcome):
        yield from ((arg, outcome) for arg in args)
    elif name == "getitem" and args and args[0].target is select:
        predicate, *arms = args[0].args
        taken, other = (arm[node.args[1]] for arm in arms)  # type: ignore[index]
        yield from _chosen(predicate, taken, other, outcome)


def _chosen(predicate: Any, taken: Any, other: Any, outcome: bool) -> Iterator[Outcome]:
    if _constant(taken) is (not outcome):
        yield from ((predicate, False), (other, outcome))
    elif _constant(other) is (not outcome):
        yield from ((predicate, True), (taken, outcome))


def _constant(node: fx.Node) -> bool | None:
    """The truth value that a node always has, as those that stand in for one; else None."""
    return node.meta.get(TRUTH)
