"""How a choice is made, with a device and a clock that are not there."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from fusepass import tune
from fusepass.errors import CandidateFailed
from fusepass.options import Options
from fusepass.tune import decide, table
from fusepass.tune.problems.base import Candidate, Problem, next_power_of_two
from fusepass.tune.timing import NotEnoughMemory, Samples

DEVICE = "Imaginary GPU 9000"
PROBLEM = Problem(
    op="linear_activation",
    activation="gelu_tanh",
    bias=True,
    dtype=torch.bfloat16,
    m=8192,
    n=4096,
    k=1024,
    x_strides=(1024, 1),
    weight_strides=(1, 1024),
    device=torch.device("cuda", 0),
)
CANDIDATES = (
    Candidate("inductor", lambda *_: None, estimate=lambda problem, rates: 20.0),
    Candidate(
        "library",
        lambda *_: None,
        refuses=lambda problem: "no flavour" if problem.activation == "silu" else None,
        estimate=lambda problem, rates: 12.0,
    ),
)


class Clock:
    """Stands for the device: hands out times, and counts how often it was asked."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {"inductor": [20.0] * 7, "library": [15.0] * 7}
        self.asked: list[tuple[str, float]] = []
        self.error: Exception | None = None

    def __call__(
        self, problem: Problem, candidates: Sequence[Candidate], seconds: float, mode: str
    ) -> Samples:
        self.asked.append((problem.key(mode), seconds))
        if self.error is not None:
            raise self.error
        return Samples({one.name: self.times[one.name] for one in candidates})


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setenv("FUSEPASS_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: DEVICE)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(decide, "measure", clock)
    tune.reset()
    yield clock
    tune.reset()


def choose(problem: Problem = PROBLEM, **options: Any) -> tune.Choice:
    return tune.choose(problem, Options(**options), CANDIDATES)


def test_the_faster_one_wins_and_is_remembered(clock: Clock) -> None:
    first, second = choose(), choose()
    assert (first.candidate, first.source) == ("library", "measured")
    assert (second.candidate, second.source) == ("library", "table")
    assert first.microseconds == second.microseconds == {"inductor": 20.0, "library": 15.0}
    assert "20.0 µs" in first.why
    assert "15.0 µs" in first.why
    assert len(clock.asked) == 1
    tune.reset()  # as the next process
    assert choose().source == "table"
    assert len(clock.asked) == 1


@pytest.mark.parametrize(
    ("inductor", "library", "winner"),
    [
        ([20.0] * 7, [20.0] * 7, "inductor"),  # a tie
        ([20.0] * 7, [19.9] * 7, "inductor"),  # half a percent is not worth a kernel
        ([20.0] * 7, [19.0] * 7, "library"),
        ([20, 22, 18, 25, 16, 20, 21], [19, 18, 21, 19, 20, 17, 22], "inductor"),  # noise
        # The machine slows down, both with it: their ratio is what counts.
        ([20, 22, 24, 28, 32, 38, 44], [18, 19.8, 21.6, 25.2, 28.8, 34.2, 39.6], "library"),
        ([15.0] * 7, [20.0] * 7, "inductor"),
    ],
)
def test_who_wins(clock: Clock, inductor: list[float], library: list[float], winner: str) -> None:
    clock.times = {"inductor": list(map(float, inductor)), "library": list(map(float, library))}
    assert choose().candidate == winner
    assert choose().candidate == winner  # from the table


@pytest.mark.parametrize("forced", ["reference", "inductor"])
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_options_decide_on_any_device(clock: Clock, forced: str, device: str) -> None:
    problem = dataclasses.replace(PROBLEM, device=torch.device(device), pointwise_after=True)
    choice = choose(problem, candidate=forced)
    assert (choice.candidate, choice.source) == (forced, "forced")
    assert not clock.asked


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"device": torch.device("cpu")}, "Inductor generates"),
        ({"pointwise_after": True}, "same kernel"),
        ({"activation": "silu"}, "no flavour"),
    ],
)
def test_nothing_is_timed_where_the_answer_is_known(
    clock: Clock, change: dict[str, Any], word: str
) -> None:
    choice = choose(dataclasses.replace(PROBLEM, **change))
    assert choice.candidate == "inductor"
    assert not choice.microseconds
    assert word in choice.why
    assert not clock.asked


def test_rows_share_a_choice_up_to_the_next_power_of_two(clock: Clock) -> None:
    for rows in (4097, 5000, 8191, 8192):
        choose(dataclasses.replace(PROBLEM, m=rows))
    assert len(clock.asked) == 1
    choose(dataclasses.replace(PROBLEM, m=4096))
    assert len(clock.asked) == 2
    assert [next_power_of_two(n) for n in (0, 1, 2, 3, 4, 5, 1023, 1025)] == [
        0,
        1,
        2,
        4,
        4,
        8,
        1024,
        2048,
    ]


DIFFERENT = [
    {"activation": "relu"},
    {"bias": False},
    {"dtype": torch.float16},
    {"n": 4097},
    {"k": 1000},
    {"saved_output": True},
    {"x_strides": (2048, 1)},
    {"x_strides": (1, 8192)},
    {"weight_strides": (4096, 1)},
]


@pytest.mark.parametrize("change", DIFFERENT, ids=str)
def test_what_changes_the_speed_changes_the_key(clock: Clock, change: dict[str, Any]) -> None:
    assert dataclasses.replace(PROBLEM, **change).key("default") != PROBLEM.key("default")


def test_tf32_and_max_autotune_are_classes_of_their_own() -> None:
    single = dataclasses.replace(PROBLEM, dtype=torch.float32)
    before = torch.get_float32_matmul_precision()
    keys = {PROBLEM.key("default"), PROBLEM.key("max-autotune")}
    try:
        for precision in ("highest", "high"):
            torch.set_float32_matmul_precision(precision)
            keys.add(single.key("default"))
    finally:
        torch.set_float32_matmul_precision(before)
    assert len(keys) == 4
    assert PROBLEM.key("default") == PROBLEM.key("reduce-overhead")


def test_max_autotune_looks_longer(clock: Clock) -> None:
    choose()
    choose(mode="max-autotune-no-cudagraphs")
    assert clock.asked[1][1] > clock.asked[0][1]


def test_a_spent_budget_stops_timing_but_not_max_autotune(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decide, "SECONDS_PER_PROCESS", 0.0)
    choice = choose()
    assert (choice.candidate, choice.source) == ("inductor", "model")
    assert "spent" in choice.why
    assert not clock.asked
    assert choose(mode="max-autotune").source == "measured"


def known_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(decide.cost_model.RATES, DEVICE, decide.cost_model.RATES["NVIDIA H200"])


def test_several_ranks_time_nothing_and_agree(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    learnt = choose()
    assert learnt.source == "measured"
    monkeypatch.setattr(decide, "several_ranks", lambda: True)
    unknown = choose()
    assert (unknown.candidate, unknown.source) == ("inductor", "model")
    known_device(monkeypatch)
    assert (choose().candidate, choose().source) == ("library", "model")
    assert choose().microseconds == {"inductor": 20.0, "library": 12.0}
    asked_for = table.ChoiceEntry("inductor", {"inductor": 1.0, "library": 2.0}, "imported")
    tune.table_for(PROBLEM.device).add(PROBLEM.key("default"), asked_for)
    assert (choose().candidate, choose().source) == ("inductor", "table")
    assert len(clock.asked) == 1


def test_the_model_keeps_inductor_for_a_small_gain(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    known_device(monkeypatch)
    monkeypatch.setattr(decide, "several_ranks", lambda: True)
    close = (CANDIDATES[0], dataclasses.replace(CANDIDATES[1], estimate=lambda p, r: 19.8))
    assert tune.choose(PROBLEM, Options(), close).candidate == "inductor"


@pytest.mark.parametrize(
    ("error", "warned"),
    [
        (torch.cuda.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED"), True),
        (NotEnoughMemory("900 MiB needed"), False),
    ],
)
def test_a_failure_while_timing_is_one_warning_at_most(
    clock: Clock, error: Exception, warned: bool
) -> None:
    clock.error = error
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        choices = [choose(), choose(), choose(dataclasses.replace(PROBLEM, n=2048))]
    assert {choice.candidate for choice in choices} == {"inductor"}
    assert all(str(error) in choice.why for choice in choices)
    assert [one.category for one in caught] == [CandidateFailed] * warned
    assert len(clock.asked) == 2  # not tried again for the same class
    assert not tune.table_for(PROBLEM.device).entries  # nor remembered for ever


def test_a_candidate_that_failed_is_not_remembered_for_ever(clock: Clock) -> None:
    def without_library(*_: Any) -> Samples:
        clock.asked.append(("", 0.0))
        return Samples({"inductor": [20.0] * 7})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decide, "measure", without_library)
        assert choose().candidate == choose().candidate == "inductor"
    assert len(clock.asked) == 1
    assert not tune.table_for(PROBLEM.device).entries


def test_disturbed_timings_are_no_choice_for_ever(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.times = {
        "inductor": [20.0, 22.0, 31.0, 25.0, 16.0, 40.0, 21.0],
        "library": [19.0, 28.0, 21.0, 19.0, 30.0, 17.0, 22.0],
    }
    unknown = choose()
    assert (unknown.candidate, unknown.source) == ("inductor", "model")
    assert "disturbed" in unknown.why
    assert choose() is unknown
    tune.reset()
    known_device(monkeypatch)
    assert (choose().candidate, choose().source) == ("library", "model")
    assert not tune.table_for(PROBLEM.device).entries
    tune.reset()
    clock.times = {"inductor": [10.0] * 7, "library": [20.0] * 7}  # a quiet day
    assert (choose().candidate, choose().source) == ("inductor", "table")


def test_a_model_does_not_overrule_what_was_seen_in_noise(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    known_device(monkeypatch)
    clock.times = {
        "inductor": [20.0, 22.0, 31.0, 25.0, 16.0, 40.0, 21.0],
        "library": [25.0, 33.0, 27.0, 24.0, 35.0, 26.0, 29.0],
    }
    assert choose().candidate == "inductor"


def test_a_clear_gain_in_noise_counts_but_is_not_written_down(clock: Clock) -> None:
    clock.times = {
        "inductor": [40.0, 44.0, 36.0, 50.0, 38.0, 40.0, 42.0],
        "library": [19.0, 18.0, 21.0, 19.0, 20.0, 17.0, 22.0],
    }
    assert (choose().candidate, choose().source) == ("library", "measured")
    assert not tune.table_for(PROBLEM.device).entries
    clock.times["other"] = clock.times["inductor"]
    without = tune.choose(
        PROBLEM, Options(), (CANDIDATES[0], dataclasses.replace(CANDIDATES[1], name="other"))
    )
    assert without.candidate != "library"  # which was not among those that this caller has


def test_tuning_on_request_starts_a_new_epoch(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    epochs = [tune.epoch()]
    choose()
    epochs.append(tune.epoch())
    assert tune.tune(PROBLEM, CANDIDATES).candidate == "library"
    epochs.append(tune.epoch())
    assert tune.prune(device=PROBLEM.device) == 1
    epochs.append(tune.epoch())
    assert epochs == [f"{DEVICE}=0", f"{DEVICE}=0", f"{DEVICE}=1", f"{DEVICE}=2"]


def test_choices_can_be_taken_from_another_machine(clock: Clock, tmp_path: Path) -> None:
    choose()
    written = tune.table_for(PROBLEM.device).path
    other = written.rename(tmp_path / "from-elsewhere.json")
    tune.reset()
    assert tune.import_choices(other, PROBLEM.device) == 1
    entry = tune.table_for(PROBLEM.device).find(PROBLEM.key("default"))
    assert entry is not None
    assert (entry.candidate, entry.how) == ("library", "imported")
    other.write_text(other.read_text().replace("9000", "9001"))
    with pytest.raises(ValueError, match="another device"):
        tune.import_choices(other, PROBLEM.device)


def test_a_choice_for_a_candidate_that_is_gone_is_measured_again(clock: Clock) -> None:
    stale = table.ChoiceEntry("a kernel of an older version", {"inductor": 2.0})
    tune.table_for(PROBLEM.device).add(PROBLEM.key("default"), stale)
    assert choose().source == "measured"


def test_without_cuda_there_is_no_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert tune.epoch() == ""


def test_layouts_have_names() -> None:
    def layout(x: tuple[int, int], weight: tuple[int, int]) -> str:
        return dataclasses.replace(PROBLEM, x_strides=x, weight_strides=weight).layout

    assert layout((1024, 1), (1, 1024)) == "row,col"
    assert layout((2048, 1), (4096, 1)) == "row+,row"
    assert layout((1, 8192), (1, 2000)) == "col,col+"
    assert layout((2, 2048), (0, 0)) == "strided,strided"


def samples(**rounds: Callable[[], list[float]] | list[float]) -> Samples:
    return Samples({name: list(times) for name, times in rounds.items()})  # type: ignore[arg-type]


def test_beating_needs_more_than_the_spread() -> None:
    assert samples(a=[10.0] * 5, b=[9.0] * 5).beats("b", "a")
    assert not samples(a=[10.0] * 5, b=[9.95] * 5).beats("b", "a")
    assert not samples(a=[10.0, 12, 8, 14, 7], b=[9.5] * 5).beats("b", "a")
