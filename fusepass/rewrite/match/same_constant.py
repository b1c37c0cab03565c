"""Whether a non-tensor argument equals the pattern's, and which arguments of a call differ."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from fusepass.graph.ops.op_names import tensor_value
from fusepass.graph.ops.schemas import SymbolicSize
from fusepass.graph.terms.term import Term, operands
from fusepass.rewrite.match.pattern import Operation, Scalar, Size, Variable
from fusepass.torch_private.fx.graphs import known_equal

DIMENSIONS = frozenset("dim dims dim0 dim1 dim2".split())
_COUNTS_IN_RESULT = frozenset(
    """unsqueeze stack diag_embed select_backward diagonal_backward
    unfold_backward value_selecting_reduction_backward""".split()
)
_COUNTS_APART = frozenset(  # of either operand its own, or of the first one, not of the largest
    "tensordot trapezoid trapz cumulative_trapezoid".split()
)
_OF_ONE_DTYPE = frozenset(  # the result has the first operand's dtype, whatever the number is
    "masked_fill index_fill fill scatter full_like constant_pad_nd pad".split()
)


def number(value: Any) -> Any:
    """A number an argument stands for, when it is a node or a recorded size."""
    if isinstance(value, fx.Node):
        return value.meta.get("example_value", value.meta.get("val", value))
    return value.size if isinstance(value, SymbolicSize) else value


def same_constant(wanted: Any, found: Any) -> bool:
    """Whether an argument is the constant the pattern has; sizes are compared later."""
    if isinstance(wanted, Size):
        sized = number(found)
        return isinstance(sized, (int, float, torch.SymInt, torch.SymFloat)) and not isinstance(
            sized, bool
        )
    if isinstance(wanted, tuple) and isinstance(found, tuple):
        return len(wanted) == len(found) and all(
            same_constant(a, b) for a, b in zip(wanted, found, strict=True)
        )
    wanted, found = number(wanted), number(found)
    if isinstance(wanted, (int, float)) and isinstance(found, (int, float)):
        if isinstance(wanted, bool) != isinstance(found, bool):
            return False
        same = wanted == found or (wanted != wanted and found != found)
        return same and math.copysign(1, wanted) == math.copysign(1, found)
    if isinstance(wanted, (int, torch.SymInt)) and isinstance(found, (int, torch.SymInt)):
        return known_equal(wanted, found)
    return type(wanted) is type(found) and bool(wanted == found)


def same_size(wanted: Any, found: Any) -> bool:
    """Whether a number is the one that sizes come to, and of the same kind."""
    fractions = (float, torch.SymFloat)
    if isinstance(wanted, fractions) != isinstance(found, fractions):
        return False
    return known_equal(wanted, found)


def same_argument(wanted: Any, found: Any, of: Term) -> bool:
    """Whether an argument of a call is the constant the pattern has there.

    Beside integers and truth values alone the kind of a number, integer or not, decides the dtype
    of the result, or the one that is computed in: there it must be the pattern's, too. A quotient
    is floating either way, and what is filled keeps its dtype: there only the value counts.
    """
    if not same_constant(wanted, found):
        return False
    mine, theirs = number(wanted), number(found)
    if not isinstance(mine, (int, float)) or not isinstance(theirs, (int, float)):
        return True
    return type(mine) is type(theirs) or not _number_decides(of)


def _number_decides(call: Term) -> bool:
    """Whether a number among the arguments of a call decides the dtype that it computes in."""
    given = dict(call.args)
    if given.get("dtype") is not None or call.op in _OF_ONE_DTYPE:
        return False
    if call.op in ("div", "rdiv") and given.get("rounding_mode") is None:
        return False
    values = [tensor_value(operand.node) for operand in operands(call)]
    return not any(v is not None and (v.is_floating_point() or v.is_complex()) for v in values)


def is_dims(name: str, wanted: Any) -> bool:
    """Whether an argument names dimensions, none of them by a scalar of the rule."""
    parts = wanted if isinstance(wanted, tuple) else (wanted,)
    return name in DIMENSIONS and all(isinstance(p, int) for p in parts)


def same_dims(mine: Any, theirs: Any, found: Term) -> bool:
    """Equal as the pattern wrote them: from the front, or (negative) from the end."""
    if isinstance(mine, tuple) or isinstance(theirs, tuple):
        both = isinstance(mine, tuple) and isinstance(theirs, tuple) and len(mine) == len(theirs)
        return both and all(same_dims(a, b, found) for a, b in zip(mine, theirs, strict=True))
    rank = _rank_of_dims(found)
    if not isinstance(mine, int) or not isinstance(theirs, int) or rank is None:
        return bool(mine == theirs)
    if not -rank <= theirs < rank:  # a number of times, as in tile
        return mine == theirs
    return mine == (theirs % rank) - (rank if mine < 0 else 0)


def _rank_of_dims(found: Term) -> int | None:
    """How many dimensions those that a call names are counted among; None if that is not known.

    They are the operands', of operands that are broadcast the largest one's, and the result's
    where the call makes a dimension. What another library calls ``dim`` may be anything.
    """
    if found.op in _COUNTS_APART or "::" in found.op:
        return None
    if found.op in _COUNTS_IN_RESULT:
        made = tensor_value(found.node)
        return None if made is None else max(made.dim(), 1)
    values = [tensor_value(operand.node) for operand in operands(found)]
    if not values or any(value is None for value in values):
        return None
    return max(1, *(value.dim() for value in values if value is not None))


def display(value: Any) -> str:
    """For the report."""
    if isinstance(value, Scalar):
        return value.name
    return str(number(value))


_ABSENT = object()


def differing_arguments(wanted: Operation, found: Term) -> str:
    """Arguments that are no tensors and differ; else those that are tensors on one side only."""
    mine, theirs = dict(wanted.args), dict(found.args)
    said = []
    for name in sorted({*mine, *theirs}):
        want, have = mine.get(name, _ABSENT), theirs.get(name, _ABSENT)
        if _holds_tensors(want) or _holds_tensors(have):
            several = isinstance(want, tuple) and isinstance(have, tuple)
            if several and len(want) != len(have):
                said.append(f"{name}: {len(have)} (rule: {len(want)})")
        elif not _same(name, want, have, found):
            said.append(f"{name}={_display_argument(have)} (rule: {_display_argument(want)})")
    kinds = [
        name for name in mine if _holds_tensors(mine[name]) != _holds_tensors(theirs.get(name))
    ]
    return ", ".join(said) or f"{', '.join(kinds)} is of another kind"


def _same(name: str, want: Any, have: Any, found: Term) -> bool:
    if want is _ABSENT or have is _ABSENT:
        return False
    if is_dims(name, want):
        return same_dims(want, have, found)
    return same_argument(want, have, found)


def _holds_tensors(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(map(_holds_tensors, value))
    return isinstance(value, (Operation, Variable, Term))


def _display_argument(value: Any) -> str:
    return "absent" if value is _ABSENT else display(value)
