"""Find activation checkpointing in a graph, and run it as eager does. Run on torch 2.11 to 2.15."""

from __future__ import annotations

from typing import Any

from torch import fx
from torch.utils.checkpoint import checkpoint

from fusepass.torch_private.fx.graphs import higher_order_name
from fusepass.torch_private.inductor.compile import forward_of

_OPERATORS = ("tag_activation_checkpoint", "wrap_activation_checkpoint")


def is_checkpointed(translator: Any) -> bool:
    """Whether what is traced goes into the body of a checkpoint, however deep."""
    tracer = translator.output.current_tracer
    while tracer is not None:
        if higher_order_name(tracer.source_target) in _OPERATORS:
            return True
        tracer = tracer.parent
    return False


def checkpoint_as_eager(gm: fx.GraphModule) -> None:
    """Have a graph that is run op by op checkpoint as eager does, in the graphs it calls, too.

    torch's own operator is made to be traced: it leaves the state of random generators to Inductor,
    so that, run as it is, the backward would draw other numbers than the forward.
    """
    from torch._higher_order_ops.wrap import tag_activation_checkpoint

    for part in (module for module in gm.modules() if isinstance(module, fx.GraphModule)):
        calls = part.graph.find_nodes(op="call_function", target=tag_activation_checkpoint)
        for node in calls:
            node.target = run_checkpointed
        if calls:
            part.recompile()


def run_checkpointed(body: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
    """Run the body of a checkpoint, and again in the backward.

    ``body`` holds the caller's ``context_fn`` if one was given.
    """
    given = {**kwargs, "use_reentrant": False}  # what Dynamo traced is not reentrant
    if _enters_levels(body):
        given["early_stop"] = False  # it would leave the levels that were entered
    if "_checkpoint_context_fn" in body.meta:
        given["context_fn"] = body.meta["_checkpoint_context_fn"]
    run = forward_of(body)
    # As arguments buffers that the body writes would be saved, to be read in the backward.
    return checkpoint(lambda: run(*args), **given)


def _enters_levels(body: fx.GraphModule) -> bool:
    """Whether a graph, or one that it calls, enters levels of ``torch.func``."""
    parts = [part for part in body.modules() if isinstance(part, fx.GraphModule)]
    nodes = (node for part in parts for node in part.graph.nodes)
    return any("increment_nesting" in str(node.target) for node in nodes)
