"""CUDA C++ of a kernel that computes many independent element-wise members at once.

All that it has to know of its members, their addresses included, comes by value as its one
parameter, so nothing is copied to the device beforehand and CUDA graphs hold it as it is. A block
finds its member by a binary search in that table. The idea is that of torch's multi-tensor apply.

Arithmetic is in fp32; numbers of half types are read and written eight at a time where they lie at
multiples of 16 bytes. The text includes nothing, so that NVRTC needs no headers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from fusepass.graph.epilogue import Argument, Epilogue
from fusepass.kernels.epilogue_text import PLAIN

NAME = "fusepass_horizontal"
THREADS, VECTOR, ROUNDS = 256, 8, 2
BLOCK = THREADS * VECTOR * ROUNDS
"""Elements that one block computes."""

_TYPES = {"float32": "float", "float16": "half_t", "bfloat16": "bfloat_t", "bool": "truth_t"}
_TRUTHS = frozenset("eq ne lt le gt ge logical_not logical_and logical_or".split())

_HEAD = """\
typedef unsigned int u32;
typedef unsigned long long u64;
struct half_t { unsigned short bits; };
struct bfloat_t { unsigned short bits; };
struct truth_t { unsigned char bits; };
struct __align__(16) four { u32 word[4]; };

__device__ __forceinline__ float get(float x) { return x; }
__device__ __forceinline__ bool get(truth_t x) { return x.bits != 0; }
__device__ __forceinline__ float get(bfloat_t x) { return __uint_as_float((u32)x.bits << 16); }
__device__ __forceinline__ float get(half_t x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}
__device__ __forceinline__ void put(float* to, float x) { *to = x; }
__device__ __forceinline__ void put(truth_t* to, bool x) { to->bits = x; }
__device__ __forceinline__ void put(bfloat_t* to, float x) {
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to->bits) : "f"(x));
}
__device__ __forceinline__ void put(half_t* to, float x) {
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to->bits) : "f"(x));
}
__device__ __forceinline__ float larger(float x, float y) {
  return x != x ? x : y != y ? y : fmaxf(x, y);
}
__device__ __forceinline__ float smaller(float x, float y) {
  return x != x ? x : y != y ? y : fminf(x, y);
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

_EXPRESSIONS = PLAIN | {
    "abs": "fabsf({0})",
    "exp": "expf({0})",
    "expm1": "expm1f({0})",
    "log": "logf({0})",
    "log1p": "log1pf({0})",
    "sqrt": "sqrtf({0})",
    "rsqrt": "rsqrtf({0})",
    "reciprocal": "1.0f / {0}",
    "erf": "erff({0})",
    "tanh": "tanhf({0})",
    "sigmoid": "1.0f / (1.0f + expf(-{0}))",
    "relu": "larger({0}, 0.0f)",
    "maximum": "larger({0}, {1})",
    "minimum": "smaller({0}, {1})",
    "where": "{0} ? {1} : {2}",
    "logical_not": "!{0}",
    "logical_and": "{0} && {1}",
    "logical_or": "{0} || {1}",
}


def source(bodies: Sequence[Epilogue], members: int, addresses: int) -> str:
    """The kernel's text.

    Args:
        bodies: what members can be.
        members: how many the table has places for.
        addresses: how many addresses of operands and results it has places for.
    """
    lines = [_HEAD]
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
    out = _TYPES[body.outputs[0].dtype]
    for k, operand in enumerate(body.operands):
        kind = _TYPES[operand.dtype]
        if operand.kind == "full":
            yield f"  __align__(16) {kind} x{k}[8]; read(x{k}, p[{k}], i, n);"
        elif operand.kind == "scalar":
            yield f"  auto v{k} = get(*(const {kind}*)p[{k}]);"
    yield f"  __align__(16) {out} y[8];"
    if "column" in kinds:
        yield "  u32 c = i / inner;"
        yield "  if (c == (i + n - 1) / inner) {"
        yield from _steps(body, varies=False)
        yield "  } else {"
        yield from _steps(body, varies=True)
        yield "  }"
    else:
        yield from _steps(body, varies=False)
    yield f"  write(y, p[{len(kinds)}], i, n);"
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
            text = f"auto v{k} = get(((const {_TYPES[operand.dtype]}*)p[{k}])[{where}]);"
            (each if varies else once).append(text)
            own |= {f"%{k}"} if varies else set()
    for number, step in enumerate(body.steps, start=len(body.operands)):
        kind = "bool" if step.op in _TRUTHS else "float"
        text = _EXPRESSIONS[step.op].format(*map(_value, step.args))
        if step.op == "where" and _is_truth(body, step.args[1]):
            kind = "bool"
        varying = any(isinstance(arg, str) and arg in own for arg in step.args)
        (each if varying else once).append(f"{kind} v{number} = {text};")
        own |= {f"%{number}"} if varying else set()
    yield from (f"    {line}" for line in once)
    yield "#pragma unroll"
    yield "    for (u32 j = 0; j < 8; ++j) if (j < n) {"
    yield from (f"      {line}" for line in each)
    yield f"      put(y + j, {_value(body.outputs[0].value)});"
    yield "    }"


def _is_truth(body: Epilogue, value: Argument) -> bool:
    if not isinstance(value, str):
        return isinstance(value, bool)
    number = int(value[1:])
    if number < len(body.operands):
        return body.operands[number].dtype == "bool"
    step = body.steps[number - len(body.operands)]
    return step.op in _TRUTHS or (step.op == "where" and _is_truth(body, step.args[1]))


def _value(arg: Argument) -> str:
    if isinstance(arg, str):
        return f"v{arg[1:]}"
    if isinstance(arg, bool):
        return str(arg).lower()
    if math.isnan(arg):
        return "__uint_as_float(0x7fffffffu)"
    if math.isinf(arg):
        return f"__uint_as_float({'0x7f800000u' if arg > 0 else '0xff800000u'})"
    return f"({float(arg)!r}f)" if abs(arg) < 3.4e38 else f"((float){float(arg)!r})"
