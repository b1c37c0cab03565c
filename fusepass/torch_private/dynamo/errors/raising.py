"""Read the exception that a traced program raises, and find who could see it.

Run on 2.11 to 2.15.
"""

from __future__ import annotations

import builtins
import contextlib
import logging
import types
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch._dynamo import variables
from torch._dynamo.variables.base import AttributeMutationNew, ValueMutationNew

from fusepass.torch_private.dynamo.errors.wording import plain
from fusepass.torch_private.dynamo.stack import is_unused, node_of, unused_object
from fusepass.torch_private.dynamo.unchanged_attributes import is_set_back
from fusepass.torch_private.fx.graphs import real_input

_HARMLESS_CONTEXTS = frozenset(
    """
    GradModeVariable InferenceModeVariable AutocastModeVariable NullContextVariable
    SDPAKernelVariable ProfilerContextVariable ProfilerRecordFunctionContextVariable
    """.split()
)
_WITHOUT_STATE = frozenset(
    """
    NullContextVariable ProfilerContextVariable ProfilerRecordFunctionContextVariable
    RecordFunctionVariable
    """.split()
)


def exception_parts(value: Any) -> tuple[type[BaseException], list[Any], dict[str, Any]] | None:
    """``(class, args, kwargs)`` of what is raised, or None when it was not made while tracing."""
    if isinstance(value, (variables.BuiltinVariable, variables.UserDefinedClassVariable)):
        kind: Any = value.as_python_constant()
        is_exception = isinstance(kind, type) and issubclass(kind, BaseException)
        return (kind, [], {}) if is_exception else None
    if type(value).__name__ != "ExceptionVariable" or value.source is not None:
        return None
    changed = [value.__context__, value.__cause__]
    if not all(entry.is_python_constant() for entry in changed):
        return None
    return value.exc_type, list(value.args), getattr(value, "fusepass_kwargs", {})


def is_handling_exception(translator: Any) -> bool:
    """Whether the traced program is inside an ``except`` block, which would become the context."""
    return len(translator.exn_vt_stack) > 0


def pending_changes(translator: Any, *, but_set_back: bool = False) -> str | None:
    """A change outside that the program has made and Dynamo makes after the graph, or None.

    With ``but_set_back``, attributes that were given back what they held are no change.
    """
    output = translator.output
    effects = output.side_effects
    if effects.tensor_hooks:
        return "a hook put on a tensor"
    if prints_waiting(translator):
        return "something printed"
    for key, held in effects.id_to_variable.items():
        new = isinstance(held.mutation_type, (AttributeMutationNew, ValueMutationNew))
        changed = not new and held.mutation_type is not None and effects.is_modified(held)
        if not changed or _is_own_kwargs(output.root_tx, held):
            continue
        none = but_set_back and is_set_back(translator, held)
        if not none and not _only_rebinds(output, key, held):
            return f"a change of {source_name(held) or _kind_of(held)}"
    return None


def _kind_of(held: Any) -> str:
    try:
        return f"an object of class {held.python_type().__name__}"
    except NotImplementedError:
        return "an object"


def changed_settings(translator: Any) -> str | None:
    """A change the program has made, and Dynamo makes after the graph, of how lines are written.

    Attributes of modules (``sys.stdout``), options of torch's printing, loggers, filters.
    """
    effects = translator.output.side_effects
    options = torch._tensor_str.PRINT_OPTS
    kinds = (types.ModuleType, logging.Filterer, type(options))
    for key, held in effects.id_to_variable.items():
        about = isinstance(vars(held).get("value"), kinds) or key == id(warnings.filters)
        if about and held.mutation_type is not None and effects.is_modified(held):
            return source_name(held) or "an object"
    return None


def prints_waiting(translator: Any) -> int:
    """How many calls that print Dynamo has put off until after the graph."""
    return sum(len(tx.debug_locals) for tx in frames_outwards(translator))


def _is_own_kwargs(root: Any, held: Any) -> bool:
    """The ``**kwargs`` of the compiled frame is made for the call: nobody else sees it."""
    code = root.f_code
    has_kwargs = bool(code.co_flags & 0x08)
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 0x04)
    name = getattr(held.source, "local_name", None)
    return has_kwargs and name is not None and name == code.co_varnames[count]


def _only_rebinds(output: Any, key: int, held: Any) -> bool:
    """``self.buffer += 1``: a module is given the very tensor it holds, which was written."""
    for other in output.side_effects.id_to_variable.values():
        buffers = getattr(vars(other).get("value"), "_buffers", None)
        if isinstance(buffers, dict) and id(buffers) == key:
            tracked = {_plain_key(name): value for name, value in held.items.items()}
            return list(tracked) == list(buffers) and all(
                _is_same(output, value, buffers[name]) for name, value in tracked.items()
            )
    return False


def _plain_key(key: Any) -> Any:
    return getattr(key, "vt", key).as_python_constant()


def _is_same(output: Any, tracked: Any, real: Any) -> bool:
    """Whether a tracked value is still the object that was there when the frame began."""
    if is_unused(tracked):
        return unused_object(tracked) is real
    node = node_of(tracked)
    if node is None:
        return real is None and tracked.is_constant_none()
    fake = node.meta.get("example_value")
    return any(
        n.op == "placeholder" and n.meta.get("example_value") is fake and real_input(n) is real
        for n in output.graph.nodes
    )


def source_name(held: Any) -> str | None:
    """The expression that the program got a tracked value from; None if it is unknown."""
    source = getattr(held, "source", None)
    try:
        name = getattr(source, "name", None)
        name = name() if callable(name) else name
    except NotImplementedError:  # a source that Dynamo guards by, but cannot write down
        return None
    known = plain(str(name), "") if name else ""
    return known if known and " " not in known else None


def random_call_count(output_graph: Any) -> int:
    """How often Python's own generator was drawn from; Dynamo draws before the graph runs."""
    return len(output_graph.random_calls)


def is_nested_graph(translator: Any) -> bool:
    """Whether what is traced goes into the body of a higher-order operator."""
    return translator.output.current_tracer.parent is not None


def is_exporting(translator: Any) -> bool:
    """Whether the frame is traced by ``torch.export``."""
    return bool(translator.export)


def frames_outwards(translator: Any) -> Iterator[Any]:
    """The translator and those that inlined it, innermost first."""
    while translator is not None:
        yield translator
        translator = translator.parent


def unknown_context(translator: Any) -> str | None:
    """A with-block around the current instruction that may look at an exception, or None."""
    for entry in translator.block_stack:
        context = getattr(entry, "with_context", None)
        if context is not None and not is_harmless(context):
            return type(context).__name__.removesuffix("Variable")
    return None


def with_blocks(stack: list[Any], blocks: list[Any]) -> Iterator[Any]:
    """The managers of the with-blocks that a translator with this stack and list of blocks is in.

    The list lacks those of functions that are inlined, and in a ``try``; the stack those that
    Dynamo enters again behind a graph break.
    """
    ways_out = (value for value in stack if type(value).__name__ == "WithExitFunctionVariable")
    yield from (value.ctx for value in ways_out)
    contexts = (getattr(entry, "with_context", None) for entry in blocks)
    yield from (context for context in contexts if context is not None)


def can_be_left_twice(context: Any) -> bool:
    """Whether a with-block may be left in both arms of a branch, each traced from its start.

    Dynamo changes the state of others where it leaves them, and it cannot be put back: modes,
    settings of torch, a generator behind ``@contextmanager``.
    """
    if type(context).__name__ == "GenericContextWrappingVariable":
        kind = type(context.cm_obj)
        generators = contextlib._GeneratorContextManager, contextlib.ExitStack
        return kind.__module__.partition(".")[0] != "torch" and not issubclass(kind, generators)
    return type(context).__name__ in _WITHOUT_STATE


def is_harmless(context: Any) -> bool:
    """Whether a tracked context manager is one of torch's that does nothing about exceptions."""
    return type(context).__name__ in _HARMLESS_CONTEXTS


def context_of(translator: Any, entry: Any) -> Any:
    """The tracked context manager of the with-block that an entry of an exception table is of.

    Its way out lies on the stack; where Dynamo goes on behind a graph break it keeps a list.
    """
    stack = translator.stack
    held: Any = stack[entry.depth - 1] if 0 < entry.depth <= len(stack) else None
    if type(held).__name__ == "WithExitFunctionVariable":
        return held.ctx
    blocks = (b for b in translator.block_stack if b.target is entry.target)
    return next((b.with_context for b in blocks), None)


def manager_of(translator: Any, context: Any) -> Any:
    """The class of the program's context manager behind a tracked one, or its generator's code.

    Returns:
        A class, or ``(code object, globals)`` of what ``@contextmanager`` was put on; None if that
        is not known.
    """
    held = getattr(context, "cm_obj", None)
    if not isinstance(held, contextlib._GeneratorContextManager):
        return None if held is None else type(held)
    effects = translator.output.side_effects
    if effects.has_pending_mutation_of_attr(context, "gen"):
        made = effects.load_attr(context, "gen", check=False)
        return getattr(made, "code", None) and (made.code, made.f_globals)
    made = getattr(held, "gen", None)
    frame = getattr(made, "gi_frame", None)
    return None if frame is None else (frame.f_code, frame.f_globals)


def named_value(frame: Any, loads: list[Any]) -> Any:
    """Look up a global name, and attributes of it, in a frame; None if that is not known.

    Args:
        frame: Dynamo's translator or a
            :class:`~fusepass.torch_private.dynamo.eager_frames.WrittenFrame`.
        loads: the instruction that loads the name, and those that load the attributes.
    """
    name = loads[0].argval
    found = frame.f_globals.get(name, getattr(builtins, name, None))
    for load in loads[1:]:
        if not isinstance(found, (types.ModuleType, type)):
            return None
        found = getattr(found, load.argval, None)
    return found
