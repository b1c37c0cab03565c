"""Leave the keys of a dict in the order in which the program leaves them.

Where a frame removes or moves keys, Dynamo writes all items of the dict anew behind the graph, in
the order that the first call left, and no guard asks for the order. It forgets a key that is only
moved to the end. Run on torch 2.11 to 2.15.
"""

from __future__ import annotations

import collections
from typing import Any

from torch._dynamo.side_effects import SideEffects
from torch._dynamo.variables import ConstDictVariable

from fusepass.torch_private.dynamo.open_containers import applied, is_open, is_outside
from fusepass.torch_private.dynamo.stack import current_translator
from fusepass.torch_private.patches import IsOurs, Patches, Theirs


def hook_order(patches: Patches, is_ours: IsOurs) -> None:
    """Write dicts anew whose keys the frame moved, and guard the order of those written anew."""

    def update(theirs: Theirs, self: Any, codegen: Any, *args: Any, **kwargs: Any) -> None:
        output = codegen.tx.output
        for value in list(applied(self)) if is_ours(output) else ():
            if not _is_written(self, value):
                continue
            if _is_ordered(value):
                value.should_reconstruct_all = True
            if value.should_reconstruct_all and value.source is not None:
                output.guard_on_key_order.add(value.source)
        theirs(self, codegen, *args, **kwargs)

    def install(theirs: Theirs, self: Any) -> None:
        translator = current_translator()
        ordered = _is_ordered(self) and self.source is not None
        if ordered and translator is not None and is_ours(translator.output):
            translator.output.guard_on_key_order.add(self.source)
        theirs(self)

    patches.put(SideEffects, "codegen_update_mutated", update)
    patches.put(ConstDictVariable, "install_dict_keys_match_guard", install)


def _is_written(effects: Any, value: Any) -> bool:
    """Whether it is a dict older than the frame that the frame changes."""
    keyed = hasattr(value, "should_reconstruct_all") and isinstance(vars(value).get("items"), dict)
    if not keyed or is_open(value):
        return False
    return is_outside(value) and effects.is_modified(value)


def _is_ordered(value: Any) -> bool:
    """Whether it is an ``OrderedDict``, whose keys may be moved."""
    return isinstance(vars(value).get("items"), collections.OrderedDict)
