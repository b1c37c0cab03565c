"""What is concatenated: which inputs Inductor computes element by element, and how they group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import fx

from fusepass.fusion.extern_calls import without_views
from fusepass.fusion.pointwise.inductor_reductions import is_reduction
from fusepass.graph.ops.op_names import op_name, tensor_value

MOST = 8  # inputs that Inductor computes in one kernel, whatever they are
_MOST_CALLS = 8  # of one input: each element of a group goes through those of all its inputs
_GATHERED = frozenset("embedding index gather index_select".split())


def is_cat(node: fx.Node) -> bool:
    """Whether a node concatenates a list of tensors."""
    return op_name(node) == "cat" and bool(node.args) and isinstance(node.args[0], (list, tuple))


def groups_of(inputs: Sequence[fx.Node]) -> list[list[fx.Node]]:
    """The inputs in order, neighbours together that one kernel may compute.

    Groups have at most :data:`MOST` inputs and are as large as each other; what has to stay by
    itself is a group of one.
    """
    computed = {one: sources_of(one) for one in dict.fromkeys(inputs)}
    readers = Counter(source for sources in computed.values() for source in sources)
    made: list[list[fx.Node]] = []
    together: list[fx.Node] = []

    def close() -> None:
        parts = -(-len(together) // MOST)
        for part in range(parts):
            begin, end = (len(together) * at // parts for at in (part, part + 1))
            made.append(together[begin:end])
        together.clear()

    for one in inputs:
        # Inductor computes any number of inputs that read one tensor in one kernel.
        if computed[one] and all(readers[source] == 1 for source in computed[one]):
            together.append(one)
        else:
            close()
            made.append([one])
    close()
    return made


def sources_of(node: fx.Node) -> frozenset[fx.Node]:
    """What an input is computed from, if Inductor computes it where it is concatenated only.

    That is by a few pointwise or gathering calls, of tensors in memory or views of them; not of
    a reduction, whose kernel would store the result itself.

    Returns:
        These tensors and views, of more than one element; none if it is not computed so.
    """
    calls, sources = 0, set()
    seen, waiting = {node}, [node] if len(node.users) == 1 else []
    while waiting:
        one = waiting.pop()
        made = without_views(one)
        if is_reduction(made):
            return frozenset()
        if not is_elementwise(made) and op_name(made) not in _GATHERED:
            if not _is_one_number(one):
                sources.add(one)
            continue
        calls += 1
        more = [before for before in made.all_input_nodes if before not in seen]
        seen.update(more)
        waiting += more
    return frozenset(sources) if 0 < calls <= _MOST_CALLS else frozenset()


def _is_one_number(node: fx.Node) -> bool:
    """Whether a value is of one element: many may read it, which joins no kernels."""
    value = tensor_value(node)
    return value is not None and all(size == 1 for size in value.shape)


def is_elementwise(node: fx.Node) -> bool:
    """Whether a call computes each element from those at its place."""
    return node.op == "call_function" and torch.Tag.pointwise in getattr(node.target, "tags", ())
