"""Max- or average-pooling and the pointwise work on either side of it, in one kernel of ours.

    g(max_pool2d(f(x)))  ->  fusepass::pool(x, f, g, …)
    max_pool2d(f(x))     ->  fusepass::pool(x, …, f)       where f keeps the order of numbers

for NCHW images. Inductor computes either side in one kernel, too, but reads
numbers of half precision one by one. Which f may be taken past a maximum, and why that changes no
value but the sign of a zero, says :func:`fusepass.fusion.kernel_ir.epilogue.is_monotone`.

Whether it pays is measured: the kernel that Inductor generates against ours.
"""

from __future__ import annotations

import operator
from functools import partial
from typing import Any

from torch import Tensor, fx

from fusepass.fusion import kernel_gate
from fusepass.fusion.aten_to_epilogue import NoRegion
from fusepass.fusion.kernel_ir.epilogue import parse
from fusepass.fusion.pointwise.pool_chain import PoolChain, is_pool, pool_chain_at
from fusepass.graph.ops.op_names import tensor_value
from fusepass.kernels.pointwise import pool as kernel
from fusepass.kernels.pointwise.pool_launch import prepare
from fusepass.kernels.pointwise.pool_source import PoolPatch, PoolShape
from fusepass.report.decision import Reason
from fusepass.rewrite.apply.snapshot import insert_call
from fusepass.rewrite.rule import Accept, GraphRule, Reject, RuleSite, written_before
from fusepass.torch_private.fx.graphs import size_hint
from fusepass.tune import INDUCTOR, REFERENCE, Candidate, PoolProblem, choose
from fusepass.tune.problems.base import with_tiles

_MOST_PLANES = 1 << 31


def candidates(problem: PoolProblem, every: bool) -> tuple[Candidate, ...]:
    """Inductor's kernel, and ours with some patches.

    With ``every`` there are more than those that were best elsewhere.
    """
    patches = kernel.choices(problem.shape)[: None if every else kernel.TIMED]
    theirs = Candidate(INDUCTOR, partial(_inductor, problem=problem), generated=True)
    return with_tiles(theirs, patches, partial(_ours, problem=problem))


def _ours(x: Tensor, problem: PoolProblem, tile: PoolPatch) -> Tensor:
    return kernel.launch(x, problem.before, problem.behind, problem.shape, tile.name)


def _inductor(x: Tensor, problem: PoolProblem) -> Tensor:
    return kernel.reference(x, parse(problem.before), parse(problem.behind), problem.shape)


def _check(site: RuleSite) -> Accept | Reject:
    pool = site.anchor
    image = tensor_value(pool.args[0])
    if image is None or image.dtype not in kernel.DTYPES:
        return Reject(Reason.VARIANT, "its kernel pools bf16, fp16 or fp32", pool)
    nowhere = kernel_gate.gate_reason(image.device, site.options, pool)
    if nowhere is not None:
        return nowhere
    try:
        chain = pool_chain_at(pool)
    except NoRegion as why:
        return Reject(Reason.VARIANT, str(why), pool)
    if written_before(site, chain.last):
        return Reject(Reason.VARIANT, "something is written in front of it", pool)
    return _choose(site, chain, chain.source.meta["val"])


def _choose(site: RuleSite, chain: PoolChain, x: Tensor) -> Accept | Reject:
    pool = site.anchor
    shape = _shape(chain, x)
    planes = 1
    for size in x.shape[:-2]:
        hint = size_hint(size)
        if hint is None:
            return Reject(Reason.COST, "its batch depends on data: nothing can be timed", pool)
        planes *= hint
    if not 0 < planes < _MOST_PLANES:
        return Reject(Reason.VARIANT, "there is nothing to pool, or too many planes", pool)
    problem = PoolProblem(
        op="pool",
        activation="",
        bias=False,
        dtype=x.dtype,
        m=planes,
        n=shape.result[0] * shape.result[1],
        k=shape.kernel[0] * shape.kernel[1],
        x_strides=(0, 0),
        weight_strides=(0, 0),
        device=x.device,
        shape=shape,
        before=chain.before.text(),
        behind=chain.behind.text(),
    )
    every = site.options.mode.startswith("max-autotune")
    choice = choose(problem, site.options, candidates(problem, every))
    verdict = kernel_gate.verdict(choice, pool)
    if isinstance(verdict, Reject):
        return verdict
    if choice.candidate != REFERENCE:
        given = shape, problem.before, problem.behind, choice.candidate, x.device
        obstacle = kernel_gate.compile_check("pool", partial(prepare, *given), pool)
        if obstacle is not None:
            return obstacle
    site.notes.update(chain=chain, patch=choice.candidate)
    return verdict


def _shape(chain: PoolChain, x: Tensor) -> PoolShape:
    steps = chain.kernel, chain.stride, chain.padding
    return kernel.shape_of(x, chain.largest, steps, chain.divisor, chain.behind.outputs[0].dtype)


def _replace(site: RuleSite) -> None:
    kernel.install_lowering()
    chain: PoolChain = site.notes["chain"]
    shape = _shape(chain, chain.source.meta["val"])
    steps = [[*chain.kernel], [*chain.stride], [*chain.padding]]
    rest = chain.largest, *steps, chain.divisor, shape.made, site.notes["patch"]
    arguments: tuple[Any, ...] = chain.before.text(), chain.behind.text(), *rest
    graph: fx.Graph = site.gm.graph
    with graph.inserting_before(chain.last):
        call = insert_call(graph, chain.last, kernel.OPERATOR, chain.source, *arguments)
        item = insert_call(graph, chain.last, operator.getitem, call, 0)
    chain.last.replace_all_uses_with(item)
    graph.eliminate_dead_code()


RULE = GraphRule("pool", is_pool, _check, _replace)
