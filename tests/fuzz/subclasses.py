"""Tensor subclasses: a wrapper of two tensors, one that intercepts functions, a nested tensor."""

from __future__ import annotations

from tests.fuzz.draft import Argument, Draft, Lines, Scope, indented
from tests.fuzz.predicates import predicate
from tests.fuzz.values import data

DRAWN = 6  # percent of the programs
_KINDS = {"wrapper": 4, "function": 3, "nested": 3}
_TWO = """
class Two(torch.Tensor):
    @staticmethod
    def __new__(cls, a, b):
        return torch.Tensor._make_wrapper_subclass(
            cls, a.size(), strides=a.stride(), dtype=a.dtype, device=a.device,
            storage_offset=a.storage_offset(), requires_grad=a.requires_grad,
        )

    def __init__(self, a, b):
        self.a, self.b = a, b

    def __repr__(self):
        return f"Two({self.a}, {self.b})"

    def __tensor_flatten__(self):
        return ["a", "b"], None

    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):
        return Two(inner["a"], inner["b"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        def of(name):
            return _pytree.tree_map_only(Two, lambda v: getattr(v, name), (args, kwargs or {}))

        (one, named), (other, also) = of("a"), of("b")
        flat, spec = _pytree.tree_flatten(func(*one, **named))
        rest = _pytree.tree_leaves(func(*other, **also))
        both = [
            Two(v, w) if isinstance(v, torch.Tensor) else v for v, w in zip(flat, rest)
        ]
        made = _pytree.tree_unflatten(both, spec)
        return return_and_correct_aliasing(func, args, kwargs or {}, made)
"""
_TAGGED = """
class Tagged(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})
"""
_IMPORTS = (
    "from torch.utils import _pytree",
    "from torch.utils._python_dispatch import return_and_correct_aliasing",
)
_NESTED = (
    "{0} * 2",
    "{0} + 1",
    "{0}.sin()",
    "-{0}",
    "{0}.relu()",
)


def subclass(d: Draft, scope: Scope) -> None:
    """In some programs, an argument that is a subclass of ``torch.Tensor``."""
    if not d.draw.chance(DRAWN):
        return
    d.subclass = d.draw.weighted(_KINDS)
    if d.subclass == "nested":
        rows = d.shape[-1]
        literals = tuple(_rows(d, rows, number) for number in (1, 2, 1, 3, 2))
        d.arguments["rows"] = Argument(literals)
        return
    plain = d.arguments[d.data("special", grad=False)]
    if d.subclass == "wrapper":
        d.definitions["Two"] = _TWO.strip().splitlines()
        d.imports.update(_IMPORTS)
        literals = tuple(f"Two({text}, 2 * {text})" for text in plain.literals)
    else:
        d.definitions["Tagged"] = _TAGGED.strip().splitlines()
        literals = tuple(f"{text}.as_subclass(Tagged)" for text in plain.literals)
    d.arguments["special"] = Argument(literals)
    scope.add("special", result=False)


def _rows(d: Draft, width: int, number: int) -> str:
    first = ", ".join(str(0.5 * (i - 1)) for i in range(width))
    parts = [f"torch.tensor([[{first}]] * {n}{d.dtype_argument})" for n in (number, 2)]
    return f"torch.nested.nested_tensor([{', '.join(parts)}], layout=torch.jagged)"


def nested_statement(d: Draft, scope: Scope) -> Lines:
    """A branch that has to do with the nested tensor."""
    here = scope.around()
    name, made = d.fresh("y"), d.fresh("rag", scope)
    kind = d.draw.weighted({"joined": 4, "tested": 3, "summed": 3})
    step, other = (d.draw.choice(_NESTED).format("rows") for _ in range(2))
    otherwise = d.draw.chance(50)
    with d.site("if_else" if otherwise else "else_less") as mark:
        if kind == "tested":
            test = d.draw.choice(("rows.values().sum() > 0", "(rows > 0).values().any()"))
            arms = [f"{name} = {data(d, here)}" for _ in range(2)]
            before = f"{name} = {data(d, here)}"
        else:
            test = predicate(d, here)
            value = "{0}" if kind == "joined" else "({0}).values().sum()"
            arms = [f"{made} = {value.format(text)}" for text in (step, other)]
            before = f"{made} = {value.format('rows')}"
        lines = [*here.pre, *([] if otherwise else [before]), f"if {test}:{mark}"]
        lines += indented(arms[:1])
        if otherwise:
            lines += ["else:", *indented(arms[1:])]
    if kind != "tested":
        value = f"{made}.values().sum()" if kind == "joined" else made
        lines.append(f"{name} = {d.draw.choice(scope.data)} + {value}")
        scope.results.append(made)
    scope.add(name)
    return lines
