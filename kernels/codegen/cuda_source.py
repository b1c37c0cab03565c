"""CUDA C++ that generated kernels share: number types, and the operations of an epilogue.

Arithmetic is in fp32; half types are what is read and written. The text includes nothing, so that
NVRTC needs no headers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from fusepass.fusion.kernel_ir.epilogue import Argument, Epilogue
from fusepass.kernels.codegen.epilogue_source import PLAIN

TYPES = {"float32": "float", "float16": "half_t", "bfloat16": "bfloat_t", "bool": "truth_t"}
_TRUTHS = frozenset("eq ne lt le gt ge logical_not logical_and logical_or".split())

HEAD = """\
typedef unsigned int u32;
typedef unsigned long long u64;
struct half_t { unsigned short bits; };
struct bfloat_t { unsigned short bits; };
struct truth_t { unsigned char bits; };
template <typename T, int N> struct __align__(sizeof(T) * N) pack { T of[N]; };

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
__device__ __forceinline__ void widen(u32 word, float* to, float) { *to = __uint_as_float(word); }
__device__ __forceinline__ void widen(u32 word, float* to, half_t) {
  asm("{.reg .f16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b;}"
      : "=f"(to[0]), "=f"(to[1]) : "r"(word));
}
__device__ __forceinline__ void widen(u32 word, float* to, bfloat_t) {
  to[0] = __uint_as_float(word << 16);
  to[1] = __uint_as_float(word & 0xffff0000u);
}
// N neighbours as fp32, or nothing: by words where they fill some, as taking halves apart costs.
template <int N, typename T>
__device__ __forceinline__ void fetch(const T* from, bool wanted, float* to) {
  constexpr int WORDS = sizeof(T) * N / 4;
  if constexpr (WORDS * 4 == sizeof(T) * N) {
    pack<u32, WORDS> read = {};
    if (wanted) read = *(const pack<u32, WORDS>*)from;
#pragma unroll
    for (int i = 0; i < WORDS; ++i) widen(read.of[i], to + i * (4 / sizeof(T)), T());
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = wanted ? get(from[i]) : 0.0f;
  }
}
__device__ __forceinline__ float larger(float x, float y) {
  return x != x ? x : y != y ? y : fmaxf(x, y);
}
__device__ __forceinline__ float smaller(float x, float y) {
  return x != x ? x : y != y ? y : fminf(x, y);
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


def statements(body: Epilogue) -> Iterator[tuple[int, str]]:
    """For each step its number among all values, and the text that defines it."""
    for number, step in enumerate(body.steps, start=body.products + len(body.operands)):
        kind = "bool" if _is_truth(body, f"%{number}") else "float"
        text = _EXPRESSIONS[step.op].format(*map(value, step.args))
        yield number, f"{kind} v{number} = {text};"


def _is_truth(body: Epilogue, arg: Argument) -> bool:
    if not isinstance(arg, str):
        return isinstance(arg, bool)
    number = int(arg[1:]) - body.products
    if number < 0:
        return False
    if number < len(body.operands):
        return body.operands[number].dtype == "bool"
    step = body.steps[number - len(body.operands)]
    return step.op in _TRUTHS or (step.op == "where" and _is_truth(body, step.args[1]))


def value(arg: Argument) -> str:
    """An argument of a step: the name of a value, or a number."""
    if isinstance(arg, str):
        return f"v{arg[1:]}"
    if isinstance(arg, bool):
        return str(arg).lower()
    if math.isnan(arg):
        return "__uint_as_float(0x7fffffffu)"
    if math.isinf(arg):
        return f"__uint_as_float({'0x7f800000u' if arg > 0 else '0xff800000u'})"
    return f"({float(arg)!r}f)" if abs(arg) < 3.4e38 else f"((float){float(arg)!r})"
