"""Run a frame in eager if Dynamo would break the graph in a comprehension (Python 3.12 and later).

There a comprehension is part of the function it stands in. For a graph break in one, Dynamo makes
a function of it and calls that between two graphs, outside the ``try`` or with-block around it.
Then ``except`` does not see its errors, and ``torch.no_grad()`` does not hold in it. In frames of
ours such a comprehension is left whole, and the frame runs in eager, as for a loop.

Read on 2.11 to 2.15, run on 2.13 with Python 3.12.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fusepass.torch_private.patches import Patches, Theirs


def hook_comprehensions(patches: Patches, is_ours: Callable[[Any], bool]) -> None:
    """Have no comprehension made a function that stands in a ``try`` or with-block.

    Args:
        patches: take the hook out again.
        is_ours: called as ``(output_graph,)``, of the frame.
    """
    from torch._dynamo import symbolic_convert

    home: Any = symbolic_convert
    name = "maybe_setup_comprehension_speculation"
    if not hasattr(home, name):  # before torch 2.13 it is a method
        home, name = symbolic_convert.InstructionTranslatorBase, f"_{name}"

    def may_be_cut(theirs: Theirs, translator: Any, instruction: Any) -> bool:
        if instruction.argval == 0 and _is_handled(translator) and is_ours(translator.output):
            return False
        return bool(theirs(translator, instruction))

    patches.put(home, name, may_be_cut)


def _is_handled(translator: Any) -> bool:
    """Whether a handler is around the comprehension that begins here, besides its own.

    Its own puts the locals back that it hides, and begins with the instruction traced now.
    """
    in_front = translator.instructions[max(translator.instruction_pointer - 2, 0)]
    return in_front.exn_tab_entry is not None
