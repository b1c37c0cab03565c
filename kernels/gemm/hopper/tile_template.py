"""The CUDA C++ text that ``tile_source.py`` completes: ``$`` stands in front of what it puts in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fusepass.kernels.codegen.cuda_source import HEAD


def descriptors(names: Sequence[str]) -> dict[str, str]:
    """What a kernel's text says of its descriptors: as parameters, and that they will be read."""
    fetched = 'asm volatile("prefetch.tensormap [%0];" :: "l"(&{}) : "memory");'
    return {
        "$ready": "\n".join(f"    {fetched.format(one)}" for one in names),
        "$maps": " ".join(f"const __grid_constant__ map_t {one}," for one in names),
    }


def filled(text: str, replaced: Mapping[str, str], defined: Mapping[str, int]) -> str:
    """A kernel's whole source.

    Args:
        text: of the kernel, with places that begin with ``$``.
        replaced: what goes there, also in what all share.
        defined: names of the preprocessor.
    """
    text = PRIMITIVES + text
    for key, value in replaced.items():
        text = text.replace(key, value)
    return "".join(f"#define {k} {v}\n" for k, v in defined.items()) + HEAD + text


# What kernels of this kind share: barriers, copies by TMA, and tiles as tensor cores are told them.
PRIMITIVES = """
typedef unsigned short u16;
struct __align__(64) map_t { unsigned char bytes[128]; };
struct table_t { $fields u32 M, N, K; };

__device__ __forceinline__ u32 shared(const void* at) { return (u32)__cvta_generic_to_shared(at); }
__device__ __forceinline__ void init(u32 barrier, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(count));
}
__device__ __forceinline__ void expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :: "r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void await(u32 barrier, u32 parity) {
  asm volatile(
      "{.reg .pred done;\\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\\n"
      "@done bra.uni ready;\\n"
      "bra.uni again;\\n"
      "ready:}"
      :: "r"(barrier), "r"(parity) : "memory");
}
__device__ __forceinline__ void release(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(barrier) : "memory");
}
__device__ __forceinline__ void load(
    u32 to, const map_t* map, u32 barrier, int along_k, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4}], [%2];"
      :: "r"(to), "l"(map), "r"(barrier), "r"(along_k), "r"(row) : "memory");
}
// A tile in shared memory, of rows of 128 bytes, eight of which are swizzled together.
__device__ __forceinline__ u64 described(u32 at) {
  return (u64)((at & 0x3ffffu) >> 4) | 1ull << 16 | (u64)(1024 >> 4) << 32 | 1ull << 62;
}
"""

# For launches that overlap: let the next begin; wait for all before, and for what they wrote.
LEADS = '  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");'
AWAITS = '  asm volatile("griddepcontrol.wait;" ::: "memory");'

TEXT = """
__device__ __forceinline__ void send(const map_t* map, u32 from, int column, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];\\n"
      "cp.async.bulk.commit_group;"
      :: "l"(map), "r"(from), "r"(column), "r"(row) : "memory");
}
__device__ __forceinline__ void together(u32 group) {
  asm volatile("bar.sync %0, 128;" :: "r"(group + 1) : "memory");
}
__device__ __forceinline__ void multiply(float (&d)[COLUMNS / 2], u64 x, u64 w, int more) {
  asm volatile(
      "{.reg .pred p;\\n"
      "setp.ne.b32 p, $nonzero, 0;\\n"
      "wgmma.mma_async.sync.aligned.m64n$columnsk16.f32.$kind.$kind "
      "{$registers}, $x, $w, p, 1, 1, 0, 0;}"
      : $outputs : "l"(x), "l"(w), "r"(more));
}
__device__ __forceinline__ void place(u32 tile, u32 down, u32 across, u32& m, u32& n) {
  constexpr u32 GROUP = 8;
  u32 in_group = GROUP * across, first = tile / in_group * GROUP;
  u32 size = min(down - first, GROUP), rest = tile % in_group;
  m = first + rest % size;
  n = rest / size;
}
$helpers
__device__ __forceinline__ void element($given) {
$steps
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
$name($maps const __grid_constant__ table_t t) {
  extern __shared__ unsigned char memory[];
  const u32 base = (shared(memory) + 1023) / 1024 * 1024;
  const u32 xs = base, ws = xs + STAGES * ROWS * 128, staged = ws + STAGES * COLUMNS * 128;
  const u32 beside = staged + GROUPS * PLACES * 64 * PIECE * 2;
  const u32 full = beside + GROUPS * KEPT, empty = full + 8 * STAGES;
  const u32 turn = empty + 8 * STAGES;
  const u32 thread = threadIdx.x, group = thread / 128, warp = thread / 32, lane = thread % 32;
  if (thread == 0) {
$ready
    for (u32 i = 0; i < STAGES; ++i) {
      init(full + 8 * i, 1);
      init(empty + 8 * i, (TURNS ? 1 : GROUPS) * 4);
    }
    for (u32 i = 0; i < 2; ++i) init(turn + 8 * i, 4);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  const u32 down = (t.M + ROWS - 1) / ROWS, across = (t.N + WIDTH - 1) / WIDTH;
  const u32 steps = (t.K + 63) / 64, tiles = down * across;
  const u32 first = blockIdx.x, stride = gridDim.x;
  if (group == GROUPS) {
$fewer    if (warp == 4 * GROUPS && lane == 0) {
      u32 slot = 0, phase = 1;
      for (u32 tile = first; tile < tiles; tile += stride) {
        u32 m, n;
        place(tile, down, across, m, n);
        for (u32 k = 0; k < steps; ++k) {
          await(empty + 8 * slot, phase);
          const u32 barrier = full + 8 * slot, w = ws + slot * COLUMNS * 128;
          expect(barrier, (ROWS + COLUMNS) * 128);
          load(xs + slot * ROWS * 128, &x_map, barrier, k * 64, m * ROWS);
$weights
          if (++slot == STAGES) { slot = 0; phase ^= 1; }
        }
      }
    }
  } else {
$more_registers    u32 step = TURNS ? group * steps : 0, sent = 0, parity = 1 - group;
    const u32 mine = staged + group * PLACES * 64 * PIECE * 2;
    const u32 offset = TURNS ? 0 : group * 64;
    unsigned char* const kept = memory + (beside - shared(memory)) + group * KEPT;
    float d[BLOCKS][COLUMNS / 2];
    const u32 next = TURNS ? 2 * stride : stride;
    for (u32 tile = first + (TURNS ? group * stride : 0); tile < tiles; tile += next) {
      u32 m, n;
      place(tile, down, across, m, n);
$asked
      if (TURNS) {
        await(turn + 8 * group, parity);
        parity ^= 1;
      }
      u32 slot = step % STAGES, phase = step / STAGES & 1, before = 0;
      step += TURNS ? 2 * steps : steps;
      for (u32 k = 0; k < steps; ++k) {
        await(full + 8 * slot, phase);
        const u64 x = described(xs + (slot * ROWS + offset) * 128);
        const u64 w = described(ws + slot * COLUMNS * 128);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
          for (int block = 0; block < BLOCKS; ++block)
            multiply(d[block], x + 2 * i + block * (64 * 128 / 16), w + 2 * i, (int)k | i);
        }
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
        if (k && lane == 0) release(empty + 8 * before);
        before = slot;
        if (++slot == STAGES) { slot = 0; phase ^= 1; }
      }
      if (TURNS && lane == 0) release(turn + 8 * (1 - group));  // a warp may be far behind others
      asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
      for (int i = 0; i < BLOCKS * COLUMNS / 2; ++i)
        asm volatile("" : "+f"(d[i / (COLUMNS / 2)][i % (COLUMNS / 2)]) :: "memory");
      if (lane == 0) release(empty + 8 * before);
$kept
      const u32 column = n * WIDTH + lane % 4 * 2;
#pragma unroll 1
      for (u32 block = 0; block < BLOCKS; ++block) {
        const u32 top = m * ROWS + offset + block * 64;
        const u32 row = top + warp % 4 * 16 + lane / 4;
$columns_read
#pragma unroll
        for (int piece = 0; piece < WIDTH / PIECE; ++piece) {
$sent
        }
        if (BLOCKS > 1) {
#pragma unroll
          for (int i = 0; i < COLUMNS / 2; ++i) d[0][i] = d[BLOCKS - 1][i];
        }
      }
    }
    if (thread % 128 == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  }
}
"""

# One output after the other of one piece: 16 bytes of 16 rows are written by each warp at a time.
SENT = """\
#pragma unroll
        for (int output = 0; output < OUTPUTS; ++output) {
          const u32 spot = mine + sent % PLACES * 64 * PIECE * 2;
          if (thread % 128 == 0) asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
          together(group);
#pragma unroll
          for (int pair = 0; pair < PIECE / 16; ++pair) {
            const u32 at = (warp % 4 * 16 + lane % 16) * PIECE * 2 + (pair * 2 + lane / 16) * 16;
            const u32 words = spot + (at ^ (at >> 7 & PIECE / 8 - 1) << 4);
            const u32* four = made[output] + pair * 4;
            asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                         :: "r"(words), "r"(four[0]), "r"(four[1]), "r"(four[2]), "r"(four[3])
                         : "memory");
          }
          asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
          together(group);
          if (thread % 128 == 0) send(maps[output], spot, n * WIDTH + piece * PIECE, top);
          ++sent;
        }"""

REGISTERS = '    asm volatile("setmaxnreg.{}.sync.aligned.u32 {};");\n'
