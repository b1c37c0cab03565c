"""The Triton text of an NHWC convolution with an epilogue.

A product of matrices that is never laid out as one (implicit GEMM): a row of the first is what a
pixel of the result reads of the image, tap by tap, found by its address; pixels outside are zeros.
Portable: plain loads, which Triton's pipeline turns into asynchronous copies. Sizes are constants,
all but the number of pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

from fusepass.fusion.kernel_ir.epilogue import Epilogue
from fusepass.kernels.gemm.triton_source import complete_source

NAME = "fusepass_conv"
Pair = tuple[int, int]


@dataclass(frozen=True)
class ConvShape:
    """All about a convolution but its batch.

    Attributes:
        channels: of the image and of the result.
        image: height and width.
        result: likewise.
        kernel, stride, padding, dilation: likewise, in pixels.
    """

    channels: Pair
    image: Pair
    result: Pair
    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair

    @property
    def constants(self) -> dict[str, int]:
        """By the names that the kernel has for them."""
        names = "C O", "H W", "OH OW", "KH KW", "SY SX", "PY PX", "DY DX"
        values = (
            self.channels,
            self.image,
            self.result,
            self.kernel,
            self.stride,
            self.padding,
            self.dilation,
        )
        return {
            name: value
            for pair, two in zip(names, values, strict=True)
            for name, value in zip(pair.split(), two, strict=True)
        }


@dataclass(frozen=True)
class ConvTile:
    """What one program computes, and how.

    Attributes:
        m: pixels.
        n: channels of the result.
        k: channels of the image that it reads at once; divides them.
        warps, stages: Triton's.
    """

    m: int
    n: int
    k: int
    warps: int
    stages: int

    @property
    def name(self) -> str:
        """What tables and reports call it."""
        return f"triton conv{self.m}x{self.n}x{self.k}w{self.warps}s{self.stages}"


_BODY = """

@triton.jit
def fusepass_conv(x_ptr, w0_ptr, $params M, N, C: tl.constexpr, O: tl.constexpr, H: tl.constexpr,
                  W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, KH: tl.constexpr,
                  KW: tl.constexpr, SY: tl.constexpr, SX: tl.constexpr, PY: tl.constexpr,
                  PX: tl.constexpr, DY: tl.constexpr, DX: tl.constexpr, BM: tl.constexpr,
                  BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):
    m, n = _place(tl.program_id(0), tl.cdiv(M, BM), tl.cdiv(N, BN), GROUP)
    rows, columns = m * BM + tl.arange(0, BM), n * BN + tl.arange(0, BN)
    image, pixel = rows // (OH * OW), rows % (OH * OW)
    top, left = pixel // OW * SY - PY, pixel % OW * SX - PX
    # Outside the image, too, where nothing is read; far into a large batch beyond 32 bits.
    start = x_ptr + ((image.to(tl.int64) * H + top) * W + left) * C
    steps: tl.constexpr = C // BK
    k = tl.arange(0, BK)
    product = tl.zeros((BM, BN), tl.float32)
    for step in range(KH * KW * steps):
        tap, first = step // steps, step % steps * BK
        down, across = tap // KW * DY, tap % KW * DX
        y, x = top + down, left + across
        there = (y >= 0) & (y < H) & (x >= 0) & (x < W) & (rows < M)
        at = start + ((down * W + across) * C + first)
        pixels = tl.load(at[:, None] + k[None, :], mask=there[:, None], other=0.0)
        weight = w0_ptr + (columns * (KH * KW * C))[None, :] + (tap * C + first) + k[:, None]
        taps = tl.load(weight, mask=(columns < N)[None, :], other=0.0)
        product = tl.dot(pixels, taps, product)
    _epilogue(product, m, n, rows, columns, M, N $given)
"""


def conv_source(epilogue: Epilogue) -> str:
    """The text of a module whose ``fusepass_conv`` computes ``epilogue`` of a convolution.

    Parameters as of :func:`fusepass.kernels.gemm.triton_source.source`; then pixels, channels of
    the result, the constants of a :class:`ConvShape`, a :class:`ConvTile`, and how many rows of
    tiles share their weights in L2.

    Args:
        epilogue: of one product; what is reduced has no place there.
    """
    return complete_source(epilogue, _BODY)
