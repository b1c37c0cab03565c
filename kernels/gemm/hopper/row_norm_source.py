"""The CUDA C++ text by which the kernel of one row for Hopper normalises its x (``row_source.py``).

Every block does so for itself, while the weights it multiplies first are on their way; RMSNorm or
LayerNorm with a weight, as ``fusion/kernel_ir/norm.py`` has them: in fp32, rounded once to x's
dtype, as ``F.rms_norm`` and ``F.layer_norm`` round it. (Models that write an RMSNorm out may round
before the gain, too.)
"""

from __future__ import annotations

from collections.abc import Sequence

from fusepass.fusion.kernel_ir.norm import parse
from fusepass.kernels.codegen.cuda_source import TYPES


def norm_source(norm: str, dtypes: Sequence[str]) -> dict[str, str]:
    """What goes into the text of the kernel: how a block comes to its x in shared memory.

    Args:
        norm: by :meth:`fusepass.fusion.kernel_ir.norm.Norm.text`.
        dtypes: of its gain, and of its shift if it has one.
    """
    found = parse(norm)
    kinds = [TYPES[one] for one in dtypes]
    shift = f" + get((({kinds[-1]} const*)t.v1)[i + j])" * found.shifted
    replaced = {
        "$term": "value" if found.centred else "value * value",
        "$centre": _CENTRE if found.centred else "  const float mean = 0.0f;",
        "$eps": f"{found.eps!r}f",
        "$offset": f"{found.offset!r}f",
        "$gain": f"get((({kinds[0]} const*)t.v0)[i + j])",
        "$shift": shift,
    }
    text = TEXT
    for key, value in replaced.items():
        text = text.replace(key, value)
    return {"$adds_up": HELPER, "$x_in_place": text}


def bytes_beside(warps: int, norm: str) -> int:
    """Shared memory for what warps add up: of a mean, and of squares."""
    return 8 * warps if norm else 0


HELPER = """
__device__ __forceinline__ float of_all(float sum, u32 at) {
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, apart);
  if (threadIdx.x % 32 == 0)
    asm volatile("st.shared.f32 [%0], %1;" :: "r"(at + threadIdx.x / 32 * 4), "f"(sum) : "memory");
  asm volatile("bar.sync 1, %0;" :: "n"(WARPS * 32) : "memory");
  float all = 0.0f;
#pragma unroll
  for (int i = 0; i < WARPS; ++i) {
    float one;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(one) : "r"(at + i * 4) : "memory");
    all += one;
  }
  return all;
}"""

# A thread reads only what it wrote itself, until all are done.
TEXT = """
  const u32 sums_at = empty + 8 * WARPS * STAGES;
  float total = 0.0f;
  for (u32 i = thread * 8; i < t.K; i += WARPS * 256) {
    const pack<u32, 4> read = *(const pack<u32, 4>*)(t.x + i * 2);
    keep(x + i * 2, read);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float value = number(read, j);
      total += $term;
    }
  }
  total = of_all(total, sums_at) / t.K;
$centre
  const float scale = rsqrtf(total + $eps);
  for (u32 i = thread * 8; i < t.K; i += WARPS * 256) {
    const pack<u32, 4> read = words(x + i * 2);
    float made[8];
#pragma unroll
    for (int j = 0; j < 8; ++j)
      made[j] = (number(read, j) - mean) * scale * ($gain + $offset)$shift;
    pack<u32, 4> rounded;
#pragma unroll
    for (int j = 0; j < 4; ++j)
      rounded.of[j] = _packed(made[j * 2], made[j * 2 + 1], $type());
    keep(x + i * 2, rounded);
  }"""
_CENTRE = """\
  const float mean = total;
  total = 0.0f;
  for (u32 i = thread * 8; i < t.K; i += WARPS * 256) {
    const pack<u32, 4> read = words(x + i * 2);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float value = number(read, j) - mean;
      total += value * value;
    }
  }
  total = of_all(total, sums_at + 4 * WARPS) / t.K;"""
