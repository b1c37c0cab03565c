"""What is concatenated: which inputs Inductor computes element by element, and how they group."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from fusepass.graph.canonical import op_name
from fusepass.graph.reductions import is_reduction

MOST = 8  # inputs that Inductor computes in one kernel, whatever they are
_MOST_CALLS = 8  # of one input: each element of a group goes through those of all its inputs
_MOVED = frozenset(
    """view reshape _unsafe_view permute transpose t squeeze unsqueeze expand slice select alias
    detach clone""".split()
)
_GATHERED = frozenset("embedding index gather index_select".split())


def is_cat(node: fx.Node) -> bool:
    """Whether a node concatenates a list of tensors."""
    return op_name(node) == "cat" and bool(node.args) and isinstance(node.args[0], (list, tuple))


def groups_of(inputs: Sequence[fx.Node]) -> list[list[fx.Node]]:
    """The inputs in order, neighbours together that one kernel may compute.

    Groups have at most :data:`MOST` inputs and are as large as each other; what has to stay by
    itself is a group of one.
    """
    made: list[list[fx.Node]] = []
    together: list[fx.Node] = []

    def close() -> None:
        parts = -(-len(together) // MOST)
        for part in range(parts):
            begin, end = (len(together) * at // parts for at in (part, part + 1))
            made.append(together[begin:end])
        together.clear()

    for one in inputs:
        if is_computed(one):
            together.append(one)
        else:
            close()
            made.append([one])
    close()
    return made


def is_computed(node: fx.Node) -> bool:
    """Whether Inductor computes a node where it is concatenated, and only for that.

    By a few element-wise or gathering calls, of tensors in memory; not of a reduction, whose kernel
    would store the result itself.
    """
    if len(node.users) != 1:
        return False
    calls, seen, waiting = 0, {node}, [node]
    while waiting:
        one = waiting.pop()
        if is_reduction(one):
            return False
        name = op_name(one)
        if is_elementwise(one) or name in _GATHERED:
            calls += 1
        elif name not in _MOVED:
            continue  # in memory
        more = [before for before in one.all_input_nodes if before not in seen]
        seen.update(more)
        waiting += more
    return 0 < calls <= _MOST_CALLS


def is_elementwise(node: fx.Node) -> bool:
    """Whether a call computes each element from those at its place."""
    return node.op == "call_function" and torch.Tag.pointwise in getattr(node.target, "tags", ())
