"""Add guards to compiled frames: conditions, one object under two names, methods of C classes.

Read and run on torch 2.11 to 2.15.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch._dynamo.guards
from torch._dynamo.guards import GuardBuilder, _get_closure_vars, install_guard
from torch._dynamo.source import GlobalSource
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.variables import builder
from torch._dynamo.variables.builder import VariableBuilder

from fusepass.torch_private.patches import IsOurs, Patches, Theirs


class Holds(Protocol):
    """A condition that a compiled frame is only good for as long as it holds.

    Attributes:
        text: what holds, in the reason of a recompilation.
    """

    text: str

    def holds(self) -> bool:
        """Whether it does; asked before each call, so it must take microseconds at most."""


def guard_on(translator: Any, name: str, thing: Holds) -> None:
    """Trace the frame being traced anew where ``thing`` does not hold any more.

    Args:
        translator: Dynamo's.
        name: that the thing gets among the globals of the frame.
        thing: asked before each call. If it does not even hold when the frame is compiled, it is
            not asked: Dynamo takes a guard that fails at once for a fault of its own.
    """
    _install(translator.output, name, thing, _fusepass_holds)


def _install(output_graph: Any, name: str, asked: Any, make: Callable[[Any, Any], None]) -> None:
    source = GlobalSource(output_graph.install_global_by_id(name, asked))
    install_guard(source.make_guard(make))


def _fusepass_holds(builder: Any, guard: Any) -> None:
    thing: Holds = builder.get(guard)
    if thing.holds():
        builder.get_guard_manager(guard).add_lambda_guard(_holds, [thing.text], None)


def _holds(thing: Holds) -> bool:
    return thing.holds()


@dataclass(frozen=True, eq=False)
class GuardOnTensors:
    """A condition on several tensors that a frame is given.

    Attributes:
        sources: where the tensors are found.
        begin: called with the positions in ``sources`` of the tensors found, and with these
            tensors, when the guards of the frame are made; gives the function that is called with
            these tensors before each call.
        text: what holds, in the reason of a recompilation.
    """

    sources: Sequence[Any]
    begin: Callable[[list[int], list[torch.Tensor]], Callable[..., bool]]
    text: str


def guard_on_tensors(output_graph: Any, name: str, asked: GuardOnTensors) -> None:
    """The same for a condition on tensors; ``name`` is that of the condition."""
    _install(output_graph, name, asked, _fusepass_tensors)


def _fusepass_tensors(builder: Any, guard: Any) -> None:
    asked: GuardOnTensors = builder.get(guard)
    known = _get_closure_vars()
    names, positions, values = [], [], []
    for position, source in enumerate(asked.sources):
        with contextlib.suppress(Exception):  # found only while the frame is traced
            values.append(eval(source.name, builder.scope, known))  # as Dynamo's own guards do
            names.append(source.name)
            positions.append(position)
    holds = asked.begin(positions, values)
    text = f"___fusepass_holds({', '.join(names)})"
    variables = {**known, "___fusepass_holds": holds}
    builder.add_python_lambda_leaf_guard_to_root([text], [asked.text], variables)


def hook_duplicates(patches: Patches, is_ours: IsOurs) -> None:
    """Guard on what is found twice, once among locals and once among globals, being one object.

    Dynamo does so only where both are of one kind, and takes one for the other in later calls.
    """

    def guarded(theirs: Theirs, source: Any, other: Any) -> Any:
        made = theirs(source, other)
        if made is not None or not other or other == source:
            return made
        if not is_ours(InstructionTranslator.current_tx().output):
            return None
        return functools.partial(GuardBuilder.DUPLICATE_INPUT, source_b=other)

    patches.put(builder, "make_dupe_guard", guarded)


def hook_descriptors(patches: Patches, is_ours: IsOurs) -> None:
    """Guard on which method or attribute of a C class a value is: ``torch.Tensor.add`` or ``sub``.

    Dynamo takes one for the other in later calls. It is most often seen where the function of a
    tensor's subclass (``__torch_function__``) is compiled as a frame of its own.
    """

    def wrapped(theirs: Theirs, self: Any, value: Any) -> Any:
        if isinstance(value, _DESCRIPTORS) and is_ours(self.tx.output):
            stays = _is_held_by_its_class(value)
            self.install_guards(GuardBuilder.BUILTIN_MATCH if stays else _same_member)
        return theirs(self, value)

    patches.put(VariableBuilder, "_wrap", wrapped)


_DESCRIPTORS = (
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.MethodDescriptorType,
    types.MethodWrapperType,
    types.WrapperDescriptorType,
)


def _is_held_by_its_class(value: Any) -> bool:
    """Whether each look-up gives the same object."""
    if isinstance(value, types.MethodWrapperType):
        return False
    return vars(value.__objclass__).get(value.__name__) is value


def _same_member(builder: Any, guard: Any) -> None:
    wanted = _member(builder.get(guard))
    manager = builder.get_guard_manager(guard)
    same = [f"{guard.name} is {wanted[1]!r} of {wanted[2]!r}"]
    manager.add_lambda_guard(lambda value: _member(value) == wanted, same, None)


def _member(value: Any) -> tuple[Any, ...]:
    """Facts that tell such a value from others, but for the object that a method is bound to.

    That object has guards of its own, unless it is a descriptor itself.
    """
    bound = getattr(value, "__self__", None)
    described = bound if isinstance(bound, _DESCRIPTORS) else None
    return type(value), value.__name__, value.__objclass__, described


@contextlib.contextmanager
def guards_not_timed() -> Iterator[None]:
    """Dynamo does not time the guards of each frame it compiles, which is only for its metrics.

    It flushes the processor's caches for that: 20 ms a frame, as long as compiling a small one
    takes, and worse where several processes do it.
    """
    module: Any = torch._dynamo.guards
    with Patches() as patches:
        if hasattr(module, "profile_guard_manager"):
            patches.set(module, "profile_guard_manager", lambda *_: 0.0)
        yield
