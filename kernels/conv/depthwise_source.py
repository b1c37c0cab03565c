"""CUDA C++ of an NHWC depthwise convolution with an epilogue.

A thread computes a patch of a few pixels, for a few neighbouring channels: each number that it
reads of the image is used by all pixels of the patch it belongs to, from registers. The threads of
a block share their channels' weights, in fp32, in shared memory; pixels outside the image are
nothing. Sums are in fp32.

Sizes are constants of the text, all but the batch's: NVRTC compiles one in some tenths of a second,
and no index is divided by a variable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fusepass.fusion.kernel_ir.epilogue import Epilogue
from fusepass.kernels.codegen.cuda_source import HEAD, TYPES, statements, value

NAME = "fusepass_depthwise"
_MOST_THREADS = 256
_MOST_LANES = 32  # a block reads the weights of all of them first
_MOST_BYTES = 24 << 10  # of shared memory
_UNROLLED = 9  # taps; of more, the rows of a kernel are a loop


@dataclass(frozen=True)
class DepthwiseShape:
    """All about a depthwise convolution but its batch.

    Attributes:
        channels: of the image and the result.
        image: its height and width.
        result: likewise.
        kernel, stride, padding, dilation: likewise, in pixels.
        dtype: of image and weight; torch's name.
    """

    channels: int
    image: tuple[int, int]
    result: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    dtype: str


Pair = Sequence[int]


def shape_of(
    image: Sequence[int],
    weight: Sequence[int],
    dtype: object,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
) -> DepthwiseShape:
    """What a call with an x of the sizes ``image``, of torch's dtype, computes for any batch."""
    sides = zip(image[2:], weight[2:], stride, padding, dilation, strict=True)
    result = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sides]

    def pair(sizes: Pair) -> tuple[int, int]:
        height, width = map(int, sizes)
        return height, width

    return DepthwiseShape(
        channels=int(image[1]),
        image=pair(image[2:]),
        result=pair(result),
        kernel=pair(weight[2:]),
        stride=pair(stride),
        padding=pair(padding),
        dilation=pair(dilation),
        dtype=str(dtype).removeprefix("torch."),
    )


@dataclass(frozen=True)
class DepthwisePatch:
    """What one thread computes at once.

    Attributes:
        vector: channels.
        across, down: pixels.
    """

    vector: int
    across: int
    down: int

    @property
    def name(self) -> str:
        """What tables and reports call it."""
        return f"cuda {self.vector}x{self.across}x{self.down}"


def lanes(shape: DepthwiseShape, patch: DepthwisePatch) -> int:
    """Threads that share a pixel: they divide the channels, and there is room for weights."""
    each, taps = shape.channels // patch.vector, shape.kernel[0] * shape.kernel[1]
    most = min(each, _MOST_LANES, max(_MOST_BYTES // (4 * taps * patch.vector) - 1, 1))
    return max(n for n in range(1, most + 1) if each % n == 0)


def rows(shape: DepthwiseShape, patch: DepthwisePatch) -> int:
    """Patches that a block computes at once."""
    return max(_MOST_THREADS // lanes(shape, patch), 1)


def patches(shape: DepthwiseShape, patch: DepthwisePatch) -> tuple[int, int]:
    """How many patches a result has from top to bottom, and from left to right."""
    height, width = shape.result
    return -(-height // patch.down), -(-width // patch.across)


# Weights are padded by one vector a tap: threads that write them go down a column.
_KERNEL = """
struct Table { u64 x, w, p[NUMBERS]; u32 batch; };
constexpr int THREADS = LANES * ROWS, TAPS = KH * KW, OWN = LANES * V;
constexpr int READ_DOWN = (DOWN - 1) * SY + (KH - 1) * DY + 1;
constexpr int READ_ACROSS = (ACROSS - 1) * SX + (KW - 1) * DX + 1;

extern "C" __global__ void __launch_bounds__(THREADS)
fusepass_depthwise(const __grid_constant__ Table t) {
  __shared__ __align__(16) float weights[TAPS][OWN + V];
  const u32 lane = threadIdx.x % LANES, row = threadIdx.x / LANES;
  const u32 group = blockIdx.x % GROUPS, blocks = gridDim.x / GROUPS;
  const u32 c = group * OWN + lane * V;
  const number* w = (const number*)t.w + group * (OWN * TAPS);
#pragma unroll 8
  for (u32 i = threadIdx.x; i < OWN * TAPS; i += THREADS) weights[i % TAPS][i / TAPS] = get(w[i]);
  __syncthreads();
@CHANNEL
  const u32 patches = t.batch * (PATCHES_DOWN * PATCHES_ACROSS);
  for (u32 s = blockIdx.x / GROUPS * ROWS + row; s < patches; s += blocks * ROWS) {
    const int ox = s % PATCHES_ACROSS * ACROSS, oy = s / PATCHES_ACROSS % PATCHES_DOWN * DOWN;
    const u32 b = s / (PATCHES_ACROSS * PATCHES_DOWN);
    const int ix = ox * SX - PX, iy = oy * SY - PY;
    const number* image = (const number*)t.x + (u64)b * (H * W * C) + c;
    float sum[DOWN][ACROSS][V];
#pragma unroll
    for (int i = 0; i < DOWN * ACROSS * V; ++i) ((float*)sum)[i] = 0.0f;
@UNROLL
    for (int r = 0; r < READ_DOWN; ++r) {
      if ((u32)(iy + r) >= H) continue;
      const number* line = image + ((iy + r) * W + ix) * C;
      pack<float, V> tap[DOWN][KW];
      bool used[DOWN];  // a pixel times 0 would not be nothing where it is not finite
#pragma unroll
      for (int d = 0; d < DOWN; ++d) {
        const int k = r - d * SY;
        used[d] = k >= 0 && k % DY == 0 && k / DY < KH;
#pragma unroll
        for (int q = 0; q < KW; ++q)
          if (used[d]) tap[d][q] = *(const pack<float, V>*)&weights[k / DY * KW + q][lane * V];
      }
#pragma unroll
      for (int i = 0; i < READ_ACROSS; ++i) {
        float pixel[V];
        fetch<V>(line + i * C, (u32)(ix + i) < W, pixel);
#pragma unroll
        for (int a = 0; a < ACROSS; ++a) {
          const int k = i - a * SX;
          if (k >= 0 && k % DX == 0 && k / DX < KW) {
#pragma unroll
            for (int d = 0; d < DOWN; ++d)
#pragma unroll
              for (int j = 0; j < V; ++j)
                if (used[d]) sum[d][a][j] = fmaf(pixel[j], tap[d][k / DX].of[j], sum[d][a][j]);
          }
        }
      }
    }
#pragma unroll
    for (int d = 0; d < DOWN; ++d)
#pragma unroll
    for (int a = 0; a < ACROSS; ++a) {
      if (oy + d >= OH || ox + a >= OW) continue;
      const u32 m = (b * OH + oy + d) * OW + ox + a;
      const u64 at = (u64)m * C + c;
@PIXEL
    }
  }
}
"""


def depthwise_source(shape: DepthwiseShape, epilogue: Epilogue, patch: DepthwisePatch) -> str:
    """The kernel's text.

    Args:
        shape: of the convolution; its channels are a multiple of the patch's.
        epilogue: of its result; what is reduced has no place there.
        patch: of one thread.
    """
    wide, taps = lanes(shape, patch), shape.kernel[0] * shape.kernel[1]
    down, across = patches(shape, patch)
    numbers = {
        "V": patch.vector,
        "ACROSS": patch.across,
        "DOWN": patch.down,
        "LANES": wide,
        "ROWS": rows(shape, patch),
        "GROUPS": shape.channels // (wide * patch.vector),
        "C": shape.channels,
        "PATCHES_DOWN": down,
        "PATCHES_ACROSS": across,
        "NUMBERS": max(len(epilogue.operands) + len(epilogue.outputs), 1),
    }
    pairs = {
        "H W": shape.image,
        "OH OW": shape.result,
        "KH KW": shape.kernel,
        "SY SX": shape.stride,
        "PY PX": shape.padding,
        "DY DX": shape.dilation,
    }
    for names, values in pairs.items():
        numbers |= dict(zip(names.split(), values, strict=True))
    constants = ", ".join(f"{name} = {number}" for name, number in numbers.items())
    # A loop's body is the same for all of its rows only where each of them is used.
    loop = taps > _UNROLLED and patch.down == 1 and shape.dilation[0] == 1
    text = _KERNEL.replace("@UNROLL", "#pragma unroll 1" if loop else "#pragma unroll")
    text = text.replace("@CHANNEL", _text(_per_channel(epilogue), 2))
    text = text.replace("@PIXEL", _text(_per_pixel(epilogue), 6))
    return f"{HEAD}typedef {TYPES[shape.dtype]} number;\nconstexpr int {constants};\n{text}"


def _text(lines: Iterator[str], indent: int) -> str:
    return "\n".join(line if line.startswith("#") else " " * indent + line for line in lines)


def _per_channel(epilogue: Epilogue) -> Iterator[str]:
    """Read what there is one of for each channel, or one in all."""
    for k, operand in enumerate(epilogue.operands):
        read = "bool" if operand.dtype == "bool" else "float"
        given = f"((const {TYPES[operand.dtype]}*)t.p[{k}])"
        if operand.kind == "row":
            yield f"{read} row{k}[V];"
            yield "#pragma unroll"
            yield f"for (int j = 0; j < V; ++j) row{k}[j] = get({given}[c + j]);"
        elif operand.kind == "scalar":
            yield f"const {read} scalar{k} = get(*{given});"


def _per_pixel(epilogue: Epilogue) -> Iterator[str]:
    """The epilogue of one pixel, V channels of it."""
    outs = list(enumerate(epilogue.outputs, start=len(epilogue.operands)))
    for k, operand in enumerate(epilogue.operands):
        kind = TYPES[operand.dtype]
        given = f"((const {kind}*)t.p[{k}])"
        if operand.kind == "full":
            yield f"const auto full{k} = *(const pack<{kind}, V>*)({given} + at);"
        elif operand.kind == "column":
            yield f"const auto column{k} = get({given}[m]);"
    for place, out in outs:
        yield f"pack<{TYPES[out.dtype]}, V> made{place};"
    yield "#pragma unroll"
    yield "for (int j = 0; j < V; ++j) {"
    yield "  const float v0 = sum[d][a][j];"
    for k, operand in enumerate(epilogue.operands):
        name = f"{operand.kind}{k}"
        read = {"full": f"get({name}.of[j])", "row": f"{name}[j]"}.get(operand.kind, name)
        yield f"  const auto v{k + 1} = {read};"
    for _, text in statements(epilogue):
        yield f"  {text}"
    for place, out in outs:
        yield f"  put(made{place}.of + j, {value(out.value)});"
    yield "}"
    for place, out in outs:
        kind = TYPES[out.dtype]
        yield f"*(pack<{kind}, V>*)(({kind}*)t.p[{place}] + at) = made{place};"
