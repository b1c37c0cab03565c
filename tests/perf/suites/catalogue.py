"""The suites of ``python -m fusepass bench --suite``: named lists of programs."""

from __future__ import annotations

from collections.abc import Callable

from fusepass.bench.program import Program
from tests.perf.suites import (
    conv,
    elementwise,
    gated,
    host,
    linear,
    models,
    plain,
    sync,
    training,
)

Programs = Callable[[str], tuple[Program, ...]]
SUITES: dict[str, Programs] = {
    "sync": sync.programs,
    "linear": linear.programs,
    "gated": gated.programs,
    "conv": conv.programs,
    "elementwise": elementwise.programs,
    "models": models.programs,
    "training": training.programs,
    "plain": plain.programs,
    "host": host.programs,
}
COMPILE_SUITES: dict[str, Programs] = {
    "sync": sync.compile_programs,
    "linear": linear.compile_programs,
    "gated": gated.programs,
    "conv": conv.programs,
    "elementwise": elementwise.programs,
    "models": models.programs,
    "training": training.compile_programs,
    "plain": plain.programs,
    "host": host.programs,
}
