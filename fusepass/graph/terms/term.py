"""One value of a graph and what it is computed from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import fx

from fusepass.graph.ops.normal_call import call_names
from fusepass.graph.ops.op_names import REFLECTED_METHODS, op_name, tensor_value
from fusepass.graph.ops.spellings import ALSO, canonical_spelling
from fusepass.torch_private.fx.graphs import operator_name

INPUT = "input"
COMMUTATIVE = frozenset(
    """add mul maximum minimum eq ne logical_and logical_or logical_xor bitwise_and bitwise_or
    bitwise_xor""".split()
)
RESHAPES = frozenset("view reshape flatten unflatten _unsafe_view squeeze unsqueeze".split())


@dataclass(eq=False, slots=True)
class Term:
    """One value.

    Attributes:
        op: canonical operation, or :data:`INPUT` for a value taken as it is.
        args: arguments as ``(name, value)``; values are terms, nodes that are no tensors, numbers
            or tuples of these.
        owner: the call that computes the value.
        node: the node that holds the value; None for a value inside a composite call.
        passed: calls between this value and the one who asked for it that only hand it on.
        blocked: for a value that cannot be looked into, why.
    """

    op: str
    args: tuple[tuple[str, Any], ...]
    owner: fx.Node
    node: fx.Node | None
    passed: tuple[fx.Node, ...] = ()
    blocked: str = ""

    @property
    def key(self) -> tuple[fx.Node, fx.Node | None, str]:
        """Equal for equal values."""
        return self.owner, self.node, self.op


def operands(term: Term) -> Iterator[Term]:
    """The terms a term reads directly."""

    def inside(value: Any) -> Iterator[Term]:
        if isinstance(value, Term):
            yield value
        elif isinstance(value, tuple):
            for part in value:
                yield from inside(part)

    for _, value in term.args:
        yield from inside(value)


# --- Calls written in few operations, so that the same computation is the same terms --------------
# A linear layer is a matrix product with the transposed weight, plus the bias; ``addmm`` is the
# same sum; ``silu(x)`` is ``x * sigmoid(x)``; ``x ** 2`` is ``x * x``; every transposition is
# ``permute``; every change of dtype is ``cast``.

CASTS = frozenset(
    "to _to_copy type convert_element_type float half bfloat16 double type_as".split()
)
_PRODUCTS = frozenset("mm bmm matmul".split())


def normal_form(node: fx.Node, op: str, args: tuple[tuple[str, Any], ...]) -> Term:
    """A call written in the few operations that terms are made of."""
    op, args = canonical_spelling(op, args)
    given = dict(args)
    x = given.get("self")

    def inner(name: str, *values: tuple[str, Any]) -> Term:
        return Term(name, values, node, None)

    def outer(name: str, *values: tuple[str, Any]) -> Term:
        return Term(name, values, node, node)

    if op == "linear":
        turned = inner("permute", ("self", given["weight"]), ("dims", (1, 0)))
        weight = tensor_value(_node_of(given["weight"]))
        if weight is None or weight.dim() != 2:
            return outer(op, *args)
        if given.get("bias") is None:
            return outer("matmul", ("self", x), ("other", turned))
        product = inner("matmul", ("self", x), ("other", turned))
        return outer("add", ("self", product), ("other", given["bias"]))
    if op in ("addmm", "baddbmm"):
        names = ("mat1", "mat2") if op == "addmm" else ("batch1", "batch2")
        if not given.keys() <= {"self", *names}:
            return outer(op, *args)  # beta or alpha other than 1
        product = inner("matmul", ("self", given[names[0]]), ("other", given[names[1]]))
        return outer("add", ("self", product), ("other", x))
    if op in _PRODUCTS:
        other = given.get("mat2", given.get("other"))
        return outer("matmul", ("self", x), ("other", other))
    dims = _permutation(node, op, given)
    if dims is not None:
        return outer("permute", ("self", x), ("dims", dims))
    if op == "silu":
        return outer("mul", ("self", x), ("other", inner("sigmoid", ("self", x))))
    squares = op == "square" or (op == "pow" and _equals_two(given.get("exponent")))
    if squares and _keeps_dtype(node, x):
        return outer("mul", ("self", x), ("other", x))
    if op in CASTS:
        value = tensor_value(node)
        source = tensor_value(_node_of(x)) if x is not None else tensor_value(_first(node))
        if value is not None and source is not None and value.device == source.device:
            first = x if x is not None else args[0][1]
            return outer("cast", ("self", first), ("dtype", value.dtype))
    return outer(op, *args)


def _equals_two(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == 2


def _keeps_dtype(node: fx.Node, x: Any) -> bool:
    """Not so for an integer to a power of 2.0, and for the square of a truth value."""
    result, source = tensor_value(node), tensor_value(_node_of(x))
    return result is not None and source is not None and result.dtype == source.dtype


def _node_of(value: Any) -> fx.Node | None:
    return value.node if isinstance(value, Term) else None


def _first(node: fx.Node) -> fx.Node | None:
    first = node.args[0] if node.args else None
    return first if isinstance(first, fx.Node) else None


def _permutation(node: fx.Node, op: str, args: dict[str, Any]) -> tuple[int, ...] | None:
    value = tensor_value(node)
    rank = 0 if value is None else value.dim()
    order = list(range(rank))
    if op == "permute" and isinstance(args.get("dims"), tuple):
        if all(isinstance(d, int) for d in args["dims"]):
            return tuple(d % rank for d in args["dims"])
        return None
    if op in ("t", "T", "numpy_T") and rank <= 2:  # the last is x.T under torch 2.15
        return tuple(reversed(order))
    if op == "mT" and rank >= 2:
        pair: tuple[Any, Any] = (-2, -1)
    elif op == "transpose":
        pair = (args.get("dim0", args.get("axis0")), args.get("dim1", args.get("axis1")))
    else:
        return None
    if rank == 0 or not all(isinstance(d, int) for d in pair):
        return None
    a, b = (d % rank for d in pair)
    order[a], order[b] = order[b], order[a]
    return tuple(order)


def root_names(op: str) -> frozenset[str]:
    """Canonical names of calls whose term can have the operation ``op``."""
    aliases = {
        "add": {"linear", "addmm", "baddbmm"},
        "matmul": {"linear", "mm", "bmm"},
        "permute": {"t", "T", "numpy_T", "mT", "transpose"},
        "mul": {"silu", "square", "pow"},
        "cast": set(CASTS),
    }
    return call_names(op) | frozenset(aliases.get(op, ())) | frozenset(ALSO.get(op, ()))


def plain_name(node: fx.Node) -> str | None:
    """Name of a call without the sign of an in-place spelling, as :func:`root_names` lists it."""
    if node.op == "call_function" and node.target is getattr:
        return str(node.args[1])
    registered = operator_name(node.target) if node.op == "call_function" else None
    if registered is not None and registered[0] not in ("aten", "prims"):
        return "::".join(registered)
    name = op_name(node)
    if name is None or name.startswith("__"):
        return REFLECTED_METHODS.get(str(name), name)
    return name.rstrip("_")
