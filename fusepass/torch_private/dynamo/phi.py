"""Track a value that is one of two, by a predicate on a tensor, and choose it behind the graph.

Dynamo knows nothing of such a value. What it asks about one goes to a handler of capture. Where the
predicate is known, as in an arm, the handler answers for the value that it is. Elsewhere it unwinds
the instruction that asks. Run on torch 2.11 to 2.15.
"""

from __future__ import annotations

import contextlib
import dis
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import fx
from torch._dynamo import symbolic_convert
from torch._dynamo.bytecode_transformation import create_call_function, create_instruction
from torch._dynamo.eval_frame import skip_code
from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.variables.base import VariableTracker

from fusepass.torch_private.patches import Patches, Theirs

# What Dynamo does with a tracked value without looking at what it is.
_MOVES = frozenset(
    """
    __eq__ __hash__ __init__ __init_subclass__ __repr__ _add_call_once_guard
    _contains_self_reference _slotdefs build clone debug_repr get_handler_type_for_dispatch
    is_immutable is_mutable is_realized is_strict_mode lookup_slotdefs make_guard realize
    reconstruct reconstruct_pycode set_name_hint set_source_location unwrap visit
    """.split()
)
_PHIS = "fusepass_phis"  # attribute of an output graph in which there are such values
Choose = Callable[[Any, Any, Any], Any]


class PhiVariable(VariableTracker):
    """A value that is ``taken`` if the tracked 0-d bool tensor ``predicate`` holds, else ``other``.

    Attributes:
        predicate: what was tested.
        held: the same tensor as it was at the join, to be read behind the graph.
        taken, other: tracked values.
        site: number of the branch that left it.
        told: what it is, for a person.
    """

    _nonvar_fields = {"site", "told", *VariableTracker._nonvar_fields}  # noqa: RUF012

    def __init__(
        self,
        predicate: Any,
        held: Any,
        taken: Any,
        other: Any,
        site: int,
        told: str,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.predicate, self.held, self.taken, self.other = predicate, held, taken, other
        self.site, self.told = site, told

    def debug_repr(self) -> str:
        """Its text in an error of Dynamo's."""
        return repr(self)

    def reconstruct(self, codegen: Any) -> None:
        """Write the code that chooses the value behind the graph."""
        write_choice(codegen, self)


def write_choice(codegen: Any, phi: PhiVariable) -> None:
    """Write the choice of a value: the one place where code behind a graph asks a predicate.

    Values that are one of two may hold one another in many ways, so each is written once.
    """
    if not (is_phi(phi.taken) or is_phi(phi.other)):
        codegen.add_push_null(lambda: codegen.load_import_from(__name__, choose.__name__))
        codegen(phi.held)
        codegen(phi.taken)
        codegen(phi.other)
        codegen.extend_output(create_call_function(3, False))
        return
    steps, tested, leaves = _in_steps(phi)
    codegen.add_push_null(lambda: codegen.load_import_from(__name__, choose_among.__name__))
    codegen.append_output(codegen.create_load_const(steps))
    for values in (tested, leaves):
        for value in values:
            codegen(value)
        codegen.append_output(create_instruction("BUILD_TUPLE", arg=len(values)))
    codegen.extend_output(create_call_function(3, False))


def _in_steps(phi: PhiVariable) -> tuple[tuple[tuple[int, int, int], ...], list[Any], list[Any]]:
    """All values in one, each as (predicate, taken, other), and the predicates and other values.

    A number below zero is ``~`` of a step, any other one of the other values; the last step is the
    value itself.
    """
    steps: list[tuple[int, int, int]] = []
    tested: dict[int, tuple[int, Any]] = {}
    leaves: dict[int, tuple[int, Any]] = {}
    made: dict[int, int] = {}

    def number(known: dict[int, tuple[int, Any]], value: Any) -> int:
        return known.setdefault(id(value), (len(known), value))[0]

    def refer(value: Any) -> int:
        return ~made[id(value)] if is_phi(value) else number(leaves, value)

    todo = [phi]
    while todo:
        value = todo[-1]
        waits = [v for v in (value.taken, value.other) if is_phi(v) and id(v) not in made]
        if waits:
            todo += waits
            continue
        todo.pop()
        if id(value) not in made:
            step = number(tested, value.held), refer(value.taken), refer(value.other)
            made[id(value)] = len(steps)
            steps.append(step)
    return tuple(steps), [v for _, v in tested.values()], [v for _, v in leaves.values()]


def choose(predicate: Any, taken: Any, other: Any) -> Any:
    """The one of two objects that a program's branch leaves; reads the predicate back."""
    return taken if bool(predicate) else other


def choose_among(
    steps: tuple[tuple[int, int, int], ...], predicates: tuple[Any, ...], leaves: tuple[Any, ...]
) -> Any:
    """The one of several objects that branches leave; ``steps`` as :func:`_in_steps` gives them."""
    at = ~(len(steps) - 1)
    while at < 0:
        predicate, taken, other = steps[~at]
        at = taken if bool(predicates[predicate]) else other
    return leaves[at]


for _function in (choose, choose_among):
    skip_code(_function.__code__)  # else Dynamo, which sees every call, would compile it


class PhiAsked(Exception):
    """Unwinds an instruction that asks something about a value that is one of two."""

    def __init__(self, phi: PhiVariable) -> None:
        super().__init__(phi.told)
        self.phi = phi


@dataclass(frozen=True)
class PhiHandlers:
    """What capture does about such values.

    Attributes:
        on_asked: called with the value and the name of a method when Dynamo asks something about
            it while an instruction that looks at it is traced; gives the one it is, or None where
            the answer is no, or raises :class:`PhiAsked`.
        on_step: called with the translator at each instruction of a graph in which there are such
            values.
        on_use: called as ``(translator, instruction, places, original)`` at such an instruction
            that looks at values; ``places`` are their places on the stack.
    """

    on_asked: Callable[[PhiVariable, str], Any]
    on_step: Callable[[Any], None]
    on_use: Callable[[Any, Any, list[int], Callable[[], None]], None]


_handlers: list[PhiHandlers] = []
_watched = [False]  # whether an instruction that looks is traced: Dynamo traces one at a time


def _asks(name: str, base: Any) -> Any:
    @functools.wraps(base)
    def ask(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _watched[0] or not _handlers:
            return base(self, *args, **kwargs)
        known = _handlers[0].on_asked(self, name)
        if known is None:
            return False
        return getattr(known, name)(*args, **kwargs)

    return ask


for _name in dir(VariableTracker):
    _base = getattr(VariableTracker, _name)
    _own = any(_name in vars(kind) for kind in VariableTracker.__mro__[:-1])
    if _own and _name not in _MOVES and callable(_base) and not isinstance(_base, type):
        setattr(PhiVariable, _name, _asks(_name, _base))


def is_phi(value: Any) -> bool:
    """Whether a tracked value is one of two."""
    return type(value) is PhiVariable


def leaves_of(value: Any) -> Iterator[Any]:
    """The values that one may be, each once: itself, if it is not one of two.

    Values that are one of two may hold one another in many ways, so each is looked at once.
    """
    todo, seen = [value], set()
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if is_phi(one):
            todo += [one.other, one.taken]
        else:
            yield one


def nodes_in(value: Any, effects: Any) -> Iterator[fx.Node]:
    """The graph nodes that a tracked value is made of, attributes still to be set included."""
    found: list[Any] = []
    seen: dict[int, Any] = {}
    todo = [value]
    while todo:
        VariableTracker.visit(found.append, todo.pop(), seen)
        while found:
            one = found.pop()
            todo += effects.store_attr_mutations.get(one, {}).values()
            proxy = vars(one).get("proxy")
            if isinstance(proxy, fx.Proxy):
                yield proxy.node


def make_phi(translator: Any, *parts: Any) -> PhiVariable:
    """A value that is one of two; from now on the instructions of the graph are watched."""
    setattr(translator.output, _PHIS, True)
    return PhiVariable(*parts)


@contextlib.contextmanager
def watching(on: bool) -> Iterator[None]:
    """Inside, what Dynamo asks about such a value goes to the handler, or does not."""
    before = _watched[0]
    _watched[0] = on
    try:
        yield
    finally:
        _watched[0] = before


# The places, from the top of the stack, of the values that an instruction looks at, or how these
# follow from its argument. Instructions that only move values are not here.
_TOP = """
    BEFORE_ASYNC_WITH BEFORE_WITH CALL_INTRINSIC_1 CONVERT_VALUE DELETE_ATTR DICT_MERGE DICT_UPDATE
    FORMAT_SIMPLE FOR_ITER GET_AITER GET_ITER GET_LEN GET_YIELD_FROM_ITER LIST_EXTEND LOAD_ATTR
    LOAD_METHOD LOAD_SPECIAL MATCH_MAPPING MATCH_SEQUENCE SET_ADD SET_UPDATE STORE_ATTR
    TO_BOOL UNARY_INVERT UNARY_NEGATIVE UNARY_NOT UNARY_POSITIVE UNPACK_EX UNPACK_SEQUENCE
    """.split()
_TWO = """
    BINARY_OP BINARY_SUBSCR COMPARE_OP CONTAINS_OP DELETE_SUBSCR FORMAT_WITH_SPEC IS_OP MATCH_KEYS
    STORE_SUBSCR
    """.split()
_THREE = "BINARY_SLICE CALL_FUNCTION_EX LOAD_SUPER_ATTR MATCH_CLASS STORE_SLICE".split()
Places = Callable[[int], range]
_LOOKS: dict[str, Places] = {
    **dict.fromkeys(_TOP, lambda _: range(1, 2)),
    **dict.fromkeys(_TWO, lambda _: range(1, 3)),
    **dict.fromkeys(_THREE, lambda _: range(1, 4)),
    "FORMAT_VALUE": lambda flags: range(1, 3 if flags & 4 else 2),
    "MAP_ADD": lambda _: range(2, 3),
    "BUILD_MAP": lambda count: range(2, 2 * count + 1, 2),
    "BUILD_SET": lambda count: range(1, count + 1),
    "BUILD_SLICE": lambda count: range(1, count + 1),
    "BUILD_STRING": lambda count: range(1, count + 1),
    "CALL": lambda count: range(1, count + 3),
    "CALL_KW": lambda count: range(1, count + 4),
    "RAISE_VARARGS": lambda count: range(1, count + 1),
}


def _places_of(opname: str) -> Places | None:
    if "JUMP" in opname and "_IF_" in opname:
        return lambda _: range(1, 2)
    return _LOOKS.get(opname)


def hook_phis(patches: Patches, handlers: PhiHandlers) -> None:
    """Put handlers in front of the instructions that look at what values are."""
    _handlers[:] = [handlers]
    patches.callback(_handlers.clear)
    for table in dispatch_tables():
        for opname, opcode in dis.opmap.items():
            if opcode < len(table) and table[opcode] is not None:
                look = functools.partial(_look, handlers, _places_of(opname))
                patches.put_into(table, opcode, look)

    def compile_subgraph(theirs: Theirs, *args: Any, **kwargs: Any) -> Any:
        with watching(False):  # what is written behind a graph looks at no value
            return theirs(*args, **kwargs)

    patches.put(OutputGraph, "compile_subgraph", compile_subgraph)


def dispatch_tables() -> list[Any]:
    """The tables in which Dynamo's translators look up what an instruction does, each once."""
    base = symbolic_convert.InstructionTranslatorBase
    kinds = (base, *_all_subclasses(base))
    return [*{id(kind.dispatch_table): kind.dispatch_table for kind in kinds}.values()]


def _look(
    handlers: PhiHandlers, places: Places | None, theirs: Theirs, translator: Any, instruction: Any
) -> None:
    if _PHIS not in vars(translator.output):
        return theirs(translator, instruction)  # type: ignore[no-any-return]
    handlers.on_step(translator)
    if places is None:
        with watching(False):
            return theirs(translator, instruction)  # type: ignore[no-any-return]
    found = [-place for place in places(instruction.arg or 0)]
    with watching(True):
        return handlers.on_use(
            translator, instruction, found, lambda: theirs(translator, instruction)
        )


def _all_subclasses(kind: type) -> list[Any]:
    direct: list[Any] = kind.__subclasses__()
    return direct + [deeper for sub in direct for deeper in _all_subclasses(sub)]
