"""One graph compiled in several ways: whether their results agree, and how they are timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fusepass.inductor import settings_search
from fusepass.inductor.settings_search import SettingsTrial


def a_trial(*, replayed: bool) -> SettingsTrial:
    """A trial of an empty graph; tests tell it what to time."""
    nothing = torch.fx.GraphModule({}, torch.fx.Graph())
    return SettingsTrial(nothing, [], torch.device("cpu"), replayed, id)  # type: ignore[arg-type]


def test_what_takes_long_is_timed_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    took = {"inductor": 3.0, "slow": 9.0, "near": 3.1}
    counts = dict.fromkeys(took, 0)

    def seconds(self: SettingsTrial, call: Callable[[], Any], times: int) -> float:
        name = str(call())
        counts[name] += 1
        return took[name]

    monkeypatch.setattr(SettingsTrial, "_seconds", seconds)
    trial = a_trial(replayed=False)
    samples = trial._time_calls({name: lambda name=name: name for name in took})  # type: ignore[misc]
    assert counts == {"inductor": 2 + 5, "slow": 2, "near": 2 + 5}
    assert set(samples.rounds) == {"inductor", "near"}


def test_what_cannot_be_a_cuda_graph_is_timed_by_the_wall(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(call: Callable[[], Any]) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    def seconds(self: SettingsTrial, call: Callable[[], Any], times: int) -> float:
        assert call() == "called"
        return 0.0  # a clock may be coarse

    monkeypatch.setattr(settings_search, "record", fails)
    monkeypatch.setattr(SettingsTrial, "_seconds", seconds)
    trial = a_trial(replayed=True)
    samples = trial._time_calls({"inductor": lambda: "called", "other": lambda: "called"})
    assert set(samples.rounds) == {"inductor", "other"}


def test_a_recipe_that_takes_cuda_graphs_away_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Graph:
        replay = staticmethod(lambda: "replayed")

    def recorded(call: Callable[[], Any]) -> type[Graph]:
        if call() == "other":
            raise RuntimeError("operation not permitted when stream is capturing")
        return Graph

    def seconds(self: SettingsTrial, call: Callable[[], Any], times: int) -> float:
        assert call() == "replayed"
        return 1e-3

    monkeypatch.setattr(settings_search, "record", recorded)
    monkeypatch.setattr(SettingsTrial, "_seconds", seconds)
    names = ("inductor", "other", "third")
    samples = a_trial(replayed=True)._time_calls({name: lambda name=name: name for name in names})  # type: ignore[misc]
    assert set(samples.rounds) == {"inductor", "third"}
