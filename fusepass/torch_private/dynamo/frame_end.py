"""Find where a graph ends, and what names hold there. Run on torch 2.11 to 2.15."""

from __future__ import annotations

from dataclasses import dataclass
from types import CodeType
from typing import Any

from torch import fx

from fusepass.torch_private.dynamo.stack import is_any_tensor, realized


@dataclass(frozen=True)
class Tracked:
    """What Dynamo knows of a value.

    Attributes:
        nodes: of the tensors in it.
        real: the object itself, where it is none of the trace.
        container: whether it is a tensor at most by its elements.
        method: where it is an attribute of a tensor, the name of that.
        null: whether it is what the bytecode of a call pushes beside a function.
    """

    nodes: tuple[fx.Node, ...] = ()
    real: Any = None
    container: bool = False
    method: str = ""
    null: bool = False


def code_as_written(code: CodeType) -> CodeType:
    """The function of the program that code is of; behind a graph break it is Dynamo's own."""
    from torch._dynamo.resume_execution import ContinueExecutionCache

    known = ContinueExecutionCache.generated_code_metadata
    return known[code].code if code in known else code


def begins_with_gradients(output_graph: Any) -> bool:
    """Whether autograd was on where the frame was called."""
    return bool(output_graph.tracing_context.global_context.global_state["grad_enabled"][1])


def breaks_here(output_graph: Any) -> bool:
    """Whether a complete graph ends in a graph break, and not where the function returns."""
    now = output_graph.root_tx.current_instruction
    return not now.opname.startswith("RETURN_")


def tracked(value: Any) -> Tracked:
    """What is known of an entry of the translator's stack, or a local."""
    from torch._dynamo.variables.base import VariableTracker
    from torch._dynamo.variables.misc import GetAttrVariable, NullVariable

    if _is_unused(value):
        return Tracked(real=getattr(getattr(value, "_cache", None), "value", None))
    value = realized(value)
    if is_any_tensor(value):
        return Tracked((value.as_proxy().node,))
    if isinstance(value, NullVariable):
        return Tracked(null=True)
    if isinstance(value, GetAttrVariable) and is_any_tensor(value.obj):
        return Tracked((value.obj.as_proxy().node,), method=value.name)
    found: list[fx.Node] = []

    def note(inner: Any) -> None:
        if not _is_unused(inner) and is_any_tensor(inner):
            found.append(inner.as_proxy().node)

    VariableTracker.visit(note, value)
    held = vars(value)
    real = held.get("value", held.get("fn"))
    return Tracked(tuple(found), real, bool(found) and real is None)


def _is_unused(value: Any) -> bool:
    """Whether the program has not used a value so far, which Dynamo then has not built yet.

    Even ``isinstance`` of such a value has Dynamo build it: a complete graph gets another input.
    """
    from torch._dynamo.variables import LazyVariableTracker

    return isinstance(value, LazyVariableTracker) and not value.is_realized()


def tracked_local(translator: Any, name: str) -> Tracked:
    """The same for a local or a name that closures share."""
    from torch._dynamo.variables import CellVariable

    held = translator.symbolic_locals[name]
    if not _is_unused(held) and isinstance(held, CellVariable):
        effects = translator.output.side_effects
        if effects.has_pending_mutation_of_attr(held, "cell_contents"):
            held = effects.load_attr(held, "cell_contents", check=False)
        else:
            held = held.pre_existing_contents
    return Tracked() if held is None else tracked(held)


def pending_attribute(output_graph: Any, owner: Any, name: str) -> Tracked | None:
    """What an object gets as an attribute behind the graph; None if it does not."""
    effects = output_graph.side_effects
    held = effects.id_to_variable.get(id(owner))
    if held is None or not effects.has_pending_mutation_of_attr(held, name):
        return None
    return tracked(effects.load_attr(held, name, check=False, deleted_ok=True))
