"""Special functions of epilogues, as exact as the finest result needs; in Triton and CUDA C++.

Two instructions of the special function unit per element are what an epilogue costs most, so of
half types what can be one function of a logistic is. What is rounded to bfloat16 needs fewer terms
than what is rounded to float16; float32 has the tails that formulas of one logistic lose.
"""

from __future__ import annotations

from collections.abc import Iterable

from fusepass.fusion.kernel_ir.epilogue import Epilogue

# log2(Φ(x) / Φ(-x)) = x p(x²), so that Φ(x) = 1 / (1 + 2**(-x p(x²))): p by Lawson's iteration on
# (0, 5], for the least largest error of it relative to 1 + x². Φ(-x) is then right to 1.8e-4
# (1 + x²), relatively, with five terms and to 1.3e-5 (1 + x²) with seven.
_NORMAL = {
    "bfloat16": (
        2.3011370378429015,
        0.10695017311504143,
        -0.001001582891623047,
        -1.2515301906638322e-05,
        4.988015348438719e-07,
    ),
    "float16": (
        2.3021236871516786,
        0.10506153271487835,
        -0.00023145997202807757,
        -0.00012802394884940847,
        8.198134904364039e-06,
        -2.319029100878964e-07,
        2.5624209281979177e-09,
    ),
}

# Enough of half types, and where the products are of these, or of TF32: see below.
_BY_EXP2 = """\
@triton.jit
def _exp(x):
    return tl.exp2(x * 1.4426950408889634)


@triton.jit
def _sigmoid(x):
    return _logistic(x * 1.4426950408889634)


"""

_QUICK = '''\
@triton.jit
def _normal(x):
    """(1 + erf(x / sqrt(2))) / 2"""
    y = x * x  # far out p only grows: it needs no bound
    p = $p
    return _logistic(x * p)


@triton.jit
def _erf(z):
    far = 2.0 * _normal(z * 1.4142135623730951) - 1.0
    return tl.where(tl.abs(z) < 0.03125, z * (1.1283791670955126 - z * z * 0.3761263890318375), far)


@triton.jit
def _tanh(x):
    far = 2.0 * _logistic(x * 2.8853900817779268) - 1.0
    return tl.where(tl.abs(x) < 0.03125, x * (1.0 - x * x * 0.3333333333333333), far)


@triton.jit
def _expm1(x):
    near = x * (1.0 + x * (0.5 + x * 0.16666666666666666))
    return tl.where(tl.abs(x) < 0.03125, near, tl.exp2(x * 1.4426950408889634) - 1.0)


@triton.jit
def _log1p(x):
    near = x * (1.0 - x * (0.5 - x * (0.3333333333333333 - x * 0.25)))
    return tl.where(tl.abs(x) < 0.03125, near, tl.log(1.0 + x))
'''

# erfc: W. Press et al., Numerical Recipes, "Error Function" (a Chebyshev fit, relative error below
# 1.2e-7 everywhere). tanh near 0 and exp: S. Moshier, Cephes, tanhf and expf. The others near 0 are
# Taylor's series. log1p: W. Kahan's correction of what 1 + x rounds away.
_EXACT = '''\
@triton.jit
def _tail(z):
    """erfc(z) / 2 for z of at least 0"""
    t = _reciprocal(1.0 + 0.5 * z)
    p = 1.48851587 + t * (-0.82215223 + t * 0.17087277)
    p = -0.18628806 + t * (0.27886807 + t * (-1.13520398 + t * p))
    p = -1.26551223 + t * (1.00002368 + t * (0.37409196 + t * (0.09678418 + t * p)))
    return 0.5 * t * tl.exp2((p - z * z) * 1.4426950408889634)


@triton.jit
def _erf_near(z):
    """erf(z) for z of at most 0.5"""
    y = z * z
    near = 0.005223977625442188 + y * (-0.0008548327023450853 + y * 0.00012055332981789664)
    near = 0.11283791670955126 + y * (-0.026866170645131252 + y * near)
    return z + z * (0.12837916709551256 + y * (-0.3761263890318375 + y * near))


@triton.jit
def _erf(z):
    far = 1.0 - 2.0 * _tail(tl.abs(z))
    return tl.where(tl.abs(z) < 0.5, _erf_near(z), tl.where(z < 0.0, -far, far))


@triton.jit
def _tanh(x):
    y = x * x
    near = 0.0206390887954 - y * 0.00570498872745
    near = y * (-0.333332819422 + y * (0.133314422036 + y * (-0.0537397155531 + y * near)))
    far = 1.0 - 2.0 * _reciprocal(1.0 + tl.exp2(tl.abs(x) * 2.8853900817779268))
    return tl.where(tl.abs(x) < 0.625, x * (1.0 + near), tl.where(x < 0.0, -far, far))


@triton.jit
def _expm1(x):
    near = 0.008333333333333333 + x * (0.001388888888888889 + x * 0.0001984126984126984)
    near = 0.5 + x * (0.16666666666666666 + x * (0.041666666666666664 + x * near))
    return tl.where(tl.abs(x) < 0.35, x * (1.0 + x * near), _expm1_far(x))


@triton.jit
def _log1p(x):
    whole = 1.0 + x
    lost = tl.where(tl.abs(x) < 1.0, ((whole - 1.0) - x) / whole, 0.0)
    return tl.where(whole == 1.0, x, tl.log(whole) - lost)


'''

# Enough where the products are of half types, or of TF32: their errors are a thousand times these.
_BEHIND_TENSOR_CORES = '''\
@triton.jit
def _normal(x):
    """(1 + erf(x / sqrt(2))) / 2"""
    tail = _tail(tl.abs(x) * 0.7071067811865476)
    return tl.where(x < 0.0, tail, 1.0 - tail)


@triton.jit
def _expm1_far(x):
    return tl.exp2(x * 1.4426950408889634) - 1.0
'''

# Products in single precision are as exact as what is computed of them. x log2(e) in one number
# would cost exp 14 units in the last place at x of 15.
_IN_SINGLE = '''\
@triton.jit
def _power(n):
    """2**n for whole n from -126 to 127"""
    return ((n + 127.0).to(tl.int32) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _parted(x):
    """n and p with exp(x) = 2**n (1 + p), n whole and |p| < 0.42, for x near where exp is finite"""
    x = tl.maximum(x, -104.0, propagate_nan=tl.PropagateNan.ALL)
    x = tl.minimum(x, 89.0, propagate_nan=tl.PropagateNan.ALL)
    n = tl.floor(x * 1.4426950408889634 + 0.5)
    x = (x - n * 0.693359375) + n * 2.12194440e-4
    p = 8.3334519073e-3 + x * (1.3981999507e-3 + x * 1.9875691500e-4)
    p = 5.0000001201e-1 + x * (1.6666665459e-1 + x * (4.1665795894e-2 + x * p))
    return n, x + x * x * p


@triton.jit
def _exp(x):
    n, p = _parted(x)
    half = tl.floor(n * 0.5)
    return (1.0 + p) * _power(half) * _power(n - half)


@triton.jit
def _sigmoid(x):
    return _reciprocal(1.0 + _exp(-x))


@triton.jit
def _normal(x):
    """(1 + erf(x / sqrt(2))) / 2"""
    z = x * 0.7071067811865476
    tail = _tail(tl.abs(z))
    far = tl.where(x < 0.0, tail, 1.0 - tail)
    return tl.where(tl.abs(z) < 0.5, 0.5 + 0.5 * _erf_near(z), far)


@triton.jit
def _expm1_far(x):
    n, p = _parted(tl.maximum(x, -80.0, propagate_nan=tl.PropagateNan.ALL))
    half = _power(n - 1.0)  # so that it is finite where the result is
    return (half * p + (half - 0.5)) * 2.0
'''

_QUICK_IN_CUDA = """\
__device__ __forceinline__ float _normal(float x) {
  float y = x * x, p = $p;
  return _logistic(x * p);
}
__device__ __forceinline__ float _erf(float z) {
  float far = 2.0f * _normal(z * 1.4142135623730951f) - 1.0f;
  return fabsf(z) < 0.03125f ? z * (1.1283791670955126f - z * z * 0.3761263890318375f) : far;
}
__device__ __forceinline__ float _tanh(float x) {
  float far = 2.0f * _logistic(x * 2.8853900817779268f) - 1.0f;
  return fabsf(x) < 0.03125f ? x * (1.0f - x * x * 0.3333333333333333f) : far;
}
__device__ __forceinline__ float _exp(float x) { return _exp2(x * 1.4426950408889634f); }
__device__ __forceinline__ float _sigmoid(float x) { return _logistic(x * 1.4426950408889634f); }
__device__ __forceinline__ float _expm1(float x) {
  float near = x * (1.0f + x * (0.5f + x * 0.16666666666666666f));
  return fabsf(x) < 0.03125f ? near : _exp2(x * 1.4426950408889634f) - 1.0f;
}
__device__ __forceinline__ float _log1p(float x) {
  float near = x * (1.0f - x * (0.5f - x * (0.3333333333333333f - x * 0.25f)));
  return fabsf(x) < 0.03125f ? near : logf(1.0f + x);
}
"""

_EXACT_IN_CUDA = """\
__device__ __forceinline__ float _normal(float x) {
  return 0.5f * erfcf(x * -0.7071067811865476f);
}
__device__ __forceinline__ float _erf(float z) { return erff(z); }
__device__ __forceinline__ float _tanh(float x) { return tanhf(x); }
__device__ __forceinline__ float _exp(float x) { return expf(x); }
__device__ __forceinline__ float _sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ __forceinline__ float _expm1(float x) { return expm1f(x); }
__device__ __forceinline__ float _log1p(float x) { return log1pf(x); }
"""


def finest_dtype(epilogues: Iterable[Epilogue]) -> str:
    """The finest dtype of what epilogues store; float32 where they store nothing but sums.

    Sums beside a half type do not count: they are of that type's gradients, whose signs differ.
    """
    stored = {output.dtype for one in epilogues for output in one.stored}
    if "float32" in stored or not stored & _NORMAL.keys():
        return "float32"
    return "float16" if "float16" in stored else "bfloat16"


def special_functions(dtype: str, in_single: bool) -> str:
    """Triton's text of ``_normal``, ``_erf``, ``_tanh``, ``_sigmoid``, ``_exp`` and their like.

    They call ``_logistic`` and ``_reciprocal``.

    Args:
        dtype: for whose results they are exact enough, as :func:`finest_dtype` gives it.
        in_single: whether products are computed in single precision, not by tensor cores.
    """
    if dtype != "float32":
        return _BY_EXP2 + _fill_coefficients(_QUICK, dtype, "")
    return _EXACT + (_IN_SINGLE if in_single else _BY_EXP2 + _BEHIND_TENSOR_CORES)


def special_functions_in_cuda(dtype: str) -> str:
    """The same in CUDA C++, which call ``_exp2``, too; of float32 those of its library."""
    return _EXACT_IN_CUDA if dtype == "float32" else _fill_coefficients(_QUICK_IN_CUDA, dtype, "f")


def _fill_coefficients(text: str, dtype: str, suffix: str) -> str:
    *rest, last = (f"{number!r}{suffix}" for number in _NORMAL[dtype])
    for number in reversed(rest):
        last = f"{number} + y * ({last})" if " " in last else f"{number} + y * {last}"
    return text.replace("$p", last)
