"""The CUDA C++ text of a GEMM of one row with an epilogue for Hopper: rows of weights as a stream.

Its time is that of reading the weights once, in long pieces of their rows (``cp.async.bulk``, PTX
ISA), as many ahead as shared memory holds. One warp asks for them; each of the others multiplies
the pieces of one column of the product and adds them up in fp32, always in the same order.

A launch may begin before the kernel in front of it ends (``programmatic_launch.py``): weights come
meanwhile, and x and what is read beside the products behind ``griddepcontrol.wait``. x may be
normalised before it is multiplied (``row_norm_source.py``).

Weights lie as (N, K).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusepass.fusion.kernel_ir.epilogue import Epilogue
from fusepass.kernels.codegen.cuda_epilogue import (
    element_helpers,
    element_parameters,
    element_steps,
)
from fusepass.kernels.codegen.cuda_source import TYPES
from fusepass.kernels.gemm.hopper.row_norm_source import bytes_beside, norm_source
from fusepass.kernels.gemm.hopper.tile_template import AWAITS, LEADS, filled

NAME = "fusepass_gemm_row"


WIDEST = 32768  # numbers of the longest x that fits into shared memory beside the rings


@dataclass(frozen=True)
class RowKernel:
    """How the work is cut.

    Attributes:
        piece: numbers of a weight's row that one copy brings: a multiple of 256.
        stages: pieces in flight to each warp; of a pair, one of each weight.
        warps: that multiply.
        early: whether a launch may begin before the kernel in front of it ends.
        leads: whether it lets such a launch behind it begin.
        norm: of x, by :meth:`fusepass.fusion.kernel_ir.norm.Norm.text`, if it is to be normalised.
        vector_dtypes: of the norm's gain and shift, as torch calls them.
        widths: columns of each product, where each has an epilogue of its own.
    """

    piece: int
    stages: int
    warps: int
    early: bool = False
    leads: bool = False
    norm: str = ""
    vector_dtypes: tuple[str, ...] = ()
    widths: tuple[int, ...] = ()

    @property
    def threads(self) -> int:
        """Threads of a block: the warps that multiply, and the one that loads."""
        return 32 * self.warps + 32

    def blocks(self, m: int, n: int, products: int, processors: int) -> int:
        """Blocks of a launch: one for each multiprocessor, if there is work for all."""
        return min(n, processors)

    def shared(self, epilogue: Epilogue, k: int = WIDEST) -> int:
        """Bytes of shared memory that a block needs for so many numbers of x."""
        slots = self.stages * self.warps
        beside = 128 + -(-k // 8) * 16 + bytes_beside(self.warps, self.norm)
        return beside + slots * (epilogue.products * self.piece * 2 + 16)


def hopper_row(epilogues: Sequence[Epilogue], shape: RowKernel, dtype: str) -> str:
    """The source of ``fusepass_gemm_row``.

    Its parameter is a structure of the addresses of x and the weights, how far the weights' rows
    are apart, the columns at which products but the first begin, the norm's vectors, the operands'
    addresses and strides, of no use for one row, the outputs' addresses, and M, which is 1, N and
    K. Operands and outputs are those of the first epilogue, then of the next.

    Args:
        epilogues: one of one or two products, or one for each product; with nothing reduced.
        shape: of its pieces.
        dtype: of x and the weights, ``float16`` or ``bfloat16``.
    """
    several, products = len(epilogues) > 1, epilogues[0].products
    weights = range(max(products, len(epilogues)))
    operands = [one for epilogue in epilogues for one in epilogue.operands]
    count = sum(len(epilogue.outputs) for epilogue in epilogues)
    address = "".join(f"part == {i} ? t.w{i} : " for i in weights[:-1]) + f"t.w{weights[-1]}"
    addresses = [address] if several else [f"t.w{i}" for i in weights]
    replaced = {
        "$fields": "u64 x; "
        + "".join(f"u64 w{i}; " for i in weights)
        + "u64 apart; "
        + "".join(f"u64 b{i}; " for i in weights[1:] if several)
        + "".join(f"u64 v{i}; " for i, _ in enumerate(shape.vector_dtypes))
        + "".join(f"u64 p{i}, s{i}; " for i, _ in enumerate(operands))
        + "".join(f"u64 o{i}; " for i in range(count)),
        **(norm_source(shape.norm, shape.vector_dtypes) if shape.norm else _AS_IT_IS),
        "$type": TYPES[dtype],
        "$located": _product_of_column(len(epilogues)),
        "$weights": "\n".join(_WEIGHT.format(i=i, at=at) for i, at in enumerate(addresses)),
        **_elements(epilogues),
        "$leads": LEADS * shape.leads,
        "$awaits": AWAITS * shape.early,
        "$helpers": element_helpers(epilogues),
        "$name": NAME,
    }
    defined = {
        "PIECE": shape.piece,
        "STAGES": shape.stages,
        "WARPS": shape.warps,
        "PRODUCTS": products,
    }
    return filled(TEXT, replaced, defined)


def _product_of_column(parts: int) -> str:
    """Lines that say of which product column n is, and of what number there."""
    lines = ["u32 part = 0, c = n;"] if parts > 1 else ["const u32 c = n;"]
    lines += [f"if (n >= t.b{i}) {{ part = {i}; c = n - t.b{i}; }}" for i in range(1, parts)]
    return "\n".join("    " + line for line in lines)


def _elements(epilogues: Sequence[Epilogue]) -> dict[str, str]:
    """What reads, computes and stores a column's results: of several products that of its own."""
    functions, read, made = [], [], []
    several, operand, output = len(epilogues) > 1, 0, 0
    for part, epilogue in enumerate(epilogues):
        only = f"if (part == {part}) " * several
        given = element_parameters(epilogue)
        steps = "\n".join(element_steps(epilogue))
        functions.append(f"__device__ __forceinline__ void element{part}({given}) {{\n{steps}\n}}")
        values = [f"sums[{i}]" for i in range(epilogue.products)]
        for one in epilogue.operands:
            kind = TYPES[one.dtype]
            read.append(f"    {kind} a{operand} = {kind}();")
            read.append(
                f"    {only}a{operand} = ((const {kind}*)t.p{operand})[{_INDEX[one.kind]}];"
            )
            values.append(f"get(a{operand})")
            operand += 1
        values += [f"r[{i}]" for i, _ in enumerate(epilogue.outputs)]
        stored = []
        for i, made_of in enumerate(epilogue.outputs):
            stored.append(f"put(({TYPES[made_of.dtype]}*)t.o{output} + c, r[{i}]);")
            output += 1
        made.append(
            f"    {only}{{\n      float r[{len(epilogue.outputs)}];\n"
            f"      element{part}({', '.join(values)});\n"
            f"      if (lane == 0) {{ {' '.join(stored)} }}\n    }}"
        )
    return {
        "$functions": "\n".join(functions),
        "$read": "\n".join(read),
        "$made": "\n".join(made),
    }


_AS_IT_IS = {
    "$adds_up": "",
    "$x_in_place": """\
  for (u32 i = thread * 8; i < t.K; i += WARPS * 256)
    keep(x + i * 2, *(const pack<u32, 4>*)(t.x + i * 2));""",
}
_INDEX = {"scalar": "0", "row": "c", "column": "0", "full": "c"}
_WEIGHT = """\
            const u64 at{i} = ({at}) + (c * t.apart + k) * 2;
            fetch_once(to + {i} * PIECE * 2, at{i}, size, barrier, policy);"""

TEXT = """
__device__ __forceinline__ void fetch_once(u32 to, u64 from, u32 bytes, u32 barrier, u64 policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;"
      :: "r"(to), "l"(from), "r"(bytes), "r"(barrier), "l"(policy) : "memory");
}
__device__ __forceinline__ pack<u32, 4> words(u32 from) {
  pack<u32, 4> read;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(read.of[0]), "=r"(read.of[1]), "=r"(read.of[2]), "=r"(read.of[3])
               : "r"(from) : "memory");
  return read;
}
__device__ __forceinline__ void keep(u32 to, const pack<u32, 4>& four) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
               :: "r"(to), "r"(four.of[0]), "r"(four.of[1]), "r"(four.of[2]), "r"(four.of[3])
               : "memory");
}
__device__ __forceinline__ float number(const pack<u32, 4>& eight, int i) {
  float two[2];
  widen(eight.of[i / 2], two, $type());
  return two[i % 2];
}
$helpers
$adds_up
$functions

extern "C" __global__ void __launch_bounds__(WARPS * 32 + 32, 1)
$name(const __grid_constant__ table_t t) {
  extern __shared__ unsigned char memory[];
  constexpr u32 STEP = PRODUCTS * PIECE * 2;  // bytes
  const u32 base = (shared(memory) + 127) / 128 * 128;
  const u32 x = base + WARPS * STAGES * STEP, full = x + (t.K + 7) / 8 * 16;
  const u32 empty = full + 8 * WARPS * STAGES;
  const u32 thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const u32 pieces = (t.K + PIECE - 1) / PIECE;
$leads
  if (thread == WARPS * 32) {
    for (u32 i = 0; i < WARPS * STAGES; ++i) {
      init(full + 8 * i, 1);
      init(empty + 8 * i, 1);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (warp == WARPS) {
    if (lane == 0) {
      u64 policy;
      asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
      // A slot is one warp's: copies end in any order, and a barrier tells two phases apart only.
      u32 slot = 0, phase = 1;
      for (u64 first = blockIdx.x; first < t.N; first += WARPS * gridDim.x) {
        for (u32 k = 0; k < t.K; k += PIECE) {
          const u32 size = min(PIECE, t.K - k) * 2;
          for (u32 of = 0; of < WARPS; ++of) {
            const u64 n = first + of * gridDim.x;
            if (n >= t.N) break;
$located
            const u32 place = of * STAGES + slot;
            await(empty + 8 * place, phase);
            const u32 barrier = full + 8 * place, to = base + place * STEP;
            expect(barrier, PRODUCTS * size);
$weights
          }
          if (++slot == STAGES) { slot = 0; phase ^= 1; }
        }
      }
    }
    return;
  }
  // The kernel in front may write x, what results need besides, and where results lie.
$awaits
$x_in_place
  asm volatile("bar.sync 1, %0;" :: "n"(WARPS * 32) : "memory");
  u32 slot = 0, phase = 0;
  for (u32 n = blockIdx.x + warp * gridDim.x; n < t.N; n += WARPS * gridDim.x) {
$located
$read
    float d[PRODUCTS][8] = {};
    for (u32 j = 0; j < pieces; ++j) {
      const u32 place = warp * STAGES + slot, from = base + place * STEP;
      const u32 size = min(PIECE, t.K - j * PIECE);
      await(full + 8 * place, phase);
#pragma unroll 4
      for (u32 i = lane * 8; i < size; i += 256) {
        const pack<u32, 4> of_x = words(x + (j * PIECE + i) * 2);
        float factors[8];
#pragma unroll
        for (int w = 0; w < 4; ++w) widen(of_x.of[w], factors + w * 2, $type());
#pragma unroll
        for (int one = 0; one < PRODUCTS; ++one) {
          const pack<u32, 4> read = words(from + (one * PIECE + i) * 2);
#pragma unroll
          for (int w = 0; w < 4; ++w) {
            float two[2];
            widen(read.of[w], two, $type());
            d[one][w * 2] += factors[w * 2] * two[0];
            d[one][w * 2 + 1] += factors[w * 2 + 1] * two[1];
          }
        }
      }
      __syncwarp();
      if (lane == 0) release(empty + 8 * place);
      if (++slot == STAGES) { slot = 0; phase ^= 1; }
    }
    float sums[PRODUCTS];
#pragma unroll
    for (int one = 0; one < PRODUCTS; ++one) {
      float* of = d[one];
      float sum = ((of[0] + of[1]) + (of[2] + of[3])) + ((of[4] + of[5]) + (of[6] + of[7]));
#pragma unroll
      for (int apart = 16; apart > 0; apart /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, apart);
      sums[one] = sum;
    }
$made
  }
}
"""
