"""A norm of rows in front of products, as a plain value: RMSNorm with a weight.

    y[m, k] = x[m, k] * rsqrt(mean of x[m, :]² + eps) * (gain[k] + offset)

(Zhang and Sennrich, Root Mean Square Layer Normalization, 2019; Gemma's has an offset of 1.) It
knows neither graphs nor kernels: ``graph/row_norm.py`` finds it, ``kernels/normed_gemms.py``
computes products of it.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Norm:
    """RMSNorm over the last dimension.

    Attributes:
        eps: added to the mean of squares; positive.
        offset: added to each number of the gain.
    """

    eps: float
    offset: float = 0.0

    def text(self) -> str:
        """As JSON without spaces: equal for equal norms."""
        return json.dumps(asdict(self), separators=(",", ":"))


def parse(text: str) -> Norm:
    """The inverse of :meth:`Norm.text`.

    Raises:
        ValueError: it is no such text, a number is not finite, or eps is not positive.
    """
    try:
        record = json.loads(text)
        found = Norm(float(record["eps"]), float(record["offset"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not a norm: {text!r}") from error
    if not (0 < found.eps < math.inf and math.isfinite(found.offset)):
        raise ValueError(f"a norm with an eps or offset that it cannot have: {text!r}")
    return found


def normalised(x: Tensor, gain: Tensor, norm: Norm) -> Tensor:
    """The norm of x (M, K) with a gain (K,), in fp32 (fp64 stays): not rounded to x's dtype."""
    wide = torch.promote_types(x.dtype, torch.float32)
    rows = x.to(wide)
    scale = torch.rsqrt(rows.square().mean(-1, keepdim=True) + norm.eps)
    return rows * scale * (gain.to(wide) + norm.offset)
