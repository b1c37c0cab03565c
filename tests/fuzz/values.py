"""Expressions: float tensors of the program's shape, and 0-d ones, from the names in scope."""

from __future__ import annotations

from tests.fuzz.draft import Draft, Scope, atom, indented

_UNARY = (
    "{0} * 2",
    "{0} + 1",
    "{0}.relu()",
    "{0}.tanh()",
    "{0}.abs()",
    "-{0}",
    "{0}.clamp(-1, 1)",
    "torch.sin({0})",
    "{0} - {0}.mean()",
    "F.silu({0})",
    "{0}.nan_to_num()",
    "0.5 * {0}",
)
_BINARY = (
    "{0} + {1}",
    "{0} * {1}",
    "{0} - {1}",
    "torch.maximum({0}, {1})",
    "torch.where({0} > 0, {0}, {1})",
)
_FRESH = ("{0}.clone()", "{0} * 2", "{0} + 1", "torch.zeros_like({0})", "{0} * {0}")
_SCALARS = ("{0}.sum()", "{0}.mean()", "{0}.max()", "{0}.abs().sum()")
_BODIES = ("{0} * 2", "{0}.tanh() + 1", "{0} - 1", "{0}.relu()")


def data(d: Draft, scope: Scope, depth: int = 1) -> str:
    """A float tensor of the program's shape."""
    if scope.use:
        first = scope.use.pop()
        if scope.use:
            return f"{first} + {data(d, scope, 0)}"
        return first if d.draw.chance(40) else _unary(d, first)
    first = d.draw.choice(scope.data[::-1])
    if depth == 0:
        return first
    kind = d.draw.weighted({"unary": 6, "binary": 4, "scaled": 1, "deep": 2})
    if kind == "unary":
        return _unary(d, first)
    if kind == "scaled" and scope.scalars:
        return f"{first} * {d.draw.choice(scope.scalars)}"
    second = data(d, scope, depth - 1) if kind == "deep" else d.draw.choice(scope.data)
    return d.draw.choice(_BINARY).format(first, atom(second))


def _unary(d: Draft, operand: str) -> str:
    return d.draw.choice(_UNARY).format(atom(operand))


def fresh(d: Draft, scope: Scope) -> str:
    """An expression whose memory is new, and which autograd does not save."""
    return d.draw.choice(_FRESH).format(d.draw.choice(scope.data))


def scalar(d: Draft, scope: Scope) -> str:
    """A 0-d float tensor."""
    return d.draw.choice(_SCALARS).format(d.draw.choice(scope.data))


def called(d: Draft, scope: Scope) -> str:
    """A float tensor that a helper, a closure, a lambda or another object's method computes."""
    kind = d.draw.choice(("helper", "closure", "lambda", "method"))
    d.tag(kind)
    operand = d.draw.choice(scope.data)
    body = d.draw.choice(_BODIES).format("v")
    if kind == "helper":
        name = d.fresh("helper")
        d.definitions[name] = [f"def {name}(v):", *indented([f"return {body}"])]
        return f"{name}({operand})"
    if kind == "method":
        name = d.fresh("Scaler")
        gain = d.tensor()
        d.definitions[name] = [
            f"class {name}:",
            *indented(["def __init__(self):", *indented([f"self.gain = {gain}"])]),
            "",
            *indented(["def apply(self, v):", *indented([f"return {body} * self.gain"])]),
        ]
        return f"{d.attribute(name.lower(), f'{name}()')}.apply({operand})"
    name = d.fresh("inner" if kind == "closure" else "scale", scope)
    captured = d.draw.choice(scope.outer)
    if kind == "lambda":
        scope.pre.append(f"{name} = lambda v: {body} + {captured}")
    else:
        scope.pre += [f"def {name}(v):", *indented([f"return {body} + {captured}"])]
    return f"{name}({operand})"
