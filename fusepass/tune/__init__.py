"""Which way to compute a fused operation: candidates, how they are timed, what is remembered.

``problem`` says what is to be computed, ``timing`` measures, ``table`` remembers, ``model``
estimates where nothing may be timed, ``decide`` brings them together. docs/tune.md describes all
of it for users.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fusepass.errors import current_name
from fusepass.tune.cost_model import Rates
from fusepass.tune.decide import (
    choose,
    epoch,
    import_choices,
    known_choice,
    prune,
    reset,
    table_for,
    tune,
)
from fusepass.tune.problems.base import INDUCTOR, REFERENCE, Candidate, Choice, Problem
from fusepass.tune.problems.conv import (
    CatProblem,
    ConvProblem,
    ConvRegionProblem,
    DepthwiseProblem,
    PoolProblem,
)
from fusepass.tune.problems.gemm import GemmRegionProblem, NormedProblem, SiblingProblem
from fusepass.tune.table import ChoiceEntry

__all__ = [
    "INDUCTOR",
    "REFERENCE",
    "Candidate",
    "CatProblem",
    "Choice",
    "ChoiceEntry",
    "ConvProblem",
    "ConvRegionProblem",
    "DepthwiseProblem",
    "GemmRegionProblem",
    "NormedProblem",
    "PoolProblem",
    "Problem",
    "Rates",
    "SiblingProblem",
    "choose",
    "epoch",
    "import_choices",
    "known_choice",
    "prune",
    "reset",
    "table_for",
    "tune",
]

# Spellings of 0.1
_RENAMED = {
    "Entry": "ChoiceEntry",
    "RegionProblem": "GemmRegionProblem",
    "remembered": "known_choice",
}


if not TYPE_CHECKING:  # a type checker would take any name to be there

    def __getattr__(name: str) -> Any:
        current = current_name("fusepass.tune's", name, _RENAMED)
        if current == name:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return globals()[current]
