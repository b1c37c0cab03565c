"""Guard the numbers and texts that a frame reads from a class, on torch 2.11.

There Dynamo takes them as constants of the graph and has no guard for them: when the program has
bound another value to the class, the graph went on with the old one.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch._dynamo.source import AttrSource
from torch._dynamo.variables import ConstantVariable, UserDefinedClassVariable
from torch._dynamo.variables.base import VariableTracker

from fusepass.torch_private.patches import IsOurs, Patches, Theirs
from fusepass.torch_private.versions import torch_version


def hook_class_attributes(patches: Patches, is_ours: IsOurs) -> None:
    """Track such a value with the place that it is read from, as torch 2.13 does."""

    def read(theirs: Theirs, self: Any, translator: Any, name: str) -> Any:
        found = theirs(self, translator, name)
        if type(found) is not ConstantVariable or not is_ours(translator.output):
            return found
        held = inspect.getattr_static(self.value, name, None)
        if self.source is None or held is not found.value or name.startswith("__"):
            return found
        return VariableTracker.build(translator, held, AttrSource(self.source, name))

    if torch_version() < (2, 13):
        patches.put(UserDefinedClassVariable, "var_getattr", read)
