"""Text about tensors: print, logging and warnings, before and between what else a program does."""

from __future__ import annotations

from tests.fuzz.draft import Draft, Lines, Scope, indented
from tests.fuzz.numbers import given, read
from tests.fuzz.values import data, fresh

FORMS = {
    "print_tensor": 5,
    "print_number": 5,
    "print_formatted": 5,
    "print_container": 5,
    "logged": 5,
    "warned": 6,
    "print_moment": 5,
    "print_between": 5,
}
_TENSORS = ("{0}", "{0}.sum()", "{0}.shape, {0}.mean()", "{0}.max(), {0}.dtype", "{0}[0]")
_NUMBERS = ("{0}.sum().item()", "float({0}.max())", "{0}.reshape(-1)[:2].tolist()")
_FORMATTED = (
    'f"{{{0}.sum():.3f}}"',
    'f"mean {{{0}.mean()}} of {{tuple({0}.shape)}}"',
    'f"{{{0}.sum().item():>12.4e}}|"',
    '"%s and %s" % ({0}.max(), {0}.dtype)',
    '"{{}}: {{}}".format("x", {0})',
    "str({0}.min())",
)
_REST = {"": 8, ', sep="|"': 1, ', end=";"': 1, ", flush=True": 1, ", file=sys.stderr": 1}
_WRITES = ("{0}.add_(1)", "{0}.zero_()", "{0}[0] = 5.0", "{0} *= 2")


def statement(d: Draft, scope: Scope) -> Lines:
    """Something is said; now and then in pieces, and with an effect in between."""
    form = d.draw.weighted(FORMS)
    with d.trip(form) as mark:
        operand = _operand(d, scope)
        if form == "print_moment":
            return _moment(d, scope, mark)
        if form == "print_between":
            return _between(d, scope, operand, mark)
        if form == "print_container":
            other = _operand(d, scope)
            made = d.draw.choice(("[{0}, {1}]", "({0},), None", '{{"a": {0}, 1: {1}}}, True'))
            return [f"print({made.format(operand, other)}){mark}"]
        if form == "logged":
            return [_logged(d, operand) + mark]
        if form == "warned":
            return _warned(d, operand, mark)
        if form == "print_number" and d.draw.chance(40):
            one = read(d, scope, mark)
            return [*one.lines, f'print("number", {one.name})', *_left(d, scope, one.name)]
        text = {"print_tensor": _TENSORS, "print_number": _NUMBERS, "print_formatted": _FORMATTED}
        shown = d.draw.choice(text[form]).format(operand)
        label = d.draw.choice(('"at", ', "", "1, "))
        if d.draw.chance(20):
            number = given(d).name
            label = d.draw.choice((f"{number}, ", f'f"rate {{{number}:.3f}}", ', f"{number} * 2, "))
        return [f"print({label}{shown}{_rest(d)}){mark}"]


def _operand(d: Draft, scope: Scope) -> str:
    """A tensor in scope; now and then with its history, whose names are part of the text."""
    operand = d.draw.choice(scope.data)
    return operand if d.draw.chance(10) else d.detached(operand)


def _rest(d: Draft) -> str:
    rest = d.draw.weighted(_REST)
    if "sys" in rest:
        d.imports.add("import sys")
    return rest


def _left(d: Draft, scope: Scope, number: str) -> Lines:
    name = d.fresh("y")
    text = f"{name} = {d.draw.choice(scope.data)} + {number}"
    scope.add(name)
    return [text]


def _logged(d: Draft, operand: str) -> str:
    d.imports.add("import logging")
    d.logs = True
    return d.draw.choice(
        (
            f'LOG.info("sum %s", {operand}.sum())',
            f'LOG.warning("max %.3f of %d", {operand}.max(), 3)',
            f'LOG.error(f"mean {{{operand}.mean()}}")',
            f'LOG.info("number %s", {operand}.sum().item())',
            f'LOG.debug("unheard %s", {operand})',
            'LOG.info("here")',
        )
    )


def _warned(d: Draft, operand: str, mark: str) -> Lines:
    d.imports.add("import warnings")
    level = d.draw.weighted({"": 3, ", stacklevel=1": 1, ", stacklevel=2": 1})
    if "2" in level:  # names the caller's line: a caller of the program's own, then
        d.definitions["warn"] = [
            "def warn(v):",
            *indented([f'warnings.warn(f"sum {{v.sum()}}"{level})']),
        ]
        return [f"warn({operand}){mark}"]
    text = d.draw.choice(
        (
            f'f"sum {{{operand}.sum()}}"',
            '"careful"',
            f'f"max {{{operand}.max().item()}}", RuntimeWarning',
        )
    )
    return [f"warnings.warn({text}{level}){mark}"]


def _moment(d: Draft, scope: Scope, mark: str) -> Lines:
    """A tensor, or a view of it, that is written after it was printed."""
    name = d.fresh("z")
    shown = d.draw.choice(("{0}", "{0}[:1]", "{0}.view_as({0}), 1", "{0}.sum(), {0}", "[{0}]"))
    lines = [
        f"{name} = {d.detached(fresh(d, scope))}",
        f"print({shown.format(name)}){mark}",
        d.draw.choice(_WRITES).format(name),
    ]
    if d.draw.chance(50):
        lines.append(f'print("then", {name}.sum())')
    scope.add(name, own=True)
    return lines


def _between(d: Draft, scope: Scope, operand: str, mark: str) -> Lines:
    """Another effect that can be seen stands between two texts."""
    effect = d.draw.choice(
        (
            f"{d.attribute('log', '[]')}.append(len({d.attribute('log', '[]')}))",
            f"{d.attribute('steps', '0')} = 7",
            f"{d.data('state', grad=False)}.add_(1)",
        )
    )
    name = d.fresh("y")
    lines = [
        f'print("first", {operand}.sum()){mark}',
        effect,
        f"{name} = {data(d, scope)}",
        f'print("second", {d.detached(name)}.max())',
    ]
    scope.add(name)
    return lines
