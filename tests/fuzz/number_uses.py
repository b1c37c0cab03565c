"""Where numbers read from tensors go: arithmetic, arguments, stores, and what only Python does."""

from __future__ import annotations

from tests.fuzz.draft import Draft, Lines, Scope, atom
from tests.fuzz.numbers import Number, given, read
from tests.fuzz.values import data, fresh

USES = {
    "number_operand": 6,
    "number_argument": 5,
    "number_written": 5,
    "number_low": 5,
    "number_arithmetic": 6,
    "number_partial": 5,
    "number_kept": 5,
    "number_tested": 5,
    "number_moment": 5,
}
_OPERANDS = (
    "{0} * {1}",
    "{0} + {1}",
    "{0} / {1}",
    "{1} - {0}",
    "{1} * {0}",
    "{1} / {0}",
    "{0} - {1}",
    "torch.where({0} > {1}, {0}, 0.0)",
    "{0} * ({0} <= {1})",
    "{0} + ({1} == {0})",
)
_ARGUMENT = (
    "torch.add({0}, {0}, alpha={1})",
    "{0}.clamp(min={1})",
    "{0}.clamp(max={1})",
    "{0}.clamp(-1, {1})",
    "torch.full_like({0}, {1})",
    "torch.lerp({0}, {0} + 1, {1})",
    "{0}.masked_fill({0} > 0, {1})",
    "torch.where({0} > 0, {0}, {1})",
    "{0}.sub({0}, alpha={1})",
    "torch.addcmul({0}, {0}, {0}, value={1})",
    "{0} + {0}.new_full((1,), {1})",
    "{0}.pow({1})",
    "{0}.mul({1}).add({1})",
    "{0}.ge({1}) * {0}",
)
_WRITTEN = (
    "{0}.mul_({1})",
    "{0} += {1}",
    "{0}[0] = {1}",
    "{0}.fill_({1})",
    "{0}.add_({0} * 2, alpha={1})",
    "{0}.clamp_(max={1})",
    "{0} /= {1}",
    "{0}[{0} > 0] = {1}",
)
_LOW = (
    "{0}.half()",
    "{0}.bfloat16()",
    "({0} > 0).to(torch.int8)",
    "({0} > 0).long()",
    "({0} > 0)",
    "{0}.double()",
    "{0}.half().sum()",
)
_LOW_USES = ("{0} * {1}", "{0} + {1}", "{1} - {0}", "{0} > {1}", "{0} / {1}", "{0} == {1}")
_ARITHMETIC = (
    "{0} * 2",
    "{0} + 1",
    "-{0}",
    "abs({0})",
    "{0} * {0}",
    "{0} + {1}",
    "{0} - {1}",
    "{0} * {1} + 0.5",
    "{0} / 4",
    "({0} + {1}) * 0.1",
    "1.5 - {0}",
)
_ARITHMETIC = (
    "{0} * 2",
    "{0} + 1",
    "-{0}",
    "abs({0})",
    "{0} * {0}",
    "{0} + {1}",
    "{0} - {1}",
    "{0} * {1} + 0.5",
    "{0} / 4",
    "({0} + {1}) * 0.1",
    "1.5 - {0}",
)
_PARTIAL = (
    "1 / {0}",
    "7 // {0}",
    "math.sqrt({0})",
    "math.exp({0})",
    "int({0})",
    "round({0})",
    "min({0}, 1.0)",
    "max(0, {0}, -1)",
    "{0} ** 2",
    "{0} % 3",
    "{0} // 2",
    "float({0})",
    "math.floor({0})",
)


def statement(d: Draft, scope: Scope) -> Lines:
    """A number that is read, and a tensor of the program's shape that depends on it."""
    use = d.draw.weighted(USES)
    with d.trip(use) as mark:
        if use == "number_moment":
            return _moment(d, scope, mark)
        one = read(d, scope, mark, whole=use in ("number_partial", "number_kept"))
        if one.truth and use in ("number_argument", "number_written"):
            use = "number_operand"  # alpha=True and the like are errors
        return [*one.lines, *_USERS[use](d, scope, one)]


def _left(d: Draft, scope: Scope, text: str) -> Lines:
    name = d.fresh("y")
    scope.add(name)
    return [f"{name} = {text}"]


def _operand(d: Draft, scope: Scope, one: Number) -> Lines:
    operand = atom(data(d, scope, d.draw.integer(0, 1)))
    if d.draw.chance(8):
        operand = f"({operand} {d.draw.choice(('*', '+'))} {given(d).name})"
    uses = [use for use in _OPERANDS if not (one.truth and " - " in use)]
    return _left(d, scope, d.draw.choice(uses).format(operand, one.name))


def _in_argument(d: Draft, scope: Scope, one: Number) -> Lines:
    operand = d.draw.choice(scope.data)
    number = one.name
    if d.draw.chance(15):
        number = f"{number} * {given(d).name}"
    return _left(d, scope, d.draw.choice(_ARGUMENT).format(operand, number))


def _written(d: Draft, scope: Scope, one: Number) -> Lines:
    name = d.fresh("z")
    lines = [f"{name} = {fresh(d, scope)}", d.draw.choice(_WRITTEN).format(name, one.name)]
    scope.add(name, own=True)
    return lines


def _low(d: Draft, scope: Scope, one: Number) -> Lines:
    """Beside a tensor of another dtype, or without axes, where promotion shows."""
    operand, name = d.draw.choice(scope.data), d.fresh("odd", scope)
    other = d.draw.choice(_LOW).format(operand)
    no_difference = one.truth or other.endswith("> 0)")
    uses = [use for use in _LOW_USES if not (no_difference and " - " in use)]
    lines = [f"{name} = {d.draw.choice(uses).format(atom(other), one.name)}"]
    scope.results.append(name)
    return lines + _left(d, scope, f"{operand} + {name}.to({operand}.dtype)")


def _arithmetic(d: Draft, scope: Scope, one: Number) -> Lines:
    other = one
    if d.draw.chance(40):
        other = given(d) if d.draw.chance(35) else read(d, scope, "")
    name = d.fresh("c", scope)
    text = d.draw.choice(_ARITHMETIC).format(one.name, other.name)
    lines = other.lines if other is not one else []
    made = Number(name, [])
    return [*lines, f"{name} = {text}", *_operand(d, scope, made)]


def _partial(d: Draft, scope: Scope, one: Number) -> Lines:
    """Arithmetic that some numbers have no result of, or that only Python does."""
    name = d.fresh("c", scope)
    choices = _PARTIAL if one.plain else _PARTIAL[6:10]
    text, given = d.draw.choice(choices[::-1]), one.name
    if "math" in text:
        d.imports.add("import math")
        d.rounded |= "sqrt" in text  # torch's of a double on the CPU is that of MKL, not rounded
        given = f"min(abs({given}), 9)"
    made = Number(name, [], truth=one.truth)  # of True, min is True
    return [f"{name} = {text.format(given)}", *_operand(d, scope, made)]


def _kept(d: Draft, scope: Scope, one: Number) -> Lines:
    """What Python needs the number itself for."""
    operand = d.draw.choice(scope.data)
    how = d.draw.choice(("append", "attribute", "text", "size", "range", "key", "string"))
    if how == "append":
        log = d.attribute("log", "[]")
        return [f"{log}.append({one.name})", *_operand(d, scope, one)]
    if how == "attribute":
        held = d.attribute("steps", "0")
        return [f"{held} = {one.name}", *_left(d, scope, f"{operand} * {held}")]
    if how == "key":
        table = d.attribute("table", "{}")
        return [f"{table}[{one.name} > 1] = {operand}.shape[0]", *_operand(d, scope, one)]
    if how in ("text", "string"):
        name = d.fresh("label", scope)
        text = f"{name} = " + (f'f"<{{{one.name}}}>"' if how == "text" else f"str({one.name})")
        return [text, *_left(d, scope, f"{operand} + len({name})")]
    # At most three: a size, or rounds of a loop.
    count = f"int(min(abs({one.name}), 3))"
    if not one.plain:
        count = f"int({one.name} > 0)"
    if how == "range":
        name = d.fresh("y")
        lines = [
            f"{name} = {operand}",
            f"for _ in range({count}):",
            f"    {name} = {name} * 0.5 + 1",
        ]
        scope.add(name)
        return lines
    return _left(d, scope, f"{operand} + {operand}.new_ones({count}).sum()")


def _tested(d: Draft, scope: Scope, one: Number) -> Lines:
    first, second = data(d, scope), d.draw.choice(scope.data)
    test = d.draw.choice(("{0} > 0", "{0}", "not {0} < 1", "0 < {0} < 2", "{0} == {0}"))
    text = f"{atom(first)} * {one.name} if {test.format(one.name)} else {second} + {one.name}"
    return _left(d, scope, text)


def _moment(d: Draft, scope: Scope, mark: str) -> Lines:
    """A tensor that is written after a number was read from it."""
    name, number = d.fresh("z"), d.fresh("a", scope)
    source = d.draw.choice(("{0}.sum()", "{0}.max()", "{0}.reshape(-1)[0]", "{0}.abs().mean()"))
    write = d.draw.choice(("{0}.add_(1)", "{0}.zero_()", "{0}[0] = 5.0", "{0}.mul_(2)"))
    how = d.draw.choice(("{0}.item()", "float({0})", "{0}.tolist()"))
    d.tag("read_item")
    lines = [
        f"{name} = {fresh(d, scope)}",
        f"{number} = {how.format(source.format(name))}{mark}",
        write.format(name),
    ]
    scope.add(name, own=True)
    return [*lines, *_operand(d, scope, Number(number, []))]


_USERS = {
    "number_operand": _operand,
    "number_argument": _in_argument,
    "number_written": _written,
    "number_low": _low,
    "number_arithmetic": _arithmetic,
    "number_partial": _partial,
    "number_kept": _kept,
    "number_tested": _tested,
}
