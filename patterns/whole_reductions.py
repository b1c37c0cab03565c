"""A reduction over few numbers stays one kernel where Inductor would take two.

To fill a device with reductions of few results Inductor reduces parts first, in a kernel of its
own, and whatever reads the result waits for both: a softmax over the first of 512 × 4096 takes
five launches where one does. With few numbers for each result the launches cost more than the idle
processors do. Where that is was measured on an H200 (``tests/perf/reductions.py``), and depends on
what one thread has to do in turn, so the limits are those of kinds of reductions, and nothing
measured below them lost:

- 512 numbers for each of several results, where the result is read beside what was reduced, or the
  reduction follows another one, which are three launches and more (softmax, logsumexp, weight norm,
  a Sinkhorn step: 1.06 to 2.2 times as fast), or where numbers of one tensor are added with next to
  nothing computed first (1.15 to 1.4);
- 192 for sums with more to compute or to read, of up to 1,024 results (1.15 to 1.5);
- variances, for which Inductor's code is another below 4,096 results: 192 there, 384 where the
  result is read beside what was reduced (batch norms: 1.1 to 1.7);
- 24,576 numbers for one result (1.1 to 1.7), half of that with more to compute.

The numbers are those of the reduction without parts: another order of the same sum.
"""

from __future__ import annotations

import torch
from torch import Tensor, fx

from fusepass.fusion.pointwise import inductor_reductions
from fusepass.fusion.pointwise.inductor_reductions import VARIANCES, count_of, value_of
from fusepass.report.decision import Reason
from fusepass.rewrite.rule import Accept, GraphRule, Reject, RuleSite
from fusepass.torch_private.inductor.reductions import (
    can_be_whole,
    is_reduction_parted,
    reduction_of,
    whole_reduction,
)

_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.bool, torch.int32, torch.int64)
# Numbers for each result, at most.
_OF_SEVERAL, _OF_ONE = 512, 24_576
_WITH_MORE_TO_DO, _OF_ONE_WITH_MORE_TO_DO = 192, 12_288
_OF_VARIANCES, _OF_VARIANCES_READ_BESIDE = 192, 384
# Results.
_WHERE_THERE_IS_MORE_TO_DO, _OF_OTHER_CODE = 1_024, 4_096
_MEASURED_ON = (9, 0)  # compute capability
_PARTS, _TOGETHER = "split_reductions", "triton.cooperative_reductions"  # of Inductor


def _is_on_cuda(node: fx.Node) -> bool:
    if not inductor_reductions.is_reduction(node) or reduction_of(node.target) != node.target:
        return False
    x = value_of(node.args[0]) if isinstance(node.args[0], fx.Node) else None
    return isinstance(x, Tensor) and x.is_cuda


def _check(site: RuleSite) -> Reject | Accept:
    node, x = site.anchor, value_of(site.anchor.args[0])
    why = _refusal(site)
    if why:
        return Reject(Reason.VARIANT, why, node)
    results = count_of(node)
    numbers = count_of(node.args[0]) // results
    limit = _limit(node, results)
    text = f"{numbers} numbers" + (f" for each of {results} results" if results > 1 else "")
    if numbers > limit:
        at_most = f"up to {limit}" if limit else "with fewer results only"
        why = f"{text} are reduced in parts; one kernel was faster {at_most}"
        return Reject(Reason.COST, why, node)
    if torch.version.hip or torch.cuda.get_device_capability(x.device) != _MEASURED_ON:
        why = f"{text}: not measured on such a device; mode='max-autotune' tries it"
        return Reject(Reason.COST, why, node)
    return Accept(Reason.MEASURED, f"{text} in one kernel, not parts first, as measured on an H200")


def _refusal(site: RuleSite) -> str:
    """Why there is nothing to decide; empty if Inductor would reduce in parts."""
    node = site.anchor
    x, operator = value_of(node.args[0]), node.target
    if site.options.codegen != "inductor":
        return "kernels of others reduce"
    if not torch.cuda.is_available():
        return "there is no such device here to be asked for its processors"
    if _PARTS in site.options.inductor or site.options.inductor_value(_TOGETHER):
        return "the user has said how to reduce"
    if count_of(node.args[0]) <= 0 or count_of(node) <= 0:
        return "its sizes vary, or there is nothing to reduce"
    if x.dtype not in _DTYPES or not can_be_whole(operator):
        return "another dtype, or no code of Inductor's"
    results = count_of(node)
    numbers = count_of(node.args[0]) // results
    inner = results == 1 or inductor_reductions.is_inner(node)
    if not is_reduction_parted(x.device, numbers, results, inner=inner):
        return "one kernel in any case"
    if results == 1 and inductor_reductions.reads_a_reduction(node):
        return "it is reduced further in the kernel that reduces it"
    return ""


def _limit(node: fx.Node, results: int) -> int:
    """How many numbers there may be for each result; 0 if it is better parted anyway."""
    variance = str(node.target) in VARIANCES and results < _OF_OTHER_CODE
    if results == 1:
        return _OF_ONE if inductor_reductions.has_cheap_prologue(node) else _OF_ONE_WITH_MORE_TO_DO
    if inductor_reductions.is_combined_with_input(node) or inductor_reductions.follows_reduction(
        node
    ):
        return _OF_VARIANCES_READ_BESIDE if variance else _OF_SEVERAL
    if inductor_reductions.has_cheap_prologue(node):
        return _OF_VARIANCES if variance else _OF_SEVERAL
    return _WITH_MORE_TO_DO if results <= _WHERE_THERE_IS_MORE_TO_DO else 0


def _replace(site: RuleSite) -> None:
    site.anchor.target = whole_reduction(site.anchor.target)


RULE = GraphRule(
    "whole_reductions",
    _is_on_cuda,
    _check,
    _replace,
    summary="a reduction over few numbers is one kernel",
)
