"""Have Dynamo know how many items a deque of the program may hold.

Before torch 2.15 Dynamo takes each older deque for one without ``maxlen``: ``len`` after ``append``
is too large, and ``appendleft`` drops the wrong item. Where it knows ``maxlen``, it refuses to
change the deque behind the graph, although its items are the right ones. Run on torch 2.11 to 2.15.
"""

from __future__ import annotations

import collections
from typing import Any

from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.side_effects import SideEffects
from torch._dynamo.source import AttrSource
from torch._dynamo.variables.base import ValueMutationNew
from torch._dynamo.variables.lists import DequeVariable

from fusepass.torch_private.dynamo.stack import constant
from fusepass.torch_private.patches import IsOurs, Patches, Theirs


def hook_deques(patches: Patches, is_ours: IsOurs) -> None:
    """Track ``maxlen`` of older deques, and write them anew behind the graph."""

    def track(theirs: Theirs, self: Any, item: Any, variable: Any, *args: Any) -> Any:
        made = theirs(self, item, variable, *args)
        bounded = isinstance(made, DequeVariable) and type(item) is collections.deque
        if bounded and item.maxlen is not None and is_ours(self.output_graph_weakref()):
            _know(item, made)
        return made

    def update(theirs: Theirs, self: Any, codegen: Any, *args: Any, **kwargs: Any) -> None:
        ours = self.id_to_variable.values() if is_ours(codegen.tx.output) else ()
        held = [(one, one.maxlen) for one in ours if _is_bounded(one)]
        for one, _ in held:
            one.maxlen = constant(None)  # what it holds is no more than that already
        try:
            theirs(self, codegen, *args, **kwargs)
        finally:
            for one, maxlen in held:
                one.maxlen = maxlen

    patches.put(SideEffects, "track_mutable", track)
    patches.put(SideEffects, "codegen_update_mutated", update)


def _know(item: Any, tracked: Any) -> None:
    if tracked.maxlen.as_python_constant() is not None:
        return
    install_guard(AttrSource(tracked.source, "maxlen").make_guard(GuardBuilder.EQUALS_MATCH))
    tracked.maxlen = constant(item.maxlen)


def _is_bounded(value: Any) -> bool:
    """Whether a tracked value is a deque with ``maxlen`` that is older than the frame."""
    if not isinstance(value, DequeVariable) or isinstance(value.mutation_type, ValueMutationNew):
        return False
    return value.maxlen.as_python_constant() is not None
