"""Which way to compute a fused operation: candidates, how they are timed, what is remembered.

``problem`` says what is to be computed, ``timing`` measures, ``table`` remembers, ``model``
estimates where nothing may be timed, ``decide`` brings them together. docs/tune.md describes all
of it for users.
"""

from __future__ import annotations

from fusepass.tune.cat_problem import CatProblem
from fusepass.tune.conv_problem import ConvProblem
from fusepass.tune.conv_region_problem import ConvRegionProblem
from fusepass.tune.decide import choose, epoch, remembered, reset, table_for, tune
from fusepass.tune.depthwise_problem import DepthwiseProblem
from fusepass.tune.maintain import import_choices, prune
from fusepass.tune.model import Rates
from fusepass.tune.normed_problem import NormedProblem
from fusepass.tune.pool_problem import PoolProblem
from fusepass.tune.problem import INDUCTOR, REFERENCE, Candidate, Choice, Problem
from fusepass.tune.region_problem import RegionProblem
from fusepass.tune.sibling_problem import SiblingProblem
from fusepass.tune.table import Entry

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
