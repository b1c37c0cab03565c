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


def canonical_spelling(
    op: str, args: tuple[tuple[str, Any], ...]
) -> tuple[str, tuple[tuple[str, Any], ...]]:
    """A call as the one of its spellings that patterns and programs are compared in."""
    given = dict(args)
    spell = _SPELLINGS.get(op)
    if spell is not None:
        op, given = spell(op, given)
    if op in _REDUCTIONS:
        given = _sorted_dims(given)
    return op, tuple(given.items())


def _sorted_dims(args: Arguments) -> Arguments:
    """Dimensions as a sorted tuple; none given where the reduction is over all."""
    args = {_NUMPY.get(name, name): value for name, value in args.items()}
    dim = args.get("dim")
    if isinstance(dim, int) and not isinstance(dim, bool):
        args["dim"] = (dim,)
    elif dim is None or dim == ():
        args.pop("dim", None)
    elif isinstance(dim, tuple) and all(isinstance(d, int) for d in dim):
        one_side = all(d < 0 for d in dim) or all(d >= 0 for d in dim)
        args["dim"] = tuple(sorted(dim)) if one_side else dim
    if args.get("keepdim") is False:
        del args["keepdim"]
    return dict(sorted(args.items(), key=lambda pair: (pair[0] != "self", pair[0])))


def _variance(op: str, args: Arguments) -> Spelled:
    """The divisor as ``correction``, left out where it is 1."""
    unbiased, correction = args.pop("unbiased", None), args.pop("correction", None)
    if isinstance(unbiased, bool):
        correction = int(unbiased)
    elif unbiased is not None:
        args["unbiased"] = unbiased
    if isinstance(correction, float) and correction.is_integer():
        correction = int(correction)
    if correction is not None and not _is_number(correction, 1):
        args["correction"] = correction
    return op, args


def _norm(op: str, args: Arguments) -> Spelled:
    """A norm of vectors, of whichever order."""
    plain = {("self" if name in ("0", "A", "x") else name): v for name, v in args.items()}
    if not plain.keys() <= {"self", "p", "ord", "dim", "keepdim"} or "self" not in plain:
        return op, args
    order, dim = plain.pop("p", plain.pop("ord", None)), plain.get("dim")
    one = isinstance(dim, int) or (isinstance(dim, tuple) and len(dim) == 1)
    if op == "linalg_norm" and order is not None and not one:
        return op, args  # of a matrix
    if order in (None, "fro") and op != _NORM:
        order = 2
    if isinstance(order, (str, bool)):
        return op, args
    if order is not None and not _is_number(order, 2):
        plain["ord"] = float(order) if isinstance(order, int) else order
    return _NORM, plain


def _is_number(value: Any, number: int) -> bool:
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return plain and value == number


def _softmax(op: str, args: Arguments) -> Spelled:
    """ATen's own call has a switch in the place of the dtype: whether half gives float."""
    dtype = args.get("dtype", args.get("half_to_float"))
    if dtype is False or dtype is None:
        args = {k: v for k, v in args.items() if k not in ("dtype", "half_to_float")}
    return op.lstrip("_"), args


def _reshape(op: str, args: Arguments) -> Spelled:
    """A view is a reshape that copies nothing."""
    source = args.get("self")
    if op == "ravel" or (op == "flatten" and args.keys() == {"self"}):
        return "reshape", {"self": source, "shape": (-1,)}
    shape = args.get("shape", args.get("size"))
    if op == "flatten" or shape is None or args.keys() - {"self", "shape", "size"}:
        return op, args
    return "reshape", {"self": source, "shape": shape}


def _select_or_narrow(op: str, args: Arguments) -> Spelled:
    """``select`` and ``narrow`` as an index."""
    dim, whole = args.get("dim", 0), ("slice", None, None, None)
    if type(dim) is not int or dim < 0:
        return op, args
    if op == "select":
        part = args.get("index")
    else:
        start, length = args.get("start"), args.get("length")
        if type(start) is not int or type(length) is not int or start < 0:
            return op, args
        part = ("slice", start or None, start + length, None)
    if type(part) is int or isinstance(part, tuple):
        return "getitem", {"0": args["self"], "1": (*[whole] * dim, part) if dim else part}
    return op, args


def _index(op: str, args: Arguments) -> Spelled:
    """An index without what it need not say."""
    if args.keys() != {"0", "1"}:
        return op, args
    index = args["1"]
    parts = list(index) if isinstance(index, tuple) and index[:1] != ("slice",) else [index]
    parts = [_slice(part) if isinstance(part, tuple) else part for part in parts]
    while parts and (parts[-1] is Ellipsis or parts[-1] == ("slice", None, None, None)):
        parts.pop()
    return op, {"0": args["0"], "1": parts[0] if len(parts) == 1 else tuple(parts)}


def _slice(part: tuple[Any, ...]) -> tuple[Any, ...]:
    if part[:1] != ("slice",):
        return part
    _, start, stop, step = part
    return ("slice", None if start == 0 else start, stop, None if step == 1 else step)


def _squeeze(op: str, args: Arguments) -> Spelled:
    dim = args.get("dim")
    if isinstance(dim, tuple) and len(dim) == 1:
        args["dim"] = dim[0]
    return op, args


_SPELLINGS: dict[str, Callable[[str, Arguments], Spelled]] = {
    **dict.fromkeys(_VARIANCES, _variance),
    **dict.fromkeys(["norm", "linalg_norm", _NORM], _norm),
    **dict.fromkeys(["softmax", "log_softmax"], _softmax),
    **dict.fromkeys(
        ["reshape", "view", "_unsafe_view", "unsafe_view", "ravel", "flatten"], _reshape
    ),
    **dict.fromkeys(["select", "narrow"], _select_or_narrow),
    "getitem": _index,
    "squeeze": _squeeze,
}
