"""Numbers read from tensors: of tensors in scope, or of arguments of any dtype."""

from __future__ import annotations

from dataclasses import dataclass

from tests.fuzz.draft import Draft, Lines, Scope

_SOURCES = ("{0}.sum()", "{0}.abs().max()", "{0}.norm()", "{0}.mean()", "{0}.reshape(-1)[0]")
# dtype: values, of which a program takes five; those that Python cannot make an int of come last.
_ARGUMENTS = {
    "float32": ("0.5", "-2.0", "0.0", "1e-8", "3.25", "nan", "inf"),
    "float16": ("0.5", "-2.0", "0.0", "6e-8", "300.0", "nan", "inf"),
    "bfloat16": ("0.1", "-3.0", "0.0", "257.0", "1e30", "nan", "-inf"),
    "float64": ("0.1", "-2.0", "1e-300", "16777217.0", "1e39", "nan", "inf"),
    "int64": ("2", "-3", "0", "300", "16777217"),
    "int32": ("3", "-1", "0", "7", "70000"),
    "uint8": ("1", "0", "255", "2", "7"),
    "bool": ("True", "False", "True", "True", "False"),
}
# dtype: values, of which a program takes five; those that Python cannot make an int of come last.
_ARGUMENTS = {
    "float32": ("0.5", "-2.0", "0.0", "1e-8", "3.25", "nan", "inf"),
    "float16": ("0.5", "-2.0", "0.0", "6e-8", "300.0", "nan", "inf"),
    "bfloat16": ("0.1", "-3.0", "0.0", "257.0", "1e30", "nan", "-inf"),
    "float64": ("0.1", "-2.0", "1e-300", "16777217.0", "1e39", "nan", "inf"),
    "int64": ("2", "-3", "0", "300", "16777217"),
    "int32": ("3", "-1", "0", "7", "70000"),
    "uint8": ("1", "0", "255", "2", "7"),
    "bool": ("True", "False", "True", "True", "False"),
}
_INTEGERS = ("int64", "int32", "uint8", "bool")
_LOW_DTYPES = ("float16", "bfloat16")
_NOT_PLAIN = ("nan", "inf", "-inf", "0.0", "0", "False")
_NO_INT = ("nan", "inf", "-inf", "1e30", "1e39", "0.5", "0.1", "1e-8", "6e-8", "1e-300")  # or zero
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
_LOW_DTYPES = ("float16", "bfloat16")
_NOT_PLAIN = ("nan", "inf", "-inf", "0.0", "0", "False")
_NO_INT = ("nan", "inf", "-inf", "1e30", "1e39", "0.5", "0.1", "1e-8", "6e-8", "1e-300")  # or zero
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
_NOT_PLAIN = ("nan", "inf", "-inf", "0.0", "0", "False")
_NO_INT = ("nan", "inf", "-inf", "1e30", "1e39", "0.5", "0.1", "1e-8", "6e-8", "1e-300")  # or zero
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
_NO_INT = ("nan", "inf", "-inf", "1e30", "1e39", "0.5", "0.1", "1e-8", "6e-8", "1e-300")  # or zero
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

# Python numbers that the caller hands over: kept while they stay the same, then any of the kind.
_GIVEN = (
    ("0.5", "0.5", "2.0", "-1.5", "0.001"),
    ("1.5", "-2.0", "0.0", "1e39", "0.1"),
    ("2.0", "3.0", "nan", "inf", "-0.0"),
    ("2", "2", "3", "-1", "0"),
    ("1", "300", "7", "16777217", "4"),
    ("True", "True", "False", "True", "False"),
)


@dataclass(frozen=True)
class Number:
    """A Python number: its name, the lines that bind it, and what is known of its values.

    Attributes:
        name: a local variable.
        lines: bind it.
        plain: it is finite, and not zero.
        truth: it is True or False.
    """

    name: str
    lines: Lines
    plain: bool = False
    truth: bool = False


def read(d: Draft, scope: Scope, mark: str, *, whole: bool = False) -> Number:
    """A number of a tensor: of one in scope, or of an argument of another dtype.

    Args:
        d: the program.
        scope: what can be named.
        mark: ends the line that reads.
        whole: one that is neither zero nor infinite, where that can be had.
    """
    name = d.fresh("a", scope)
    how = d.draw.weighted({"item": 9, "float": 4, "tolist": 4, "int": 3, "bool": 3})
    if how == "tolist":
        d.tag("read_tolist")
        return _listed(d, scope, name, mark)
    dtype = ""
    if whole or d.draw.chance(55):
        dtype = d.draw.choice(tuple(_ARGUMENTS)[:: -1 if whole else 1])
        source = _argument(d, dtype, whole=whole, to_int=how == "int")
        if dtype in _LOW_DTYPES or dtype in _INTEGERS:
            d.tag("number_of_low" if dtype in _LOW_DTYPES else "number_of_int")
    elif how == "int":
        source = f"({d.draw.choice(scope.data)} > 0).sum()"
        d.tag("number_of_int")
    else:
        source = d.draw.choice(_SOURCES).format(d.draw.choice(scope.data))
    d.tag(f"read_{how}")
    text = f"{source}.item()" if how == "item" else f"{how}({source})"
    truth = how == "bool" or (how == "item" and dtype == "bool")
    return Number(name, [f"{name} = {text}{mark}"], whole, truth)


def given(d: Draft) -> Number:
    """A Python number that the caller hands over."""
    d.tag("number_given")
    values = d.draw.choice(_GIVEN)
    start = d.draw.integer(0, len(values) - 1)
    name = d.argument("rate", *(values[start:] + values[:start]))
    return Number(name, [], truth="True" in values)


def _listed(d: Draft, scope: Scope, name: str, mark: str) -> Number:
    source = d.draw.choice(scope.data)
    if d.draw.chance(50):
        other = d.fresh("b", scope)
        first = f"{name}, {other} = {source}.reshape(-1)[:2].tolist(){mark}"
        return Number(name, [first, f"{name} += {other}"])
    return Number(name, [f"{name} = {source}.mean().tolist(){mark}"])


def _argument(d: Draft, dtype: str, *, whole: bool, to_int: bool) -> str:
    values = _ARGUMENTS[dtype]
    if whole:
        values = tuple(v for v in values if v not in _NOT_PLAIN)
    if to_int and dtype not in _INTEGERS:
        values = tuple(v for v in values if v not in _NO_INT)
    start = d.draw.integer(0, len(values) - 1)
    five = [values[(start + i) % len(values)] for i in range(5)]
    shape = d.draw.weighted({"{}": 4, "[{}]": 1})
    made = (f"torch.tensor({shape.format(value)}, dtype=torch.{dtype})" for value in five)
    return d.argument("num", *made)
