"""A norm of one row, and the products that read it, in one launch.

    ``n = rms_norm(x, gain); e(n @ w), …``    ->    ``fusepass::normed_gemms(x, [w, …], [gain, …])``

and likewise with ``layer_norm``.

``n[k] = x[k] * r * gain[k]`` with one number r for the row, so that

    sum over k of ``n[k] w[k, j]``  =  r * sum over k of ``x[k] * gain[k] * w[k, j]``

and r, which needs all of x, may come last. The kernels for one row read all of x in each program,
multiply in fp32, and so need no kernel in front of them. Nothing is rounded where eager rounds n.
For a LayerNorm each program computes mean and variance before its products. The kernel for one row
in CUDA C++ has n in shared memory, rounded once.

The products are a gated pair, one product with what is behind it, or several with their biases.
Where x is made by code that Inductor generates anyway the norm is computed there, and costs
nothing; so it is taken only where x comes from outside, from a library call, or from an earlier
product of one row, whose kernel then adds the residual.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from fusepass.fusion import kernel_gate
from fusepass.fusion.extern_calls import any_feeds_generated_code, is_computed_by_generated_code
from fusepass.fusion.gemm.grow import (
    GemmRegion,
    NoRegion,
    OperandSlice,
    is_gemm,
    region_at,
    without_views,
)
from fusepass.fusion.gemm.norm import RowNorm, norm_of
from fusepass.fusion.gemm.region import operands_of
from fusepass.fusion.gemm.siblings import SiblingGemms, siblings_of
from fusepass.fusion.kernel_ir.epilogue import Epilogue, evaluate
from fusepass.fusion.kernel_ir.norm import normalize
from fusepass.fusion.write_kernel_call import sizes_of, write_call
from fusepass.graph.safety.saved_for_backward import saved_bytes_limit
from fusepass.kernels.gemm import normed_gemms as kernel
from fusepass.kernels.gemm import op, sibling_gemms
from fusepass.kernels.gemm.baseline import unfused
from fusepass.kernels.gemm.hopper.launch import prepare
from fusepass.kernels.gemm.hopper.row_source import RowKernel
from fusepass.kernels.gemm.norm_baseline import normalise
from fusepass.kernels.gemm.tile_heuristic import heuristic_tiles
from fusepass.kernels.gemm.tiles import Tile, multiprocessors, ring_of, shared_memory
from fusepass.options import Options
from fusepass.patterns import gemm_region
from fusepass.patterns.gemm_region import GATED_GEMM, GEMM_EPILOGUE, region_of
from fusepass.patterns.sibling_gemms import SIBLINGS, timed_tiles, write_launch
from fusepass.report.decision import Reason
from fusepass.rewrite.apply.snapshot import insert_call
from fusepass.rewrite.rule import Accept, GraphRule, Reject, RuleSite, written_before
from fusepass.torch_private.cuda import nvrtc
from fusepass.torch_private.fx.graphs import size_hint
from fusepass.tune import INDUCTOR, REFERENCE, Candidate, NormedProblem, choose
from fusepass.tune.device.peaks import memory_of_device
from fusepass.tune.problems.base import with_tiles

# --- What can compute products of one normalised row, for the tuner -------------------------------

APART = "norm apart, "
"""How the names of candidates begin that leave the norm to Inductor."""

# Microseconds that count against us for the norm's launch, which is timed slower behind another
# than it is in a CUDA graph.
_LAUNCH = 1.0
# And half of what a norm takes where Inductor computes two of a row in one kernel: taking one of
# them saves nothing, taking both one kernel.
_HALF = 1.0


def candidates(
    problem: NormedProblem, apart: Iterable[Tile], ring: Tile | None = None
) -> tuple[Candidate, ...]:
    """Inductor's norm with its products and with ours, and both in one kernel.

    ``apart``: tiles that rules in force would time for the products alone. ``ring``: of the kernel
    for one row in CUDA C++, where it takes the products.
    """
    tiles = kernel.choices(problem.norm, problem.epilogues)
    tiles = tiles if ring is None else (ring, *tiles)
    traced = partial(_reference, problem=problem)
    inductor = Candidate(INDUCTOR, partial(_unfused, problem=problem), graphable=traced)
    besides = _LAUNCH + _HALF * problem.beside
    theirs, *ours = with_tiles(inductor, tiles, partial(_ours, problem=problem), besides)
    run_apart = partial(_run_norm_apart, problem=problem)
    alone = (
        Candidate(APART + one.name, partial(run_apart, tile=one), compiles=True) for one in apart
    )
    return theirs, *alone, *ours


def _ours(x: Tensor, *rest: Tensor, problem: NormedProblem, tile: Tile) -> list[Tensor]:
    count = len(problem.widths)
    text = kernel.text_of(problem.norm, problem.epilogues)
    return kernel.launch(x, rest[:count], rest[count:], text, tile)


def _split_operands(
    rest: Sequence[Tensor], problem: NormedProblem
) -> tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]]:
    """Weights, the norm's vectors, and what the epilogues read."""
    first = len(problem.widths)
    behind = first + problem.norm.vectors
    return rest[:first], rest[first:behind], rest[behind:]


def _run_norm_apart(x: Tensor, *rest: Tensor, problem: NormedProblem, tile: Tile) -> list[Tensor]:
    epilogues = problem.epilogues
    weights, vectors, operands = _split_operands(rest, problem)
    rows = normalise(x, vectors, problem.norm)
    if len(epilogues) == 1:
        return op.launch(rows, weights, operands, epilogues[0].text(), tile)
    return sibling_gemms.launch(rows, weights, operands, sibling_gemms.text_of(epilogues), tile)


def _unfused(x: Tensor, *rest: Tensor, problem: NormedProblem) -> list[Tensor]:
    epilogues = problem.epilogues
    weights, vectors, operands = _split_operands(rest, problem)
    rows = normalise(x, vectors, problem.norm)
    if len(epilogues) < len(weights):
        return unfused(rows, weights, operands, epilogues[0].text())
    each = sibling_gemms.split_operands(weights, operands, epilogues)
    return [made for w, given, one in each for made in unfused(rows, [w], given, one.text())]


def _reference(x: Tensor, *rest: Tensor, problem: NormedProblem) -> list[Tensor]:
    epilogues = problem.epilogues
    weights, vectors, operands = _split_operands(rest, problem)
    rows = normalize(x, vectors, problem.norm).to(x.dtype)
    if len(epilogues) < len(weights):
        return evaluate(epilogues[0], [(rows @ w).float() for w in weights], operands)
    each = sibling_gemms.split_operands(weights, operands, epilogues)
    return [made for w, given, one in each for made in evaluate(one, [(rows @ w).float()], given)]


_MAX_LOOKED_AT = 8  # calls, for the product whose kernel adds the residual
_MOST_AROUND = 64  # likewise, for other norms of what it makes


def _is_row(node: fx.Node) -> bool:
    """Whether a node is a product of one row."""
    if not is_gemm(node) or node.meta["val"].dim() != 2:
        return False
    rows = node.meta["val"].shape[0]
    return isinstance(rows, int) and rows == 1


@dataclass(frozen=True)
class _NormedSite:
    """What one launch could compute.

    Attributes:
        norm: of the row.
        regions: one of all products, or one for each.
        siblings: where there is one for each.
    """

    norm: RowNorm
    regions: tuple[GemmRegion, ...]
    siblings: SiblingGemms | None

    @property
    def epilogues(self) -> tuple[Epilogue, ...]:
        return tuple(one.epilogue for one in self.regions)

    @property
    def weights(self) -> list[torch.Tensor]:
        return [part.value for one in self.regions for part in one.weights]

    @property
    def operands(self) -> list[torch.Tensor]:
        """The norm's vectors, and what the epilogues read in the shape they do."""
        found: list[torch.Tensor] = [one.meta["val"] for one in self.norm.vectors]
        for one in self.regions:
            for part, shape in zip(one.operands, one.shapes, strict=True):
                found.append(part.value if shape is None else part.value.reshape(shape))
        return found

    @property
    def x(self) -> torch.Tensor:
        value: torch.Tensor = self.norm.source.meta["val"]
        return value.reshape(-1, value.shape[-1])


def _normed_site(first: fx.Node, options: Options) -> _NormedSite | str:
    """What is to be computed at the first product of a norm, or why nothing is."""
    norm = norm_of(operands_of(first)[1])
    if norm is None:
        return "its operand is no norm with a weight that only products read"
    if norm.products[0] is not first:
        return "it was looked at with those in front of it"
    products = set(norm.products)
    try:
        region = region_at(first, pairs=True)
    except NoRegion:
        region = None
    if region is not None and products <= set(region.nodes):
        return _NormedSite(norm, (region,), None)
    if len(products) == 1:
        try:
            return _NormedSite(norm, (region_of(first, pairs=False, few=True),), None)
        except NoRegion as why:
            return f"no region around its product: {why}"
    memory = memory_of_device(first.meta["val"].device)
    most = saved_bytes_limit(options, memory)
    found = siblings_of(first, sibling_gemms.MOST, most, lambda one: True)
    if found is None or {one.nodes[0] for one in found.regions} != products:
        return "its products are neither a pair nor such that one launch computes"
    return _NormedSite(norm, found.regions, found)


def _check(site: RuleSite) -> Accept | Reject:
    first, options = site.anchor, site.options
    found = _normed_site(first, options)
    if isinstance(found, str):
        return Reject(Reason.VARIANT, found, first)
    nowhere = kernel_gate.gate_reason(found.x.device, options, first)
    if nowhere is not None:
        return nowhere
    norm = found.norm.norm
    refused = kernel.refuses(found.x, found.weights, found.operands, norm, found.epilogues)
    if refused is not None:
        return Reject(Reason.STRIDE_MISMATCH, refused, first)
    if written_before(site, max(node for one in found.regions for node in one.nodes)):
        return Reject(Reason.VARIANT, "something is written in front of the last", first)
    if options.candidate != REFERENCE and not _has_kernel(found.norm, options):
        text = "what makes its operand is generated code, in which the norm costs nothing"
        return Reject(Reason.COST, text, first)
    try:
        sizes = {} if found.siblings else sizes_of(found.regions[0])
    except NoRegion as why:
        return Reject(Reason.VARIANT, f"no region around it: {why}", first)
    problem = _problem(found)
    if problem is None:
        return Reject(Reason.COST, "a size is not known: nothing can be timed", first)
    apart = _tiles_apart(found, problem) if options.rule_on(_rule_for_products(found)) else ()
    choice = choose(problem, options, candidates(problem, apart, _ring(found)))
    if choice.candidate.startswith(APART):
        text = f"left to the rules for products: {choice.why}"
        return Reject(Reason.SLOWER, text, first, choice.microseconds)
    verdict = kernel_gate.verdict(choice, first)
    if isinstance(verdict, Accept):
        obstacle = _compile_failure(found, choice.candidate, first)
        if obstacle is not None:
            return obstacle
        site.notes.update(found=found, sizes=sizes, tile=choice.candidate)
        count = len(found.weights)
        text = f"a norm and {count} product{'s' * (count > 1)} of it in one launch, {verdict.text}"
        return Accept(verdict.code, text, verdict.microseconds)
    return verdict


def _tiles_apart(found: _NormedSite, problem: NormedProblem) -> Sequence[Tile]:
    """What the rule for the products alone would time."""
    if found.siblings is not None:
        return timed_tiles(1, found.x.device)
    (region,) = found.regions
    operands = found.operands[found.norm.norm.vectors :]
    named = gemm_region.usable(found.x, found.weights, operands, region.epilogue, 1)
    processors = multiprocessors(found.x.device)
    products, n = region.epilogue.products, problem.widths[0]
    return [named[name] for name in heuristic_tiles(named, products, 1, n, problem.k, processors)]


def _ring(found: _NormedSite) -> Tile | None:
    """The tile of the kernel in CUDA C++ that computes the norm, too; None where there is none."""
    tile = ring_of(found.epilogues[0], shared_memory(found.x.device))
    if tile is None or not nvrtc.is_there() or _cut(found, tile) is None:
        return None
    return tile


def _cut(found: _NormedSite, tile: Tile) -> RowKernel | None:
    """How that kernel is told of the products."""
    norm = found.norm.norm
    vectors = found.operands[: norm.vectors]
    return kernel.in_cuda(norm, found.epilogues, found.weights, vectors, tile)


def _compile_failure(found: _NormedSite, name: str, node: fx.Node) -> Reject | None:
    """Why a kernel in CUDA C++ cannot be had, if it is one; compiled before a call is written."""
    tile = ring_of(found.epilogues[0])
    cut = _cut(found, tile) if tile is not None and tile.name == name else None
    if cut is None:
        return None
    text = sibling_gemms.text_of(found.epilogues)
    make = partial(prepare, text, cut, found.x.dtype, found.x.device)
    return kernel_gate.compile_check("normed_gemms", make, node)


def _rule_for_products(found: _NormedSite) -> str:
    """Which rule would take the products without the norm."""
    if found.siblings is not None:
        return SIBLINGS
    return GATED_GEMM if found.epilogues[0].products == 2 else GEMM_EPILOGUE


def _has_kernel(norm: RowNorm, options: Options) -> bool:
    """Whether a norm is a kernel of its own, or would be one if its products took it."""
    if not is_computed_by_generated_code(norm.source):
        return True
    if not options.rule_on(GEMM_EPILOGUE):
        return False
    made = without_views(norm.source)
    norms = [norm, *_norms_beside(norm)]
    views = {
        node
        for one in norms
        for node in (one.result, *one.removed)
        if without_views(node) is one.result
    }
    gone = [node for one in norms for node in one.removed if node not in views]
    for product in _rows_behind(made):
        try:
            region = region_at(product, pairs=False)
        except NoRegion:
            continue
        outputs = {without_views(node) for nodes in region.outputs for node in nodes}
        operands = [part.value for part in region.operands]
        weights = [part.value for part in region.weights]
        x = region.x.meta["val"]
        if made not in outputs:
            continue
        if op.refuses(x, weights, operands, region.epilogue):
            return False
        besides = [*region.nodes, *gone]
        results = [[*nodes, *(one.result for one in norms)] for nodes in region.outputs]
        return not any_feeds_generated_code(results, besides)
    return False


def _norms_beside(norm: RowNorm) -> list[RowNorm]:
    """Others of the same row: attention and the MLP of a block may have one each, side by side."""
    found: dict[fx.Node, RowNorm] = {}
    seen, waiting = set(norm.removed), [norm.source]
    while waiting and len(seen) < _MOST_AROUND:
        for user in waiting.pop(0).users:
            if user in seen or user.op != "call_function":
                continue
            seen.add(user)
            if not _is_row(user):
                waiting.append(user)
                continue
            other = norm_of(operands_of(user)[1])
            if other is not None and other.source is norm.source:
                found[other.result] = other
                seen.update(other.removed)
    return [other for result, other in found.items() if result is not norm.result]


def _rows_behind(node: fx.Node) -> Iterator[fx.Node]:
    """The nearest products of one row that a node is made of."""
    seen, waiting = {node}, [node]
    while waiting and len(seen) < _MAX_LOOKED_AT:
        for one in waiting.pop(0).all_input_nodes:
            if one in seen or one.op != "call_function":
                continue
            seen.add(one)
            if _is_row(one):
                yield one
            else:
                waiting.append(one)


def _problem(found: _NormedSite) -> NormedProblem | None:
    """What is to be computed, as the tuner sees it; None where a size is not known."""
    weights, x = found.weights, found.x
    widths = [size_hint(weight.shape[1]) for weight in weights]
    k = size_hint(x.shape[1])
    apart = size_hint(weights[0].stride(1))
    if k is None or apart is None or None in widths:
        return None
    known = tuple(width or 0 for width in widths)
    dtypes = [one.meta["val"].dtype for one in found.norm.vectors]
    return NormedProblem(
        op="normed_gemms",
        activation="",
        bias=False,
        dtype=x.dtype,
        m=1,
        n=sum(known),
        k=k,
        x_strides=(k, 1),
        weight_strides=(1, apart),
        device=x.device,
        widths=known,
        epilogues=found.epilogues,
        norm=found.norm.norm,
        gain=dtypes[0],
        shift=dtypes[1] if len(dtypes) > 1 else None,
        beside=bool(_norms_beside(found.norm)),
    )


def _replace(site: RuleSite) -> None:
    """Write one call for the norm and its products."""
    kernel.install_lowering()
    found: _NormedSite = site.notes["found"]
    norm, graph = found.norm, site.gm.graph
    region = found.regions[0]
    x = norm.source
    if x.meta["val"].dim() != 2:
        with graph.inserting_before(site.anchor if found.siblings else region.before):
            sizes = [-1, x.meta["val"].shape[-1]]
            x = insert_call(graph, x, torch.ops.aten.reshape.default, x, sizes)
    if found.siblings is not None:
        text = kernel.text_of(norm.norm, found.epilogues)
        write_launch(site, found.siblings, kernel.OPERATOR, x, text, before=list(norm.vectors))
    else:
        site.notes["region"] = replace(
            region,
            x=x,
            scaled=False,
            operands=(*map(OperandSlice, norm.vectors), *region.operands),
            shapes=(*(None for _ in norm.vectors), *region.shapes),
        )

        def call(row: Any, weights: Any, operands: Any, epilogue: str, tile: str) -> Any:
            return kernel.OPERATOR, row, weights, operands, f"{norm.norm.text()} {epilogue}", tile

        write_call(site, call)
    for node in reversed(norm.removed):
        if not node.users:
            graph.erase_node(node)


RULE = GraphRule("normed_gemms", _is_row, _check, _replace)
