"""Predicates: tensors of one element in every dtype and shape, conversions, chains."""

from __future__ import annotations

from tests.fuzz.draft import Draft, Scope, atom

_TRUTHS = (
    "({0} > 1).any()",
    "{0}.isnan().any()",
    "torch.isinf({0}).any()",
    "torch.isfinite({0}).all()",
    "({0} < 0).all()",
    "({0} == 0).any()",
)
_NUMBERS = ("{0}.sum()", "{0}.mean()", "{0}.max()", "{0}.reshape(-1)[0]", "{0}.abs().min()")
_SHAPES = {"shape_0d": (), "shape_1": (1,), "shape_1_1": (1, 1)}
_LITERALS = {
    "bool": ("True", "False"),
    "int": ("2", "0"),
    "float": ("1.5", "0.0"),
}


def predicate(d: Draft, scope: Scope) -> str:
    """A condition of the site being written."""
    kind = d.draw.weighted({"control": 10, "truth": 8, "number": 8, "chain": 6, "compare": 3})
    if kind == "chain":
        return chain(d, scope)
    if kind == "compare":
        return compared(d, scope)
    return single(d, scope, kind)


def single(d: Draft, scope: Scope, kind: str = "") -> str:
    """A condition that tests one tensor."""
    kind = kind or d.draw.weighted({"control": 5, "truth": 4, "number": 4})
    if kind == "control":
        return control(d)
    if kind == "truth":
        text = d.draw.choice(_TRUTHS).format(d.draw.choice(scope.data))
        d.tag("bool_tensor", "shape_0d")
        how = d.draw.weighted({"": 7, "not": 2, "item": 2, "bool_call": 2})
        return _converted(d, text, how)
    return _number(d, scope)


def control(d: Draft) -> str:
    """A tensor argument of one element, tested as it is, compared or converted."""
    name, dtype, literals = one_element(d)
    how = d.draw.weighted({"": 9, "not": 2, "item": 2, "bool_call": 2, "number": 3})
    if how == "number" and dtype != "bool":
        if d.draw.chance(50):
            return _compared_item(d, name, dtype, literals)
        return f"{name} > 0"
    return _converted(d, name, "" if how == "number" else how)


def one_element(d: Draft) -> tuple[str, str, tuple[str, ...]]:
    """An argument of one element: its name, dtype and values."""
    dtype = d.draw.choice(("bool", "int", "float"))
    shape = d.draw.weighted({"shape_0d": 3, "shape_1": 2, "shape_1_1": 2})
    d.tag(f"{dtype}_tensor", shape)
    literals = d.spread(*_LITERALS[dtype])
    if dtype == "float" and d.draw.chance(60):
        at = d.draw.choice([i for i, literal in enumerate(literals) if literal != "0.0"])
        literals = (*literals[:at], "nan", *literals[at + 1 :])
        d.tag("nan_predicate")
    nested = {"shape_0d": "{}", "shape_1": "[{}]", "shape_1_1": "[[{}]]"}[shape]
    made = [f"torch.tensor({nested.format(literal)})" for literal in literals]
    name = d.argument({"bool": "flag", "int": "count", "float": "level"}[dtype], *made)
    return name, dtype, literals


def _compared_item(d: Draft, name: str, dtype: str, literals: tuple[str, ...]) -> str:
    # int(nan) raises, in eager too.
    kinds = ["item", "float_call"] + ["int_call"] * (2 * ("nan" not in literals))
    kind = d.draw.choice(kinds)
    d.tag(kind)
    text = {"item": "{}.item()", "float_call": "float({})", "int_call": "int({})"}[kind]
    return f"{text.format(name)} > 0"


def _converted(d: Draft, text: str, how: str) -> str:
    if how in ("item", "bool_call"):
        d.tag(how)
    return {
        "": text,
        "not": f"not {text}",
        "item": f"{text}.item()",
        "bool_call": f"bool({text})",
    }[how]


def _number(d: Draft, scope: Scope) -> str:
    operand = d.draw.choice(scope.data)
    text = d.draw.choice(_NUMBERS).format(operand)
    shape = d.draw.weighted({"shape_0d": 3, "shape_1": 1, "shape_1_1": 1})
    if _SHAPES[shape]:
        text = f"{text}.reshape({', '.join(map(str, _SHAPES[shape]))})"
    how = d.draw.weighted({"": 6, "truth": 2, "item": 2, "float_call": 3, "int_call": 3})
    if how == "int_call":
        d.tag("int_tensor", "shape_0d", how)
        return f"int(({operand} > 0).sum()) > {d.draw.choice((1, 0, 2))}"
    d.tag(shape, "nan_predicate")
    if how == "truth":
        d.tag("float_tensor")
        return text
    bound = d.draw.choice((0, 1, -0.5))
    if how:
        d.tag(how, "float_tensor")
        text = f"{text}.item()" if how == "item" else f"float({text})"
        return f"{text} > {bound}"
    d.tag("bool_tensor")
    return f"{text} {d.draw.choice(('>', '<', '<=', '!='))} {bound}"


def chain(d: Draft, scope: Scope) -> str:
    """``and`` / ``or`` / ``not`` of tensor terms and terms known to Python."""
    d.tag("bool_chain")
    terms = [single(d, scope)]
    terms += [
        static(d, scope) if d.draw.chance(50) else single(d, scope)
        for _ in range(d.draw.integer(1, 2))
    ]
    if d.draw.chance(50):
        terms.reverse()
    text = terms[0]
    for term in terms[1:]:
        joined = d.draw.choice(("and", "or"))
        text = f"({text})" if " and " in text or " or " in text else text
        text = f"{text} {joined} {term}"
    return f"not ({text})" if d.draw.chance(20) else text


def static(d: Draft, scope: Scope) -> str:
    """A condition that Python knows: the same in every call."""
    operand = d.draw.choice(scope.data)
    choices = [
        f"{operand}.dim() > 1",
        f"{operand}.dtype == torch.float32",
        f"{operand} is not None",
        "torch.is_grad_enabled()",
        f"len({operand}) == 2",
    ]
    return d.draw.choice(choices + ["self.training"] * d.module)


def compared(d: Draft, scope: Scope) -> str:
    """``low < tensor < high``."""
    d.tag("compare_chain", "bool_tensor", "shape_0d", "nan_predicate")
    text = atom(d.draw.choice(_NUMBERS).format(d.draw.choice(scope.data)))
    if d.draw.chance(30):
        other = d.draw.choice(_NUMBERS).format(d.draw.choice(scope.data))
        return f"{atom(other)} <= {text} < 2"
    return f"{d.draw.choice((-1, 0, -0.5))} < {text} {d.draw.choice(('<', '<='))} 2"
