"""A norm of rows in front of products, as a plain value: RMSNorm or LayerNorm with a weight.

    y[m, k] = x[m, k] * rsqrt(mean of x[m, :]² + eps) * (gain[k] + offset)
    y[m, k] = (x[m, k] - mean) * rsqrt(variance + eps) * (gain[k] + offset) + shift[k]

(Zhang and Sennrich, Root Mean Square Layer Normalization, 2019, Gemma's has an offset of 1; Ba,
Kiros and Hinton, Layer Normalization, 2016.) It knows neither graphs nor kernels:
``fusion/gemm/norm.py`` finds it, ``kernels/gemm/normed_gemms.py`` computes products of it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Norm:
    """A norm over the last dimension.

    Attributes:
        eps: added to the mean of squares; positive.
        offset: added to each number of the gain.
        centred: whether the mean is subtracted first, as LayerNorm does.
        shifted: whether a vector is added last; of a centred one only.
    """

    eps: float
    offset: float = 0.0
    centred: bool = False
    shifted: bool = False

    @property
    def vectors(self) -> int:
        """How many it has: the gain, and the shift behind it."""
        return 1 + self.shifted

    def text(self) -> str:
        """As JSON without spaces: equal for equal norms."""
        record = {name: value for name, value in asdict(self).items() if value is not False}
        return json.dumps(record, separators=(",", ":"))


def parse(text: str) -> Norm:
    """The inverse of :meth:`Norm.text`.

    Raises:
        ValueError: it is no such text, a number is not finite, or eps is not positive.
    """
    try:
        record = json.loads(text)
        kinds = [record.get(name, False) is True for name in ("centred", "shifted")]
        found = Norm(float(record["eps"]), float(record["offset"]), *kinds)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not a norm: {text!r}") from error
    known = found.centred or not found.shifted
    if not (known and 0 < found.eps < math.inf and math.isfinite(found.offset)):
        raise ValueError(f"a norm with an eps, offset or shift that it cannot have: {text!r}")
    return found


def normalize(x: Tensor, vectors: Sequence[Tensor], norm: Norm) -> Tensor:
    """The norm of x (M, K), in fp32 (fp64 stays): not rounded to x's dtype.

    ``vectors``: the gain (K,), and the shift (K,) if there is one.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    rows = x.to(wide)
    if norm.centred:
        rows = rows - rows.mean(-1, keepdim=True)
    scale = torch.rsqrt(rows.square().mean(-1, keepdim=True) + norm.eps)
    made = rows * scale * (vectors[0].to(wide) + norm.offset)
    return made + vectors[1].to(wide) if norm.shifted else made
