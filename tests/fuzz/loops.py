"""Loops that a tensor ends: how they end, what a round does, and what is read afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.fuzz import trips
from tests.fuzz.draft import SETS, Draft, Lines, Scope, indented
from tests.fuzz.effects import effect
from tests.fuzz.predicates import control
from tests.fuzz.values import data, fresh

HEADS = {"loop_while": 8, "loop_bounded": 6, "loop_flag": 5, "loop_forever": 4, "loop_for": 8}
ENDS = {"count": 3, "halved": 4, "change": 4, "number": 3}
ROUNDS = {
    "plain": 8,
    "loop_continue": 3,
    "loop_branch": 4,
    "loop_inner": 5,
    "loop_effect": 4,
    "loop_leaf": 3,
    "loop_changes_type": 3,
    "loop_writes": 4,
    "loop_number": 3,
    "loop_trip": 3,
    "loop_from_none": 2,
}
AFTER = {"nothing": 5, "loop_counter": 5, "loop_else": 2, "loop_return": 2}
_STEPS = (
    "{0} = {0} * 0.5 + {1}",
    "{0} = torch.sin({0}) + {1}",
    "{0} = {1} - {0} * 0.25",
    "{0} = torch.where({1} > {0}, {0} + 1, {0})",
    "{0} = ({0} + {1}) / 2",
)
_WRITES = (
    "{0}.add_(1)",
    "{0}[0] = {1}[0] + 1",
    "{0} *= 0.5",
    "{0}.lerp_({1}, 0.5)",
    "{0}[{2} % {3}] += 1",
)
_CHANGES = (
    "{0} = {0}.double()",
    "{0} = {0}.half()",
    "{0} = {0}.unsqueeze(0)",
    "{0} = torch.cat([{0}, {0}[:1]])",
    "{0} = {0}.sum()",
    "{0} = {0}.t() if {0}.dim() == 2 else {0}",
)
Nested = Callable[[Draft, Scope], Lines]


@dataclass
class End:
    """What a tensor says of a loop: whether there is another round.

    Attributes:
        start: statements before the loop.
        goes_on: the condition of another round.
        step: statements of each round, which make the condition false in the end.
        tensor: whether the condition is a tensor of truth values.
    """

    start: Lines
    goes_on: str
    step: Lines
    tensor: bool = False


@dataclass
class Round:
    """A loop as it is written.

    Attributes:
        name: the tensor of the program's shape that rounds hand on.
        counter: the name of the number of rounds.
        end: what ends it.
        late: whether the step to its end stands at the end of a round.
        before: statements in front of the loop.
        body: statements of a round.
        after: statements behind the loop.
        results: names worth returning.
    """

    name: str
    counter: str
    end: End
    late: bool
    before: Lines = field(default_factory=list)
    body: Lines = field(default_factory=list)
    after: Lines = field(default_factory=list)
    results: list[str] = field(default_factory=list)


def loop(d: Draft, scope: Scope, nested: Nested) -> Lines:
    """A loop that a tensor ends; it ends after at most eight rounds, whatever the input.

    Args:
        d: the program.
        scope: of the block it stands in; gets the names it leaves.
        nested: writes a site into a round.
    """
    here = scope.around()
    name, counter = d.fresh("y", scope), d.fresh("turn", scope)
    head = d.draw.weighted(HEADS)
    after = d.draw.weighted(AFTER)
    if (after == "loop_return" and not scope.returns) or head == "loop_forever":
        after = "loop_counter"
    with d.site("tensor_loop", head, "shape_0d") as mark:
        source = data(d, here)
        start = f"{name} = {source if d.draw.chance(50) else d.detached(source)}"
        end = _end(d, here, name)
        one = Round(name, counter, end, end.step[-1].startswith("last") or d.draw.chance(50))
        one.before.append(start)
        inner = here.arm()
        inner.returns = scope.returns if after == "loop_return" or d.draw.chance(30) else ""
        inner.add(name)
        with d.looping():
            for _ in range(d.draw.choice((1, 1, 2, 3))):
                _extend(d, here, inner, one, nested)
        if after != "nothing":
            d.tag(after)
        lines = _written(d, here, one, head, after, mark)
    if d.draw.chance(10):
        lines = ["with torch.no_grad():", *indented(lines)]
    scope.add(name)
    scope.results += one.results
    if after == "loop_counter":
        one.after += _counted(d, scope, one)
    return [*here.pre, *one.before, *lines, *one.after]


def _end(d: Draft, here: Scope, name: str) -> End:
    """What ends the loop: before the first round for some inputs, after several for others."""
    kind = d.draw.weighted(ENDS)
    if kind == "count":
        d.tag("int_tensor")
        left = d.fresh("left", here)
        count = d.argument("rounds", *(f"torch.tensor({n})" for n in _turned(d, 3, 0, 1, 5, 0)))
        step = d.draw.choice((f"{left} = {left} - 1", f"{left} -= 1"))
        test = d.draw.choice((f"{left} > 0", left))
        return End([f"{left} = {count}"], test, [step], tensor=" " in test)
    d.tag("nan_predicate")
    size, eps = d.fresh("err", here), d.draw.choice(("0.5", "0.1"))
    most = f"{d.draw.choice(here.data)}.detach().abs().max().clamp(max=8.0)"
    if kind == "number":
        d.tag("item", "float_tensor")
        start, read = d.draw.choice(((f"{most}.item()", size), (most, f"{size}.item()")))
        return End([f"{size} = {start}"], f"{read} > {eps}", [f"{size} = {size} / 2"])
    d.tag("bool_tensor")
    if d.draw.chance(40):
        values = (f"torch.tensor({n})" for n in _turned(d, "0.5", "99.0", "0.1"))
        eps = d.argument("eps", *values)
    test = f"{size} > {eps}"
    if kind == "halved":
        step = d.draw.choice((f"{size} = {size} * 0.5", f"{size} *= 0.5"))
        return End([f"{size} = {most}"], test, [step], tensor=True)
    # How much a round has changed; it is halved at least, so that the loop ends.
    last = d.fresh("last", here)
    change = f"({name} - {last}).detach().abs().max()"
    step = f"{size} = torch.minimum({change}, {size} * 0.5)"
    start = [f"{size} = {most}", f"{last} = {name}"]
    return End(start, test, [step, f"{last} = {name}"], tensor=True)


def _turned(d: Draft, *values: object) -> list[object]:
    """The values in turn over the input sets, from a drawn place on."""
    turn = d.draw.integer(0, 4)
    return [values[(turn + i) % len(values)] for i in range(SETS)]


def _extend(d: Draft, here: Scope, inner: Scope, one: Round, nested: Nested) -> None:
    """One more thing that a round does."""
    kind = d.draw.weighted(ROUNDS)
    if d.budget <= 0 and kind in ("loop_branch", "loop_inner"):
        kind = "plain"
    if kind != "plain":
        d.tag(kind)
    if kind in _ROUNDS:
        _ROUNDS[kind](d, here, inner, one)
        return
    step = d.draw.choice(_STEPS).format(one.name, d.draw.choice(here.data))
    if kind == "loop_branch":
        one.body += nested(d, inner)
        step = f"{one.name} = {data(d, inner)}"
    elif kind == "loop_inner":
        one.body += loop(d, inner, nested)
        step = f"{one.name} = {one.name} * 0.5 + {inner.results[-1]}"
    elif kind == "loop_trip":
        one.body += trips.trip(d, inner)
        step = f"{one.name} = {one.name} * 0.5 + {data(d, inner)}"
    one.body.append(step)


def _continue(d: Draft, here: Scope, inner: Scope, one: Round) -> None:
    """Some rounds end early."""
    test = d.draw.choice((f"{one.name}.sum() > 2", control(d), f"{one.counter} == 1"))
    step = d.draw.choice(_STEPS).format(one.name, d.draw.choice(here.data))
    last = one.end.step if one.late else []
    one.body += [f"if {test}:", *indented([step, *last, "continue"])]
    one.body.append(f"{one.name} = {data(d, inner)}")


def _effect(d: Draft, here: Scope, inner: Scope, one: Round) -> None:
    """What arms do besides computing, in each round."""
    one.body += effect(d, here, both=False).arm(inner)
    one.body.append(f"{one.name} = {data(d, inner)}")


def _leaf(d: Draft, here: Scope, inner: Scope, one: Round) -> None:
    """A parameter, or an argument that requires grad, is used in the rounds only."""
    leaf = d.parameter("gain") if d.module else d.data("scale", grad=d.training)
    one.body.append(f"{one.name} = {one.name} * 0.5 + {leaf}")


def _changes(d: Draft, here: Scope, inner: Scope, one: Round) -> None:
    """A value whose dtype or shape the first round changes, or each of them."""
    name = d.fresh("part", here)
    one.before.append(f"{name} = {d.draw.choice(here.data)}")
    one.body.append(d.draw.choice(_CHANGES).format(name))
    one.results.append(name)
    one.after.append(f"{one.name} = {one.name} + {name}.sum().to({one.name}.dtype)")


def _writes(d: Draft, here: Scope, inner: Scope, one: Round) -> None:
    """A write in place to a tensor of the function, or of the caller."""
    if d.draw.chance(30):
        target = d.data("state", grad=False)
    elif d.module and d.draw.chance(30):
        target = d.buffer("running")
    else:
        target = d.fresh("z", here)
        one.before.append(f"{target} = {d.detached(fresh(d, here))}")
    operand = d.draw.choice(here.data)
    write = d.draw.choice(_WRITES[:4] if "." in target or d.draw.chance(50) else _WRITES)
    if "." in target or target == "state":
        write = write.replace("{0} *= 0.5", "{0}.mul_(0.5)")
    detached = f"{operand}.detach()" if d.training else operand
    one.body.append(write.format(target, detached, one.counter, d.shape[0]))
    one.body.append(f"{one.name} = {one.name} * 0.5 + {target}")


def _numbers(d: Draft, here: Scope, inner: Scope, one: Round) -> None:
    """A Python number that rounds change, and that arithmetic behind the loop reads."""
    name = d.fresh("rate", here)
    start, step = d.draw.choice(
        (("1.0", "{0} *= 0.5"), ("0", "{0} += 2"), ("1", "{0} = {0} * 2 - 1"), ("1", "{0} /= 2"))
    )
    one.before.append(f"{name} = {start}")
    one.body += [step.format(name), f"{one.name} = {one.name} * 0.5 + {name}"]
    if d.draw.chance(50):
        one.after.append(f"{one.name} = {one.name} * {name}")


def _from_none(d: Draft, here: Scope, inner: Scope, one: Round) -> None:
    """A value that is None until the first round, or until a round that a tensor chooses."""
    name = d.fresh("best", here)
    value = data(d, inner)
    one.before.append(f"{name} = None")
    test = d.draw.choice((f"{name} is None", f"{name} is None or {one.name}.sum() > 1"))
    one.body += [f"if {test}:", *indented([f"{name} = {value}"])]
    one.body.append(f"{one.name} = {one.name} * 0.5 + {name}")
    one.after += [f"if {name} is not None:", *indented([f"{one.name} = {one.name} + {name}"])]


_ROUNDS: dict[str, Callable[[Draft, Scope, Scope, Round], None]] = {
    "loop_continue": _continue,
    "loop_effect": _effect,
    "loop_leaf": _leaf,
    "loop_changes_type": _changes,
    "loop_writes": _writes,
    "loop_number": _numbers,
    "loop_from_none": _from_none,
}


def _written(d: Draft, here: Scope, one: Round, head: str, after: str, mark: str) -> Lines:
    """The statements of the loop, in the form of its head."""
    end = one.end
    body = [*one.body, *end.step] if one.late else [*end.step, *one.body]
    most = d.draw.choice(("4", "6", "3"))
    before, counted = [*end.start, f"{one.counter} = 0"], [f"{one.counter} += 1"]
    leave = ["break"]
    if after == "loop_return":
        d.plain_result = True
        leave = [f"return {here.returns.format(one.name)}"]
    stop = [f"if not ({end.goes_on}):{mark}", *indented(leave)]
    if head == "loop_for":
        before[-1] = f"{one.counter} = -1"
        header = f"for {one.counter} in range({d.draw.weighted({most: 3, '40': 2})}):"
        body = [*stop, *body] if d.draw.chance(50) else [*body, *stop]
    elif head == "loop_forever":
        header, body = "while True:", [*counted, *stop, *body]
    else:
        if after == "loop_return":
            body += [f"if {one.name}.sum() > 3:", *indented(leave)]
        header, flag, known = _test(d, here, one, head, most)
        header, body, before = f"{header}:{mark}", [*counted, *body, *known], [*before, *flag]
    lines = [*before, header, *indented(body)]
    if after == "loop_else":
        lines += ["else:", *indented([f"{one.name} = {one.name} + 1"])]
    return lines


def _test(d: Draft, here: Scope, one: Round, head: str, most: str) -> tuple[str, Lines, Lines]:
    """The head of a ``while``, what stands before it, and at the end of a round."""
    goes_on, bound = one.end.goes_on, f"{one.counter} < {most}"
    if head == "loop_while":
        return f"while {goes_on}", [], []
    if head == "loop_bounded":
        d.tag("bool_chain")
        terms = [goes_on, bound] if d.draw.chance(50) else [bound, goes_on]
        return f"while {' and '.join(terms)}", [], []
    d.tag("bool_chain")
    done = d.fresh("done", here)
    if one.end.tensor and d.draw.chance(50):
        start = f"torch.zeros((), dtype=torch.bool, device={here.data[0]}.device)"
        ends = f"torch.logical_not({goes_on})"
    else:
        start, ends = "False", f"not ({goes_on})"
    first = d.draw.choice((start, ends))
    return f"while not {done} and {bound}", [f"{done} = {first}"], [f"{done} = {ends}"]


def _counted(d: Draft, scope: Scope, one: Round) -> Lines:
    """The number of rounds is used behind the loop: returned, in arithmetic, or asked about."""
    use = d.draw.weighted({"returned": 4, "multiplied": 3, "asked": 2, "shown": 1})
    if use == "returned":
        scope.results.append(one.counter)
        return []
    if use == "asked":
        return [f"if {one.counter} > 1:", *indented([f"{one.name} = {one.name} + 1"])]
    if use == "shown":
        return [f'print("rounds", {one.counter})']
    return [f"{one.name} = {one.name} * {one.counter}"]
