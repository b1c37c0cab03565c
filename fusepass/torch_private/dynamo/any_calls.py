"""See the calls ``any(…)`` and ``all(…)`` of a generator expression. Run on torch 2.11 to 2.15."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from types import CodeType
from typing import Any

from torch._dynamo import variables
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.functions import LocalGeneratorObjectVariable

from fusepass.torch_private.patches import Patches, Theirs

_Answer = Callable[[Any, bool, CodeType, Callable[[], list[Any]]], Any]


def hook_any(patches: Patches, answer: _Answer) -> None:
    """Let ``answer`` say what such a call gives, or None for what Dynamo makes of it.

    It is called with the translator, whether the call is ``any``, the code of the generator, and
    what makes all its items, as tracked values. Dynamo then goes on with these.
    """

    def call_function(theirs: Theirs, self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if self.fn in (builtins.any, builtins.all) and len(args) == 1 and not kwargs:
            given = args[0]
            if isinstance(given, LocalGeneratorObjectVariable):
                made: list[Any] = []

                def items() -> list[Any]:
                    tracked: Any = VariableTracker
                    made.append(tracked.build(tx, list).call_function(tx, [given], {}))
                    return list(made[0].items)

                found = answer(tx, self.fn is builtins.any, given.get_code(), items)
                if found is not None:
                    return found
                args = made or args
        return theirs(self, tx, args, kwargs)

    patches.put(variables.PolyfilledFunctionVariable, "call_function", call_function)


def read_truth(translator: Any, tested: Any) -> Any:
    """What ``tested.item()`` gives."""
    return tested.call_method(translator, "item", [], {})
