"""Find the tensors that a traced frame is given, its lines, and what it holds where its graph ends.

Code that goes on behind a graph break holds the whole function again. Dynamo takes the lines off
what stands in front of the break, since line numbers may not fall; a loop leads back there. Run on
torch 2.11 to 2.15.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch import fx
from torch._C._autograd import CreationMeta, _get_creation_meta
from torch._dynamo.resume_execution import ContinueExecutionCache
from torch._dynamo.source import (
    is_from_optimizer_source,
    is_from_unspecialized_nn_module_source,
)
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.misc import GetAttrVariable, NullVariable
from torch._guards import TracingContext
from torch._subclasses import FakeTensor

from fusepass.torch_private.dynamo.stack import (
    is_any_tensor,
    is_unused,
    local_value,
    node_of,
    realized,
    unused_object,
)


@dataclass(frozen=True)
class Tracked:
    """Facts about one value that Dynamo tracks.

    Attributes:
        nodes: graph nodes of the tensors in the value.
        real: the Python object itself, if it existed before the trace.
        container: whether the value holds tensors and is none itself.
        method: the name of the attribute, if the value is an attribute of a tensor.
        null: whether the value is the empty slot that bytecode pushes beside a function to call.
    """

    nodes: tuple[fx.Node, ...] = ()
    real: Any = None
    container: bool = False
    method: str = ""
    null: bool = False


def code_as_written(code: CodeType) -> CodeType:
    """The program's code of a function, for code that Dynamo made to go on behind a graph break."""
    resumed = _resumed(code)
    return code if resumed is None else resumed.code


def _resumed(code: CodeType) -> Any:
    """Dynamo's facts about code that it made to go on behind a graph break, or None."""
    known = ContinueExecutionCache.generated_code_metadata
    return known.get(code)


def begins_with_gradients(output_graph: Any) -> bool:
    """Whether autograd was on where the frame was called."""
    return bool(output_graph.tracing_context.global_context.global_state["grad_enabled"][1])


def breaks_here(output_graph: Any) -> bool:
    """Whether a complete graph ends in a graph break, and not where the function returns."""
    now = output_graph.root_tx.current_instruction
    return not now.opname.startswith("RETURN_")


def tracked(value: Any) -> Tracked:
    """Describe an entry of the translator's stack, or a local."""
    if is_unused(value):
        return Tracked(real=unused_object(value))
    value = realized(value)
    if is_any_tensor(value):
        return Tracked((value.as_proxy().node,))
    if isinstance(value, NullVariable):
        return Tracked(null=True)
    if isinstance(value, GetAttrVariable) and is_any_tensor(value.obj):
        return Tracked((value.obj.as_proxy().node,), method=value.name)
    found: list[fx.Node | None] = []
    VariableTracker.visit(lambda inner: found.append(node_of(inner)), value)
    nodes = tuple(node for node in found if node is not None)
    held = vars(value)
    real = held.get("value", held.get("fn"))
    return Tracked(nodes, real, bool(nodes) and real is None)


def tracked_local(translator: Any, name: str) -> Tracked:
    """The same for a local or a name that closures share."""
    held = local_value(translator, name)
    return Tracked() if held is None else tracked(held)


def pending_attribute(output_graph: Any, owner: Any, name: str) -> Tracked | None:
    """The value that an attribute of an object gets behind the graph; None if it gets none."""
    effects = output_graph.side_effects
    held = effects.id_to_variable.get(id(owner))
    if held is None or not effects.has_pending_mutation_of_attr(held, name):
        return None
    return tracked(effects.load_attr(held, name, check=False, deleted_ok=True))


_SPELLINGS = [
    (re.compile(r"^[LG]\['(\w+)'\]"), r"\1"),
    (re.compile(r"\._(?:modules|parameters|buffers)\['(\w+)'\]"), r".\1"),
    (re.compile(r"\.__dict__\['(\w+)'\]"), r".\1"),
]
_PLAIN = (torch.Tensor, torch.nn.Parameter)


@dataclass(frozen=True, eq=False)
class Given:
    """A tensor that a graph is given.

    Attributes:
        node: the input.
        value: what the caller handed over.
        source: where in the frame it is found in each call.
        held: whether a module or an optimizer holds it.
    """

    node: fx.Node
    value: torch.Tensor
    source: Any
    held: bool

    @property
    def name(self) -> str:
        """As the program has it, where that is an argument or belongs to a module."""
        name = str(self.source.name)
        for pattern, plain in _SPELLINGS:
            name = pattern.sub(plain, name)
        return name


def tensors_given(graph: fx.Graph) -> list[Given]:
    """The inputs of a complete graph that are tensors with memory of their own."""
    found = []
    for node in graph.find_nodes(op="placeholder"):
        argument = node.meta.get("grapharg")
        source = getattr(argument, "source", None)
        if source is None or not argument.is_tensor or argument.pass_arg_as_tensor:
            continue
        value = argument.example
        if _has_memory(value):
            found.append(Given(node, value, source, _is_held(value, source)))
    return found


def storage_of(value: Any) -> int | None:
    """Which storage a tensor lies in; None for one without memory of its own."""
    return value.untyped_storage().data_ptr() if _has_memory(value) else None


def held_storages(output_graph: Any) -> dict[str, int]:
    """The storages of the tensors that the locals of a frame were when it was called."""
    found = {f"L['{name}']": storage_of(held) for name, held in output_graph.local_scope.items()}
    return {name: storage for name, storage in found.items() if storage}


def _has_memory(value: Any) -> bool:
    if type(value) not in _PLAIN and not isinstance(value, torch.nn.Buffer):
        return False
    if isinstance(value, FakeTensor) or value.layout is not torch.strided or value.is_meta:
        return False
    try:
        value.data_ptr()
    except RuntimeError:  # inside a transform of functions, or not initialised yet
        return False
    return True


def written_only_as_data(value: torch.Tensor) -> bool:
    """Whether a tensor is a view that autograd lets nobody write, but through ``data``."""
    return (
        value.requires_grad
        and value._is_view()
        and _get_creation_meta(value) is not CreationMeta.DEFAULT
    )


def _is_held(value: torch.Tensor, source: Any) -> bool:
    if isinstance(value, torch.nn.Parameter):
        return True
    return is_from_unspecialized_nn_module_source(source) or is_from_optimizer_source(source)


def line_of(translator: Any, instruction: Any) -> int:
    """The line that the program has an instruction on, of the code a translator is tracing."""
    written = _as_written(translator, instruction)
    for one in (instruction,) if written is None else (written, instruction):
        line = getattr(getattr(one, "positions", None), "lineno", None)
        if line:
            return int(line)
    return int(translator.lineno)


def tell_line(translator: Any) -> None:
    """Have torch's errors name the line a translator was put back to: it tells of new ones only."""
    code = translator.f_code
    TracingContext.set_current_loc(code.co_filename, translator.lineno, code.co_name)


def _as_written(translator: Any, instruction: Any) -> Any:
    """The instruction in the code as the program has it, if Dynamo goes on in that; else None."""
    resumed = _resumed(translator.f_code)
    if resumed is None:
        return None
    written, traced = resumed.instructions, translator.instructions
    index = next((i for i, one in enumerate(traced) if one is instruction), 0)
    behind = len(traced) - index  # what Dynamo adds comes in front
    if behind > len(written):
        return None
    tails = zip(written[-behind:], traced[-behind:], strict=True)
    same = all(
        one.opname == other.opname or ("JUMP" in one.opname and "JUMP" in other.opname)
        for one, other in tails  # a jump may be encoded in another way
    )
    return written[-behind] if same else None
