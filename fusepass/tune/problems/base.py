"""One fused operation at one place, as the tuner sees it, and the class of problems it belongs to.

Choices are kept per class, not per problem: the number of rows, which varies from call to call, is
rounded up to a power of two (by some kinds to a step between); the sizes of the weight are exact,
since a model has few of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fusepass.fusion.gemm.region import tf32_allowed

INDUCTOR = "inductor"
REFERENCE = "reference"


@dataclass(frozen=True)
class Problem:
    """A GEMM (m, k) @ (k, n) and what is fused to it.

    Attributes:
        op: name of the fused operator, without its namespace.
        activation: what happens to each element of the product.
        bias: whether a vector of n is added before the activation.
        dtype: of all operands and of the result.
        m, n, k: sizes; a symbolic size stands here as its hint.
        x_strides, weight_strides: of the (m, k) and the (k, n) operand, in elements.
        device: where it runs.
        pointwise_after: whether Inductor would fuse the activation with what reads its result, so
            that a kernel runs there anyway.
        saved_output: whether the pre-activation is wanted too.
    """

    op: str
    activation: str
    bias: bool
    dtype: torch.dtype
    m: int
    n: int
    k: int
    x_strides: tuple[int, int]
    weight_strides: tuple[int, int]
    device: torch.device
    pointwise_after: bool = False
    saved_output: bool = False

    @property
    def after_reads(self) -> bool:
        """Whether what runs before it has read much and written little, as the weights' readers."""
        return False

    @property
    def layout(self) -> str:
        """``row``, ``col`` or ``strided`` for each operand; ``+`` where rows lie further apart."""
        x = _layout((self.m, self.k), self.x_strides)
        return f"{x},{_layout((self.k, self.n), self.weight_strides)}"

    def key(self, mode: str) -> str:
        """The class of problems this one belongs to, as text, in a mode of torch.compile."""
        parts = [
            self.op + ("_saved" if self.saved_output else ""),
            self.activation,
            "bias" if self.bias else "no_bias",
            str(self.dtype).removeprefix("torch."),
            self.layout,
            f"{next_power_of_two(self.m)}x{self.k}x{self.n}",
        ]
        if self.dtype is torch.float32:  # TF32 or not is another GEMM
            parts.append(torch.get_float32_matmul_precision())
        return joined_key(parts, mode)

    def inputs(self, generator: torch.Generator) -> tuple[Tensor | None, ...]:
        """What candidates are called with: here x, the weight (k, n) and the bias, if there is one.

        Random numbers, on the device and with the problem's strides.
        """

        def noise(count: int, scale: float) -> Tensor:
            data = torch.empty(count, dtype=self.dtype, device=self.device)
            return data.normal_(0.0, scale, generator=generator)

        (of_x, of_weight), (m, n, k) = self._extents, (self.m, self.n, self.k)
        x = noise(of_x, 1.0).as_strided((m, k), self.x_strides)
        weight = noise(of_weight, 1 / math.sqrt(k)).as_strided((k, n), self.weight_strides)
        return x, weight, noise(n, 1.0) if self.bias else None

    @property
    def may_be_tf32(self) -> bool:
        """Whether its products may be TF32; of convolutions the library alone decides."""
        return self.op == "linear_activation" and in_tf32(self.dtype)

    @property
    def bytes_needed(self) -> int:
        """Bytes of inputs and results."""
        return (sum(self._extents) + 4 * self.m * self.n) * self.dtype.itemsize

    @property
    def _extents(self) -> tuple[int, int]:
        """Elements from the first to the last of x and of the weight."""
        both = (self.m, self.k, self.x_strides), (self.k, self.n, self.weight_strides)
        x, weight = (
            1 + (rows - 1) * strides[0] + (columns - 1) * strides[1]
            for rows, columns, strides in both
        )
        return x, weight


@dataclass(frozen=True)
class Candidate:
    """One way to compute a fused operation.

    Attributes:
        name: what tables and reports call it.
        run: ``run(x, weight_t, bias)``; ``bias`` is None for a problem without one. For a region
            ``run(x, *weights, *operands)``.
        graphable: computes the same in torch, for Inductor to compile under max-autotune; None if
            ``run`` can be traced itself.
        compiles: whether its first call compiles a kernel of ours, which a thread may do. Libraries
            would keep a workspace for each thread.
        overhead_us: microseconds that count against it beside those of ``run``: of work elsewhere
            without which it cannot be had, or by which others are timed too slow. Negative: in its
            place it takes less than alone.
        generated: whether Inductor generates all of it, so that ``graphable``, or ``run``, is
            compiled in any mode: what eager would call is not what is to be known.
        refuses: why it cannot do a problem, or None.
        estimate: microseconds it should take on a device of those rates; None, or a function that
            gives None, if nobody knows.
    """

    name: str
    run: Callable[..., Any]
    refuses: Callable[[Problem], str | None] = lambda problem: None
    estimate: Callable[[Any, Any], float | None] | None = None
    graphable: Callable[..., Any] | None = None
    overhead_us: float = 0.0
    compiles: bool = False
    generated: bool = False


def with_tiles(
    inductor: Candidate, tiles: Sequence[Any], ours: Callable[..., Any], overhead_us: float = 0.0
) -> tuple[Candidate, ...]:
    """What Inductor does, and a kernel of ours with each of some tiles, which have names."""
    return inductor, *(
        Candidate(one.name, partial(ours, tile=one), compiles=True, overhead_us=overhead_us)
        for one in tiles
    )


@dataclass(frozen=True)
class Choice:
    """Which candidate computes a problem.

    Attributes:
        candidate: its name; ``"inductor"`` means that the graph stays as it is.
        microseconds: what was measured or estimated, by candidate.
        source: ``"table"``, ``"measured"``, ``"model"`` or ``"forced"``.
        why: one sentence.
    """

    candidate: str
    microseconds: dict[str, float]
    source: str
    why: str


def joined_key(parts: Iterable[str], mode: str) -> str:
    """The text of a class of problems; max-autotune has other baselines, hence other choices."""
    return "/".join([*parts, *(["max-autotune"] if mode.startswith("max-autotune") else [])])


def in_tf32(dtype: torch.dtype) -> bool:
    """Whether the user lets products of a dtype be TF32."""
    return dtype is torch.float32 and tf32_allowed()


def next_power_of_two(size: int) -> int:
    """The smallest power of two that is at least ``size`` (0 stays 0)."""
    return 1 << (size - 1).bit_length() if size > 0 else 0


def _layout(sizes: tuple[int, int], strides: tuple[int, int]) -> str:
    rows, columns = sizes
    if strides[1] == 1 or columns == 1:
        return "row" if strides[0] == columns or rows == 1 else "row+"
    if strides[0] == 1 or rows == 1:
        return "col" if strides[1] == rows else "col+"
    return "strided"
