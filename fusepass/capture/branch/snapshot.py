"""Copy and restore the translator's state, so that both arms start from the same one."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from fusepass.capture.branch.attribute_merge import AttributeWrites
from fusepass.capture.refusal import Refusal
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.containers import iterator_states, set_iterator_state
from fusepass.torch_private.dynamo.errors.raising import can_be_left_twice, with_blocks
from fusepass.torch_private.dynamo.frame_end import tell_line
from fusepass.torch_private.dynamo.stack import is_existing_mutation

BLOCKS = ("block_stack", "active_generic_context_managers")  # with-blocks, in two lists
COPIED = ("stack", "symbolic_locals", "symbolic_globals", "nn_module_stack", *BLOCKS)
_SAVED = (
    "instruction_pointer",
    "start_point",
    "lineno",
    "kw_names",
    "current_instruction",
    "current_speculation",
)


@dataclass
class Arm:
    """What one arm left: the translator's bindings at the join and the nodes it recorded."""

    bindings: dict[str, Any]
    index: int
    nodes: list[fx.Node]
    iterators: list[tuple[Any, dict[str, Any]]]
    writes: AttributeWrites


class Bindings:
    """The translator's position and bindings at one moment.

    Args:
        translator: Dynamo's translator.
        generators: generators may be held; they will not be advanced (and could not be put back).
    """

    def __init__(self, translator: Any, *, generators: bool = False) -> None:
        self.translator = translator
        self.values = {name: copy.copy(getattr(translator, name)) for name in COPIED}
        self.values |= {name: getattr(translator, name) for name in _SAVED}
        self.iterators = _iterators(translator, generators)
        self.modes = modes()
        self.mutations = pending_mutations(translator)

    def restore(self) -> None:
        """Put the translator back where it was; what it recorded stays recorded."""
        for name, value in self.values.items():
            setattr(self.translator, name, copy.copy(value) if name in COPIED else value)
        tell_line(self.translator)
        restore_iterators(self.iterators)


def enter_blocks(translator: Any, arm: Arm) -> None:
    """Put the translator inside the with-blocks that an arm is in at its end."""
    for name in BLOCKS:
        setattr(translator, name, list(arm.bindings[name]))


def check_with_blocks_left(translator: Any, before: Bindings) -> None:
    """That an arm, which ends here, has left no with-block whose state cannot be put back.

    Raises:
        Refusal: it has.
    """
    stack, blocks = (before.values[name] for name in ("stack", "block_stack"))
    inside = {id(one) for one in with_blocks(translator.stack, translator.block_stack)}
    for context in with_blocks(stack, blocks):
        if id(context) not in inside and not can_be_left_twice(context):
            where = "a with-block that the branch stands in"
            text = f"an arm leaves {where} (`return`, `break` or `continue`)"
            raise Refusal(Reason.SIDE_EFFECT, text)


def restore_iterators(iterators: list[tuple[Any, dict[str, Any]]]) -> None:
    """Set iterators, which Dynamo advances in place, to where they stood."""
    for iterator, state in iterators:
        set_iterator_state(iterator, state)


def _iterators(translator: Any, generators: bool) -> list[tuple[Any, dict[str, Any]]]:
    held = [*translator.stack, *translator.symbolic_locals.values()]
    try:
        return iterator_states(held, generators=generators)
    except ValueError as kind:
        raise Refusal(Reason.LOOP, f"an arm could advance {kind} that existed before it") from None


def modes() -> tuple[Any, ...]:
    """Global modes that an arm must leave as it found them."""
    devices = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    autocast = tuple((torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in devices)
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        autocast,
    )


def pending_mutations(translator: Any) -> dict[Any, Any]:
    """Pending writes to objects that are older than the arm, by object and attribute."""
    effects = translator.output.side_effects
    pending: dict[Any, Any] = {}
    for item, writes in effects.store_attr_mutations.items():
        if is_existing_mutation(item):
            for name, value in writes.items():
                pending[id(item), name] = id(value)
    pending["hooks"] = len(effects.tensor_hooks)
    pending["saved"] = len(effects.save_for_backward)
    pending["random"] = len(translator.output.random_calls)
    return pending
