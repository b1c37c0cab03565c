"""What the arms of a site leave behind, and how the program uses it after the site."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.fuzz import waiting
from tests.fuzz.draft import Draft, Lines, Scope
from tests.fuzz.values import called, data, fresh

PAIR = ["class Pair(NamedTuple):", "    first: torch.Tensor", "    second: torch.Tensor"]
BUNDLE = ["@dataclass", "class Bundle:", "    main: torch.Tensor", "    extra: torch.Tensor"]
_CONTAINERS = {
    "leaves_tuple": ("({0}, {1})", "{2}[0]", "{2}[1]"),
    "leaves_list": ("[{0}, {1}]", "{2}[0]", "{2}[1]"),
    "leaves_dict": ('{{"a": {0}, "b": {1}}}', '{2}["a"]', '{2}["b"]'),
    "leaves_namedtuple": ("Pair({0}, {1})", "{2}.first", "{2}.second"),
    "leaves_dataclass": ("Bundle({0}, {1})", "{2}.main", "{2}.extra"),
}
KINDS = {
    "leaves_tensor": 2,
    "leaves_tuple": 11,
    "leaves_list": 10,
    "leaves_dict": 10,
    "leaves_namedtuple": 11,
    "leaves_dataclass": 10,
    "leaves_number": 10,
    "leaves_constant": 10,
    "leaves_dead": 10,
    "leaves_waiting": 11,
    "mismatch": 1,
}
SECOND = {
    "leaves_waiting": 19,
    "leaves_list": 2,
    "leaves_number": 3,
    "leaves_namedtuple": 1,
    "leaves_dict": 2,
    "leaves_tuple": 5,
    "leaves_dataclass": 2,
    "leaves_constant": 1,
}


@dataclass
class Leave:
    """One kind of value that arms leave.

    Attributes:
        name: the variable.
        arm: writes the assignment; True for the taken arm.
        before: statements that bind the variable, for a site without else.
        after: statements that use it, after the site.
        tensors: names that are tensors of the program's shape after the site.
        others: further names worth returning.
    """

    name: str
    arm: Callable[[Scope, bool], Lines]
    before: Lines = field(default_factory=list)
    after: Lines = field(default_factory=list)
    tensors: Sequence[str] = ()
    others: Sequence[str] = ()


def leave(d: Draft, scope: Scope, *, bound: bool = False, kind: str = "") -> Leave:
    """Choose what the arms leave.

    Args:
        d: the program.
        scope: what the arms can name.
        bound: the variable must exist before the site, for an arm that does not bind it.
        kind: of :data:`KINDS`, if it is settled already.
    """
    if not kind and d.draw.chance(25):
        second = d.draw.weighted(SECOND)
        return _two(
            *(leave(d, scope, bound=bound, kind=k) for k in (d.draw.weighted(KINDS), second))
        )
    kind = kind or d.draw.weighted(KINDS)
    if kind in _CONTAINERS:
        return _container(d, scope, kind, bound=bound)
    if kind == "leaves_number":
        return _number(d, scope, bound=bound)
    if kind == "leaves_constant":
        return _constant(d, scope, bound=bound)
    if kind == "mismatch":
        return _mismatch(d, scope)
    if kind == "leaves_waiting":
        return _waiting(d, scope, bound=bound)
    d.tag(kind if kind == "leaves_dead" else "leaves_tensor")
    name, before = _target(d, scope, bound=bound)

    def arm(inner: Scope, taken: bool) -> Lines:
        if kind == "leaves_dead" and taken:
            dead = d.fresh("t", inner)
            lines = [f"{dead} = {data(d, inner)}"]
            inner.data.append(dead)
            inner.use.append(dead)
            return [*lines, f"{name} = {data(d, inner)}"]
        return [f"{name} = {value(d, inner)}"]

    return Leave(name, arm, before, tensors=[name])


def _two(first: Leave, second: Leave) -> Leave:
    """Two values that the arms of one site leave."""
    return Leave(
        first.name,
        lambda inner, taken: [*first.arm(inner, taken), *second.arm(inner, taken)],
        [*first.before, *second.before],
        [*first.after, *second.after],
        [*first.tensors, *second.tensors],
        [*first.others, *second.others],
    )


def value(d: Draft, scope: Scope) -> str:
    """A tensor an arm leaves: of an expression, or of a call of something user-written."""
    if not scope.use and d.draw.chance(20):
        return called(d, scope)
    return data(d, scope)


def _target(d: Draft, scope: Scope, *, bound: bool) -> tuple[str, Lines]:
    """The variable to leave: one that exists, or one that is made before the site if it must."""
    local = [name for name in scope.data if name not in d.arguments and name.isidentifier()]
    if bound and scope.data and d.draw.chance(25):
        return d.draw.choice([n for n in scope.data if n.isidentifier()]), []
    if local and d.draw.chance(40):
        return d.draw.choice(local[::-1]), []
    name = d.fresh("y", scope)
    return name, [f"{name} = {data(d, scope)}"] if bound else []


def _container(d: Draft, scope: Scope, kind: str, *, bound: bool) -> Leave:
    d.tag(kind)
    build, first, second = _CONTAINERS[kind]
    if kind == "leaves_namedtuple":
        d.definitions["Pair"] = PAIR
    if kind == "leaves_dataclass":
        d.definitions["Bundle"] = BUNDLE
    name = d.fresh("out", scope)

    def made(inner: Scope) -> str:
        return f"{name} = {build.format(data(d, inner), data(d, inner, 0))}"

    after = d.fresh("y")
    use = f"{first} {d.draw.choice(('+', '*', '-'))} {second}".format("", "", name)
    before = [made(scope)] if bound else []
    return Leave(
        name, lambda inner, _: [made(inner)], before, [f"{after} = {use}"], [after], [name]
    )


def _number(d: Draft, scope: Scope, *, bound: bool) -> Leave:
    """Python numbers that differ between the arms and only feed tensor arithmetic."""
    d.tag("leaves_number")
    name, after = d.fresh("k", scope), d.fresh("y")
    numbers = d.draw.choice((("2.0", "3.0"), ("0.5", "1.0"), ("2", "3"), ("1.5", "2")))
    use = f"{after} = {d.draw.choice(scope.data)} {d.draw.choice(('*', '+', '-'))} {name}"

    def arm(inner: Scope, taken: bool) -> Lines:
        return [f"{name} = {numbers[0] if taken else numbers[1]}"]

    return Leave(name, arm, [f"{name} = {numbers[1]}"] if bound else [], [use], [after])


def _constant(d: Draft, scope: Scope, *, bound: bool) -> Leave:
    """Both arms bind one variable to equal constants, beside a tensor."""
    d.tag("leaves_constant")
    plain = leave(d, scope, bound=bound, kind="leaves_tensor")
    name, after = d.fresh("mode", scope), d.fresh("y")
    constant, use = d.draw.choice(
        (("2", "{0} * {1}"), ("True", "{0} + 1 if {1} else {0}"), ("0.5", "{0} * {1}"))
    )
    lines = [f"{name} = {constant}"]
    return Leave(
        plain.name,
        lambda inner, taken: [*lines, *plain.arm(inner, taken)],
        [*plain.before, *lines] if bound else [],
        [f"{after} = {use.format(plain.name, name)}"],
        [plain.name, after],
    )


def _waiting(d: Draft, scope: Scope, *, bound: bool) -> Leave:
    """Other Python values in each arm, about which the code behind asks."""
    pair = waiting.drawn(d)
    name, after = d.fresh("held", scope), d.fresh("y")

    def arm(inner: Scope, taken: bool) -> Lines:
        return [f"{name} = {waiting.written(d, inner, pair.taken if taken else pair.other)}"]

    before = arm(scope, False) if bound else []
    lines, returned = waiting.asked(d, scope, pair, name, after)
    return Leave(name, arm, before, lines, [after], [name] if returned else [])


def _mismatch(d: Draft, scope: Scope) -> Leave:
    """A tensor whose dtype, shape or strides depend on the arm."""
    name = d.fresh("odd", scope)
    other = d.draw.choice(
        ("{0}.double()", "{0}.half()", "{0}.sum()", "{0}.unsqueeze(0)", "{0}.expand(2, *{0}.shape)")
    )

    def arm(inner: Scope, taken: bool) -> Lines:
        operand = d.draw.choice(inner.data)
        return [f"{name} = {other.format(operand) if taken else fresh(d, inner)}"]

    return Leave(name, arm, [f"{name} = {fresh(d, scope)}"], others=[name])
