"""One spelling for calls that compute the same under several names or with other arguments.

``var(unbiased=False)`` is ``var(correction=0)``, ``norm`` is ``linalg.vector_norm``,
``x.sum((2, 1))`` is ``x.sum((1, 2))``. Only what is the same to the last bit, gradients included:
``amax`` is not ``max``, whose gradient goes to one place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Arguments = dict[str, Any]
Spelled = tuple[str, Arguments]

_NORM = "linalg_vector_norm"
_VARIANCES = "var std var_mean std_mean".split()
# Over which dimensions these go, not in which order.
_REDUCTIONS = frozenset(
    f"""sum mean amax amin nansum nanmean logsumexp all any count_nonzero aminmax {_NORM}
    var std var_mean std_mean""".split()
)
_NUMPY = {"axis": "dim", "keepdims": "keepdim"}
ALSO = {  # names of calls, by the operation that they may be respelled as
    _NORM: {"norm", "linalg_norm"},
    "softmax": {"_softmax"},
    "log_softmax": {"_log_softmax"},
    "getitem": {"select", "narrow"},
    "reshape": {"view", "_unsafe_view", "ravel", "flatten"},
}


def respelled(
    op: str, args: tuple[tuple[str, Any], ...]
) -> tuple[str, tuple[tuple[str, Any], ...]]:
    """A call as the one of its spellings that patterns and programs are compared in."""
    given = dict(args)
    spell = _SPELLINGS.get(op)
    if spell is not None:
        op, given = spell(op, given)
    if op in _REDUCTIONS:
        given = _over(given)
    return op, tuple(given.items())


def _over(given: Arguments) -> Arguments:
    """Dimensions as a sorted tuple; none given where the reduction is over all."""
    given = {_NUMPY.get(name, name): value for name, value in given.items()}
    dim = given.get("dim")
    if isinstance(dim, int) and not isinstance(dim, bool):
        given["dim"] = (dim,)
    elif dim is None or dim == ():
        given.pop("dim", None)
    elif isinstance(dim, tuple) and all(isinstance(d, int) for d in dim):
        one_side = all(d < 0 for d in dim) or all(d >= 0 for d in dim)
        given["dim"] = tuple(sorted(dim)) if one_side else dim
    if given.get("keepdim") is False:
        del given["keepdim"]
    return dict(sorted(given.items(), key=lambda pair: (pair[0] != "self", pair[0])))


def _variance(op: str, given: Arguments) -> Spelled:
    """The divisor as ``correction``, left out where it is 1."""
    unbiased, correction = given.pop("unbiased", None), given.pop("correction", None)
    if isinstance(unbiased, bool):
        correction = int(unbiased)
    elif unbiased is not None:
        given["unbiased"] = unbiased
    if isinstance(correction, float) and correction.is_integer():
        correction = int(correction)
    if correction is not None and not _is(correction, 1):
        given["correction"] = correction
    return op, given


def _norm(op: str, given: Arguments) -> Spelled:
    """A norm of vectors, of whichever order."""
    plain = {("self" if name in ("0", "A", "x") else name): v for name, v in given.items()}
    if not plain.keys() <= {"self", "p", "ord", "dim", "keepdim"} or "self" not in plain:
        return op, given
    order, dim = plain.pop("p", plain.pop("ord", None)), plain.get("dim")
    one = isinstance(dim, int) or (isinstance(dim, tuple) and len(dim) == 1)
    if op == "linalg_norm" and order is not None and not one:
        return op, given  # of a matrix
    if order in (None, "fro") and op != _NORM:
        order = 2
    if isinstance(order, (str, bool)):
        return op, given
    if order is not None and not _is(order, 2):
        plain["ord"] = float(order) if isinstance(order, int) else order
    return _NORM, plain


def _is(value: Any, number: int) -> bool:
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return plain and value == number


def _softmax(op: str, given: Arguments) -> Spelled:
    """ATen's own call has a switch in the place of the dtype: whether half gives float."""
    dtype = given.get("dtype", given.get("half_to_float"))
    if dtype is False or dtype is None:
        given = {k: v for k, v in given.items() if k not in ("dtype", "half_to_float")}
    return op.lstrip("_"), given


def _reshape(op: str, given: Arguments) -> Spelled:
    """A view is a reshape that copies nothing."""
    source = given.get("self")
    if op == "ravel" or (op == "flatten" and given.keys() == {"self"}):
        return "reshape", {"self": source, "shape": (-1,)}
    shape = given.get("shape", given.get("size"))
    if op == "flatten" or shape is None or given.keys() - {"self", "shape", "size"}:
        return op, given
    return "reshape", {"self": source, "shape": shape}


def _part(op: str, given: Arguments) -> Spelled:
    """``select`` and ``narrow`` as an index."""
    dim, whole = given.get("dim", 0), ("slice", None, None, None)
    if type(dim) is not int or dim < 0:
        return op, given
    if op == "select":
        part = given.get("index")
    else:
        start, length = given.get("start"), given.get("length")
        if type(start) is not int or type(length) is not int or start < 0:
            return op, given
        part = ("slice", start or None, start + length, None)
    if type(part) is int or isinstance(part, tuple):
        return "getitem", {"0": given["self"], "1": (*[whole] * dim, part) if dim else part}
    return op, given


def _index(op: str, given: Arguments) -> Spelled:
    """An index without what it need not say."""
    if given.keys() != {"0", "1"}:
        return op, given
    index = given["1"]
    parts = list(index) if isinstance(index, tuple) and index[:1] != ("slice",) else [index]
    parts = [_slice(part) if isinstance(part, tuple) else part for part in parts]
    while parts and (parts[-1] is Ellipsis or parts[-1] == ("slice", None, None, None)):
        parts.pop()
    return op, {"0": given["0"], "1": parts[0] if len(parts) == 1 else tuple(parts)}


def _slice(part: tuple[Any, ...]) -> tuple[Any, ...]:
    if part[:1] != ("slice",):
        return part
    _, start, stop, step = part
    return ("slice", None if start == 0 else start, stop, None if step == 1 else step)


def _squeeze(op: str, given: Arguments) -> Spelled:
    dim = given.get("dim")
    if isinstance(dim, tuple) and len(dim) == 1:
        given["dim"] = dim[0]
    return op, given


_SPELLINGS: dict[str, Callable[[str, Arguments], Spelled]] = {
    **dict.fromkeys(_VARIANCES, _variance),
    **dict.fromkeys(["norm", "linalg_norm", _NORM], _norm),
    **dict.fromkeys(["softmax", "log_softmax"], _softmax),
    **dict.fromkeys(
        ["reshape", "view", "_unsafe_view", "unsafe_view", "ravel", "flatten"], _reshape
    ),
    **dict.fromkeys(["select", "narrow"], _part),
    "getitem": _index,
    "squeeze": _squeeze,
}
