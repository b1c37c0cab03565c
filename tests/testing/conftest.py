"""Checks of rules end with their programs here, not with their time."""

from __future__ import annotations

import dataclasses

import pytest

from fusepass.testing.profiles import PROFILES


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow machine a check of the everyday profile must try what it tries on a fast one."""
    slow = dataclasses.replace(PROFILES["quick"], seconds=10 * PROFILES["quick"].seconds)
    monkeypatch.setitem(PROFILES, "quick", slow)
