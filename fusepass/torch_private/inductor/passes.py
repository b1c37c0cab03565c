"""Register fusepass's passes with Inductor beside the user's. Run on torch 2.11 to 2.15."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from fusepass.torch_private.versions import torch_version


def graph_pass(
    run: Callable[[fx.Graph], None], uuid: Callable[[], Any]
) -> Callable[[fx.Graph], None]:
    """Wrap a function as an Inductor custom pass whose ``uuid`` enters Inductor's cache keys."""
    from torch._inductor.custom_graph_pass import CustomGraphPass

    class Pass(CustomGraphPass):
        of_fusepass = True  # see under_our_passes

        def __call__(self, graph: fx.Graph) -> None:
            run(graph)

        def uuid(self) -> Any:
            return uuid()

    return Pass()


def chained_passes(*passes: Any) -> Any:
    """One value for an Inductor pass hook that runs all of ``passes`` (None entries are skipped).

    2.11 takes one object per hook, later versions also a list; user hooks come first.
    """
    flat: list[Any] = []
    for entry in passes:
        if isinstance(entry, (list, tuple)):
            flat.extend(entry)
        elif entry is not None:
            flat.append(entry)
    if len(flat) <= 1:
        return flat[0] if flat else None
    if torch_version() >= (2, 13):
        return flat

    def run(graph: fx.Graph) -> None:
        for one in flat:
            one(graph)

    def uuid() -> Any:
        ids = [one.uuid() if hasattr(one, "uuid") else None for one in flat]
        return None if None in ids else tuple(ids)

    return graph_pass(run, uuid)


def under_our_passes() -> bool:
    """Whether what Inductor compiles just now, in this thread, is compiled for fusepass."""
    from torch._inductor import config

    passes = config.post_grad_custom_post_pass
    some = passes if isinstance(passes, (list, tuple)) else [passes]
    return any(getattr(one, "of_fusepass", False) for one in some)


def put_in_order(graph: fx.Graph) -> None:
    """Put each node behind what it reads, else in the order there is."""
    from torch._inductor.pattern_matcher import stable_topological_sort

    stable_topological_sort(graph)


def inputs_written_behind(graph: fx.Graph) -> list[fx.Node]:
    """Inputs of a joint graph that AOTAutograd writes when the forward has run, outside of it."""
    from torch._functorch._aot_autograd.descriptors import InputMutationAOTOutput

    output = next(iter(reversed(graph.nodes)))
    results = output.meta.get("desc") or ()
    written = [one.mutated_input for one in results if isinstance(one, InputMutationAOTOutput)]
    inputs = graph.find_nodes(op="placeholder")
    return [node for node in inputs if written and node.meta.get("desc") in written]
