"""A concatenation of more tensors than Inductor computes in one kernel, by groups of them.

    cat([f(a), g(b), …, h(c), …])  ->  cat([cat([f(a), g(b), …]), cat([h(c), …]), …])

Inductor computes up to eight inputs in the kernel that concatenates them. It computes each of more
inputs, if they read different tensors, in a kernel of its own: 26 kernels for the features of a
recommendation model. Groups of up to eight take four. What is computed stays the same. (Inputs that
read one tensor, as in a positional encoding, are one kernel already.)

Each element of a group looks at all its inputs' bounds, so whether it pays is measured: what
Inductor generates for the one and for the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, cast

import torch
from torch import Tensor, fx

from fusepass.fusion import kernel_gate
from fusepass.fusion.pointwise.cat_inputs import MOST, groups_of, is_cat
from fusepass.graph.ops.op_names import argument, tensor_value
from fusepass.report.decision import Reason
from fusepass.rewrite.apply.snapshot import insert_call
from fusepass.rewrite.rule import Accept, GraphRule, Reject, RuleSite
from fusepass.torch_private.fx.graphs import size_hint
from fusepass.tune import INDUCTOR, REFERENCE, Candidate, CatProblem, choose

GROUPED = "in groups"
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# Inductor's settings: with other values its code is not what was timed.
_SETTINGS = {
    "force_pointwise_cat": False,
    "combo_kernels": False,
    "max_pointwise_cat_inputs": MOST,
    "max_complex_pointwise_cat_inputs": MOST,
}


def candidates() -> tuple[Candidate, ...]:
    """Inductor's kernels for the whole, and for groups."""
    whole = Candidate(INDUCTOR, partial(_concatenate, most=1), generated=True)
    return whole, Candidate(GROUPED, partial(_concatenate, most=MOST), generated=True)


def _concatenate(*tensors: Tensor, most: int) -> Tensor:
    made = [torch.relu(one) for one in tensors]
    groups = [made[i : i + most] for i in range(0, len(made), most)]
    return torch.cat([one[0] if len(one) == 1 else torch.cat(one, 1) for one in groups], 1)


def _check(site: RuleSite) -> Accept | Reject:
    node = site.anchor
    given: Sequence[fx.Node] = node.args[0]  # type: ignore[assignment]
    result = tensor_value(node)
    if result is None or any(_unlike(tensor_value(one), result) for one in given):
        return Reject(Reason.VARIANT, "its inputs differ in dtype or in their dimensions", node)
    groups = groups_of(given)
    together = sum(len(one) for one in groups if len(one) > 1)
    if len(given) <= MOST or together <= MOST:
        why = f"{together} of its {len(given)} inputs are computed where they are concatenated"
        return Reject(Reason.VARIANT, f"{why}, Inductor joins {MOST} by itself", node)
    if site.options.candidate != REFERENCE:
        refused = _refusal(site, result)
        if refused is not None:
            return refused
    numbers = [size_hint(one) for one in (*result.shape, *result.stride())]
    if None in numbers:
        return Reject(Reason.COST, "its sizes depend on data: nothing can be timed", node)
    sizes, strides = numbers[: result.dim()], numbers[result.dim() :]
    m, n = _rows_and_columns(sizes, strides, _dim(node, result))  # type: ignore[arg-type]
    problem = CatProblem(
        op="cat",
        activation="",
        bias=False,
        dtype=result.dtype,
        m=m,
        n=n,
        k=together,
        x_strides=(0, 0),
        weight_strides=(0, 0),
        device=result.device,
    )
    if not m * n:
        return Reject(Reason.VARIANT, "there is nothing in it", node)
    verdict = kernel_gate.verdict(choose(problem, site.options, candidates()), node)
    if isinstance(verdict, Accept):
        site.notes["groups"] = groups
    return verdict


def _refusal(site: RuleSite, result: Tensor) -> Reject | None:
    """Why there is nothing to ask a tuner."""
    node, options = site.anchor, site.options
    if result.device.type != "cuda":
        return Reject(Reason.COST, "on the CPU Inductor computes each input by itself", node)
    if result.dtype not in _DTYPES:
        return Reject(Reason.VARIANT, "bf16, fp16 and fp32 are timed only", node)
    if options.codegen != "inductor":
        return Reject(Reason.VARIANT, "Inductor is not asked", node)
    for setting, usual in _SETTINGS.items():
        if options.inductor_value(setting) not in (usual, None):  # None: a torch without it
            return Reject(Reason.VARIANT, f"with {setting} Inductor joins others", node)
    return None


def _unlike(one: Tensor | None, result: Tensor) -> bool:
    return one is None or (one.dtype, one.dim()) != (result.dtype, result.dim())


def _rows_and_columns(sizes: Sequence[int], strides: Sequence[int], dim: int) -> tuple[int, int]:
    """How often the inputs follow one another in memory, and how many numbers do each time."""
    outer = [size for size, stride in zip(sizes, strides, strict=True) if stride > strides[dim]]
    return prod(outer), prod(sizes) // max(prod(outer), 1)


def _dim(node: fx.Node, result: Tensor) -> int:
    return int(argument(node, 1, "dim", 0)) % result.dim()


def _replace(site: RuleSite) -> None:
    node = site.anchor
    groups: list[list[fx.Node]] = site.notes["groups"]
    dim, operator = _dim(node, node.meta["val"]), cast("Callable[..., Any]", node.target)
    made: list[Any] = []
    for group in groups:
        if len(group) == 1:
            made += group
            continue
        with site.gm.graph.inserting_before(node):
            made.append(insert_call(site.gm.graph, node, operator, group, dim))
    node.args, node.kwargs = (made, dim), {}


RULE = GraphRule(
    "grouped_cat",
    is_cat,
    _check,
    _replace,
    summary="inputs of a concatenation are computed in groups",
)
