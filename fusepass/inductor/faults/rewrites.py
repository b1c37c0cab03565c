"""Operators that Inductor computes otherwise than eager, written as others that it computes right.

Each formula is the one of eager's kernels, in single precision for halves as they compute, so that
it is generated as part of one kernel as before.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import torch
from torch import fx

from fusepass.graph.ops.op_names import tensor_value
from fusepass.inductor.faults.call_facts import is_output, is_sign_seen
from fusepass.inductor.faults.fault import Fault, is_on_cpu, steered
from fusepass.report.decision import Decision

_aten = torch.ops.aten
_CONVERT = torch.ops.prims.convert_element_type.default
_HALF = (torch.float16, torch.bfloat16)
_VALUE_META = ("tensor_meta", "eager_input_vals", "val")  # what a node's parts do not share
_NEAR = 0.3
_TERMS = {torch.float32: 9, torch.float64: 15}  # of a sum that is exact to the last digit there
_SQUARED = 1e15  # of which one more or less is nothing, and the square is far from the end
_WITH_FACTORS = frozenset("addbmm addmm addmv addr baddbmm".split())
_EXPONENT = 80.0  # whose exponential is far from where single precision ends


class _FormulaWriter:
    """Writes calls in front of a node, in the type that eager computes it in."""

    def __init__(self, node: fx.Node) -> None:
        self.node, self.result = node, node.meta["val"]
        dtype = self.result.dtype
        self.wide = torch.float32 if dtype in _HALF else dtype

    def call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        made = self.node.graph.call_function(target, args, kwargs)
        meta = self.node.meta
        made.meta = {key: value for key, value in meta.items() if key not in _VALUE_META}
        with getattr(self.result, "fake_mode", None) or nullcontext():
            made.meta["val"] = target(*fx.map_arg(args, lambda one: one.meta["val"]), **kwargs)
        return made

    def widened(self, one: Any) -> Any:
        value = tensor_value(one)
        return (
            one
            if value is None or value.dtype is self.wide
            else self.call(_CONVERT, one, self.wide)
        )

    def operands(self) -> tuple[Any, Any]:
        left, right = (self.widened(one) for one in self.node.args[:2])
        return left, right

    def rounded(self, operand: Any) -> Any:
        """A number rounded to the result's type, as eager hands it to some kernels."""
        if isinstance(operand, fx.Node):
            return operand
        return float(torch.tensor(operand, dtype=self.result.dtype, device="cpu"))

    def number(self, value: float) -> fx.Node:
        """A number as a tensor, for an operator that takes no number there."""
        device = self.result.device
        return self.call(_aten.full.default, [], value, dtype=self.wide, device=device)

    def truth(self, value: bool) -> fx.Node:
        """A truth value as a tensor."""
        device = self.result.device
        return self.call(_aten.full.default, [], value, dtype=torch.bool, device=device)


def rewrite_faulty_calls(graph: fx.Graph) -> list[Decision]:
    """Write such calls of a joint or forward ATen graph out, in place; what was decided."""
    return steered(_FAULTS, graph, "written as eager computes it", _replace)


def _replace(fault: Fault, node: fx.Node) -> None:
    writer = _FormulaWriter(node)
    assert fault.formula is not None
    with node.graph.inserting_before(node):
        made = fault.formula(writer)
        if writer.wide is not writer.result.dtype:
            made = writer.call(_CONVERT, made, writer.result.dtype)
    made.meta["val"] = writer.result
    node.replace_all_uses_with(made)
    node.graph.erase_node(node)


def _is_real(node: fx.Node) -> bool:
    made = tensor_value(node)
    given = [tensor_value(one) for one in node.args[:2] if isinstance(one, fx.Node)]
    known = bool(given) and None not in given  # a number may vary, too
    return made is not None and made.dtype.is_floating_point and known


def _is_floor(node: fx.Node) -> bool:
    rounded = (
        node.target is _aten.floor_divide.default or node.kwargs.get("rounding_mode") == "floor"
    )
    return rounded and _is_real(node)


def _remainder(writer: _FormulaWriter) -> fx.Node:
    left, right = map(writer.rounded, writer.operands())
    return _with_sign_of(writer, _modulo(writer, left, right), right)


def _modulo(writer: _FormulaWriter, left: Any, right: Any) -> fx.Node:
    """``fmod``, of tensors: a number becomes one."""
    left = left if isinstance(left, fx.Node) else writer.number(left)
    right = right if isinstance(right, fx.Node) else writer.number(right)
    return writer.call(_aten.fmod.Tensor, left, right)


def _differs(writer: _FormulaWriter, modulo: fx.Node, right: Any) -> fx.Node:
    """Where what is left over is not zero and has another sign than the divisor."""
    is_node = isinstance(right, fx.Node)
    negative = writer.call(_aten.lt.Scalar, right, 0) if is_node else writer.truth(right < 0)
    other = writer.call(_aten.ne.Tensor, writer.call(_aten.lt.Scalar, modulo, 0), negative)
    return writer.call(_aten.logical_and.default, writer.call(_aten.ne.Scalar, modulo, 0), other)


def _with_sign_of(writer: _FormulaWriter, modulo: fx.Node, right: Any) -> fx.Node:
    moved = writer.call(_aten.add.Tensor, modulo, right)
    return writer.call(_aten.where.self, _differs(writer, modulo, right), moved, modulo)


def _floor_division(writer: _FormulaWriter) -> fx.Node:
    """As Python has it: ``(a - fmod(a, b)) / b``, one less where signs differ, then rounded."""
    call = writer.call
    left, right = writer.operands()
    left = left if isinstance(left, fx.Node) else writer.number(writer.rounded(left))
    right = right if isinstance(right, fx.Node) else writer.number(right)
    modulo = _modulo(writer, left, right)
    plain = call(_aten.div.Tensor, left, right)
    parted = call(_aten.div.Tensor, call(_aten.sub.Tensor, left, modulo), right)
    less = call(_aten.sub.Tensor, parted, 1)
    parted = call(_aten.where.self, _differs(writer, modulo, right), less, parted)
    floor = call(_aten.floor.default, parted)
    beside = call(_aten.gt.Scalar, call(_aten.sub.Tensor, parted, floor), 0.5)
    floor = call(_aten.where.self, beside, call(_aten.add.Tensor, floor, 1), floor)
    zero = call(_aten.copysign.Tensor, writer.number(0.0), plain)
    floor = call(_aten.where.self, call(_aten.ne.Scalar, parted, 0), floor, zero)
    return call(_aten.where.self, call(_aten.eq.Scalar, right, 0), plain, floor)


def _is_real_on_cpu(node: fx.Node) -> bool:
    return is_on_cpu(node) and node.meta["val"].dtype.is_floating_point


def _expm1(writer: _FormulaWriter) -> fx.Node:
    """Near zero the sum that ``e^x`` is, without its first number."""
    call = writer.call
    x = writer.widened(writer.node.args[0])
    near = call(_aten.mul.Tensor, x, 1 / _TERMS[writer.wide])
    for term in range(_TERMS[writer.wide] - 1, 0, -1):
        near = call(_aten.mul.Tensor, call(_aten.add.Tensor, near, 1), x)
        near = call(_aten.mul.Tensor, near, 1 / term) if term > 1 else near
    small = call(_aten.lt.Scalar, call(_aten.abs.default, x), _NEAR)
    return call(_aten.where.self, small, near, call(_aten.expm1.default, x))


def _is_single(node: fx.Node) -> bool:
    made = tensor_value(node)
    return made is not None and made.dtype in (torch.float32, *_HALF)


def _hyperbolic(writer: _FormulaWriter) -> fx.Node:
    """Beyond where both halves matter ``e^|x| / 2``, without that ``e^|x|`` overflows first."""
    call = writer.call
    x = writer.widened(writer.node.args[0])
    size = call(_aten.abs.default, x)
    root = call(_aten.exp.default, call(_aten.mul.Tensor, size, 0.5))
    large = call(_aten.mul.Tensor, call(_aten.mul.Tensor, root, 0.5), root)
    if writer.node.target is _aten.sinh.default:
        large = call(_aten.copysign.Tensor, large, x)
    near = call(writer.node.target, x)
    return call(_aten.where.self, call(_aten.gt.Scalar, size, _EXPONENT), large, near)


def _acosh(writer: _FormulaWriter) -> fx.Node:
    """For large numbers ``log(2x)``, without the square that overflows."""
    call = writer.call
    x = writer.widened(writer.node.args[0])
    large = call(_aten.add.Tensor, call(_aten.log.default, x), math.log(2))
    near = call(_aten.acosh.default, x)
    return call(_aten.where.self, call(_aten.gt.Scalar, x, _SQUARED), large, near)


def _is_inverse_root(node: fx.Node) -> bool:
    return _is_real(node) and str(node.args[1]) == "-0.5"


def _inverse_root(writer: _FormulaWriter) -> fx.Node:
    return writer.call(_aten.rsqrt.default, writer.widened(writer.node.args[0]))


def _is_narrow_integer(node: fx.Node) -> bool:
    return is_on_cpu(node) and node.meta["val"].dtype in (torch.uint8, torch.int8, torch.int16)


def _abs(writer: _FormulaWriter) -> fx.Node:
    """In the type itself, in which the smallest number has no opposite."""
    x = writer.node.args[0]
    negative = writer.call(_aten.lt.Scalar, x, 0)
    opposite = writer.call(_aten.neg.default, x)
    return writer.call(_aten.where.self, negative, opposite, x)


def _is_zero_times(node: fx.Node) -> bool:
    """Whether the program multiplies a floating-point tensor by the integer 0: NaN outlives it."""
    is_zero = isinstance(node.args[1], int) and _is_zero(node.args[1])
    return is_zero and _is_real(node) and not _is_a_term(node)


def _is_ignored(node: fx.Node) -> bool:
    """Whether a term of ``addmm`` and the like has the factor 0, for which eager skips it."""
    return _is_real(node) and _is_zero(node.args[1]) and _is_a_term(node)


def _is_zero(one: object) -> bool:
    return isinstance(one, (int, float)) and not isinstance(one, bool) and one == 0


def _is_a_term(node: fx.Node) -> bool:
    packet = getattr(node.meta.get("original_aten"), "overloadpacket", None)
    return getattr(packet, "__name__", "") in _WITH_FACTORS


def _nothing(writer: _FormulaWriter) -> fx.Node:
    given = writer.widened(writer.node.args[0])
    return writer.call(_aten.where.self, writer.truth(True), writer.number(0.0), given)


def _times_zero(writer: _FormulaWriter) -> fx.Node:
    return writer.call(_aten.mul.Tensor, writer.widened(writer.node.args[0]), 0.0)


def _is_zero_added(node: fx.Node) -> bool:
    """Whether zeros are added that Inductor takes away, and the sign of the sum is seen."""
    made = tensor_value(node)
    seen = _is_real(node) and _zero_addend(node, made) is not None
    return seen and (is_output(node) or is_sign_seen(node))


def _zero_addend(node: fx.Node, made: torch.Tensor | None) -> fx.Node | None:
    """What zeros are added to that leave everything but signs of zeros as it is."""
    for one, other in (node.args[:2], node.args[1::-1]):
        value = tensor_value(one)
        zeros = isinstance(other, fx.Node) and other.target is _aten.full.default
        if not zeros or value is None or made is None:
            continue
        if str(other.args[1]) not in ("0", "0.0"):  # type: ignore[union-attr]  # -0.0 changes nothing
            continue
        if value.shape == made.shape and value.dtype is made.dtype:
            return one  # type: ignore[return-value]
    return None


def _plus_zero(writer: _FormulaWriter) -> fx.Node:
    other = _zero_addend(writer.node, writer.result)
    return writer.call(_aten.add.Tensor, writer.widened(other), 0.0)


# --- sums and differences that scale what they add: Inductor's patterns drop the factor -----------
# A pattern that names an operation without ``alpha`` matches one that has it: up to torch 2.13, if
# not 2.14, the pattern matcher looks at no keyword that a pattern does not have (2.15 does). So
# ``addmm`` is made of ``a + alpha (x w)``, attention of scores with a scaled mask, a softmax of
# ``t - alpha max(t)``, all without alpha: wrong numbers without a word. Parted into a product with
# alpha and a plain sum they are what the program says, and are generated as one kernel as before.


def split_scaled_adds(graph: fx.Graph) -> None:
    """Part every such sum of a joint or forward graph of ATen calls, in place."""
    steered((_SCALED_SUM,), graph, "parted", _replace)


def _scales_addend(node: fx.Node) -> bool:
    alpha, made = node.kwargs.get("alpha", 1), tensor_value(node)
    plain = not isinstance(alpha, fx.Node) and alpha == 1
    known = made is not None and tensor_value(node.args[1]) is not None
    return not plain and known and made.dtype is not torch.bool  # type: ignore[union-attr]


def _scaled_sum(writer: _FormulaWriter) -> fx.Node:
    left, right = writer.node.args
    scaled = writer.call(_aten.mul.Tensor, writer.widened(right), writer.node.kwargs["alpha"])
    return writer.call(writer.node.target, writer.widened(left), scaled)


_SCALED_SUM = Fault(
    "scaled_sum",
    (),
    "drops the factor of a sum",
    (_aten.add.Tensor, _aten.sub.Tensor),
    _scales_addend,
    _scaled_sum,
)
_FAULTS = (
    Fault(
        "ignored_term",
        (196596,),
        "multiplies what the factor 0 leaves out",
        (_aten.mul.Tensor, _aten.mul.Scalar),
        _is_ignored,
        _nothing,
    ),
    Fault(
        "inverse_root",
        (),
        "gives another infinity than eager",
        (_aten.pow.Tensor_Scalar,),
        _is_inverse_root,
        _inverse_root,
    ),
    Fault(
        "zero_times",
        (186281,),
        "makes 0 of NaN times 0",
        (_aten.mul.Tensor, _aten.mul.Scalar),
        _is_zero_times,
        _times_zero,
    ),
    Fault(
        "sign_of_zero",
        (189799,),
        "gives zero another sign",
        (_aten.add.Tensor,),
        _is_zero_added,
        _plus_zero,
    ),
    Fault(
        "narrow_abs",
        (187018,),
        "computes abs in a wider type",
        (_aten.abs.default,),
        _is_narrow_integer,
        _abs,
    ),
    Fault(
        "large_acosh",
        (183767,),
        "overflows below the largest number of the dtype",
        (_aten.acosh.default,),
        _is_single,
        _acosh,
    ),
    Fault(
        "floor_division",
        (197895,),
        "rounds a quotient before its floor is taken",
        (_aten.floor_divide.default, _aten.div.Tensor_mode, _aten.div.Scalar_mode),
        _is_floor,
        _floor_division,
    ),
    Fault(
        "remainder",
        (198057,),
        "multiplies a rounded quotient back",
        (_aten.remainder.Tensor, _aten.remainder.Scalar, _aten.remainder.Scalar_Tensor),
        _is_real,
        _remainder,
    ),
    Fault(
        "expm1",
        (189801,),
        "computes exp(x) - 1 for expm1(x), so that small numbers are lost",
        (_aten.expm1.default,),
        _is_real_on_cpu,
        _expm1,
    ),
    Fault(
        "hyperbolic",
        (183763,),
        "overflows below the largest number of the dtype",
        (_aten.sinh.default, _aten.cosh.default),
        _is_single,
        _hyperbolic,
    ),
)
