"""Which operations are *total*: once shapes were accepted, no value can make them fail.

Only total operations may run in the arm that was not taken. Shapes and devices are known when the
graph is traced, so an operation that can only fail on those is total here; whether it takes its
dtypes is tried (dtype_trial.py). Anything not listed is partial. Notable exclusions and their
reasons are in :data:`EXCLUDED`. Where it depends on arguments, functions here and in
index_ranges.py decide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx

from fusepass.graph.dataflow.effects import is_state_change, written_nodes
from fusepass.graph.dataflow.memory import is_nonempty
from fusepass.graph.dataflow.reached import reached
from fusepass.graph.ops.op_names import argument, op_name, tensor_value
from fusepass.graph.safety.dtype_trial import dtype_reason
from fusepass.graph.safety.index_ranges import INDEX_CHECKS, indices_in_range
from fusepass.graph.safety.tensor_kinds import begins_transform, user_subclass_reason
from fusepass.torch_private.dynamo.errors.wording import operation
from fusepass.torch_private.fx.graphs import fits_int64, known_equal

# --- Operations that are total for some of their arguments: norms, quantiles, k-th values ---------

_MOST = 16_000_000  # elements ``quantile`` takes


def _vector_norm(node: fx.Node) -> str | None:
    """No elements have no largest or smallest; any other norm of them is zero."""
    order = argument(node, 1, "p" if op_name(node) == "norm" else "ord", 2)
    return _norm_order_reason(node, 2 if order in (None, "fro") else order)


def _norm_order_reason(node: fx.Node, order: Any) -> str | None:
    if isinstance(order, str) or not isinstance(order, (int, float)):
        return f"{op_name(node)} of order {order} may fail to converge"
    if 0 <= order < math.inf or is_nonempty(argument(node, 0, "input")):
        return None
    return f"{op_name(node)} of order {order} of a tensor that may be empty raises"


def _linalg_norm(node: fx.Node) -> str | None:
    """Some norms of a matrix are computed from its singular values."""
    value = tensor_value(argument(node, 0, "input"))
    order, dim = argument(node, 1, "ord"), argument(node, 2, "dim")
    if order in (None, "fro"):
        return None
    vector = isinstance(dim, int) or (isinstance(dim, (tuple, list)) and len(dim) == 1)
    if vector or (dim is None and value is not None and value.dim() == 1):
        return _norm_order_reason(node, order)
    return f"{op_name(node)} of order {order} of a matrix may fail to converge"


def _quantile(node: fx.Node) -> str | None:
    source, q = argument(node, 0, "input"), argument(node, 1, "q")
    value = tensor_value(source)
    if not isinstance(q, (int, float)) or not 0 <= q <= 1:
        return f"{op_name(node)} at positions that may be outside [0, 1] raises"
    small = value is not None and known_equal(value.numel() <= _MOST, True)
    if not small or not is_nonempty(source):
        return f"{op_name(node)} of a tensor that may be empty or too large raises"
    return None


def _kthvalue(node: fx.Node) -> str | None:
    value = tensor_value(argument(node, 0, "input"))
    k, dim = argument(node, 1, "k"), argument(node, 2, "dim", -1)
    if value is not None and type(k) is int and type(dim) is int:
        size = value.shape[dim] if value.dim() else 1
        if k >= 1 and known_equal(size >= k, True):
            return None
    return "kthvalue: a number outside the dimension raises"


ARGUMENT_CHECKS: dict[str, Callable[[fx.Node], str | None]] = {
    "kthvalue": _kthvalue,
    "linalg_norm": _linalg_norm,
    **dict.fromkeys(("linalg_vector_norm", "norm", "vector_norm"), _vector_norm),
    **dict.fromkeys(("nanquantile", "quantile"), _quantile),
}


POINTWISE = frozenset(
    """
__and__ __invert__ __or__ __radd__ __rmul__ __rpow__ __rsub__ __rtruediv__ __xor__ abs acos acosh
add addcdiv addcmul angle asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_not
bitwise_or bitwise_right_shift bitwise_xor ceil celu clamp clamp_max clamp_min complex conj
conj_physical copy copysign cos cosh deg2rad digamma elu eq erf erfc erfinv exp exp2 expm1 fill
float_power floor fmax fmin frac ge gelu glu gt hardshrink hardsigmoid hardswish hardtanh
heaviside hypot i0 imag isclose isfinite isinf isnan isneginf isposinf isreal le leaky_relu lerp
lgamma log log10 log1p log2 log_sigmoid logaddexp logaddexp2 logical_and logical_not logical_or
logical_xor logit logsigmoid lt masked_fill maximum minimum mish mul nan_to_num ne neg nextafter
polar pos positive pow prelu rad2deg real reciprocal relu relu6 resolve_conj resolve_neg round
rsqrt rsub selu sgn sigmoid sign signbit silu sin sinc sinh softplus softshrink softsign
sqrt square sub tan tanh tanhshrink threshold trunc view_as_complex
view_as_real where xlogy zero fma
""".split()
)
_SHAPE = """
H T _get_data_attr _log_api_usage_once alias
as_strided broadcast_tensors broadcast_to cat chunk clone contiguous detach diag
diag_embed diagonal dim dstack expand expand_as flatten flip fliplr flipud getattr hstack
is_floating_point mT movedim narrow ndimension numel pad permute repeat reshape reshape_as roll
rot90 select size split split_with_sizes squeeze stack stride t tensor_split tile transpose
tril triu unbind unflatten unsqueeze view view_as view_dtype vstack
""".split()
_CAST = (
    "to type type_as float half bfloat16 double int long short char byte bool requires_grad".split()
)
_REDUCE = """
all amax amin aminmax any argmax argmin argsort cdist count_nonzero cummax cummin cumprod cumsum
dist linalg_vector_norm logcumsumexp logsumexp max mean median min nanmean nansum norm pdist prod
sort std std_mean sum topk var var_mean vector_norm
""".split()
_NORMALISE = """
_weight_norm batch_norm cosine_similarity group_norm huber_loss instance_norm kl_div l1_loss
layer_norm log_softmax mse_loss normalize rms_norm smooth_l1_loss softmax softmin
""".split()
_MATMUL = """
adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d addbmm addmm addmv addr avg_pool1d
avg_pool2d avg_pool3d baddbmm bilinear bmm chain_matmul conv1d conv2d conv3d conv_transpose1d
conv_transpose2d conv_transpose3d cross dot dropout einsum ger inner interpolate kron linalg_cross
linear matmul max_pool1d max_pool2d max_pool3d mm mv outer scaled_dot_product_attention tensordot
vdot
""".split()
_IMAGE = "affine_grid grid_sample grid_sampler pixel_shuffle pixel_unshuffle".split()
_FACTORY = """
arange as_tensor empty empty_like eye full full_like linspace new_empty new_full new_ones
new_tensor new_zeros ones ones_like scalar_tensor tensor zeros zeros_like
""".split()
_OF_NUMBERS = "not_ sym_float sym_max sym_min sym_not sym_sum".split()  # and not of tensors

_EXTREMA = "amax amin aminmax argmax argmin interpolate max median min nanmedian".split()

KNOWN_TOTAL = "fusepass_total"  # meta key of a call whose body has been looked at
UNREAD = "fusepass_unread"  # meta key of an ``item`` that will not be in the graph when it runs

_GROUPS = (_SHAPE, _CAST, _REDUCE, _NORMALISE, _MATMUL, _IMAGE, _FACTORY, _OF_NUMBERS)
TOTAL = POINTWISE.union(*_GROUPS)

EXCLUDED = {
    "take": "an index out of range raises",
    "cross_entropy": "a target outside the classes raises",
    "nll_loss": "a target outside the classes raises",
    "binary_cross_entropy": "an input outside [0, 1] raises",
    "floor_divide": "an integer divisor of zero raises on CPU",
    "remainder": "an integer divisor of zero raises on CPU",
    "fmod": "an integer divisor of zero raises on CPU",
    "inv": "a singular matrix raises",
    "cholesky": "a matrix that is not positive definite raises",
    "solve": "a singular matrix raises",
    "svd": "may fail to converge",
    "eigh": "may fail to converge",
    "nonzero": "the result's size depends on the values",
    "masked_select": "the result's size depends on the values",
    "unique": "the result's size depends on the values",
    "repeat_interleave": "the result's size depends on the values, a negative count raises",
    "bincount": "a negative value raises",
    "multinomial": "invalid probabilities raise, and it draws random numbers",
    "item": "reads a value back to the host",
}

NOT_LISTED = "whether it can fail is not known"

_SIZED_BY_DATA = frozenset(
    """
    argwhere bincount combinations masked_select nonzero repeat_interleave unique unique_consecutive
    """.split()
)


def depends_on_data(name: str) -> bool:
    """Whether the size of what an operation gives depends on the values it is given."""
    return name in _SIZED_BY_DATA


def partial_reason(node: fx.Node) -> str | None:
    """Why the call may fail for some input values, or None when it is total."""
    if node.op in ("placeholder", "get_attr", "output") or is_state_change(node):
        return None
    pure = getattr(node.target, "fusepass_pure", False) or KNOWN_TOTAL in node.meta
    if pure or _is_unread(node):
        return None
    if any(map(has_internal_overlap, written_nodes(node))):
        return "a write to a tensor whose elements share memory raises"
    name = op_name(node)
    if any(not fits_int64(n) for n in _varying_integers(node)):
        return f"an integer that {name} is given does not fit 64 bits, which raises"
    if any(_overflows(n, node) for n in _numbers(node, name)):
        return f"a number that {name} is given does not fit the dtype, which raises"
    if name is None:
        return f"{node.target} is not an operation of torch that is known to be total"
    return reason_of_values(node, name) or dtype_reason(node, name)


def reason_of_values(node: fx.Node, name: str) -> str | None:
    """Why a call of this name may fail, whatever its dtypes are and wherever it writes, or None."""
    own = user_subclass_reason(node)
    if own is not None:
        return own
    if begins_transform(name):
        return "a transform of functions (torch.func) begins"
    if name in _CONDITIONAL:
        return _CONDITIONAL[name](node)
    if name in TOTAL:
        return None
    if name.endswith("_") and name[:-1] in TOTAL and name[:-1] not in _CONDITIONAL:
        return None
    why = EXCLUDED.get(name, NOT_LISTED)
    return f"{operation(name)}: {why}"


def _is_unread(node: fx.Node) -> bool:
    """Whether a number is made of ``item`` calls that will not be in the graph when it runs."""
    for one in reached([node], lambda one: () if UNREAD in one.meta else one.all_input_nodes):
        is_number = "example_value" in one.meta and tensor_value(one) is None
        if UNREAD not in one.meta and not (is_number and one.all_input_nodes):
            return False
    return True


def _getitem(node: fx.Node) -> str | None:
    value, index = tensor_value(node.args[0]), node.args[1]
    if value is None or indices_in_range(value, index):
        return None
    parts = index if isinstance(index, (tuple, list)) else (index,)
    if any(isinstance(part, (list, tuple)) or tensor_value(part) is not None for part in parts):
        return "indexing with a tensor or list: an index out of range raises"
    return None


# What computes with a number in double precision, or compares with it, takes any; not as a scale.
_ANY_NUMBER = frozenset("add div eq ge gt item le lt mul ne pow rsub sub true_divide".split())


_HALVES = (torch.float16, torch.bfloat16)  # whose exponents have to fit them
_SCALES = ("alpha", "value")


def _numbers(node: fx.Node, name: str | None) -> Iterator[complex | torch.SymFloat]:
    """The numbers a call is given that it converts to its dtype, which checks them."""
    plain, value = (name or "").removesuffix("_"), tensor_value(node)
    half_power = plain == "pow" and value is not None and value.dtype in _HALVES
    any_number = plain in _ANY_NUMBER and not half_power
    scales = [node.kwargs[key] for key in _SCALES if key in node.kwargs]
    for given in scales if any_number else (*node.args, *node.kwargs.values()):
        if isinstance(given, fx.Node):
            number = given.meta.get("example_value")
            if isinstance(number, torch.SymFloat) and not _is_unread(given):
                yield number
        elif isinstance(given, (int, float, complex)) and not isinstance(given, bool):
            yield given


def _varying_integers(node: fx.Node) -> Iterator[torch.SymInt]:
    """Python integers that a call on tensors is given and that differ from call to call."""
    if tensor_value(node) is None:
        return
    for given in (*node.args, *node.kwargs.values()):
        if isinstance(given, fx.Node):
            number = given.meta.get("example_value")
            if isinstance(number, torch.SymInt) and not _is_unread(given):
                yield number


def _overflows(number: complex | torch.SymFloat, node: fx.Node) -> bool:
    value = tensor_value(node)
    if value is None or value.dtype is torch.bool:
        return False
    if isinstance(number, torch.SymFloat):
        return value.dtype not in (torch.float64, torch.complex128)
    if value.is_complex() or value.is_floating_point():
        most = torch.finfo(value.dtype).max
        parts = abs(number.real), abs(number.imag)
        return any(part > most and part != float("inf") for part in parts)
    limits = torch.iinfo(value.dtype)
    if isinstance(number, (int, float)):
        return not limits.min <= number <= limits.max  # nor is NaN
    return True


def _fill(node: fx.Node) -> str | None:
    """A fill with a tensor of one element reads it as a number, which has to fit."""
    value = tensor_value(argument(node, 0, "input"))
    at = 2 if str(op_name(node)).startswith("masked") else 1
    filled = tensor_value(argument(node, at, "value"))
    if value is None or filled is None or _holds_all_of(value.dtype, filled.dtype):
        return None
    return f"{op_name(node)}: a number of {filled.dtype} need not fit {value.dtype}, which raises"


def _holds_all_of(dtype: torch.dtype, of: torch.dtype) -> bool:
    """Whether every number of a dtype fits another."""
    if of == dtype or torch.bool in (dtype, of):
        return True
    if dtype.is_complex or of.is_complex or (of.is_floating_point > dtype.is_floating_point):
        return False
    wide, narrow = (torch.finfo(d) if d.is_floating_point else torch.iinfo(d) for d in (dtype, of))
    return wide.min <= narrow.min and narrow.max <= wide.max


def has_internal_overlap(node: fx.Node) -> bool:
    """As torch tells it: an expanded dimension."""
    value = tensor_value(node)
    if value is None:
        return False
    sizes = zip(value.shape, value.stride(), strict=True)
    return any(known_equal(stride, 0) and not known_equal(size, 1) for size, stride in sizes)


def _empty_extremum(node: fx.Node) -> str | None:
    """What has no identity: of no element there is no largest."""
    if is_nonempty(argument(node, 0, "input")):
        return None
    if tensor_value(argument(node, 1, "other")) is not None:
        return None  # the larger of two tensors, element by element
    return f"{op_name(node)} of a tensor that may be empty raises"


def _integer_division(node: fx.Node) -> str | None:
    values = [tensor_value(argument(node, 0, "input")), tensor_value(argument(node, 1, "other"))]
    if any(v is not None and (v.dtype.is_floating_point or v.dtype.is_complex) for v in values):
        return None
    other = argument(node, 1, "other")
    if isinstance(other, float) or (isinstance(other, int) and other != 0):
        return None
    return f"{op_name(node)} of integers: {EXCLUDED['remainder']}"


def _div(node: fx.Node) -> str | None:
    return None if node.kwargs.get("rounding_mode") is None else _integer_division(node)


def _pow(node: fx.Node) -> str | None:
    base, exponent = argument(node, 0, "input"), argument(node, 1, "exponent")
    value = tensor_value(base)
    if (
        value is not None
        and not value.dtype.is_floating_point
        and isinstance(exponent, int)
        and exponent < 0
    ):
        return "pow of integers to a negative power raises"
    return None


def _where(node: fx.Node) -> str | None:
    count = len(node.args) + len(node.kwargs)
    return (
        None if count == 3 else "where with one argument: the result's size depends on the values"
    )


def _item(node: fx.Node) -> str | None:
    """Dynamo passes a Python float that may vary as a 0-d CPU input and reads it with ``item``."""
    source = node.args[0]
    value = tensor_value(source)
    is_input = isinstance(source, fx.Node) and source.op == "placeholder"
    if is_input and value is not None and value.device.type == "cpu" and value.dim() == 0:
        return None
    return f"item: {EXCLUDED['item']}"


def _dropout(node: fx.Node) -> str | None:
    rate = argument(node, 1, "p", 0.5)
    return (
        None
        if isinstance(rate, (int, float)) and 0 <= rate <= 1
        else "dropout with an invalid rate raises"
    )


def _tensor_split(node: fx.Node) -> str | None:
    sections = argument(node, 1, "indices_or_sections")
    return (
        "tensor_split at positions held in a tensor" if tensor_value(sections) is not None else None
    )


def _of_numbers(node: fx.Node) -> str | None:
    """Python's ``not``, ``float``, ``max``, ``min`` of numbers, which ask what a tensor holds."""
    if all(tensor_value(given) is None for given in node.all_input_nodes):
        return None
    return "Python's not, float, max or min of a tensor of several elements raises"


def _factory(node: fx.Node) -> str | None:
    reads = [arg for arg in node.all_input_nodes if tensor_value(arg) is not None]
    name = op_name(node)
    if name in (
        "full",
        "arange",
        "linspace",
        "tensor",
        "scalar_tensor",
        "as_tensor",
        "full_like",
        "new_full",
        "new_tensor",
    ):
        scalars = reads[1:] if name in ("full_like", "new_full", "new_tensor") else reads
        if scalars:
            return f"{name} from a tensor reads its value back to the host"
    return None


_CONDITIONAL: dict[str, Callable[[fx.Node], str | None]] = {
    "getitem": _getitem,
    "__getitem__": _getitem,
    "div": _div,
    "div_": _div,
    "floor_divide": _integer_division,
    "remainder": _integer_division,
    "fmod": _integer_division,
    "pow": _pow,
    "pow_": _pow,
    "where": _where,
    "setitem": _getitem,
    "__setitem__": _getitem,
    "item": _item,
    **dict.fromkeys(_EXTREMA, _empty_extremum),
    "dropout": _dropout,
    **dict.fromkeys(("fill", "fill_", "masked_fill", "masked_fill_"), _fill),
    "tensor_split": _tensor_split,
    **dict.fromkeys(_OF_NUMBERS, _of_numbers),
    **ARGUMENT_CHECKS,
    **INDEX_CHECKS,
    **dict.fromkeys(_FACTORY, _factory),
}
