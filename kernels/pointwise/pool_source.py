"""CUDA C++ of NCHW max- and average-pooling with the pointwise work on either side of it.

A thread computes a patch of a few pixels and reads the rows of the image below it once, in vectors.
Arithmetic is in fp32. Pixels outside the image are no part of a maximum; in an average they are
zeros, and count or do not. A NaN in the window makes either of them NaN.

Sizes are constants of the text, all but the number of planes: NVRTC compiles one in some tenths of
a second, and no index is divided by a variable.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fusepass.fusion.kernel_ir.epilogue import Epilogue
from fusepass.kernels.codegen.cuda_source import HEAD, TYPES, statements, value

NAME = "fusepass_pool"
THREADS = 256
Pair = tuple[int, int]


@dataclass(frozen=True)
class PoolShape:
    """All about a pooling but how many planes there are.

    Attributes:
        largest: whether it is a maximum; else it is an average.
        image: height and width of a plane.
        result: likewise.
        kernel, stride, padding: likewise, in pixels.
        divisor: of an average: a number, or 0 for the pixels of the window inside the image.
        given, made: dtypes of image and result; torch's names.
    """

    largest: bool
    image: Pair
    result: Pair
    kernel: Pair
    stride: Pair
    padding: Pair
    divisor: int
    given: str
    made: str


@dataclass(frozen=True)
class PoolPatch:
    """What one thread computes at once.

    Attributes:
        vector: numbers of a row that it reads at once.
        across, down: pixels of the result.
    """

    vector: int
    across: int
    down: int

    @property
    def name(self) -> str:
        """What tables and reports call it."""
        return f"cuda {self.vector}x{self.across}x{self.down}"


def patches(shape: PoolShape, patch: PoolPatch) -> Pair:
    """How many patches a plane of the result has from top to bottom, and from left to right."""
    height, width = shape.result
    return -(-height // patch.down), -(-width // patch.across)


# A row's own pixels are those of whole strides, read in vectors; those on both sides come apart.
# Windows are joined along rows first: what a row gives counts for each window that it is part of.
_KERNEL = """
struct Table { u64 x, y; u32 planes; };
constexpr int READ_DOWN = (DOWN - 1) * SY + KH, READ_ACROSS = (ACROSS - 1) * SX + KW;
constexpr int OWN = ACROSS * SX, LEFT = PX;
constexpr int RIGHT = READ_ACROSS - LEFT - OWN > 0 ? READ_ACROSS - LEFT - OWN : 0;
constexpr bool WHOLE = W % OWN == 0 && (PATCHES_ACROSS - 1) * OWN < W;

__device__ __forceinline__ float before(float v0) {
@BEFORE
}
__device__ __forceinline__ float behind(float v0) {
@BEHIND
}
// The first one of equals and the first NaN, as torch takes them.
__device__ __forceinline__ float joined(float x, float y) { return @JOINED; }
__device__ __forceinline__ int inside(int from, int size, int most) {
  const int first = from > 0 ? from : 0, last = from + size < most ? from + size : most;
  return last - first;
}
__device__ __forceinline__ float finished(float x, int oy, int ox) { return behind(@FINISHED); }

extern "C" __global__ void __launch_bounds__(THREADS)
fusepass_pool(const __grid_constant__ Table t) {
  const u64 thread = (u64)blockIdx.x * THREADS + threadIdx.x;
  const u32 plane = (u32)(thread / EACH), at = (u32)(thread % EACH);
  if (plane >= t.planes) return;
  const int ox = at % PATCHES_ACROSS * ACROSS, oy = at / PATCHES_ACROSS * DOWN;
  const int x0 = ox * SX, iy = oy * SY - PY;
  const given* from = (const given*)t.x + (u64)plane * (H * W);
  float all[DOWN][ACROSS];
#pragma unroll
  for (int i = 0; i < DOWN * ACROSS; ++i) ((float*)all)[i] = @NOTHING;
#pragma unroll
  for (int r = 0; r < READ_DOWN; ++r) {
    if ((u32)(iy + r) >= H) continue;
    const given* line = from + (iy + r) * W + x0;
    float pixel[LEFT + OWN + RIGHT];
#pragma unroll
    for (int i = 0; i < OWN; i += V) fetch<V>(line + i, WHOLE || x0 + i < W, pixel + LEFT + i);
#pragma unroll
    for (int i = 0; i < LEFT + OWN + RIGHT; ++i) {
      const bool own = i >= LEFT && i < LEFT + OWN;
      const bool wanted = own && WHOLE || (u32)(x0 - LEFT + i) < W;
      if (!own) pixel[i] = wanted ? get(line[i - LEFT]) : 0.0f;
      pixel[i] = wanted ? before(pixel[i]) : @NOTHING;
    }
#pragma unroll
    for (int a = 0; a < ACROSS; ++a) {
      float row = pixel[a * SX];
#pragma unroll
      for (int k = 1; k < KW; ++k) row = joined(row, pixel[a * SX + k]);
#pragma unroll
      for (int d = 0; d < DOWN; ++d)
        if (r >= d * SY && r < d * SY + KH) all[d][a] = joined(all[d][a], row);
    }
  }
  made* to = (made*)t.y + (u64)plane * (OH * OW);
#pragma unroll
  for (int d = 0; d < DOWN; ++d) {
    if (oy + d >= OH) continue;
    pack<made, ACROSS> done;
#pragma unroll
    for (int a = 0; a < ACROSS; ++a) put(done.of + a, finished(all[d][a], oy + d, ox + a));
    made* line = to + (oy + d) * OW + ox;
    if (OW % ACROSS == 0) {
      *(pack<made, ACROSS>*)line = done;
    } else {
#pragma unroll
      for (int a = 0; a < ACROSS; ++a)
        if (ox + a < OW) line[a] = done.of[a];
    }
  }
}
"""


def pool_source(shape: PoolShape, before: Epilogue, behind: Epilogue, patch: PoolPatch) -> str:
    """The kernel's text.

    Args:
        shape: of the pooling.
        before: of one product: what is done to each number of the image.
        behind: likewise, to each of the result.
        patch: of one thread; its vector divides the width of the image and of a patch's strides.
    """
    down, across = patches(shape, patch)
    numbers = {
        "V": patch.vector,
        "ACROSS": patch.across,
        "DOWN": patch.down,
        "THREADS": THREADS,
        "EACH": down * across,
        "PATCHES_ACROSS": across,
    }
    pairs = {
        "H W": shape.image,
        "OH OW": shape.result,
        "KH KW": shape.kernel,
        "SY SX": shape.stride,
        "PY PX": shape.padding,
    }
    for names, values in pairs.items():
        numbers |= dict(zip(names.split(), values, strict=True))
    constants = ", ".join(f"{name} = {number}" for name, number in numbers.items())
    marks = {
        "BEFORE": "\n".join(f"  {line}" for line in _function(before)),
        "BEHIND": "\n".join(f"  {line}" for line in _function(behind)),
        "JOINED": "y > x || y != y ? y : x" if shape.largest else "x + y",
        "NOTHING": "__uint_as_float(0xff800000u)" if shape.largest else "0.0f",
        "FINISHED": _result_expression(shape),
    }
    text = _KERNEL
    for mark, written in marks.items():
        text = text.replace(f"@{mark}", written)
    types = f"typedef {TYPES[shape.given]} given;\ntypedef {TYPES[shape.made]} made;\n"
    return f"{HEAD}{types}constexpr int {constants};\n{text}"


def _function(body: Epilogue) -> Iterator[str]:
    """The body of a function of ``v0``."""
    for _, text in statements(body):
        yield text
    yield f"return {value(body.outputs[0].value)};"


def _result_expression(shape: PoolShape) -> str:
    if shape.largest:
        return "x"
    if shape.divisor:
        return f"x / {shape.divisor}.0f"
    return "x / (inside(oy * SY - PY, KH, H) * inside(ox * SX - PX, KW, W))"
