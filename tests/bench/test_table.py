"""The table says where the rounds of a variant lie far apart."""

from __future__ import annotations

from typing import Any

import pytest

from fusepass.bench.samples import NOISY, spread, summary
from fusepass.bench.table import _noise


@pytest.mark.parametrize(
    ("rounds", "wanted"),
    [
        ([[10.0], [10.0], [10.0]], 0.0),
        ([[9.0], [10.0], [11.0]], 0.1),
        ([[134.0], [150.0], [48025.0]], (48025 - 134) / 2 / 150),
        ([[10.0]], None),
        ([], None),
    ],
)
def test_spread(rounds: list[list[float]], wanted: float | None) -> None:
    found = spread(summary(rounds))
    assert found == (None if wanted is None else pytest.approx(wanted))


def variant(name: str, rounds: list[list[float]]) -> Any:
    return {"variant": name, "wall_us": summary(rounds)}


def test_noise_is_said_and_calm_is_not() -> None:
    calm, loud = [[100.0], [102.0], [101.0]], [[134.0], [150.0], [48025.0]]
    assert _noise([variant("eager", calm), {"variant": "skipped", "wall_us": None}]) == ""  # type: ignore[list-item]
    said = _noise([variant("eager", calm), variant("fusepass", loud)])
    assert "fusepass (134.0 to 48025.0 us)" in said
    assert "eager" not in said
    assert "--rounds" in said
    edge = 100 * (1 + 2 * NOISY)
    assert _noise([variant("edge", [[100.0], [100.0], [edge]])]) == ""
    assert _noise([variant("edge", [[100.0], [100.0], [edge + 1]])])
