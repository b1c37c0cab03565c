"""How much a check of a rule tries, and for how long."""

from __future__ import annotations

from dataclasses import dataclass

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
    """The profile of a name.

    Raises:
        UnknownProfile: there is none.
    """
    if name not in PROFILES:
        raise UnknownProfile(name, PROFILES)
    return PROFILES[name]
