"""A linear layer and its activation as one operation: ``activation(x @ weight_t + bias)``.

Two operators, for graphs after autograd (they have no backward formula of their own; torch raises
if one is asked for):

    ``fusepass::linear_activation(x, weight_t, bias, activation) -> out``
    ``fusepass::linear_activation_saved(x, weight_t, bias, activation) -> (pre, out)``

The second also hands out the pre-activation, which most backwards want. Shapes: ``x`` (M, K),
``weight_t`` (K, N) with any strides, so that ``weight.t()`` costs nothing, ``bias`` (N) or None,
results (M, N) and contiguous, as those of ``torch.addmm``.

The operators compute their reference, on any device. Under Inductor the first becomes one call of
cuBLASLt with the activation in the GEMM's epilogue, wherever cuBLASLt has that activation in
exactly the variant asked for: ReLU, and GELU in its tanh form. The same function of torch computes
GELU with erf on the CPU, which is why variants are listed by device.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn import functional as F

from fusepass.errors import UnknownActivation
from fusepass.torch_private.inductor.lowering import addmm_activation, lower_to_addmm_activation

Activation = Callable[[Tensor], Tensor]

# --- reference ------------------------------------------------------------------------------------


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _gelu_by_erf(x: Tensor) -> Tensor:
    """GELU that is infinite at infinity, as torch's for fp16 is on some CPUs."""
    return 0.5 * x * (1 + torch.erf(x * math.sqrt(0.5)))


@functools.cache
def _half_gelu() -> Activation:
    """torch's GELU as it is for fp16 on this CPU: NaN at infinity where it has AVX-512 for fp16."""
    many = torch.full((64,), math.inf, dtype=torch.float16)
    return F.gelu if bool(F.gelu(many).isnan().all()) else _gelu_by_erf


def _squared_relu(x: Tensor) -> Tensor:
    """So et al., Primer: Searching for Efficient Transformers for Language Modeling (2021)."""
    return F.relu(x).square()


ACTIVATIONS: Mapping[str, Activation] = MappingProxyType(
    {
        "relu": F.relu,
        "gelu": F.gelu,
        "gelu_tanh": _gelu_tanh,
        "silu": F.silu,
        "tanh": torch.tanh,
        "sigmoid": torch.sigmoid,
        "squared_relu": _squared_relu,
    }
)


def activation_named(name: str) -> Activation:
    """The activation function of that name.

    Raises:
        UnknownActivation: no such name in :data:`ACTIVATIONS`.
    """
    if name not in ACTIVATIONS:
        raise UnknownActivation(name, ACTIVATIONS)
    return ACTIVATIONS[name]


def reference(
    x: Tensor, weight_t: Tensor, bias: Tensor | None, activation: str
) -> tuple[Tensor, Tensor]:
    """Pre-activation and result in plain PyTorch: accumulated in fp32, rounded once, at the end.

    float64 stays float64 throughout.

    Args:
        x: (M, K), floating point.
        weight_t: (K, N), of ``x``'s dtype.
        bias: (N) or None.
        activation: a key of :data:`ACTIVATIONS`.

    Returns:
        ``(pre, out)``, both (M, N) in ``x``'s dtype.
    """
    function = activation_named(activation)
    wide = torch.promote_types(x.dtype, torch.float32)
    accumulator = x.to(wide) @ weight_t.to(wide)
    if bias is not None:
        accumulator = accumulator + bias.to(wide)
    if activation == "gelu" and x.dtype == torch.float16 and x.device.type == "cpu":
        function = _half_gelu()
    return accumulator.to(x.dtype), function(accumulator).to(x.dtype)


# --- kernel ---------------------------------------------------------------------------------------

_HALF = frozenset({torch.bfloat16, torch.float16})
_SINGLE_OR_HALF = _HALF | {torch.float32}
# Device and activation to `use_gelu` of torch's fused function, and the dtypes it is exact enough
# for: cuBLASLt's GELU takes tanh from an approximate instruction (relative error 5e-5 on an H200),
# which bf16 and fp16 do not see.
_LIBRARY: Mapping[tuple[str, str], tuple[bool, frozenset[torch.dtype]]] = MappingProxyType(
    {
        ("cuda", "relu"): (False, _SINGLE_OR_HALF),
        ("cuda", "gelu_tanh"): (True, _HALF),
        ("cpu", "relu"): (False, _SINGLE_OR_HALF),
        ("cpu", "gelu"): (True, _SINGLE_OR_HALF),
    }
)


def cublaslt_use_gelu(device: str, dtype: torch.dtype, activation: str) -> bool | None:
    """``use_gelu`` for the library's fused call, or None where it has no such call.

    Args:
        device: ``"cuda"`` or ``"cpu"``.
        dtype: of x, weight and bias.
        activation: a key of :data:`ACTIVATIONS`.
    """
    use_gelu, dtypes = _LIBRARY.get((device, activation), (False, frozenset()))
    known = dtype in dtypes and not (device == "cuda" and torch.version.hip)
    return use_gelu if known else None


def fused_linear(x: Tensor, weight_t: Tensor, bias: Tensor, activation: str) -> Tensor:
    """The fused call itself: on CUDA one cuBLASLt kernel where the layout allows it.

    Shapes as :func:`reference`; ``bias`` has to be given, since without one torch has no path to
    cuBLASLt's epilogue. Only for what :func:`cublaslt_use_gelu` knows, and for K > 0 (for K = 0
    torch forgets the activation).
    """
    use_gelu = cublaslt_use_gelu(x.device.type, x.dtype, activation)
    assert use_gelu is not None, f"no library call for {activation} on {x.device.type}"
    return addmm_activation(bias, x, weight_t, use_gelu)


# --- operators ------------------------------------------------------------------------------------


@torch.library.custom_op(
    "fusepass::linear_activation",
    mutates_args=(),
    schema="(Tensor x, Tensor weight_t, Tensor? bias, str activation) -> Tensor",
)
def linear_activation(x: Tensor, weight_t: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """``activation(x @ weight_t + bias)``; see the module for shapes.

    Raises:
        UnknownActivation: no such activation.
    """
    return reference(x, weight_t, bias, activation)[1]


@torch.library.custom_op(
    "fusepass::linear_activation_saved",
    mutates_args=(),
    schema="(Tensor x, Tensor weight_t, Tensor? bias, str activation) -> (Tensor, Tensor)",
)
def linear_activation_saved(
    x: Tensor, weight_t: Tensor, bias: Tensor | None, activation: str
) -> tuple[Tensor, Tensor]:
    """``(pre, activation(pre))`` with ``pre = x @ weight_t + bias``.

    Raises:
        UnknownActivation: no such activation.
    """
    return reference(x, weight_t, bias, activation)


@linear_activation.register_fake
def _(x: Tensor, weight_t: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    activation_named(activation)
    return x.new_empty(x.shape[0], weight_t.shape[1])


@linear_activation_saved.register_fake
def _(x: Tensor, weight_t: Tensor, bias: Tensor | None, activation: str) -> tuple[Tensor, Tensor]:
    activation_named(activation)
    shape = x.shape[0], weight_t.shape[1]
    return x.new_empty(shape), x.new_empty(shape)


def library_call(x: Tensor, weight_t: Tensor, bias: Tensor | None, activation: str) -> bool | None:
    """How Inductor should compile one call: ``use_gelu``, or None for the operator itself.

    Takes fake tensors; sizes may be symbolic.
    """
    if x.device.type != "cuda":
        return None  # on the CPU Inductor's own fusion is the better one
    # A symbolic size stands for more than one: 0 and 1 are compiled by themselves.
    if any(size == 0 for size in weight_t.shape if type(size) is int):
        return None
    return cublaslt_use_gelu("cuda", x.dtype, activation)


def install_lowering(plan: Callable[..., bool | None] = library_call) -> None:
    """Tell Inductor how to compile ``fusepass::linear_activation``, if Inductor is loaded.

    Called where the operator enters a graph: a program that never reaches Inductor does not pay for
    importing it. Without this Inductor calls the operator, which is slower and as right.
    """
    lower_to_addmm_activation(torch.ops.fusepass.linear_activation.default, plan)


def fused(x: Tensor, weight_t: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """``fusepass::linear_activation`` with its lowering in place, for use in replacements."""
    install_lowering()
    out: Tensor = linear_activation(x, weight_t, bias, activation)
    return out
