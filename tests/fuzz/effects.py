"""What arms do besides computing what they leave: state, autograd, randomness, text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.fuzz.draft import Draft, Lines, Scope, atom, indented
from tests.fuzz.values import data, fresh

KINDS = {
    "write_local": 3,
    "write_argument": 3,
    "write_view": 11,
    "write_buffer": 7,
    "write_attribute": 9,
    "rebind_attribute": 9,
    "register_buffer": 46,
    "list_mutation": 8,
    "dict_mutation": 9,
    "python_attribute": 9,
    "parameter": 16,
    "parameter_one_arm": 15,
    "leaf_one_arm": 11,
    "bad_gradient": 9,
    "no_grad": 8,
    "autocast": 8,
    "custom_function": 8,
    "dropout": 9,
    "rand_like": 9,
    "print_arm": 8,
}
_MODULE_ONLY = ("write_buffer", "register_buffer", "parameter", "parameter_one_arm")
_BOTH = ("register_buffer", "parameter")
_WRITES = (
    "{0}.add_(1)",
    "{0}.mul_(2)",
    "{0} += {1}",
    "{0}.copy_({1})",
    "{0}[0] = 1.0",
    "{0}.clamp_(min=0)",
    "{0}.zero_()",
    "{0}.sub_({1})",
    "{0}[0] = {1}[0]",
    "{0}.lerp_({1}, 0.5)",
)
_LIST_CHANGES = (
    "{0}.append({1})",
    "{0}.extend([{1}, 2])",
    "{0}.insert(0, {1})",
    "{0}[:1] = [{1}]",
    "{0}.clear()",
    "{0} += [{1}]",
)
_DICT_CHANGES = (
    '{0}["{1}"] = {2}',
    "{0}.update({1}={2})",
    '{0}.pop("{1}", None)',
    '{0}.setdefault("{1}", {2})',
    "{0}.clear()",
)
_BAD = ("{0}.sqrt()", "{0}.log()", "1 / {0}", "{0}.abs().pow(0.5)", "{0} / {0}", "{0}.rsqrt()")
_FUNCTION = [
    "class Doubled(torch.autograd.Function):",
    "    @staticmethod",
    "    def forward(ctx, v):",
    "        ctx.save_for_backward(v)",
    "        return v * 2",
    "",
    "    @staticmethod",
    "    def backward(ctx, grad):",
    "        (v,) = ctx.saved_tensors",
    "        return grad * 2 + 0 * v",
]


@dataclass
class Effect:
    """Something arms do.

    Attributes:
        arm: writes it into an arm.
        both: whether both arms do it.
    """

    arm: Callable[[Scope], Lines]
    both: bool = False


def effect(d: Draft, scope: Scope, *, both: bool | None = None) -> Effect:
    """Choose something for the arms of a site to do; ``scope.pre`` gets what it needs before."""
    kinds = {k: w for k, w in KINDS.items() if d.module or k not in _MODULE_ONLY}
    if both is False:
        kinds = {k: w for k, w in kinds.items() if k not in _BOTH}
    kind = d.draw.weighted(kinds)
    if d.shared and d.draw.chance(35):
        kind = "write_argument"
    d.tag(kind)
    if kind.startswith("write_"):
        return _write(d, scope, kind, both)
    if both is None:
        both = d.draw.chance(35)
    if kind in _BOTH:
        both = True
    if kind == "parameter_one_arm":
        d.tag("parameter")
    if kind.endswith("_one_arm"):
        both = False
    return Effect(_MAKERS.get(kind, _local)(d, kind), both)


def _write(d: Draft, scope: Scope, kind: str, both: bool | None) -> Effect:
    if both is None:
        both = d.draw.chance(75)
    if both:
        d.tag("write_both")
    target = _target(d, scope, kind)
    plain = kind in ("write_local", "write_view")

    def arm(inner: Scope) -> Lines:
        text = d.draw.choice(_WRITES)
        operand = data(d, inner, d.draw.integer(0, 1))
        if not plain:
            operand = d.detached(operand)
        if "{1}[" in text:
            operand = atom(operand)
        if target.endswith("[0]"):
            operand = f"{atom(operand)}[0]"
        if len(d.shape) == 1 and target.endswith("[0]"):  # one number: it has no elements to index
            text = text.replace("{0}[0]", "{0}[...]").replace("{1}[0]", "{1}")
        return [text.format(target, operand)]

    return Effect(arm, both)


def _target(d: Draft, scope: Scope, kind: str) -> str:
    """What is written to; autograd must not need its old value."""
    if kind == "write_argument":
        return d.shared or d.data(d.draw.choice(("state", "cache")), grad=False)
    if kind == "write_buffer":
        return d.buffer(d.draw.choice(("running", "seen")))
    if kind == "write_attribute":
        return d.attribute("memory", d.tensor())
    own = [name for name in scope.own if name in scope.outer]
    if own and d.draw.chance(50):
        name = d.draw.choice(own[::-1])
    else:
        name = d.fresh("z", scope)
        scope.pre.append(f"{name} = {fresh(d, scope)}")
        scope.add(name, own=True)
    if kind == "write_local":
        return name
    view = d.fresh("view", scope)
    how = d.draw.choice(("[0]", ".view_as({0})", "[...]", ".detach()"))
    if how == "[0]":
        return f"{name}[0]"
    scope.pre.append(f"{view} = {name}{how.format(name)}")
    return view


def _state(d: Draft, kind: str) -> Callable[[Scope], Lines]:
    """Attributes, lists and dicts of the host."""

    def arm(inner: Scope) -> Lines:
        tensor = d.detached(data(d, inner))
        if kind == "rebind_attribute":
            name = d.attribute(d.draw.choice(("low", "high")), d.tensor())
            return [f"{name} = {tensor}"]
        if kind == "register_buffer":
            d.buffer("running")
            return [f'self.register_buffer("running", {tensor})']
        if kind == "list_mutation":
            log = d.attribute("log", "[]")
            item = d.draw.choice(("1", repr("arm"), tensor))
            text = d.draw.choice(_LIST_CHANGES if d.draw.chance(40) else _LIST_CHANGES[:1])
            return [text.format(log, item)]
        if kind == "dict_mutation":
            table = d.attribute("table", "{}")
            key = d.draw.choice(("last", "best"))
            value = d.draw.choice(("1", tensor))
            text = d.draw.choice(_DICT_CHANGES if d.draw.chance(40) else _DICT_CHANGES[:1])
            return [text.format(table, key, value)]
        name = d.attribute(d.draw.choice(("steps", "mode")), "0")
        return [f"{name} {d.draw.choice(('+=', '=', '-='))} {d.draw.choice((1, 2))}"]

    return arm


def _local(d: Draft, kind: str) -> Callable[[Scope], Lines]:
    """A value computed in an arm in some way, to be used by what the arm leaves."""

    def arm(inner: Scope) -> Lines:
        operand = d.draw.choice(inner.data)
        name = d.fresh("t", inner)
        if kind in ("parameter", "parameter_one_arm"):
            weight = d.parameter("weight" if kind == "parameter" else "gain")
            lines = [f"{name} = {operand} {d.draw.choice(('*', '+'))} {weight}"]
        elif kind == "leaf_one_arm":
            leaf = d.data(d.draw.choice(("scale", "shift")), grad=d.training)
            lines = [f"{name} = {operand} {d.draw.choice(('*', '+'))} {leaf}"]
        elif kind == "bad_gradient":
            lines = [f"{name} = {d.draw.choice(_BAD).format(atom(operand))}"]
        elif kind == "custom_function":
            d.definitions["Doubled"] = _FUNCTION
            lines = [f"{name} = Doubled.apply({operand})"]
        elif kind == "dropout":
            call = "self.drop({0})" if d.module and d.draw.chance(50) else "F.dropout({0}, 0.5)"
            if call.startswith("self"):
                d.attribute("drop", "nn.Dropout(0.5)")
            lines = [f"{name} = {call.format(operand)}"]
        elif kind == "rand_like":
            call = d.draw.choice(("torch.rand_like({0})", "torch.randn_like({0})"))
            lines = [f"{name} = {operand} + {call.format(operand)}"]
        elif kind == "no_grad":
            lines = ["with torch.no_grad():", *indented([f"{name} = {data(d, inner)}"])]
        else:
            lines = _autocast(d, inner, name, operand)
        inner.data.append(name)
        inner.use.append(name)
        return lines

    return arm


def _autocast(d: Draft, inner: Scope, name: str, operand: str) -> Lines:
    last = d.shape[-1]
    matrix = f"torch.eye({last}{d.dtype_argument}, device={operand}.device)"
    body = [f"{name} = ({operand} @ {matrix}).to({operand}.dtype)"]
    return ['with torch.autocast("cpu", dtype=torch.bfloat16):', *indented(body)]


def _printed(d: Draft, kind: str) -> Callable[[Scope], Lines]:
    def arm(inner: Scope) -> Lines:
        return [shown(d, inner)]

    return arm


def shown(d: Draft, scope: Scope, label: str = "") -> str:
    """A print of a constant, of a tensor, or of numbers taken from one."""
    label = label or d.draw.choice(("arm", "branch"))
    operand = d.draw.choice(scope.data)
    tensor = d.detached(operand)
    choices = (f'"{label}"', f'"{label}", {tensor}', f'f"{label} {{{operand}.sum().item()}}"')
    return f"print({d.draw.choice(choices)})"


_MAKERS: dict[str, Callable[[Draft, str], Callable[[Scope], Lines]]] = {
    "rebind_attribute": _state,
    "register_buffer": _state,
    "list_mutation": _state,
    "dict_mutation": _state,
    "python_attribute": _state,
    "print_arm": _printed,
}
