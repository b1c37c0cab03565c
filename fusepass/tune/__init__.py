"""Which way to compute a fused operation: candidates, how they are timed, what is remembered.

``problem`` says what is to be computed, ``timing`` measures, ``table`` remembers, ``model``
estimates where nothing may be timed, ``decide`` brings them together. docs/tune.md describes all
of it for users.
"""

from __future__ import annotations

from fusepass.tune.cost_model import Rates
from fusepass.tune.decide import choose, epoch, remembered, reset, table_for, tune
from fusepass.tune.problems.base import INDUCTOR, REFERENCE, Candidate, Choice, Problem
from fusepass.tune.problems.cat import CatProblem
from fusepass.tune.problems.conv import ConvProblem, ConvRegionProblem, DepthwiseProblem
from fusepass.tune.problems.gemm import RegionProblem
from fusepass.tune.problems.normed_gemms import NormedProblem
from fusepass.tune.problems.pool import PoolProblem
from fusepass.tune.problems.sibling_gemms import SiblingProblem
from fusepass.tune.table import Entry
from fusepass.tune.table_edits import import_choices, prune

__all__ = [
    "INDUCTOR",
    "REFERENCE",
    "Candidate",
    "CatProblem",
    "Choice",
    "ConvProblem",
    "ConvRegionProblem",
    "DepthwiseProblem",
    "Entry",
    "NormedProblem",
    "PoolProblem",
    "Problem",
    "Rates",
    "RegionProblem",
    "SiblingProblem",
    "choose",
    "epoch",
    "import_choices",
    "prune",
    "remembered",
    "reset",
    "table_for",
    "tune",
]
