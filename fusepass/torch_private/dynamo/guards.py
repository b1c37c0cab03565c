"""Add guards to compiled frames: conditions, one object under two names, methods of C classes.

Read and run on torch 2.11 to 2.15.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch._dynamo.guards

from fusepass.torch_private.patches import Patches, Theirs


class Holds(Protocol):
    """Something that a compiled frame is only good for as long as it holds.

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
    from torch._dynamo.guards import install_guard
    from torch._dynamo.source import GlobalSource

    source = GlobalSource(translator.output.install_global_by_id(name, thing))
    install_guard(source.make_guard(_fusepass_holds))


def _fusepass_holds(builder: Any, guard: Any) -> None:
    thing: Holds = builder.get(guard)
    if thing.holds():
        builder.get_guard_manager(guard).add_lambda_guard(_holds, [thing.text], None)


def _holds(thing: Holds) -> bool:
    return thing.holds()


def hook_duplicates(patches: Patches, is_ours: Callable[[Any], bool]) -> None:
    """Guard on what is found twice, once among locals and once among globals, being one object.

    Dynamo does so only where both are of one kind, and takes one for the other in later calls.

    Args:
        patches: take the hook out again.
        is_ours: called with the output graph; says whether the frame is compiled for fusepass.
    """
    from torch._dynamo.guards import GuardBuilder
    from torch._dynamo.symbolic_convert import InstructionTranslator
    from torch._dynamo.variables import builder

    def guarded(theirs: Theirs, source: Any, other: Any) -> Any:
        made = theirs(source, other)
        if made is not None or not other or other == source:
            return made
        if not is_ours(InstructionTranslator.current_tx().output):
            return None
        return functools.partial(GuardBuilder.DUPLICATE_INPUT, source_b=other)

    patches.put(builder, "make_dupe_guard", guarded)


def hook_descriptors(patches: Patches, is_ours: Callable[[Any], bool]) -> None:
    """Guard on which method or attribute of a C class a value is: ``torch.Tensor.add`` or ``sub``.

    Dynamo takes one for the other in later calls. It is most often seen where the function of a
    tensor's subclass (``__torch_function__``) is compiled as a frame of its own.

    Args:
        patches: take the hook out again.
        is_ours: called with the output graph; says whether the frame is compiled for fusepass.
    """
    from torch._dynamo.guards import GuardBuilder
    from torch._dynamo.variables.builder import VariableBuilder

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
    """What tells such a value from others, but for the object that a method is bound to.

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
    timed = getattr(module, "profile_guard_manager", None)
    if timed is None:
        yield
        return
    module.profile_guard_manager = lambda *_: 0.0
    try:
        yield
    finally:
        module.profile_guard_manager = timed
