"""One element of an epilogue in CUDA C++ for Hopper: quick special functions, one number each.

They are those of Triton's kernels (``special_functions.py``), so that kernels in both languages
round alike.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence

from fusepass.fusion.kernel_ir.epilogue import Epilogue, EpilogueOperand
from fusepass.kernels.codegen.epilogue_source import expression, value_text
from fusepass.kernels.codegen.special_functions import finest_dtype, special_functions_in_cuda


def element_parameters(epilogue: Epilogue) -> str:
    """Parameters of the function: products, what else is read, and the outputs to be filled."""
    first = epilogue.products
    products = [f"float v{i}" for i in range(first)]
    read = [f"{number_type(one)} v{i}" for i, one in enumerate(epilogue.operands, first)]
    return ", ".join(products + read + [f"float& r{i}" for i in range(len(epilogue.outputs))])


def element_steps(epilogue: Epilogue) -> list[str]:
    """Lines that compute an element's outputs ``r0``, ... from its parameters."""
    first = epilogue.products + len(epilogue.operands)
    lines = [
        f"  auto v{i} = {in_cuda(expression(epilogue, step))};"
        for i, step in enumerate(epilogue.steps, first)
    ]
    for i, output in enumerate(epilogue.outputs):
        lines.append(f"  r{i} = {in_cuda(value_text(output.value))};")
    return lines


def number_type(operand: EpilogueOperand) -> str:
    """What an operand's number is in a kernel."""
    return "bool" if operand.dtype == "bool" else "float"


def in_cuda(text: str) -> str:
    """An expression of Triton's as CUDA C++."""
    text = text.replace(", propagate_nan=tl.PropagateNan.ALL", "")
    for theirs, ours in _NAMES.items():
        text = text.replace(theirs, ours)
    text = re.sub(r'float\("(-?)(nan|inf)"\)', _special, text)
    text = text.replace("--", "- -")  # of a negative number: C++ would count it down
    return _NUMBER.sub(_single, text)


_NUMBER = re.compile(r"(?<![\w.])(\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+)(?![\w.])")
_NAMES = {
    "tl.exp2": "_exp2",
    "tl.abs": "fabsf",
    "tl.log": "logf",
    "tl.sqrt": "sqrtf",
    "tl.rsqrt": "rsqrtf",
    "tl.where": "_where",
    "tl.maximum": "_larger",
    "tl.minimum": "_smaller",
    "True": "true",
    "False": "false",
}


def _special(found: re.Match[str]) -> str:
    bits = "0x7fffffffu" if found[2] == "nan" else "0x7f800000u"
    return f"{found[1]}__uint_as_float({bits})"


def _single(found: re.Match[str]) -> str:
    """A number, which without an f would be of double precision; infinity where that is nearest."""
    try:
        struct.pack("<f", float(found[0]))
    except OverflowError:
        return "__uint_as_float(0x7f800000u)"
    return f"{found[0]}f"


def element_helpers(epilogues: Sequence[Epilogue]) -> str:
    """The functions that the text of elements of some epilogues calls."""
    return _HELPERS.replace("$special\n", special_functions_in_cuda(finest_dtype(epilogues)))


_HELPERS = """
__device__ __forceinline__ float _exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float _reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float _logistic(float t) { return _reciprocal(1.0f + _exp2(-t)); }
$special
template <typename A, typename B>
__device__ __forceinline__ float _where(bool yes, A one, B other) { return yes ? one : other; }
__device__ __forceinline__ bool _where(bool yes, bool one, bool other) { return yes ? one : other; }
__device__ __forceinline__ float _larger(float x, float y) {
  float z;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}
__device__ __forceinline__ float _smaller(float x, float y) {
  float z;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}
__device__ __forceinline__ u32 _packed(float low, float high, half_t) {
  u32 word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
__device__ __forceinline__ u32 _packed(float low, float high, bfloat_t) {
  u32 word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
"""
