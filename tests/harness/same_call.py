"""Whether two calls of a program left the same behind, said the same and drew the same."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from torch import Tensor

from fusepass.testing import same_call as base
from fusepass.testing.compare import Difference, Values, assert_same_bits
from fusepass.testing.same_call import assert_same_error, exact_values
from tests.harness.call import Seen
from tests.harness.rounding import assert_same_sum, same_sum, same_text, values_within
from tests.harness.transcript import Said

Rounded = Literal["nothing", "gradients", "everything"]


def assert_same_call(
    eager: Seen,
    compiled: Seen,
    exact: Seen | None = None,
    *,
    where: str = "",
    rounded: Rounded = "nothing",
    only_gradients: bool = False,
    roundings: int = 1,
) -> bool:
    """Compare all that two calls left behind; warn again of what fusepass warned of.

    Args:
        eager: the call that is right by definition.
        compiled: the other.
        exact: the call in float64, for the error rule; bit by bit if None.
        where: which call it is, for messages.
        rounded: what may differ by the order of a sum.
        only_gradients: the error rule is for gradients, all else is compared as without ``exact``.
        roundings: half ulps that the error rule lets pass whatever eager's error is.

    Returns:
        Whether gradients are equal bit by bit, but for the sign of zero.

    Raises:
        Difference: the first one found.
    """
    for fault in compiled.faults:
        warnings.warn(fault, stacklevel=2)
    by_rule: Values | None = None
    if exact is not None:
        by_rule = values_within(exact_values(eager, exact), roundings)
    everything, exactly = rounded == "everything", exact is None or only_gradients
    text: Callable[[str, str], bool] = same_text if everything or not exactly else str.__eq__
    name = where and f"{where}: "
    assert_same_error(eager, compiled, name, text)
    if not _same_said(eager.said, compiled.said, text):
        said = ["\n  ".join(["", *map(str, one.said)]) or " nothing" for one in (eager, compiled)]
        raise Difference("printed text", f"{name}call", f"eager said{said[0]}\ncompiled{said[1]}")
    values: Values = assert_same_sum if everything else assert_same_bits
    if by_rule is not None and not only_gradients:
        values = by_rule

    def gradients(one: Tensor, other: Tensor, path: str) -> None:
        if by_rule is not None:
            by_rule(one, other, path)
        elif rounded == "nothing" or not same_sum(one, other):
            raise Difference("gradient", path, f"\neager    {one}\ncompiled {other}")

    found = base.assert_same_call(
        eager, compiled, where=where, values=values, gradients=gradients, text=text
    )
    if any(eager.rng[one] != compiled.rng[one] for one in eager.rng):
        raise Difference("random state", f"{name}call", "a random generator is in another state")
    return found


def _same_said(one: list[Said], other: list[Said], text: Callable[[str, str], bool]) -> bool:
    return len(one) == len(other) and all(
        replace(a, text=b.text) == b and text(a.text, b.text)
        for a, b in zip(one, other, strict=True)
    )
