"""Make weights constants of a compiled graph when the option ``freezing`` asks for it.

Run on torch 2.11 to 2.15.

Dynamo decides while it traces whether a weight is a constant of the graph or one of its inputs, and
asks Inductor's global config. A config given to torch.compile as an option comes too late for that:
``torch.compile(model, options={"freezing": True})`` freezes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo

from fusepass.torch_private.patches import Patches, Theirs

FREEZING = "freezing"
"""Inductor's option that folds such constants and lays them out as its kernels want them."""


def hook_freezing(patches: Patches, wanted: Callable[[Any], bool]) -> None:
    """Make weights constants in frames that want it, where no gradients are recorded.

    ``wanted`` is asked with the output graph of the frame.
    """
    from torch._dynamo.symbolic_convert import InstructionTranslator
    from torch._dynamo.variables import builder

    def is_parameter_freezing(theirs: Theirs) -> bool:
        asked = bool(theirs())
        if asked or torch.is_grad_enabled():
            return asked
        try:
            translator = InstructionTranslator.current_tx()
        except AttributeError:  # nothing is being traced in this thread
            return False
        return wanted(translator.output)

    patches.put(builder, "is_parameter_freezing", is_parameter_freezing)
