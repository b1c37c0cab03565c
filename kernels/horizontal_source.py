"""CUDA C++ of a kernel that computes many independent element-wise members at once.

All that it has to know of its members, their addresses included, comes by value as its one
parameter, so nothing is copied to the device beforehand and CUDA graphs hold it as it is. A block
finds its member by a binary search in that table. The idea is that of torch's multi-tensor apply.

Arithmetic is in fp32; numbers of half types are read and written eight at a time where they lie at
multiples of 16 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fusepass.graph.epilogue import Epilogue
from fusepass.kernels.cuda_text import HEAD, TYPES, statements, value

NAME = "fusepass_horizontal"
THREADS, VECTOR, ROUNDS = 256, 8, 2
BLOCK = THREADS * VECTOR * ROUNDS
"""Elements that one block computes."""

_HEAD = """\
struct __align__(16) four { u32 word[4]; };

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


def source(bodies: Sequence[Epilogue], members: int, addresses: int) -> str:
    """The kernel's text.

    Args:
        bodies: what members can be.
        members: how many the table has places for.
        addresses: how many addresses of operands and results it has places for.
    """
    lines = [HEAD + _HEAD]
    for position, body in enumerate(bodies):
        lines += _body(position, body)
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
        f"  u32 first = (blockIdx.x - t.start[low]) * {BLOCK}u, size = t.size[low];",
        "  const u64* p = t.address + t.at[low];",
        f"  for (u32 i = first + threadIdx.x * {VECTOR}; i < first + {BLOCK} && i < size;",
        f"       i += {THREADS * VECTOR}) {{",
        f"    u32 n = size - i < {VECTOR} ? size - i : {VECTOR};",
        "    switch (t.body[low]) {",
        *(f"      case {i}: body{i}(p, i, n, t.inner[low]); break;" for i in range(len(bodies))),
        "    }",
        "  }",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _body(position: int, body: Epilogue) -> Iterator[str]:
    given = "const u64* p, u32 i, u32 n, u32 inner"
    yield f"__device__ __forceinline__ void body{position}({given}) {{"
    kinds = [operand.kind for operand in body.operands]
    for k, operand in enumerate(body.operands):
        kind = TYPES[operand.dtype]
        if operand.kind == "full":
            yield f"  __align__(16) {kind} x{k}[8]; read(x{k}, p[{k}], i, n);"
        elif operand.kind == "scalar":
            yield f"  auto v{k} = get(*(const {kind}*)p[{k}]);"
    for k, output in enumerate(body.outputs):
        yield f"  __align__(16) {TYPES[output.dtype]} y{k}[8];"
    if "column" in kinds:
        yield "  u32 c = i / inner;"
        yield "  if (c == (i + n - 1) / inner) {"
        yield from _steps(body, varies=False)
        yield "  } else {"
        yield from _steps(body, varies=True)
        yield "  }"
    else:
        yield from _steps(body, varies=False)
    for k in range(len(body.outputs)):  # behind all reads: a result may lie where an operand does
        yield f"  write(y{k}, p[{len(kinds) + k}], i, n);"
    yield "}"


def _steps(body: Epilogue, *, varies: bool) -> Iterator[str]:
    """Of eight elements: first what is the same for all of them, then what each has for itself.

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
    yield from (f"    {line}" for line in once)
    yield "#pragma unroll"
    yield "    for (u32 j = 0; j < 8; ++j) if (j < n) {"
    yield from (f"      {line}" for line in each)
    for k, output in enumerate(body.outputs):
        yield f"      put(y{k} + j, {value(output.value)});"
    yield "    }"
