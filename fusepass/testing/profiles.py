"""How much a check of a rule tries and for how long, and what it has tried."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from fusepass.errors import UnknownProfile


@dataclass(frozen=True)
class Profile:
    """One effort.

    Attributes:
        few: combine changes before the random programs, instead of trying each by itself.
        random: random programs.
        generated: of these, how many are also run through Inductor.
        seconds: of processor time, after which no further program is begun; simplifying one that
            fails may take as long again.
        fixed: the same programs each time, unless a seed is given.
    """

    few: bool
    random: int
    generated: int
    seconds: float
    fixed: bool


PROFILES = {
    "quick": Profile(few=True, random=10, generated=0, seconds=2.8, fixed=True),
    "ci": Profile(few=False, random=200, generated=0, seconds=16, fixed=True),
    "nightly": Profile(few=False, random=2000, generated=20, seconds=600, fixed=False),
}


def profile_of(name: str) -> Profile:
    """The profile of a name; raises UnknownProfile if there is none."""
    if name not in PROFILES:
        raise UnknownProfile(name, PROFILES)
    return PROFILES[name]


@dataclass
class RuleCheck:
    """What a check that found nothing has tried.

    Attributes:
        rule: the rule's name.
        profile: how much was to be tried.
        seed: of the random programs; give it to :func:`check_rule` to try the same again.
        programs: programs with the pattern in them that ran.
        fired: those in which the rule was applied.
        near_misses: further programs with one of the pattern's operations changed.
        rejected: reason code and sentence of the places where the rule was not applied in
            programs where it was not applied at all, with their counts.
        silent: changes of the example for which the rule was not applied.
        complete: whether all that the profile asks for was tried before its time was up.
        seconds: how long it took.
    """

    rule: str
    profile: str
    seed: int
    programs: int = 0
    fired: int = 0
    near_misses: int = 0
    rejected: Counter[tuple[str, str]] = field(default_factory=Counter)
    silent: list[tuple[str, Any]] = field(default_factory=list)
    complete: bool = True
    seconds: float = 0.0

    def __str__(self) -> str:
        codes = Counter[str]()
        for (code, _), count in self.rejected.items():
            codes[code] += count
        why = ", ".join(f"{count} × {code}" for code, count in codes.most_common())
        return (
            f"{self.rule}: fired in {self.fired} of {self.programs} programs"
            f" (not applied: {why or 'nowhere'}), {self.near_misses} near misses right,"
            f" profile {self.profile}, seed {self.seed}, {self.seconds:.1f} s"
            + ("" if self.complete else ", stopped at the time limit")
        )
