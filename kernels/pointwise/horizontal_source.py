"""CUDA C++ of a kernel that computes many independent pointwise members at once.

All that it has to know of its members, their addresses included, comes by value as its one
parameter, so nothing is copied to the device beforehand and CUDA graphs hold it as it is. A block
finds its member by a binary search in that table. The idea is that of torch's multi-tensor apply.

Arithmetic is in fp32; numbers of half types are read and written eight at a time where they lie at
multiples of 16 bytes. A thread asks for all that it can hold before it computes anything: weights
of a network are more than its arithmetic, and are waited for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from fusepass.fusion.kernel_ir.epilogue import Epilogue
from fusepass.kernels.codegen.cuda_source import HEAD, TYPES, statements, value

NAME = "fusepass_horizontal"
THREADS, VECTOR = 256, 8
STEP = THREADS * VECTOR  # elements that a block computes in one round
_MOST_HELD = 128  # bytes of operands that a thread asks for at once: 32 registers
_MANY = 1 << 21  # elements, above which blocks of four rounds are enough to fill a GPU


def rounds_for(elements: int) -> int:
    """How many rounds each block computes of so many elements.

    Measured with the weights of ResNet-50, 12.5 million, on an H200: 24.5, 21.6, 19.8 us with one,
    two and four; a copy of as many takes 21.9.
    """
    return 4 if elements >= _MANY else 2


_HEAD = """\
struct __align__(16) four { u32 word[4]; };

__device__ __forceinline__ u32 left(u32 i, u32 size) {
  return i >= size ? 0 : size - i < 8 ? size - i : 8;
}

template <typename T>
__device__ __forceinline__ void read(T* to, u64 from, u32 i, u32 n) {
  const T* p = (const T*)from + i;
  if (n == 8 && ((u64)p & 15) == 0 && sizeof(T) > 1) {
#pragma unroll
    for (int k = 0; k < (int)sizeof(T) / 2; ++k) ((four*)to)[k] = ((const four*)p)[k];
  } else {
#pragma unroll
    for (u32 k = 0; k < 8; ++k) if (k < n) to[k] = p[k];
  }
}
template <typename T>
__device__ __forceinline__ void write(const T* from, u64 to, u32 i, u32 n) {
  T* p = (T*)to + i;
  if (n == 8 && ((u64)p & 15) == 0 && sizeof(T) > 1) {
#pragma unroll
    for (int k = 0; k < (int)sizeof(T) / 2; ++k) ((four*)p)[k] = ((const four*)from)[k];
  } else {
#pragma unroll
    for (u32 k = 0; k < 8; ++k) if (k < n) p[k] = from[k];
  }
}
"""


def source(bodies: Sequence[Epilogue], members: int, addresses: int, rounds: int) -> str:
    """The kernel's text.

    Args:
        bodies: what members can be.
        members: how many the table has places for.
        addresses: how many addresses of operands and results it has places for.
        rounds: of a block.
    """
    lines = [HEAD + _HEAD]
    for position, body in enumerate(bodies):
        lines += _body(position, body, rounds)
    lines += [
        "struct Table {",
        f"  u64 address[{addresses}];",
        f"  u32 start[{members}], size[{members}], inner[{members}];",
        f"  unsigned short at[{members}], body[{members}];",
        "  u32 count;",
        "};",
        f'extern "C" __global__ void __launch_bounds__({THREADS})',
        f"{NAME}(const __grid_constant__ Table t) {{",
        "  u32 low = 0, high = t.count;",
        "  while (high - low > 1) {",
        "    u32 middle = (low + high) / 2;",
        "    if (t.start[middle] <= blockIdx.x) low = middle; else high = middle;",
        "  }",
        f"  u32 i = (blockIdx.x - t.start[low]) * {STEP * rounds}u + threadIdx.x * {VECTOR};",
        "  u32 size = t.size[low], inner = t.inner[low];",
        "  const u64* p = t.address + t.at[low];",
        "  switch (t.body[low]) {",
        *(f"    case {i}: body{i}(p, i, size, inner); break;" for i in range(len(bodies))),
        "  }",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _body(position: int, body: Epilogue, rounds: int) -> Iterator[str]:
    """What a thread computes of one kind of member: of eight elements in each round."""
    full = {k: TYPES[o.dtype] for k, o in enumerate(body.operands) if o.kind == "full"}
    kinds = [operand.kind for operand in body.operands]
    at_once = _rounds_at_once(body, rounds)
    each = f"for (u32 r = 0; r < {at_once}; ++r)"
    yield f"__device__ __forceinline__ void body{position}("
    yield "    const u64* p, u32 first, u32 size, u32 inner) {"
    for k, operand in enumerate(body.operands):
        if operand.kind == "scalar":
            yield f"  auto v{k} = get(*(const {TYPES[operand.dtype]}*)p[{k}]);"
    yield "#pragma unroll 1"
    yield f"  for (u32 round = 0; round < {rounds}; round += {at_once}) {{"
    yield from (f"    __align__(16) {kind} all{k}[{at_once}][8];" for k, kind in full.items())
    yield f"    u32 start = first + round * {STEP};"
    yield "#pragma unroll"
    yield f"    {each} {{"
    yield f"      u32 i = start + r * {STEP}, n = left(i, size);"
    yield from (f"      read(all{k}[r], p[{k}], i, n);" for k in full)
    yield "    }"
    yield "#pragma unroll"
    yield f"    {each} {{"
    yield f"      u32 i = start + r * {STEP}, n = left(i, size);"
    yield "      if (!n) break;"
    yield from (f"      const {kind}* x{k} = all{k}[r];" for k, kind in full.items())
    for k, output in enumerate(body.outputs):
        yield f"      __align__(16) {TYPES[output.dtype]} y{k}[8];"
    if "column" in kinds:
        yield "      u32 c = i / inner;"
        yield "      if (c == (i + n - 1) / inner) {"
        yield from _steps(body, varies=False)
        yield "      } else {"
        yield from _steps(body, varies=True)
        yield "      }"
    else:
        yield from _steps(body, varies=False)
    for k in range(len(body.outputs)):  # behind all reads: a result may lie where an operand does
        yield f"      write(y{k}, p[{len(kinds) + k}], i, n);"
    yield "    }"
    yield "  }"
    yield "}"


def _rounds_at_once(body: Epilogue, rounds: int) -> int:
    """For how many of the rounds a thread can hold the operands."""
    dtypes = (getattr(torch, one.dtype) for one in body.operands if one.kind == "full")
    most = _MOST_HELD // max(VECTOR * sum(dtype.itemsize for dtype in dtypes), 1)
    return max(n for n in range(1, rounds + 1) if rounds % n == 0 and n <= max(most, 1))


def _steps(body: Epilogue, *, varies: bool) -> Iterator[str]:
    """Steps for eight elements: first those all of them share, then those of each element.

    Args:
        body: whose.
        varies: whether what there is one of for each column may differ between the eight.
    """
    once: list[str] = []
    each: list[str] = []
    own: set[str] = set()
    for k, operand in enumerate(body.operands):
        if operand.kind == "full":
            own.add(f"%{k}")
            each.append(f"auto v{k} = get(x{k}[j]);")
        elif operand.kind == "column":
            where = "(i + j) / inner" if varies else "c"
            text = f"auto v{k} = get(((const {TYPES[operand.dtype]}*)p[{k}])[{where}]);"
            (each if varies else once).append(text)
            own |= {f"%{k}"} if varies else set()
    for step, (number, text) in zip(body.steps, statements(body), strict=True):
        varying = any(isinstance(arg, str) and arg in own for arg in step.args)
        (each if varying else once).append(text)
        own |= {f"%{number}"} if varying else set()
    yield from (f"        {line}" for line in once)
    yield "#pragma unroll"
    yield "        for (u32 j = 0; j < 8; ++j) if (j < n) {"
    yield from (f"          {line}" for line in each)
    for k, output in enumerate(body.outputs):
        yield f"          put(y{k} + j, {value(output.value)});"
    yield "        }"
