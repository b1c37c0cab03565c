"""Track the global variables that a frame binds, so that each is one tracked value in it.

Dynamo tracks each binding of a global variable as another value. Two arms that bind one name bind
one variable, and what they bind may be chosen behind the graph (open_writes.py). Run on torch 2.11
to 2.15.
"""

from __future__ import annotations

import dis
from typing import Any

from torch._dynamo.bytecode_transformation import create_call_function
from torch._dynamo.side_effects import SideEffects
from torch._dynamo.source import GlobalSource
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.misc import NewGlobalVariable

from fusepass.torch_private.dynamo.phi import dispatch_tables
from fusepass.torch_private.dynamo.stack import current_translator
from fusepass.torch_private.patches import IsOurs, Patches, Theirs

_KNOWN = "fusepass_globals"  # attribute of an output graph: what stands for each global variable


def is_global(item: Any) -> bool:
    """Whether a tracked value stands for a global variable."""
    return isinstance(item, NewGlobalVariable)


def hook_globals(patches: Patches, is_ours: IsOurs) -> None:
    """Have all bindings of a global variable in a graph be bindings of one tracked value."""

    def store(theirs: Theirs, translator: Any, instruction: Any) -> None:
        output, name = translator.output, instruction.argval
        if is_ours(output) and output.global_scope is translator.f_globals:
            key = vars(output).setdefault(_KNOWN, {}).setdefault(name, object())
            translator.symbolic_globals.setdefault(name, key)
        theirs(translator, instruction)

    def track(theirs: Theirs, self: Any, source: Any, item: Any) -> Any:
        if is_ours(self.output_graph_weakref()) and id(item) in self.id_to_variable:
            return self.id_to_variable[id(item)]
        return theirs(self, source, item)

    for table in dispatch_tables():
        patches.put_into(table, dis.opmap["STORE_GLOBAL"], store)
    patches.put(SideEffects, "track_global_existing", track)


def value_before(name: str) -> Any:
    """The tracked value of a global variable before the frame bound it; None if there was none."""
    translator = current_translator()
    held = translator.output.global_scope
    if name not in held:
        return None
    return VariableTracker.build(translator, held[name], GlobalSource(name))


def push_namespace(codegen: Any) -> None:
    """Write the code that loads the dictionary of the frame's global variables."""
    codegen.add_push_null(lambda: codegen.load_import_from("builtins", "globals"))
    codegen.extend_output(create_call_function(0, False))
