"""Hook each call that Dynamo records, and break the graph at one. Run on torch 2.11 to 2.15."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NoReturn

from torch import fx
from torch._dynamo.exc import SkipFrame
from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.variables import builder

from fusepass.torch_private.dynamo.errors.error_hooks import suspends
from fusepass.torch_private.dynamo.stack import break_graph
from fusepass.torch_private.patches import Patches, Theirs

_WITHOUT_RESULT = (operator.setitem,)
_MAY_BREAK = ("autograd.Function", "tag_activation_checkpoint")


def hook_recorded(patches: Patches, on_recorded: Callable[[Any, fx.Node], None]) -> None:
    """Call the handler with each call that was recorded, its fake result known.

    Args:
        patches: take the hook out again.
        on_recorded: called as ``(translator, node)``, with the translator of the innermost function
            being traced; may break the graph.
    """

    def wrapped(
        theirs: Theirs, target_cls: Any, tx: Any, proxy: Any, *args: Any, **kwargs: Any
    ) -> Any:
        made = theirs(target_cls, tx, proxy, *args, **kwargs)
        if proxy.node.op.startswith("call_"):
            on_recorded(tx.output.current_tx, proxy.node)
        return made

    def created(theirs: Theirs, self: Any, *args: Any, **kwargs: Any) -> Any:
        proxy = theirs(self, *args, **kwargs)
        if proxy.node.op == "call_function" and proxy.node.target in _WITHOUT_RESULT:
            on_recorded(self.current_tx, proxy.node)
        return proxy

    patches.put(builder, "_wrap_fx_proxy", wrapped)
    patches.put(OutputGraph, "create_proxy", created)


def break_or_skip(translator: Any, what: str, why: str, hints: list[str]) -> NoReturn:
    """Break the graph at the instruction being traced, or run the frame in eager.

    In the body of ``torch.cond`` and its kin that is an error, and in coroutines and generators
    nothing goes on behind a break; the frame runs in eager then.
    """
    if not (translator.one_graph or translator.error_on_graph_break or _may_break(translator)):
        raise SkipFrame(f"{what}: {why}")
    break_graph(what, why, hints)


def goes_on(translator: Any) -> bool:
    """Whether Dynamo can go on behind a graph break here; else the rest of it stays in eager."""
    return bool(translator.should_compile_partial_graph())


def _may_break(translator: Any) -> bool:
    """Whether no operator is being traced that has to be in one graph, and the frame goes on."""
    if suspends(translator.output.root_tx.f_code):
        return False
    tracer = translator.output.current_tracer
    while tracer is not None:
        if tracer.source_target is not None and str(tracer.source_target) not in _MAY_BREAK:
            return False
        tracer = tracer.parent
    return True
