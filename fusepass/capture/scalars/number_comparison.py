"""Compare Python numbers on the device, an integer exactly with a float."""

from __future__ import annotations

import math
import operator
from typing import Any

from torch import fx

from fusepass.capture.scalars.scalar import ScalarTensor, Unfit, kind_of_operand, range_of
from fusepass.capture.scalars.value_range import EXACT
from fusepass.report.decision import Reason

MIRRORED: dict[Any, Any] = {
    operator.gt: operator.lt,
    operator.lt: operator.gt,
    operator.ge: operator.le,
    operator.le: operator.ge,
    operator.eq: operator.eq,
    operator.ne: operator.ne,
}
_NEXT = {
    operator.gt: math.floor,
    operator.le: math.floor,
    operator.ge: math.ceil,
    operator.lt: math.ceil,
}
_INT64 = 2**63
Side = ScalarTensor | fx.Node | float


def prepared(compare: Any, left: Side, right: Side) -> tuple[Any, str, tuple[Side, Side]]:
    """The comparison to make, the kind its operands are converted to, and the operands.

    Raises:
        Unfit: it cannot be made in int64 or float64.
    """
    if not isinstance(left, ScalarTensor):
        compare, left, right = MIRRORED[compare], right, left
    kinds = {kind_of_operand(left), kind_of_operand(right)}
    if "float" not in kinds:
        if isinstance(right, int) and abs(right) >= _INT64:
            raise Unfit(
                Reason.OVERFLOW, f"it is compared with {right}, which has more than 64 bits"
            )
        return compare, "int", (left, right)
    whole = [side for side in (left, right) if kind_of_operand(side) != "float"]
    if all(range_of(side).within(EXACT) for side in whole):
        return compare, "float", (left, right)
    if isinstance(right, float) and not isinstance(right, bool):
        return _with_float(compare, left, right)
    raise Unfit(Reason.OVERFLOW, "an integer beyond 2**53 is compared with a float")


def _with_float(compare: Any, left: Side, right: float) -> tuple[Any, str, tuple[Side, Side]]:
    """An integer against a known float: against the next integer."""
    if math.isfinite(right) and not right.is_integer() and compare in _NEXT:
        right = _NEXT[compare](right)
    if not math.isfinite(right) or not float(right).is_integer() or abs(right) >= _INT64:
        raise Unfit(Reason.OVERFLOW, f"an integer is compared with {right}")
    return compare, "int", (left, int(right))
