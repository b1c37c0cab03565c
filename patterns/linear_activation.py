"""A linear layer and its activation, in one kernel.

    ``activation(x @ weight_t + bias)``  ->  ``fusepass::linear_activation(x, weight_t, bias)``

Both sides are the same function of the same operands; the right one rounds once, after the
activation, where the left one rounds the product first. With s the logistic function, Φ the normal
distribution's and c = sqrt(2/π), the activations of a are

    relu          max(a, 0)                          silu     a s(a)
    squared_relu  max(a, 0)²                         tanh     tanh(a)
    gelu          a Φ(a)                             sigmoid  s(a)
    gelu_tanh     a (1 + tanh(c (a + 0.044715 a³))) / 2

``gelu`` and ``gelu_tanh`` differ by up to 5e-4 and are never taken for one another.

Why it can pay: Inductor runs the GEMM and then a kernel that reads and writes the whole result,
which for a small inner size takes half as long as the GEMM. Why it need not: where the activation's
result goes into another pointwise operation, that second kernel runs anyway and computes the
activation for free. So every site is put to the tuner, and stays Inductor's unless another way was
measured faster.

In training the pre-activation is wanted by most backwards, and is then returned as well, which no
library kernel can do. Backwards that want only the result (ReLU, tanh, sigmoid) leave the forward
graph as it is in inference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, fx

from fusepass.fusion import kernel_gate
from fusepass.fusion.extern_calls import feeds_generated_code
from fusepass.graph.ops.op_names import op_name
from fusepass.kernels.gemm import cublaslt as kernel
from fusepass.patterns.gemm_region import GEMM_EPILOGUE, choice_at
from fusepass.report.decision import Reason
from fusepass.rewrite.rule import Accept, Match, Reject, Rule
from fusepass.torch_private.fx.graphs import known_equal, size_hint
from fusepass.tune import INDUCTOR, REFERENCE, Candidate, Choice, Problem, Rates, choose
from fusepass.tune.cost_model import gemm_microseconds, pointwise_microseconds

CUBLASLT = "cublaslt"
_EPILOGUE_COST = 0.25  # of a pass over the result, on top of the GEMM: 0.07 to 0.24 on an H200

Activation = Callable[[Tensor], Tensor]


# --- what is looked for ---------------------------------------------------------------------------


def _silu_by_hand(a: Tensor) -> Tensor:
    """Not what ``F.silu`` is decomposed to, ``a / (1 + exp(-a))``."""
    return a * torch.sigmoid(a)


# Rule to the activation and how it is spelled. The backwards of `saved` want the pre-activation.
_SPELLINGS: dict[str, tuple[str, Activation]] = {
    **{f"linear_{name}": (name, function) for name, function in kernel.ACTIVATIONS.items()},
    "linear_silu_by_hand": ("silu", _silu_by_hand),
}
_SAVED = ("gelu", "gelu_tanh", "silu", "squared_relu")


def _example(bias: bool) -> Callable[[], tuple[Tensor, ...]]:
    def inputs() -> tuple[Tensor, ...]:
        vector = (torch.randn(16),) if bias else ()
        return torch.randn(8, 32), torch.randn(16, 32).t(), *vector

    return inputs


# --- whether it pays ------------------------------------------------------------------------------


def candidates(activation: str) -> tuple[Candidate, ...]:
    """What Inductor would do, and what can be done instead."""
    unfused = partial(_unfused, activation=activation)
    cublaslt = partial(_cublaslt, activation=activation)
    return (
        Candidate(INDUCTOR, unfused, estimate=_two_kernels),
        Candidate(CUBLASLT, cublaslt, refuses=_not_in_cublaslt, estimate=_one_kernel),
    )


def _unfused(x: Tensor, weight_t: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """What Inductor does by default: a GEMM, then one pass over its result."""
    product = x @ weight_t if bias is None else torch.addmm(bias, x, weight_t)
    return kernel.activation_named(activation)(product)


def _cublaslt(
    x: Tensor, weight_t: Tensor, bias: Tensor | None = None, *, activation: str
) -> Tensor:
    if bias is None:
        bias = _zeros(weight_t.shape[1], x.dtype, x.device)
    return kernel.fused_linear(x, weight_t, bias, activation)


@lru_cache(maxsize=1)
def _zeros(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.zeros(size, dtype=dtype, device=device)


def _not_in_cublaslt(problem: Problem) -> str | None:
    if kernel.cublaslt_use_gelu("cuda", problem.dtype, problem.activation) is None:
        dtype = str(problem.dtype).removeprefix("torch.")
        return f"cuBLASLt has no epilogue for {problem.activation} in {dtype}"
    if problem.saved_output:
        return "cuBLASLt does not store the pre-activation, which the backward wants"
    if 0 in (problem.m, problem.n, problem.k):
        return "the product is empty"
    return None


def _two_kernels(problem: Problem, rates: Rates) -> float:
    return gemm_microseconds(problem, rates) + pointwise_microseconds(problem, rates)


def _one_kernel(problem: Problem, rates: Rates) -> float:
    extra = _EPILOGUE_COST * pointwise_microseconds(problem, rates)
    return gemm_microseconds(problem, rates) + extra


# --- the check ------------------------------------------------------------------------------------


def _check(match: Match, activation: str) -> Accept | Reject:
    x, weight_t, bias = match["x"], match["weight_t"], match.values.get("bias")
    node, *pre = match.output_nodes
    if pre and all(user in match.nodes for user in pre[0].users):
        text = "nothing else reads the pre-activation: the rule that does not return it is enough"
        return Reject(Reason.OVERLAP, text, node)
    if x.dim() != 2 or weight_t.dim() != 2:
        return Reject(Reason.SHAPE_MISMATCH, "a batch of products is another kernel", node)
    operands = [x, weight_t, *([] if bias is None else [bias])]
    if not x.dtype.is_floating_point or {one.dtype for one in operands} != {x.dtype}:
        shown = ", ".join(str(one.dtype).removeprefix("torch.") for one in operands)
        return Reject(Reason.DTYPE_MISMATCH, f"operands of {shown}", node)
    if bias is not None and not (bias.dim() == 1 and known_equal(bias.shape[0], weight_t.shape[1])):
        text = f"what is added has shape {tuple(bias.shape)}: not one number per column"
        return Reject(Reason.SHAPE_MISMATCH, text, node)
    sizes = [size_hint(size) for size in (*x.shape, weight_t.shape[1])]
    if None in sizes:
        return Reject(Reason.COST, "its sizes depend on data: nothing can be timed", node)
    problem, found = _problem(match, activation), candidates(activation)
    (library,) = (one for one in found if one.name == CUBLASLT)
    if library.refuses(problem) is None:
        same = replace(library, refuses=lambda region: None, estimate=None)
        bias = "bias" in match.values
        product = next(one for one in match.nodes if op_name(one) in ("mm", "addmm"))
        choice = choice_at(product, match.output_nodes[0], bias, match.options, same)
        # Where nothing was timed, the choice below knows more about the library's kernel.
        if choice is not None and choice.microseconds and choice.source != "model":
            return _verdict(choice, node)
    return _verdict(choose(problem, match.options, found), node)


def _problem(match: Match, activation: str) -> Problem:
    def hints(sizes: tuple[int, ...]) -> tuple[int, int]:
        rows, columns = (size_hint(size) or 0 for size in sizes)
        return rows, columns

    x, weight_t = match["x"], match["weight_t"]
    (m, k), (_, n) = hints(x.shape), hints(weight_t.shape)
    return Problem(
        op="linear_activation",
        activation=activation,
        bias="bias" in match.values,
        dtype=x.dtype,
        m=m,
        n=n,
        k=k,
        x_strides=hints(x.stride()),
        weight_strides=hints(weight_t.stride()),
        device=x.device,
        pointwise_after=feeds_generated_code(match.output_nodes[0]),
        saved_output=len(match.outputs) == 2,
    )


def _verdict(choice: Choice, node: fx.Node) -> Accept | Reject:
    if choice.candidate in (INDUCTOR, CUBLASLT, REFERENCE):
        return kernel_gate.verdict(choice, node)
    text = f"left to {GEMM_EPILOGUE}: {choice.why}"
    return Reject(Reason.SLOWER, text, node, choice.microseconds)


# --- rules ----------------------------------------------------------------------------------------


def _rule(name: str, activation: str, function: Activation, *, bias: bool, saved: bool) -> Rule:
    """The rule of an activation; one that is ``saved`` returns the pre-activation, too."""

    def finished(pre: Tensor) -> Any:
        return (function(pre), pre) if saved else function(pre)

    def with_bias(x: Tensor, weight_t: Tensor, bias: Tensor) -> Any:
        return finished(torch.addmm(bias, x, weight_t))

    def without_bias(x: Tensor, weight_t: Tensor) -> Any:
        return finished(x @ weight_t)

    def replacement(x: Tensor, weight_t: Tensor, bias: Tensor | None = None) -> Any:
        if saved:
            return kernel.linear_activation_saved(x, weight_t, bias, activation)[::-1]
        return kernel.fused(x, weight_t, bias, activation)

    return Rule(
        name + "_saved" * saved + "_no_bias" * (not bias),
        with_bias if bias else without_bias,
        replacement,
        _example(bias),
        partial(_check, activation=activation),
        "after",
        devices=("cuda",),  # elsewhere Inductor's own fusion is the better one
    )


RULES: tuple[Rule, ...] = tuple(
    _rule(name, activation, function, bias=bias, saved=saved)
    for name, (activation, function) in _SPELLINGS.items()
    for saved in ((False, True) if activation in _SAVED else (False,))
    for bias in (True, False)
)
