"""Trace one round of a loop: what it is given, what it records, what it leaves.

The round is recorded into the graph of the frame between the values it is given, each of which has
memory of its own, and its end. What it leaves is checked here; seal.py makes a graph of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from fusepass.capture.branch import snapshot
from fusepass.capture.bytecode.control_flow import live_names
from fusepass.capture.bytecode.instructions import names_of
from fusepass.capture.bytecode.natural_loops import Loop
from fusepass.capture.frame_state import Frame, Place
from fusepass.capture.loop.carried import Numbers, check_tensor
from fusepass.capture.loop.carried_tuples import (
    is_carried_tuple,
    left_items,
    named_items,
    rebuilt,
)
from fusepass.capture.loop.late_values import BEGUN, IS, Late, LateValues
from fusepass.capture.loop.round_code import (
    CONTINUES,
    Names,
    Round,
    exits_of,
    round_of,
)
from fusepass.capture.refusal import Refusal
from fusepass.capture.restarts import restart_leaving
from fusepass.capture.scalars.number_tensors import number_kind
from fusepass.capture.scalars.scalar import Range
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo import stack
from fusepass.torch_private.dynamo.helpers_in_code import (
    Helper,
    like_strided,
    trace_code,
    tracked_tuple,
    tuple_items,
)

_SEEN = "loop values seen"
_MOST_EXITS = 6
FLAG, COUNTER = "fusepass_goes_on", "fusepass_counter"


def which(exit_number: int) -> str:
    """The name of the flag that says whether the loop was left by an exit."""
    return f"fusepass_exit_{exit_number}"


@dataclass(frozen=True)
class Start:
    """How a loop is entered.

    Attributes:
        loop: the loop.
        site: its number.
        goes_on: tracked 0-d bool: whether the first round is made; None if it surely is.
        items: of a ``for``, what is left of its range: first, count, step.
        device: where flags and numbers are held.
        place: of the test that ends it.
        may_skip: whether there may be no round though the loop is come to.
        skips_to: number of the exit that is taken then.
    """

    loop: Loop
    site: int
    goes_on: Any
    items: tuple[int, int, int] | None
    device: torch.device
    place: Place
    may_skip: bool = False
    skips_to: int = 1


@dataclass
class Carried:
    """One value that rounds hand on.

    Attributes:
        name: of the local variable, or of a value of ours.
        initial: the tracked tensor it begins as; None if a round always binds it first.
        inside: the tracked tensor that a round is given.
        final: the tracked tensor that a round leaves.
        number: ``bool``, ``int`` or ``float`` where the variable is a number.
    """

    name: str
    initial: Any = None
    inside: Any = None
    final: Any = None
    number: str | None = None


@dataclass
class Traced:
    """A round that has been traced.

    Attributes:
        carried: what rounds hand on, the flag first.
        code: of the round.
        numbers: puts numbers into tensors.
        late: makes the variables that become tensors in a round.
        true: a tracked 0-d tensor, true, from before the round.
        last: the node in front of what was recorded in the round.
        constants: names that a round leaves bound to the same tracked value, known by then.
        tuples: the tuples that are carried item by item, as they begin.
        unbound: names that are read behind the loop and not bound if there is no round.
    """

    carried: list[Carried]
    code: Round
    numbers: Numbers
    late: LateValues
    last: fx.Node | None
    true: Any
    constants: dict[str, Any] = field(default_factory=dict)
    tuples: dict[str, Any] = field(default_factory=dict)
    unbound: frozenset[str] = frozenset()


@dataclass
class _Names:
    """The variables of a loop, by what becomes of them.

    Attributes:
        given: tracked values of those bound when a round begins.
        results: those that a round hands to its end, in order.
        skipped: those that are read behind the loop if there is no round.
    """

    given: dict[str, Any]
    results: tuple[str, ...]
    skipped: frozenset[str] = frozenset()


def trace_round(translator: Any, frame: Frame, start: Start) -> Traced:
    """Trace a round of a loop; the translator stays where it is.

    Raises:
        Refusal: the loop cannot be captured.
    """
    key = _SEEN, (translator.f_code, start.loop.head)
    late: Late = frame.attempts.kept.get(key) or Late()
    tracer = _Tracer(translator, frame, start, late)
    try:
        traced = tracer.trace()
    except Refusal:
        tracer.try_again(key)
        raise
    tracer.try_again(key)
    return traced


class _Tracer:
    def __init__(self, translator: Any, frame: Frame, start: Start, late: Late) -> None:
        self.translator, self.frame, self.start = translator, frame, start
        self.numbers = Numbers(start.device, frame)
        self.names = _names(translator, start)
        self.kinds = _number_kinds(self.names)
        self.kinds = {name: kind for name, kind in self.kinds.items() if name not in late.specs}
        first = {
            name: value
            for name, value in self.names.given.items()
            if name in self.names.results and name not in self.kinds
            if stack.constant_of(value)[0]
        }
        self.late = LateValues(self.numbers, late, first, start.place, start.site)
        self.exits, _ = exits_of(translator.instructions, start.loop)
        if len(self.exits) > _MOST_EXITS:
            raise Refusal(Reason.LOOP, f"the loop leads on to more than {_MOST_EXITS} places")
        self.ways = [which(number) for number in range(2, len(self.exits) + 1)]
        self.carried: dict[str, Carried] = {}
        self.constants: dict[str, Any] = {}
        self.tuples: dict[str, Any] = {}
        self.kinds_left: dict[str, str] = {}  # of the numbers that only rounds bind, by name

    def try_again(self, key: Any) -> None:
        """Start the frame again if something was seen that a round has to begin with."""
        seen, known = self.late.seen, self.late.late
        for name in self.numbers.others:
            if stack.constant_of(self.names.given[name])[0]:
                seen.specs.setdefault(name, None)
        seen.wide |= self.numbers.smaller
        if seen != known:
            self.frame.attempts.kept[key] = seen
            text = "a round of a loop is traced again"
            restart_leaving(self.frame, {("loop values", key[1]): (Reason.LOOP, text)})

    def trace(self) -> Traced:
        translator, start = self.translator, self.start
        names = Names(tuple(self.names.given), frozenset(self.kinds), self.names.results)
        code = round_of(translator.f_code, translator.instructions, start.loop, names)
        self.code = code
        self._begin()
        true = self.numbers.full(translator, True)
        last = snapshot.last_node(translator.output.graph)
        for one in self.carried.values():
            if one.initial is not None:
                enter(translator, one)
        with self._in_round():
            leaves = tuple_items(trace_code(translator, code.code, self._arguments()))
        if leaves is None:
            raise Refusal(Reason.LOOP, "a round ends in a way that cannot be joined")
        self._finish(leaves)
        carried = list(self.carried.values())
        unbound = (self.names.skipped & {*self.names.results}) - set(self.names.given)
        return Traced(
            carried,
            code,
            self.numbers,
            self.late,
            last,
            true,
            self.constants,
            self.tuples,
            unbound=frozenset(unbound),
        )

    def _begin(self) -> None:
        """Make the values that the first round is given."""
        full = self.numbers.full
        flag = self.start.goes_on
        self._carry(FLAG, full(self.translator, True) if flag is None else flag, "bool")
        for number, way in enumerate(self.ways, 2):
            self._carry(way, full(self.translator, self.start.skips_to == number), "bool")
        if self.start.items is not None:
            self._carry(COUNTER, full(self.translator, self.start.items[0]), "int")
        for name in self.late.flags:
            self._carry(name, full(self.translator, False), "bool")
        for name, spec in self.late.specs.items():
            self._carry(name, self.late.zeros(self.translator, name), spec.number)
        for name, value in self.names.given.items():
            if name not in self.names.results or name in self.late.specs:
                continue
            kind = self.kinds.get(name)
            if kind is not None:
                self.numbers.begins(name, value, wide=name in self.late.late.wide)
                made = self.numbers.tensor_of(self.translator, value, kind)
                assert made is not None
                self._carry(name, made[0], kind)
            elif stack.is_any_tensor(value):
                check_tensor(value, name)
                self._carry(name, value, None)
            elif is_carried_tuple(value):
                self._carry_items(name, value)

    def _carry(self, name: str, initial: Any, number: str | None) -> None:
        self.carried[name] = Carried(name, initial, number=number)

    def _carry_items(self, name: str, value: Any) -> None:
        if self.start.may_skip and getattr(value, "source", None) is not None:
            text = f"{name!r} is a tuple from outside, and the loop may make no round"
            raise Refusal(Reason.ALIAS, text)
        self.tuples[name] = value
        for own, item in named_items(name, value):
            if stack.is_any_tensor(item):
                check_tensor(item, own)
                self._carry(own, item, None)
                continue
            kind = number_kind(item)
            self.numbers.begins(own, item, wide=True)
            made = self.numbers.tensor_of(self.translator, item, kind)
            assert made is not None
            self._carry(own, made[0], kind)

    def _item(self, name: str) -> Any:
        """An item of a tuple as a round is given it."""
        one = self.carried[name]
        if one.number is None:
            return one.inside
        return self.numbers.read(self.translator, one.inside, name)

    def _left_item(self, translator: Any, name: str, value: Any) -> Any:
        """What a round leaves of an item of a tuple."""
        kind = self.carried[name].number
        if kind is None:
            return value
        return self.numbers.storer(name, kind)(translator, value)

    def _arguments(self) -> list[Any]:
        values = []
        for name, value in self.names.given.items():
            if name in self.late.specs:
                value = self.late.enter(self.translator, name, self._inside)  # noqa: PLW2901
            elif name in self.carried:
                value = self._inside(name)  # noqa: PLW2901  # what is carried in its place
            elif name in self.tuples:
                value = rebuilt(name, value, self._item)  # noqa: PLW2901
            values.append(value)
        for name in sorted(self.kinds):
            values.append(Helper(self.numbers.loader(name)))
            values.append(Helper(self.numbers.storer(name, self.kinds[name])))
        first = stack.constant(None)
        if self.start.items is not None:
            first = self._loop_variable()
        return [*values, Helper(self._ends), first]

    def _inside(self, name: str) -> Any:
        return self.carried[name].inside

    def _loop_variable(self) -> Any:
        """The number that a ``for`` binds in this round."""
        first, count, step = self.start.items  # type: ignore[misc]
        least, most = sorted((first, first + (count - 1) * step))
        self.numbers.ranges[COUNTER] = Range(least, most)
        inside = self.carried[COUNTER].inside
        return self.numbers.read(self.translator, inside, COUNTER, "of the loop")

    def _ends(self, translator: Any, number: Any, *values: Any) -> Any:
        """End a round: whether there is another one, and what is handed on."""
        _, end = stack.constant_of(number)
        full = self.numbers.full
        goes_on = full(translator, end == CONTINUES)
        left_by = end or self.code.exhausted
        leaves = [full(translator, left_by == n) for n in range(2, len(self.exits) + 1)]
        if COUNTER in self.carried:
            counter = self.carried[COUNTER].inside
            if end == CONTINUES:
                first, count, step = self.start.items  # type: ignore[misc]
                counter = _call(translator, torch.add, counter, step)
                goes_on = _call(translator, torch.ne, counter, first + count * step)
            leaves.append(counter)
        flags = {BEGUN: full(translator, True)} if self.late.flags else {}
        left = []
        for name, value in zip(self.names.results, map(stack.realized, values), strict=True):
            if name in self.late.specs:
                inside, again = self._inside(name), end == CONTINUES
                made, flags[IS + name] = self.late.leave(translator, name, value, inside, again)
            elif self.late.learns(name, value):
                made = self.late.first[name]
            elif name in self.tuples:
                items = left_items(name, self.tuples[name], value)
                left += [self._left_item(translator, own, item) for own, item in items]
                continue
            else:
                made = self._left(translator, name, value)
            left.append(made)
        leaves += [flags[name] for name in self.late.flags]
        return tracked_tuple([goes_on, *leaves, *left])

    def _left(self, translator: Any, name: str, value: Any) -> Any:
        """What a round leaves of one variable: a tensor, or a value known by now."""
        value = stack.realized(value)
        if name in self.kinds or stack.is_any_tensor(value):
            return value
        made = self.numbers.tensor_of(translator, value, None)
        if made is None or (name in self.names.given and name not in self.carried):
            return value
        if name in self.carried:
            raise Refusal(Reason.PYTHON_VALUE, f"{name!r} becomes a number in the loop")
        self.kinds_left[name] = _kind_of_dtype(made[0])
        if self.kinds_left[name] == "int":
            self.numbers.may_be(name, made[1])
        return made[0]

    def _finish(self, leaves: list[Any]) -> None:
        ours = [
            name for name in (FLAG, *self.ways, COUNTER, *self.late.flags) if name in self.carried
        ]
        order = list(ours)
        for name in self.names.results:
            if name in self.tuples:
                order += [own for own, _ in named_items(name, self.tuples[name])]
            else:
                order.append(name)
        for name, value in zip(order, map(stack.realized, leaves), strict=True):
            if name not in self.carried and not stack.is_any_tensor(value):
                self._leave_known(name, value)
                continue
            if name in self.names.given and name not in self.carried:
                text = f"{name!r} is no tensor before a round, and one after it"
                raise Refusal(Reason.PYTHON_VALUE, text)
            one = self.carried.setdefault(name, Carried(name, number=self.kinds_left.get(name)))
            if not stack.is_any_tensor(value):
                raise Refusal(Reason.PYTHON_VALUE, f"{name!r} is no tensor any more after a round")
            check_tensor(value, name)
            one.final = value
            if one.initial is not None:
                _check_same(one)

    def _leave_known(self, name: str, value: Any) -> None:
        constant, known = stack.constant_of(value)
        before = self.names.given.get(name)
        if before is not None:
            was_constant, was = stack.constant_of(before)
            same = constant and was_constant and type(known) is type(was) and known == was
            if before is not value and not same:
                text = f"{name!r} is neither a tensor nor a number, and the loop binds it"
                raise Refusal(Reason.PYTHON_VALUE, text)
        elif not constant or known is None:
            raise Refusal(Reason.UNBOUND, f"{name!r} is not bound in each round")
        self.constants[name] = value

    @contextmanager
    def _in_round(self) -> Iterator[None]:
        frame, translator = self.frame, self.translator
        counts = _effects(frame)
        arms, frame.arms = frame.arms, [(self.start.site, True)]
        frame.rounds += 1
        frame.predicates[self.start.site] = self.carried[FLAG].inside
        held = snapshot.modes(), snapshot.pending_mutations(translator)
        try:
            with snapshot.closed_scope(translator, Refusal):
                yield
        finally:
            frame.arms = arms
            frame.rounds -= 1
            del frame.predicates[self.start.site]
        if (snapshot.modes(), snapshot.pending_mutations(translator)) != held:
            raise Refusal(Reason.SIDE_EFFECT, "the loop changes a mode, or an attribute")
        if _effects(frame) != counts:
            text = "the loop prints, raises, binds an attribute, or selects by a mask"
            raise Refusal(Reason.SIDE_EFFECT, text)


def enter(translator: Any, one: Carried) -> None:
    """Record what a round is given in place of a carried value.

    Raises:
        Refusal: it cannot have memory of its own.
    """
    fake = one.initial.as_proxy().node.meta["example_value"]
    made = like_strided(translator, fake)
    if made.stride() != fake.stride():
        raise Refusal(Reason.STRIDE_MISMATCH, f"the elements of {one.name!r} share memory")
    args = (one.initial.as_proxy(),)
    proxy = translator.output.create_proxy("call_function", given_value, args, {})
    one.inside = stack.wrap_tensor(translator, proxy, made)


def given_value(initial: torch.Tensor) -> torch.Tensor:
    """Stand, while a round is traced, for what a round is given."""
    return initial.clone()


given_value.fusepass_pure = True  # type: ignore[attr-defined]


def _effects(frame: Frame) -> tuple[int, ...]:
    sinks = sum(site.branch.treatment == "sink" for site in frame.sites)
    changes = sum(site.changes is not None for site in frame.sites)
    return len(frame.lines), sinks, changes, len(frame.empties), len(frame.selections)


def _call(translator: Any, function: Any, tensor: Any, number: int) -> Any:
    args = (tensor.as_proxy(), number)
    return stack.wrap_call(translator, "call_function", function, args, {})


def _kind_of_dtype(tensor: Any) -> str:
    held = tensor.as_proxy().node.meta["example_value"]
    if held.dtype is torch.bool:
        return "bool"
    return "float" if held.dtype.is_floating_point else "int"


def _check_same(one: Carried) -> None:
    """Refuse a value whose type, device or shape changes from round to round."""
    a, b = (v.as_proxy().node.meta["example_value"] for v in (one.initial, one.final))
    if a.dtype != b.dtype:
        text = f"{one.name!r} is {a.dtype} before a round and {b.dtype} after it"
        raise Refusal(Reason.DTYPE_MISMATCH, text)
    if a.device != b.device:
        text = f"{one.name!r} is on {a.device} before a round and on {b.device} after it"
        raise Refusal(Reason.DEVICE_MISMATCH, text)
    if tuple(a.shape) != tuple(b.shape):
        text = f"{one.name!r} changes its shape from round to round"
        raise Refusal(Reason.SHAPE_MISMATCH, text)
    if a.stride() != b.stride():
        text = f"{one.name!r} changes its strides from round to round"
        raise Refusal(Reason.STRIDE_MISMATCH, text)


def _names(translator: Any, start: Start) -> _Names:
    code, instructions, loop = translator.f_code, translator.instructions, start.loop
    begin = loop.head + 1 if loop.iterates else loop.head
    live = live_names(code, instructions, begin)
    exits, _ = exits_of(instructions, loop)
    behind: frozenset[str] = frozenset().union(
        *(live_names(code, instructions, one.index) for one in exits)
    )
    stored = {
        name
        for at in loop.members
        if instructions[at].opname.startswith("STORE_FAST")
        for name in names_of(instructions[at])
    }
    shared = stored.intersection(translator.cell_and_freevars())
    if shared:
        raise Refusal(Reason.LOOP, f"{min(shared)!r} is shared with a function")
    skipped: frozenset[str] = frozenset()
    if start.may_skip:
        skipped = live_names(code, instructions, exits[start.skips_to - 1].index)
    wanted = live | (behind if start.may_skip else frozenset())
    given = {}
    for name in sorted(wanted):
        value = stack.local_value(translator, name)
        if value is not None:
            given[name] = stack.realized(value) if name in stored else value
    results = tuple(sorted(stored & (live | behind)))
    return _Names(given, results, skipped)


def _number_kinds(names: _Names) -> dict[str, str]:
    """The carried variables that are numbers, with their kinds."""
    kinds = {}
    for name in names.results:
        value = names.given.get(name)
        kind = None if value is None or stack.is_any_tensor(value) else number_kind(value)
        if kind is not None:
            kinds[name] = kind
    return kinds
