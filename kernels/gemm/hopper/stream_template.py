"""The CUDA C++ text that ``stream_source.py`` completes, where a ``$`` stands."""

from __future__ import annotations

TEXT = """
__device__ __forceinline__ void load_once(
    u32 to, const map_t* map, u32 barrier, int along_k, int row, u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5;"
      :: "r"(to), "l"(map), "r"(barrier), "r"(along_k), "r"(row), "l"(policy) : "memory");
}
__device__ __forceinline__ u32 of_block(u32 at, u32 rank) {
  u32 there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
  return there;
}
__device__ __forceinline__ void give(u32 to, u32 barrier, const float* four) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
      :: "r"(to), "f"(four[0]), "f"(four[1]), "f"(four[2]), "f"(four[3]), "r"(barrier) : "memory");
}
__device__ __forceinline__ void release_of(u32 barrier) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];"
               :: "r"(barrier) : "memory");
}
__device__ __forceinline__ void await_blocks(u32 barrier, u32 parity) {
  asm volatile(
      "{.reg .pred done;\\n"
      "again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\\n"
      "@done bra.uni ready;\\n"
      "bra.uni again;\\n"
      "ready:}"
      :: "r"(barrier), "r"(parity) : "memory");
}
__device__ __forceinline__ void blocks_arrive() {
  if (SPLIT > 1) asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}
__device__ __forceinline__ void blocks_wait() {
  if (SPLIT > 1) asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}
__device__ __forceinline__ void multiply(float (&d)[ROWS / 2], u64 w, u64 x) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n$rowsk16.f32.$kind.$kind "
      "{$registers}, $w, $x, 1, 1, 1, 0, 0;"
      : $outputs : "l"(w), "l"(x));
}
$helpers
__device__ __forceinline__ void element($given) {
$steps
}

extern "C" __global__ void $cluster__launch_bounds__(THREADS, 1)
$name($maps const __grid_constant__ table_t t) {
  extern __shared__ unsigned char memory[];
  constexpr u32 WS = PRODUCTS * WIDTH * DEPTH * 128, XS = ROWS * DEPTH * 128;  // bytes of a step
  constexpr u32 OWN = 4 / SPLIT, GIVEN = PRODUCTS * ROWS / 2 * 32;  // numbers of a warp
  u32 rank = 0;
  if (SPLIT > 1) asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  const u32 steps = (t.K + 64 * DEPTH - 1) / (64 * DEPTH), tiles = (t.N + WIDTH - 1) / WIDTH;
  const u32 begin = steps * rank / SPLIT, end = steps * (rank + 1) / SPLIT;
  const u32 first = blockIdx.x / SPLIT, stride = gridDim.x / SPLIT;
  const u32 base = (shared(memory) + 1023) / 1024 * 1024;
  const u32 ws = base, xs = ws + STAGES * WS, parts = xs + STAGES * XS;
  const u32 full = parts + (SPLIT - 1) * OWN * GIVEN * 4, empty = full + 8 * STAGES;
  const u32 came = empty + 8 * STAGES, room = came + 8 * 4;
  const u32 thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
$leads
  if (thread == 128) {
$ready
    for (u32 i = 0; i < STAGES; ++i) {
      init(full + 8 * i, 1);
      init(empty + 8 * i, 4);
    }
    for (u32 i = 0; i < 4; ++i) {
      init(came + 8 * i, 1);
      init(room + 8 * i, 1);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  blocks_arrive();
  if (warp == 4) {
    if (lane == 0) {
      u64 policy;
      asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
      u32 slot = 0, phase = 1, asked = 0;
      if (EARLY) {  // weights for the whole ring, and x for it once there is x
        for (u32 pass = 0; pass < 2; ++pass) {
          u32 tile = first, k = begin;
          asked = 0;
          for (; asked < STAGES && tile < tiles && begin < end; ++asked) {
            const u32 barrier = full + 8 * asked, w = ws + asked * WS, x = xs + asked * XS;
            if (pass == 0) expect(barrier, WS + XS);
#pragma unroll
            for (u32 i = 0; i < DEPTH; ++i) {
              const u32 at = k * DEPTH * 64 + i * 64;
              if (pass == 1) {
                load(x + i * ROWS * 128, &x_map, barrier, at, 0);
                continue;
              }
$weights
            }
            if (++k == end) { k = begin; tile += stride; }
          }
          if (pass == 0) {
$awaits
          }
        }
      }
      for (u32 tile = first; tile < tiles; tile += stride) {
        for (u32 k = begin; k < end; ++k) {
          if (asked == 0) {
            await(empty + 8 * slot, phase);
            const u32 barrier = full + 8 * slot, w = ws + slot * WS, x = xs + slot * XS;
            expect(barrier, WS + XS);
#pragma unroll
            for (u32 i = 0; i < DEPTH; ++i) {
              const u32 at = k * DEPTH * 64 + i * 64;
              load(x + i * ROWS * 128, &x_map, barrier, at, 0);
$weights
            }
          } else {
            --asked;
          }
          if (++slot == STAGES) { slot = 0; phase ^= 1; }
        }
      }
    }
    __syncwarp();
    blocks_wait();
  } else {
$awaits
    u32 slot = 0, phase = 0, parity = 0;
    float d[PRODUCTS][ROWS / 2];
    const u32 owner = warp / OWN;  // of what a warp adds up, a block
    for (u32 tile = first; tile < tiles; tile += stride) {
#pragma unroll
      for (int i = 0; i < PRODUCTS * ROWS / 2; ++i) d[i / (ROWS / 2)][i % (ROWS / 2)] = 0;
      // What results need besides products, as it lies there: nothing waits for it before they do.
      const bool owned = SPLIT == 1 || owner == rank;
      const u32 top = tile * WIDTH + warp * 16 + lane / 4, left = lane % 4 * 2;
$read
      u32 before = STAGES;
      for (u32 k = begin; k < end; ++k) {
        await(full + 8 * slot, phase);
        const u64 w = described(ws + slot * WS);
        const u64 x = described(xs + slot * XS);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int i = 0; i < DEPTH * 4; ++i) {
#pragma unroll
          for (int one = 0; one < PRODUCTS; ++one)  // of rows that are not the tile's, of anything
            multiply(d[one],
                     w + 2 * (i % 4) + (one * DEPTH + i / 4) * (WIDTH * 128 / 16),
                     x + 2 * (i % 4) + i / 4 * (ROWS * 128 / 16));
        }
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
        if (k > begin && lane == 0) release(empty + 8 * before);
        before = slot;
        if (++slot == STAGES) { slot = 0; phase ^= 1; }
      }
      asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
      for (int i = 0; i < PRODUCTS * ROWS / 2; ++i)
        asm volatile("" : "+f"(d[i / (ROWS / 2)][i % (ROWS / 2)]) :: "memory");
      if (before < STAGES && lane == 0) release(empty + 8 * before);
      if (SPLIT > 1) {
        if (tile == first) blocks_wait();
        const u32 place = warp % OWN * GIVEN * 4 + lane * 16;
        if (owner != rank) {
          if (tile != first) await_blocks(room + 8 * warp, parity ^ 1);
          const u32 mine = rank - (rank > owner);
          const u32 to = of_block(parts + mine * OWN * GIVEN * 4 + place, owner);
          const u32 barrier = of_block(came + 8 * warp, owner);
#pragma unroll
          for (int i = 0; i < PRODUCTS * ROWS / 8; ++i)
            give(to + i * 512, barrier, d[i / (ROWS / 8)] + i % (ROWS / 8) * 4);
          parity ^= 1;
          continue;
        }
        if (lane == 0) expect(came + 8 * warp, (SPLIT - 1) * GIVEN * 4);
      }
      if (SPLIT > 1) {
        await_blocks(came + 8 * warp, parity);
        parity ^= 1;
        const u32 from = parts + warp % OWN * GIVEN * 4 + lane * 16;
#pragma unroll
        for (int other = 0; other < SPLIT - 1; ++other)
#pragma unroll
          for (int i = 0; i < PRODUCTS * ROWS / 8; ++i) {
            float part[4];
            asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                         : "=f"(part[0]), "=f"(part[1]), "=f"(part[2]), "=f"(part[3])
                         : "r"(from + other * OWN * GIVEN * 4 + i * 512) : "memory");
            float* sum = d[i / (ROWS / 8)] + i % (ROWS / 8) * 4;
#pragma unroll
            for (int one = 0; one < 4; ++one) sum[one] += part[one];
          }
        __syncwarp();
        if (lane < SPLIT && lane != rank) release_of(of_block(room + 8 * warp, lane));
      }
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const u32 n = top + part * 8;
        const bool inside = n < t.N && warp * 16 + part * 8 < WIDTH;
#pragma unroll
        for (int i = 0; i < ROWS / 4; ++i) {
          const u32 m = left + i / 2 * 8 + i % 2;
          const int at = i / 2 * 4 + part * 2 + i % 2;
          float r[OUTPUTS];
          element($values);
          if (m < t.M && inside) {
$stored
          }
        }
      }
    }
    if (first >= tiles) blocks_wait();
  }
  blocks_arrive();
  blocks_wait();
}
"""
