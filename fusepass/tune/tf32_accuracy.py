"""Which candidates are as exact as eager, where products may be TF32."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch

from fusepass.torch_private.inductor import lowering
from fusepass.tune import timing
from fusepass.tune.parallel_compile import compile_in_parallel
from fusepass.tune.problems.base import Candidate, Problem
from fusepass.tune.progress import progress_bar

logger = logging.getLogger("fusepass")

_ROUNDING = 5e-5  # a sixth of the error of TF32, ten times that of sums in single precision


def sufficiently_exact(
    problem: Problem, candidates: Sequence[Candidate], mode: str
) -> list[Candidate]:
    """Those whose products are TF32 only if eager's are, tried on random inputs.

    Libraries compute some small products in single precision where TF32 is allowed. Operands are
    rounded alike, so that results differ by the order of sums only, or by what TF32 drops.

    Raises:
        NotEnoughMemory: the device is too full to try anything.
        Exception: the first candidate, the baseline, failed.
    """
    if not problem.may_be_tf32:
        return list(candidates)
    first, *others = candidates
    plain = torch.autocast("cuda", enabled=False)
    with lowering.real_tensors(), plain, torch.cuda.device(problem.device), torch.no_grad():
        inputs = timing.make_inputs(problem)
        many = mode.startswith("max-autotune")
        if not many:
            compile_in_parallel(candidates, inputs, problem.device)
        eager, found = first.run(*inputs), [first]
        what = f"{problem.op} {problem.m}x{problem.k}x{problem.n}: comparing"
        for one in progress_bar(others, what, wanted=many):
            try:
                made = one.run(*inputs)
            except Exception as error:  # noqa: BLE001 - it fails again, and is reported, when timed
                logger.debug("fusepass: %s: %r", one.name, error)
            else:
                if _differs(made, eager):
                    logger.info("fusepass: %s is coarser than eager's for %s", one.name, problem)
                    continue
            found.append(one)
    return found


def _differs(made: Any, eager: Any) -> bool:
    """Whether results are further apart than single precision rounds, by root mean squares."""
    pairs = [(made, eager)] if isinstance(eager, torch.Tensor) else zip(made, eager, strict=True)
    for mine, theirs in pairs:
        finite = theirs.isfinite() & mine.isfinite()
        difference = torch.where(finite, mine - theirs, 0.0).double().norm()
        if bool(difference > _ROUNDING * torch.where(finite, theirs, 0.0).double().norm()):
            return True
    return False
