"""Calls that hand on the very value they got: same numbers, dtype, device, shape and strides."""

from __future__ import annotations

from torch import fx

from fusepass.graph.dataflow.effects import is_random
from fusepass.graph.ops.op_names import tensor_value
from fusepass.graph.terms.term import RESHAPES, Term
from fusepass.torch_private.fx.graphs import known_equal

_PASSTHROUGH_OPS = RESHAPES | frozenset(
    """contiguous clone expand expand_as view_as broadcast_to cast dropout dropout1d dropout2d
    dropout3d alpha_dropout feature_dropout""".split()
)


def passthrough_source(term: Term) -> Term | None:
    """The operand a term is equal to in value and layout, or None."""
    if term.op == "permute":
        inner = dict(term.args)["self"]
        if isinstance(inner, Term) and inner.op == "permute":
            source = dict(inner.args)["self"]
            if isinstance(source, Term) and _compose_permutations(term, inner) == tuple(
                range(len(dict(term.args)["dims"]))
            ):
                return Term(
                    source.op,
                    source.args,
                    source.owner,
                    source.node,
                    (*inner.passed, *((inner.node,) if inner.node else ()), *source.passed),
                    source.blocked,
                )
        return None
    if term.op not in _PASSTHROUGH_OPS or is_random(term.owner):
        return None
    source = term.args[0][1] if term.args else None
    if not isinstance(source, Term) or source.node is None:
        return None
    seen: Term = source
    if term.op in RESHAPES:  # a reshape of a reshape that ends where it began
        while seen.op in RESHAPES and not _same_layout(term.node, seen.node):
            inner = seen.args[0][1] if seen.args else None
            if not isinstance(inner, Term) or inner.node is None:
                return None
            passed = (*seen.passed, seen.node, *inner.passed)
            seen = Term(
                inner.op,
                inner.args,
                inner.owner,
                inner.node,
                tuple(n for n in passed if n is not None),
                inner.blocked,
            )
    return seen if _same_layout(term.node, seen.node) else None


def _compose_permutations(outer: Term, inner: Term) -> tuple[int, ...]:
    first, second = dict(inner.args)["dims"], dict(outer.args)["dims"]
    return tuple(first[d] for d in second)


def _same_layout(a: fx.Node | None, b: fx.Node | None) -> bool:
    x, y = tensor_value(a), tensor_value(b)
    if x is None or y is None or x.dtype != y.dtype or x.device != y.device or x.dim() != y.dim():
        return False
    sizes = zip((*x.shape, *x.stride()), (*y.shape, *y.stride()), strict=True)
    return all(known_equal(p, q) for p, q in sizes)
