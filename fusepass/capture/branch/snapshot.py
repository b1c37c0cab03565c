"""Copy and restore the translator's state, so that both arms start from the same one."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from fusepass.capture.branch.attribute_writes import AttributeWrites
from fusepass.capture.frame_state import Frame, Place
from fusepass.capture.nodes.events import Modes
from fusepass.capture.nodes.select_node import ARM
from fusepass.capture.refusal import Refusal
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.containers import iterator_states, set_iterator_state
from fusepass.torch_private.dynamo.errors.raising import can_be_left_twice, with_blocks
from fusepass.torch_private.dynamo.errors.stop_reasons import python_error
from fusepass.torch_private.dynamo.frame_end import tell_line
from fusepass.torch_private.dynamo.stack import is_existing_mutation, new_scope

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
Iterators = list[tuple[Any, dict[str, Any]]]


@dataclass
class Arm:
    """What one arm left: the translator's bindings at the join and the nodes it recorded."""

    bindings: dict[str, Any]
    index: int
    nodes: list[fx.Node]
    iterators: Iterators
    writes: AttributeWrites


class Bindings:
    """The translator's position and bindings at one moment.

    Held ``generators`` are let through if they will not be advanced: they could not be put back.
    """

    def __init__(self, translator: Any, *, generators: bool = False) -> None:
        self.translator = translator
        self.values = {name: copy.copy(getattr(translator, name)) for name in COPIED}
        self.values |= {name: getattr(translator, name) for name in _SAVED}
        held = [*translator.stack, *translator.symbolic_locals.values()]
        try:
            self.iterators = iterator_states(held, generators=generators)
        except ValueError as kind:
            text = f"an arm could advance {kind} that existed before it"
            raise Refusal(Reason.LOOP, text) from None
        self.modes = modes()
        self.mutations = pending_mutations(translator)

    def restore(self) -> None:
        """Put the translator back where it was; what it recorded stays recorded."""
        for name, value in self.values.items():
            setattr(self.translator, name, copy.copy(value) if name in COPIED else value)
        tell_line(self.translator)
        restore_iterators(self.iterators)


@dataclass(frozen=True)
class OpenBranch:
    """A branch whose arms are to be traced.

    Attributes:
        translator: Dynamo's translator.
        frame: capture's state for this frame.
        site: number of the branch.
        before: the translator's state at the branch.
        starts: of each arm, the instruction it starts at and the stack it starts with.
        predicate: the tracked 0-d bool tensor tested.
        join: the instruction at which the arms meet, or
            :data:`~fusepass.capture.bytecode.control_flow.EXIT`.
        place: of the branch in the program.
    """

    translator: Any
    frame: Frame
    site: int
    before: Bindings
    starts: dict[bool, tuple[int, list[Any]]]
    predicate: Any
    join: int
    place: Place

    @property
    def graph(self) -> fx.Graph:
        """The graph that is being traced."""
        return self.translator.output.graph  # type: ignore[no-any-return]

    @property
    def outer(self) -> tuple[int, bool] | None:
        """The arm that the branch stands in."""
        return self.frame.arms[-1] if self.frame.arms else None

    def is_made(self, node: fx.Node) -> bool:
        """Whether a node was recorded in one of the arms."""
        tag = node.meta.get(ARM)
        return tag is not None and tag not in self.frame.arms

    def enter(self, arm: bool) -> None:
        """Put the translator at the start of an arm."""
        start, stack = self.starts[arm]
        self.translator.stack = list(stack)
        self.translator.instruction_pointer = self.translator.start_point = start


@contextlib.contextmanager
def closed_scope(translator: Any, refusal: type[Refusal]) -> Iterator[None]:
    """Inside, no partial graph is compiled, and nothing made outside may be written.

    A handler of the program may lie beyond what is traced, so a raise is refused instead.
    """

    def handle(error: Any) -> None:
        raise refusal(Reason.RAISES, f"an arm raises {python_error(error)}")

    held = {
        n: vars(translator).get(n) for n in ("should_compile_partial_graph", "exception_handler")
    }
    translator.should_compile_partial_graph = lambda: False
    translator.exception_handler = handle
    translator.current_speculation = None
    try:
        with new_scope():
            yield
    finally:
        for name, value in held.items():
            if value is None:
                delattr(translator, name)
            else:
                setattr(translator, name, value)


def last_node(graph: fx.Graph) -> fx.Node | None:
    """The node that was recorded last, if there is one."""
    return next(iter(reversed(graph.nodes)), None)


def recorded_since(graph: fx.Graph, last: fx.Node | None) -> list[fx.Node]:
    """The calls recorded after a node."""
    nodes: list[fx.Node] = []
    for node in reversed(graph.nodes):
        if node is last:
            break
        if node.op != "placeholder":
            nodes.append(node)
    return nodes[::-1]


def check_with_blocks_left(translator: Any, before: Bindings) -> None:
    """Refuse an arm that ends here and has left a with-block whose state cannot be put back."""
    stack, blocks = (before.values[name] for name in ("stack", "block_stack"))
    inside = {id(one) for one in with_blocks(translator.stack, translator.block_stack)}
    for context in with_blocks(stack, blocks):
        if id(context) not in inside and not can_be_left_twice(context):
            where = "a with-block that the branch stands in"
            text = f"an arm leaves {where} (`return`, `break` or `continue`)"
            raise Refusal(Reason.SIDE_EFFECT, text)


def restore_iterators(iterators: Iterators) -> None:
    """Set iterators, which Dynamo advances in place, to where they stood."""
    for iterator, state in iterators:
        set_iterator_state(iterator, state)


def modes() -> tuple[Any, ...]:
    """Global modes that an arm must leave as it found them."""
    return Modes.now(), torch.is_inference_mode_enabled(), torch.get_default_dtype()


def pending_mutations(translator: Any) -> dict[Any, Any]:
    """Pending writes to objects that are older than the arm, by object and attribute."""
    effects = translator.output.side_effects
    pending: dict[Any, Any] = {
        (id(item), name): id(value)
        for item, writes in effects.store_attr_mutations.items()
        if is_existing_mutation(item)
        for name, value in writes.items()
    }
    pending["hooks"] = len(effects.tensor_hooks)
    pending["saved"] = len(effects.save_for_backward)
    pending["random"] = len(translator.output.random_calls)
    return pending
