"""A GEMM and the pointwise work around its result, in one kernel.

    ``e(x @ w)``             ->  ``fusepass::gemm_region(x, [w], …, e)``
    ``e(x @ w1, x @ w2)``    ->  ``fusepass::gemm_region(x, [w1, w2], …, e)``

where ``e`` is any composition of pointwise operations with further operands: one number per
column (bias), per row, per element (residual, a saved activation), or one in all. Both sides are
the same function: ``e`` of an element needs that element of the products and nothing else, so it
can be computed where the product is accumulated, before it is rounded and stored. The right side
rounds once where the left one rounds each product.

A gated pair is ``act(x W) * (x V)`` and its like (Shazeer, GLU Variants Improve Transformer, 2020),
with two weights or with the halves of one packed weight.

In the backward of such a layer the GEMM that makes the gradient of the activation's result has the
derivative of the activation around it, with what the forward saved as operands: the same rule.

Where the rows of x are scaled by a norm without a weight, for products only, these are taken of x
as it is and scaled themselves: ``(diag(r) x) w = diag(r) (x w)``. The scaled x is not stored then.

Where x has few rows, a product alone is taken, too: what counts there is how fast weights are read.

Whether it pays is measured, whole against whole: the GEMMs and one pointwise kernel, as Inductor
runs them, against one kernel; of the sum with a whole matrix, also without the library's ``addmm``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from fusepass.fusion import kernel_gate
from fusepass.fusion.extern_calls import any_feeds_generated_code
from fusepass.fusion.gemm.grow import GemmRegion, NoRegion, is_gemm, region_at, without_views
from fusepass.fusion.gemm.one_row import made_by_inductor
from fusepass.fusion.kernel_ir.epilogue import Epilogue, evaluate, parse
from fusepass.fusion.write_kernel_call import operands_of, reshaped, sizes_of, write_call, x_of
from fusepass.kernels.gemm import op as kernel
from fusepass.kernels.gemm.baseline import reduce_partial_results, run_epilogue, unfused
from fusepass.kernels.gemm.hopper.launch import prepare
from fusepass.kernels.gemm.hopper.programmatic_launch import may_begin_early, saved_microseconds
from fusepass.kernels.gemm.hopper.tma_plan import by_host
from fusepass.kernels.gemm.tile_heuristic import heuristic_tiles, search_space
from fusepass.kernels.gemm.tiles import (
    FEW_ROWS,
    Tile,
    max_few_rows,
    multiprocessors,
    shared_memory,
    tiles,
)
from fusepass.options import Options
from fusepass.report.decision import Reason
from fusepass.rewrite.apply.snapshot import inherit_meta
from fusepass.rewrite.rule import Accept, GraphRule, Reject, RuleSite
from fusepass.torch_private.cuda import nvrtc
from fusepass.torch_private.fx.graphs import size_hint
from fusepass.torch_private.inductor import kernel_call
from fusepass.tune import (
    INDUCTOR,
    REFERENCE,
    Candidate,
    Choice,
    GemmRegionProblem,
    choose,
    known_choice,
)
from fusepass.tune.cost_model import region_microseconds
from fusepass.tune.problems.gemm import digest

# --- ``addmm`` as a GEMM and a sum, where the library multiplies faster without the sum -----------
#     ``addmm(c, x, w)``  ->  ``add(c, mm(x, w))``
#
# where the program has the right side. Inductor makes the left one of it, for which c is copied
# into the result and the library adds to that; the right one is a product and a kernel that reads
# both matrices, and maybe does more. Such a sum is the gradient of the input of a gated pair, ``g W
# + h V``. An ``addmm`` that the program has itself stays: it rounds once, the right side twice.
#
# No rule of its own: a candidate where a GEMM region is asked about, taken where it is measured to
# be faster than ``addmm`` and than one kernel for all of it.

SUM_APART = "the sum apart"
_aten = torch.ops.aten
_ADD, _MM, _ADDMM = _aten.add.Tensor, _aten.mm.default, _aten.addmm.default


def was_separate(node: fx.Node) -> bool:
    """Whether Inductor made a product with a whole matrix added out of a product and a sum."""
    if node.target is not _ADDMM or node.kwargs or not made_by_inductor(node):
        return False
    added, *factors = node.args
    if not isinstance(added, fx.Node) or any(map(_padded, factors)):
        return False
    value, made = added.meta["val"], node.meta["val"]
    return bool(value.shape == made.shape and value.dtype is made.dtype)


def _padded(factor: object) -> bool:
    """Whether Inductor has padded what is multiplied: then who made the product is not known."""
    targets = (_aten.constant_pad_nd.default, _aten.cat.default)
    return isinstance(factor, fx.Node) and factor.target in targets


def is_sum(epilogue: Epilogue) -> bool:
    """Whether it is the sum of a product and a matrix, and nothing else."""
    sums = [step.op for step in epilogue.steps] == ["add"]
    kinds = [operand.kind for operand in epilogue.operands]
    made = [(output.value, output.over) for output in epilogue.outputs]
    return sums and epilogue.products == 1 and kinds == ["full"] and made == [("%2", "")]


def sum_apart(epilogue: Epilogue) -> Candidate:
    """Called with x, the weight and the other matrix."""
    return Candidate(SUM_APART, partial(_run, epilogue=epilogue.text()))


def _run(x: Tensor, weight: Tensor, other: Tensor, *, epilogue: str) -> list[Tensor]:
    return run_epilogue([x @ weight], [other], epilogue)


def write_sum_apart(node: fx.Node) -> None:
    """Put a product and a sum in the place of both in one."""
    added, x, weight = node.args
    with node.graph.inserting_before(node):
        product = node.graph.call_function(_MM, (x, weight))
        total = node.graph.call_function(_ADD, (added, product))
    for made in (product, total):
        made.meta["val"] = node.meta["val"]
        inherit_meta(made, node)
    node.replace_all_uses_with(total)
    node.graph.erase_node(node)


# --- Candidates: Inductor's kernels, and ours with some tiles -------------------------------------


def candidates(
    epilogue: Epilogue,
    m: int,
    n: int,
    k: int,
    *,
    processors: int = 132,
    named: Mapping[str, Tile],
    every: bool = False,
    known: str | None = None,
    scaled: bool = False,
    overlaps: bool = False,
) -> tuple[Candidate, ...]:
    """What Inductor would do, and our kernel with the likely tiles, or with every one there is.

    ``known`` was best before. ``scaled``: Inductor has scaled x where the epilogue scales the
    products. ``overlaps``: the launch may begin before the kernel in front of it ends.
    """
    text, theirs = epilogue.text(), epilogue.unscaled() if scaled else epilogue
    without = len(epilogue.operands) - len(theirs.operands)
    plain = Candidate(
        INDUCTOR,
        partial(_unfused, epilogue=theirs.text(), products=epilogue.products, without=without),
        graphable=partial(_in_torch, epilogue=theirs, without=without),
        estimate=partial(region_microseconds, fused=False),
    )
    matrices = any(one.kind == "full" for one in epilogue.operands)
    few = partial(heuristic_tiles, named, epilogue.products, m, n, k, processors, matrices=matrices)
    names = search_space(named, m) if every else few()
    weights = 2 * epilogue.products * k * n  # bytes
    best = (known or "").rpartition(" ")[2]
    if best in named and best not in names:
        names.append(best)
    return (
        plain,
        *(
            Candidate(
                named[name].candidate,
                partial(_fused, epilogue=text, tile=named[name]),
                estimate=partial(region_microseconds, fused=True) if name is names[0] else None,
                compiles=True,
                overhead_us=-saved_microseconds(named[name], weights) if overlaps else 0.0,
            )
            for name in names
        ),
    )


def usable(
    x: Tensor,
    weights: Sequence[Tensor],
    operands: Sequence[Tensor],
    epilogue: Epilogue,
    rows: Any,
) -> dict[str, Tile]:
    """The tiles that can compute a region on its device, by name."""
    hosted = by_host((x, *weights, *operands), epilogue)
    in_cuda = nvrtc.is_there() and hosted
    return {
        name: tile
        for name, tile in tiles(epilogue, shared_memory(x.device)).items()
        if tile.takes(rows, weights, epilogue)
        and (tile.language != "gluon" or kernel_call.kernel_calls_tested())  # an own launcher
        and (tile.language != "cuda" or in_cuda)
        and (hosted or not tile.rounds_by_host)
        and not tile.rounds_too_slowly(x.device)
    }


def _split_operands(
    tensors: tuple[Tensor, ...], products: int, without: int = 0
) -> tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
    """x, the weights and the operands, without some of these at their beginning."""
    return tensors[0], tensors[1 : 1 + products], tensors[1 + products + without :]


def _unfused(*tensors: Tensor, epilogue: str, products: int, without: int) -> list[Tensor]:
    return unfused(*_split_operands(tensors, products, without), epilogue)


def _fused(*tensors: Tensor, epilogue: str, tile: Tile) -> list[Tensor]:
    parsed = parse(epilogue)
    outputs = kernel.launch(*_split_operands(tensors, parsed.products), epilogue, tile)
    return reduce_partial_results(parsed, outputs)


def _in_torch(*tensors: Tensor, epilogue: Epilogue, without: int) -> list[Tensor]:
    x, weights, operands = _split_operands(tensors, epilogue.products, without)
    return evaluate(epilogue, [(x @ w).float().flatten(0, -2) for w in weights], operands)


GATED_GEMM, GEMM_EPILOGUE = "gated_gemm", "gemm_epilogue"
_MANY_ROWS = 128  # of fewer only kernels for few rows beat cuBLAS's


# --- the rule -------------------------------------------------------------------------------------

Library = Callable[[GemmRegion], Candidate]
"""What else computes a region; called with x, the weights and the operands."""


@dataclass(frozen=True)
class _GemmQuery:
    """A region that the tuner may be asked about.

    Attributes:
        region: as it was found.
        sizes: of what has to be reshaped, see :func:`sizes_of`.
        problem: for the tuner.
        candidates: likewise; the first is Inductor.
    """

    region: GemmRegion
    sizes: dict[fx.Node, list[Any]]
    problem: GemmRegionProblem
    candidates: tuple[Candidate, ...]


def _gemm_query(
    node: fx.Node, options: Options, pairs: bool, library: Library | None = None
) -> _GemmQuery | Reject:
    product = node.meta["val"]
    rows = product.shape[-2]
    few = isinstance(rows, int) and rows <= max_few_rows(product) and product.dim() == 2
    try:
        region, apart_from_rest = _find_region(node, pairs, rows, few, scales=library is None)
        shaped = sizes_of(region)
    except NoRegion as why:
        return Reject(Reason.VARIANT, f"no region around it: {why}", node)
    x, weights = x_of(region), [part.value for part in region.weights]
    operands = [reshaped(part.value, shape) for part, shape in operands_of(region)]
    forced = options.candidate == REFERENCE
    nowhere = kernel_gate.gate_reason(x.device, options, node)
    if nowhere is not None:
        return nowhere
    refused = kernel.refuses(x, weights, operands, region.epilogue)
    if refused is not None and not forced:
        return Reject(Reason.STRIDE_MISMATCH, refused, node)
    sizes = [size_hint(size) for size in (*x.shape[-2:], weights[0].shape[-1])]
    if None in sizes:
        return Reject(Reason.COST, "its sizes depend on data: nothing can be timed", node)
    m, k, n = (size or 0 for size in sizes)
    if m < _MANY_ROWS and not few and not forced:
        rows_are = f"are {m}" if isinstance(rows, int) else "vary"
        return Reject(Reason.COST, f"its rows {rows_are}: no kernel of ours is faster", node)
    apart = library is None and was_separate(node) and is_sum(region.epilogue)
    more = "_or_library" * (library is not None) + "_or_apart" * apart  # other candidates
    named = usable(x, weights, operands, region.epilogue, rows)
    begins = few and any(saved_microseconds(tile, tile.k * n) for tile in named.values())
    problem = GemmRegionProblem(
        op=("gated_gemm" if len(weights) == 2 else "gemm") + more,
        activation=digest(region.epilogue),
        bias=False,
        dtype=x.dtype,
        m=m,
        n=n,
        k=k,
        x_strides=_hints(x.stride()[-2:]),
        weight_strides=_hints(weights[0].stride()[-2:]),
        device=x.device,
        pointwise_after=not apart_from_rest and _feeds_generated_code(region),
        epilogue=region.epilogue,
        apart=_apart(region),
        batches=x.shape[0] if x.dim() == 3 and isinstance(x.shape[0], int) else None,
        batch_strides=_batch_strides(x, weights[0]),
        scaled=region.scaled,
        varies=not isinstance(rows, int),
        overlaps=begins and may_begin_early(region.x, [one.node for one in region.weights]),
    )
    between = FEW_ROWS < m < _MANY_ROWS and not forced
    if between and not any(tile.few_rows for tile in named.values()):
        return Reject(Reason.COST, f"its rows are {m}: no kernel for few reads the weights", node)
    found = _ours(problem, options, named)
    if library is not None:
        found = (*found, library(region))
    elif apart:
        found = (*found, sum_apart(region.epilogue))
    return _GemmQuery(region, shaped, problem, found)


def _ours(
    problem: GemmRegionProblem, options: Options, named: Mapping[str, Tile]
) -> tuple[Candidate, ...]:
    """Inductor and our kernel, with the tiles of ``named`` worth timing or known to be best."""
    entry = known_choice(problem, options) if problem.device.type == "cuda" else None
    return candidates(
        problem.epilogue,
        problem.m * (problem.batches or 1),
        problem.n,
        problem.k,
        processors=multiprocessors(problem.device),
        named=named,
        every=options.mode.startswith("max-autotune"),
        known=None if entry is None else entry.candidate,
        scaled=problem.scaled,
        overlaps=problem.overlaps,
    )


def choice_at(
    node: fx.Node,
    result: fx.Node,
    bias: bool,
    options: Options,
    library: Candidate,
) -> Choice | None:
    """The best of Inductor, our kernels and a library's kernel for one product and its activation.

    Returns:
        The choice; None where our kernels cannot be asked, are switched off, or have a region that
        is more or less than what the library computes.
    """
    wanted = options.candidate == "auto" and options.rule_on(GEMM_EPILOGUE)
    if not wanted or not is_gemm(node):
        return None
    asked = _gemm_query(node, options, False, lambda _: library)
    if isinstance(asked, Reject):
        return None
    kinds = [operand.kind for operand in asked.region.epilogue.operands]
    made = [{without_views(one) for one in nodes} for nodes in asked.region.outputs]
    if kinds != ["row"] * bias or made != [{without_views(result)}]:
        return None
    return choose(asked.problem, options, asked.candidates)


def check(site: RuleSite, pairs: bool, library: Library | None = None) -> Accept | Reject:
    """Whether a kernel of ours computes the region at a product, as the site's notes then say.

    What ``library`` gives may compute the region, too, and is not written by :func:`replace`.
    """
    asked = _gemm_query(site.anchor, site.options, pairs, library)
    if isinstance(asked, Reject):
        return asked
    choice = choose(asked.problem, site.options, asked.candidates)
    theirs = {INDUCTOR, *(one.name for one in asked.candidates[-1:] if library is not None)}
    if choice.candidate in theirs:
        code = Reason.SLOWER if choice.microseconds else Reason.NO_RULE
        return Reject(code, f"left to Inductor: {choice.why}", site.anchor, choice.microseconds)
    tile = choice.candidate.rpartition(" ")[2]
    obstacle = _compile_failure(asked, tile, site.anchor)
    if obstacle is not None:
        return obstacle
    apart = choice.candidate == SUM_APART
    site.notes.update(region=asked.region, tile=tile, sizes=asked.sizes, apart=apart)
    moved = "; the norm's scale of x's rows is applied to the product" * asked.region.scaled
    verdict = kernel_gate.verdict(choice, site.anchor)
    return Accept(verdict.code, verdict.text + moved, choice.microseconds)


def _compile_failure(asked: _GemmQuery, name: str, node: fx.Node) -> Reject | None:
    """Why a kernel in CUDA C++ cannot be had, if it is one; compiled before a call is written."""
    epilogue, problem = asked.region.epilogue, asked.problem
    tile = tiles(epilogue).get(name)
    if tile is None or tile.cuda is None:
        return None
    make = partial(prepare, epilogue.text(), tile.cuda, problem.dtype, problem.device)
    return kernel_gate.compile_check("gemm_region", make, node)


def _find_region(
    node: fx.Node, pairs: bool, rows: Any, few: bool, scales: bool
) -> tuple[GemmRegion, bool]:
    """The region, and whether it is one that leaves to generated code what that computes anyway.

    With just as many rows as make reductions worth while it may be of either kind.
    """
    if not few or rows < _MANY_ROWS:
        return region_of(node, pairs=pairs, few=few, scales=scales), few and not pairs
    try:
        region = region_of(node, pairs=pairs, few=False, scales=scales)
    except NoRegion:
        if pairs:
            raise
    else:
        if pairs or not _feeds_generated_code(region):
            return region, False
    return region_of(node, pairs=False, few=True), True


def region_of(node: fx.Node, *, pairs: bool, few: bool, scales: bool = False) -> GemmRegion:
    """The region at a product; of few rows the product alone, where the rest is better elsewhere.

    Raises:
        NoRegion: there is none.
    """
    if not few:
        try:
            return region_at(node, pairs=pairs, reductions=True, scales=scales)
        except NoRegion:  # a reduction may stand behind a write, which the rest need not
            return region_at(node, pairs=pairs)
    if pairs:
        return region_at(node, pairs=True)
    try:
        region = region_at(node, pairs=False)
    except NoRegion:
        return region_at(node, pairs=False, alone=True)
    if _feeds_generated_code(region):
        return region_at(node, pairs=False, alone=True)
    return region


def _feeds_generated_code(region: GemmRegion) -> bool:
    """Whether a result goes into a kernel that Inductor generates, and would be computed there."""
    outputs = zip(region.epilogue.outputs, region.outputs, strict=True)
    stored = (nodes for output, nodes in outputs if not output.over)
    return any_feeds_generated_code(stored, region.nodes)


def _hints(sizes: tuple[Any, ...]) -> tuple[int, int]:
    rows, columns = (size_hint(size) or 0 for size in sizes)
    return rows, columns


def _batch_strides(x: Tensor, weight: Tensor) -> tuple[int, int]:
    """Elements from one batch to the next; of no batches 0."""
    if x.dim() != 3:
        return 0, 0
    return _hints((x.stride(0), weight.stride(0)))


def _apart(region: GemmRegion) -> int | None:
    """Elements between the beginnings of two weights that lie in one tensor."""
    first, *rest = (part.value.storage_offset() for part in region.weights)
    packed = rest and region.weights[0].width is not None
    return int(rest[0] - first) if packed else None


def _call(x: Any, weights: Any, operands: Any, epilogue: str, tile: str) -> tuple[Any, ...]:
    return kernel.OPERATOR, x, weights, operands, epilogue, tile


def replace(site: RuleSite) -> None:
    """Write the call that computes the region in the site's notes, or its sum as it is taken."""
    if site.notes["apart"]:
        write_sum_apart(site.anchor)
        return
    kernel.install_lowering()
    write_call(site, _call)


RULES = (
    GraphRule(GATED_GEMM, is_gemm, partial(check, pairs=True), replace),
    GraphRule(GEMM_EPILOGUE, is_gemm, partial(check, pairs=False), replace),
)
