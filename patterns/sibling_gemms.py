"""GEMMs of one operand in one launch: the projections of attention, and their like.

    x @ w0 + b0; x @ w1 + b1; …  ->  fusepass::sibling_gemms(x, [w0, w1, …], [b0, b1, …], …)

Both sides compute the same products; the right one stands where the first of them stood. Weights
stay as they lie and results are tensors of their own, so nothing is joined, split or copied: what
Inductor does with frozen weights of one size (join them, multiply once, split) needs a copy of all
of them.

It pays where one product alone has too few tiles for the device: with few rows, or narrow weights.
Products that one kernel computes with the pointwise work after them are left to the rule for
that (``gemm_region.py``). Whether it pays is measured, all products against all.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from fusepass.fusion import kernel_gate
from fusepass.fusion.gemm.region import GemmRegion, is_gemm
from fusepass.fusion.gemm.siblings import SiblingGemms, siblings_of
from fusepass.fusion.kernel_ir.epilogue import evaluate
from fusepass.graph.safety.saved_for_backward import saved_bytes_limit
from fusepass.kernels.gemm import sibling_gemms as kernel
from fusepass.kernels.gemm.baseline import unfused
from fusepass.kernels.gemm.tiles import Tile, shared_memory
from fusepass.report.decision import Reason
from fusepass.rewrite.apply.snapshot import insert_call
from fusepass.rewrite.rule import Accept, GraphRule, Reject, RuleSite, written_before
from fusepass.torch_private.fx.graphs import size_hint
from fusepass.tune import INDUCTOR, REFERENCE, Candidate, SiblingProblem, choose
from fusepass.tune.device.peaks import memory_of_device
from fusepass.tune.problems.base import with_tiles

# --- What can compute several GEMMs of one operand, for the tuner: Inductor's kernels, and ours ---

# Microseconds that count against us for each product but one. Launches behind one another are timed
# too slow, on an H200 by 1 to 4 µs for three products against a CUDA graph's; in a model whose
# weights are in L2 they take yet less, and one was not faster where 5 µs had been measured.
_LAUNCH = 2.5


def candidates(problem: SiblingProblem, every: bool) -> tuple[Candidate, ...]:
    """One GEMM after another, as Inductor has them, and our kernel with some tiles.

    With ``every`` there are more than those that were best elsewhere.
    """
    besides = _LAUNCH * (len(problem.widths) - 1)
    tiles = timed_tiles(problem.m, problem.device, problem.dtype.itemsize, every)
    how, traced = partial(_unfused, problem=problem), partial(_reference, problem=problem)
    theirs = Candidate(INDUCTOR, how, graphable=traced)
    return with_tiles(theirs, tiles, partial(_ours, problem=problem), besides)


def timed_tiles(m: int, device: torch.device, itemsize: int = 2, every: bool = False) -> list[Tile]:
    """The tiles that are timed on a device, for m rows of numbers of some bytes."""
    memory = shared_memory(device)
    found = [one for one in kernel.choices(m, itemsize) if one.bytes_in_flight(1) <= memory]
    return found if every else found[: kernel.TIMED]


def _ours(x: Tensor, *rest: Tensor, problem: SiblingProblem, tile: Tile) -> list[Tensor]:
    count = len(problem.widths)
    text = kernel.text_of(problem.epilogues)
    return kernel.launch(x, rest[:count], rest[count:], text, tile)


def _unfused(x: Tensor, *rest: Tensor, problem: SiblingProblem) -> list[Tensor]:
    count = len(problem.widths)
    each = kernel.split_operands(rest[:count], rest[count:], problem.epilogues)
    return [made for w, given, one in each for made in unfused(x, [w], given, one.text())]


def _reference(x: Tensor, *rest: Tensor, problem: SiblingProblem) -> list[Tensor]:
    count = len(problem.widths)
    each = kernel.split_operands(rest[:count], rest[count:], problem.epilogues)
    return [made for w, given, one in each for made in evaluate(one, [(x @ w).float()], given)]


SIBLINGS = "sibling_gemms"
_ENOUGH = 512  # tiles of 128 x 128: several for each multiprocessor, which one launch helps nothing


def _is_product(node: fx.Node) -> bool:
    return is_gemm(node) and node.meta["val"].dim() == 2


def _check(site: RuleSite) -> Accept | Reject:
    first = site.anchor
    seen: set[fx.Node] = site.shared.setdefault("siblings", set())
    if first in seen:
        return Reject(Reason.VARIANT, "it was looked at with those in front of it", first)
    memory = memory_of_device(first.meta["val"].device)
    most_bytes = saved_bytes_limit(site.options, memory)
    forced = site.options.candidate == REFERENCE
    found = siblings_of(first, kernel.MOST, most_bytes, lambda one: forced or _takes(one))
    if found is None:
        return Reject(Reason.VARIANT, "no other product of its operand can be made here", first)
    seen |= {node for region in found.regions for node in region.nodes}
    nowhere = kernel_gate.gate_reason(found.x.device, site.options, first)
    if nowhere is not None:
        return nowhere
    if written_before(site, found.regions[-1].nodes[0]):
        return Reject(Reason.VARIANT, "something is written in front of the last", first)
    problem = _problem(found)
    if isinstance(problem, str):
        return Reject(Reason.COST, problem, first)
    every = site.options.mode.startswith("max-autotune")
    choice = choose(problem, site.options, candidates(problem, every))
    verdict = kernel_gate.verdict(choice, first)
    if isinstance(verdict, Accept):
        site.notes.update(siblings=found, tile=choice.candidate)
        text = f"{len(found.regions)} products of one operand in one launch, {verdict.text}"
        return Accept(verdict.code, text, verdict.microseconds)
    return verdict


def _takes(region: GemmRegion) -> bool:
    """Whether the kernel computes a product; others may still be computed together."""
    weights = [part.value for part in region.weights]
    operands = [part.value for part in region.operands]
    return kernel.refuses(region.x.meta["val"], weights, operands, [region.epilogue]) is None


def _problem(found: SiblingGemms) -> SiblingProblem | str:
    """What is to be computed, as the tuner sees it, or why it is not asked."""
    x, weights = found.x, found.weights
    m, k, apart = (size_hint(size) for size in (*x.shape, x.stride(0)))
    widths = [size_hint(weight.shape[1]) for weight in weights]
    if m is None or k is None or apart is None or None in widths:
        return "its sizes depend on data: nothing can be timed"
    known = [width or 0 for width in widths]
    if 0 in (m, k, *known):
        return "a product is empty"
    if -(-m // 128) * sum(-(-width // 128) for width in known) > _ENOUGH:
        return "each product has tiles enough for the device"
    down, across = (size_hint(size) or 0 for size in weights[0].stride())
    return SiblingProblem(
        op="sibling_gemms",
        activation="",
        bias=False,
        dtype=x.dtype,
        m=m,
        n=sum(known),
        k=k,
        x_strides=(apart, 1),
        weight_strides=(down, across),
        device=x.device,
        widths=tuple(known),
        epilogues=tuple(one.epilogue for one in found.regions),
    )


def _replace(site: RuleSite) -> None:
    kernel.install_lowering()
    found: SiblingGemms = site.notes["siblings"]
    text = kernel.text_of([one.epilogue for one in found.regions])
    write_launch(site, found, kernel.OPERATOR, found.regions[0].x, text)


def write_launch(
    site: RuleSite,
    found: SiblingGemms,
    operator_: Any,
    x: fx.Node,
    text: str,
    before: Sequence[fx.Node] = (),
) -> None:
    """Write the call where the first product stands, behind what it needs.

    Operands in ``before`` come in front of those of the products.
    """
    first, graph = site.anchor, site.gm.graph
    for node in found.earlier:
        first.prepend(node)
    weights = [one.weights[0].node for one in found.regions]
    operands = [*before, *(part.node for one in found.regions for part in one.operands)]
    products = [region.nodes[0] for region in found.regions]
    with graph.inserting_before(first):
        call = insert_call(graph, first, operator_, x, weights, operands, text, site.notes["tile"])
        for i, node in enumerate(products):
            node.replace_all_uses_with(insert_call(graph, node, operator.getitem, call, i))
    for node in products:
        graph.erase_node(node)


RULE = GraphRule(SIBLINGS, _is_product, _check, _replace)
