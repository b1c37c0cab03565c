"""How far the numbers of two runs may be apart, by the error rule over several inputs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fusepass.numerics import error_bound, half_ulp, rms, to_double
from fusepass.testing.compare import Difference

NOT_FINITE = "NaN or infinity"
CERTAIN = 30  # times the error allowed


def counterparts(eager: Iterable[Tensor], exact: Iterable[Tensor]) -> dict[int, Tensor]:
    """The exact value of each tensor, by its id; none if the exact call left other shapes."""
    left, right = list(eager), list(exact)
    fits = [a.shape for a in left] == [b.shape for b in right]
    return {id(a): b for a, b in zip(left, right, strict=True)} if fits else {}


@dataclass(frozen=True)
class Pair:
    """One value of a program as eager and as the compiled program computed it."""

    path: str
    eager: Tensor
    compiled: Tensor


def check_rounding(samples: Sequence[tuple[Pair, Tensor | None, float]]) -> Difference | None:
    """Apply the error rule to one value of a program, over all the inputs it was run with.

    Args:
        samples: what eager and the compiled program gave, the exact value (None if float64 does
            not run, eager's then stands for it) and the least RMS error that counts as one.
    """
    errors: list[Tensor] = []
    eager_errors: list[Tensor] = []
    scale: list[Tensor] = []
    for pair, reference, _ in samples:
        exact = to_double(pair.eager if reference is None else reference).detach()
        a, b = to_double(pair.eager).detach(), to_double(pair.compiled).detach()
        # NaN and infinity stand where eager has them; finite is right where the exact value is.
        same = (a == b) | (a.isnan() & b.isnan()) | (a.isfinite() & b.isfinite())
        wrong = ~(same | (exact.isfinite() & b.isfinite()))
        if bool(wrong.any()):
            shown = f"{NOT_FINITE} is {text(a[wrong])} in eager, {text(b[wrong])} compiled"
            return Difference(NOT_FINITE, pair.path, shown)
        seen = torch.isfinite(b) & torch.isfinite(exact)
        errors.append((b - exact)[seen].abs().flatten())
        eager_errors.append((a - exact)[seen & torch.isfinite(a)].abs().flatten())
        scale.append(exact[seen].abs().flatten())
    first, count = samples[0][0], sum(map(len, errors))
    error, eager_error = rms(torch.cat(errors)), rms(torch.cat(eager_errors))
    ulp = half_ulp(first.eager.dtype, rms(torch.cat(scale)))
    # A few numbers may all be rounded luckily in eager; of many, luck averages out. Numbers of one
    # run may share one error (that of a sum they all contain), so runs count as well.
    if len(samples) > 1:
        count = min(count, 4 * len(samples))
    least = max(floor for *_, floor in samples)
    bound = error_bound(ulp, max(eager_error, least), None) * (1 + 3 / math.sqrt(count or 1))
    if error <= bound:
        return None
    shown = f"{shown_values(first.eager, first.compiled)} (RMS error above {bound:.3g})"
    return Difference("values", first.path, shown, bound, certain=error > CERTAIN * bound)


def shown_values(eager: Tensor, compiled: Tensor) -> str:
    """What a message says of two tensors with other numbers."""
    return f"its value is {text(eager)} in eager, {text(compiled)} compiled"


def text(tensor: Tensor) -> str:
    """A tensor's values, not too many."""
    flat = tensor.detach().flatten()
    shown = ", ".join(f"{value:.6g}" for value in flat[:6].tolist())
    return f"[{shown}{', ...' if flat.numel() > 6 else ''}]"
