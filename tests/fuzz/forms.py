"""The forms of a branch: if / else and its relatives, expressions, early returns, loops."""

from __future__ import annotations

from collections.abc import Callable

from tests.fuzz import trips
from tests.fuzz.draft import Draft, Lines, Scope, indented
from tests.fuzz.effects import Effect, effect
from tests.fuzz.leaves import Leave, leave
from tests.fuzz.loops import loop
from tests.fuzz.predicates import one_element, predicate, single, static
from tests.fuzz.values import data, scalar

FORMS = {
    "if_else": 28,
    "else_less": 20,
    "elif": 5,
    "ternary": 4,
    "early_return": 8,
    "operand_value": 6,
    "tensor_loop": 13,
}
_EFFECTS = {0: 3, 1: 7, 2: 10, 3: 9}


def branch(d: Draft, scope: Scope, nested: Callable[[Draft, Scope], Lines]) -> Lines:
    """One site in one of :data:`FORMS`.

    Args:
        d: the program.
        scope: of the block it stands in; gets the names it leaves.
        nested: writes a site into an arm.
    """
    forms = {k: w for k, w in FORMS.items() if k != "early_return" or scope.returns}
    return _WRITERS[d.draw.weighted(forms)](d, scope, nested)


def carried(d: Draft, scope: Scope, name: str, nested: Callable[[Draft, Scope], Lines]) -> Lines:
    """A site in a loop, which leaves the variable that the loop carries."""
    form = d.draw.choice(("else_less", "if_else", "ternary"))
    here = scope.around()
    with d.site(form) as mark:
        test = predicate(d, here)
        if form == "ternary":
            d.tag("leaves_tensor")
            return [
                *here.pre,
                f"{name} = {data(d, here)} if {test} else {data(d, here)}{mark}",
            ]
        left = Leave(name, lambda inner, _: [f"{name} = {data(d, inner)}"])
        d.tag("leaves_tensor")
        effects = _effects(d, here, both=None if form == "if_else" else False)
        lines = _arms(d, here, f"if {test}:{mark}", left, effects, nested, form == "if_else")
        return [*here.pre, *lines]


def _if(d: Draft, scope: Scope, nested: Callable[[Draft, Scope], Lines]) -> Lines:
    return _branching(d, scope, nested, otherwise=True)


def _else_less(d: Draft, scope: Scope, nested: Callable[[Draft, Scope], Lines]) -> Lines:
    return _branching(d, scope, nested, otherwise=False)


def _branching(
    d: Draft, scope: Scope, nested: Callable[[Draft, Scope], Lines], *, otherwise: bool
) -> Lines:
    here = scope.around()
    with d.site("if_else" if otherwise else "else_less") as mark:
        test = predicate(d, here)
        effects = _effects(d, here, both=None if otherwise else False)
        # Effects alone are what many arms consist of.
        alone = bool(effects) and d.draw.chance(16)
        left = None if alone else leave(d, here, bound=not otherwise)
        lines = _arms(d, here, f"if {test}:{mark}", left, effects, nested, otherwise)
    _adopt(scope, here, left)
    return [*here.pre, *(left.before if left else []), *lines, *(left.after if left else [])]


def _elif(d: Draft, scope: Scope, nested: Callable[[Draft, Scope], Lines]) -> Lines:
    here = scope.around()
    with d.site("elif") as mark:
        test = predicate(d, here)
        effects = _effects(d, here, both=False)
        left = leave(d, here)
        lines = [f"if {test}:{mark}", *indented(_arm(d, here, left, effects, nested, True))]
        shapes = set(d.sites[-1].shapes)
    for _ in range(d.draw.integer(1, 2)):
        with d.site("elif") as mark:
            d.tag(*(s for s in shapes if s.startswith("leaves_")))
            test = predicate(d, here)
            lines += [f"elif {test}:{mark}", *indented(_arm(d, here, left, [], nested, False))]
    lines += ["else:", *indented(_arm(d, here, left, [], nested, False))]
    _adopt(scope, here, left)
    return [*here.pre, *lines, *left.after]


def _ternary(d: Draft, scope: Scope, nested: Callable[[Draft, Scope], Lines]) -> Lines:
    here = scope.around()
    name = d.fresh("y")
    with d.site("ternary", "leaves_tensor") as mark:
        test = predicate(d, here)
        taken, other = data(d, here), data(d, here)
        if d.draw.chance(30):
            test2 = single(d, here)
            other = f"({data(d, here)} if {test2} else {other})"
        line = f"{name} = {taken} if {test} else {other}{mark}"
    scope.add(name)
    return [*here.pre, line]


def _early_return(d: Draft, scope: Scope, nested: Callable[[Draft, Scope], Lines]) -> Lines:
    here = scope.around()
    with d.site("early_return") as mark:
        test = predicate(d, here)
        inner = here.arm()
        body: Lines = []
        for one in _effects(d, here, both=False):
            body += one.arm(inner)
        if d.budget > 0 and d.draw.chance(20):
            body += nested(d, inner)
        body.append("return " + scope.returns.format(data(d, inner)))
        if d.loops:
            d.tag("return_in_loop")
        d.plain_result = True
    return [*here.pre, f"if {test}:{mark}", *indented(body)]


def _operand(d: Draft, scope: Scope, nested: Callable[[Draft, Scope], Lines]) -> Lines:
    """``a or b`` of tensors: one of the operands comes out."""
    here = scope.around()
    name, after = d.fresh("s", scope), d.fresh("y")
    with d.site("operand_value", "float_tensor", "shape_0d", "nan_predicate") as mark:
        terms = [scalar(d, here)]
        if d.draw.chance(25):
            terms = [f"{one_element(d)[0]}.sum()"]
        for _ in range(d.draw.integer(1, 2)):
            terms.append(scalar(d, here))
        text = f" {d.draw.choice(('or', 'and'))} ".join(terms)
        if d.draw.chance(35):
            d.tag("bool_chain")
            text = f"{static(d, here)} and ({text})"
        line = f"{name} = {text}{mark}"
        use = f"{after} = {d.draw.choice(here.data)} {d.draw.choice(('*', '+'))} {name}"
    scope.results.append(name)
    scope.add(after)
    return [*here.pre, line, use]


def _effects(d: Draft, here: Scope, *, both: bool | None) -> list[Effect]:
    return [effect(d, here, both=both) for _ in range(d.draw.weighted(_EFFECTS))]


def _arms(
    d: Draft,
    here: Scope,
    header: str,
    left: Leave | None,
    effects: list[Effect],
    nested: Callable[[Draft, Scope], Lines],
    otherwise: bool,
) -> Lines:
    lines = [header, *indented(_arm(d, here, left, effects, nested, True))]
    if otherwise:
        both = [one for one in effects if one.both]
        lines += ["else:", *indented(_arm(d, here, left, both, nested, False))]
    return lines


def _arm(
    d: Draft,
    here: Scope,
    left: Leave | None,
    effects: list[Effect],
    nested: Callable[[Draft, Scope], Lines],
    taken: bool,
) -> Lines:
    inner = here.arm()
    lines: Lines = []
    for one in effects:
        lines += one.arm(inner)
    if d.budget > 0 and d.draw.chance(30):
        lines += nested(d, inner)
        inner.use += inner.results[-1:]
    lines += trips.maybe(d, inner, 25)
    if left is not None:
        lines += left.arm(inner, taken)
    elif inner.use:  # what was computed must not be lost
        lines.append(f"{inner.use[0]}.sum()")
    return lines


def _adopt(scope: Scope, here: Scope, left: Leave | None) -> None:
    """Names that the site bound, for what comes after it."""
    for name in here.own:
        scope.add(name, own=True)
    if left is not None:
        scope.names.add(left.name)
        scope.results += left.others
        for name in left.tensors:
            scope.add(name)


_WRITERS: dict[str, Callable[[Draft, Scope, Callable[[Draft, Scope], Lines]], Lines]] = {
    "if_else": _if,
    "else_less": _else_less,
    "elif": _elif,
    "ternary": _ternary,
    "early_return": _early_return,
    "operand_value": _operand,
    "tensor_loop": loop,
}
