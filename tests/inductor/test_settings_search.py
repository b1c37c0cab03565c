"""Configs tried whole, on the CPU: what is tried, what decides, what is remembered."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fusepass
from fusepass import tune
from fusepass.errors import CandidateFailed
from fusepass.inductor import settings_search
from fusepass.inductor.settings_search import RULE, InductorConfig, SettingsTrial
from fusepass.torch_private.inductor import compile as inductor_compile
from fusepass.tune.table import ChoiceEntry
from fusepass.tune.timing import Samples

MODE = "max-autotune-no-cudagraphs"


@pytest.fixture(autouse=True)
def empty_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("FUSEPASS_CACHE_DIR", str(tmp_path))
    tune.reset()
    torch.compiler.reset()
    yield
    tune.reset()


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """What the ways are said to take, after they were really called; 10 µs if not named."""
    found: dict[str, float] = {}

    def said(self: Any, calls: Mapping[str, Callable[[], Any]]) -> Samples:
        assert all(call() is not None for call in calls.values())
        return Samples({name: [found.get(name, 10.0)] * 7 for name in calls})

    monkeypatch.setattr(SettingsTrial, "_time_calls", said)
    return found


def network() -> nn.Module:
    layers = [nn.Conv2d(8, 16, 3), nn.ReLU(inplace=True), nn.Conv2d(16, 8, 3), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(8 * 25, 10)).eval()


X = torch.randn(2, 8, 9, 9)


def decided(module: Any, x: Tensor = X, mode: str = MODE, **options: Any) -> list[Any]:
    torch.compiler.reset()
    compiled = torch.compile(module, backend="fusepass", options={"mode": mode, **options})
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-4)
    decisions = fusepass.last_report(compiled).decisions
    assert len([one for one in decisions if one.rule == "codegen"]) == 1
    assert len([one for one in decisions if one.rule == "after_autograd"]) <= 1
    return [one for one in decisions if one.rule == RULE]


def test_the_fastest_is_taken_and_remembered(times: dict[str, float]) -> None:
    times["layout_as_it_is"] = 5.0
    (one,) = decided(network())
    assert (one.outcome, one.reason_code) == ("applied", "measured")
    assert "layout_as_it_is is 2.00 times as fast: inductor 10.0 µs" in one.reason
    times["layout_as_it_is"] = 20.0
    (again,) = decided(network())  # from the table
    assert again.reason == one.reason.partition("; finding out took")[0] != one.reason
    tune.reset()  # another process, which reads the file
    (again,) = decided(network())
    assert again.reason == one.reason.partition("; finding out took")[0] != one.reason
    (other,) = decided(network(), X[:1])  # another graph
    assert (other.outcome, other.reason_code) == ("rejected", "slower")


def test_what_helps_together_is_tried_together(times: dict[str, float]) -> None:
    times |= {"layout_as_it_is": 8.0, "library_products": 7.0}
    times["library_products+layout_as_it_is"] = 6.0
    (one,) = decided(network())
    assert one.reason.startswith("library_products+layout_as_it_is is 1.67 times")
    (again,) = decided(network())
    assert again.reason == one.reason.partition("; finding out took")[0] != one.reason


def test_the_chosen_config_reaches_inductor(times: dict[str, float]) -> None:
    from torch._inductor import config
    from torch._inductor.utils import run_and_get_code

    module, last = network(), []
    for times["layout_as_it_is"] in (5.0, 15.0):
        tune.table_for(torch.device("cpu")).entries.clear()
        tune.table_for(torch.device("cpu")).write()
        torch.compiler.reset()
        compiled = torch.compile(
            module,
            backend="fusepass",
            options={"mode": MODE, "rules": {"conv_layout": False}},
        )
        with torch.no_grad(), config.patch(fx_graph_cache=False):  # else the last is found there
            _, codes = run_and_get_code(compiled, X)
        last.append("(784, 1, 112, 16)" in codes[-1])  # of the first result channels last
    assert last == [False, True]


def test_really_timed() -> None:
    (one,) = decided(network())
    assert "library_products" in one.reason
    assert "µs" in one.reason


def drawing(x: Tensor) -> Tensor:
    return x @ x.mT + torch.rand(2, 8, 9, 9)


def writing(x: Tensor) -> Tensor:
    x.add_(1.0)
    return x @ x.mT


def of_a_view(x: Tensor) -> Tensor:
    x.view(-1)[3:].add_(1.0)
    return x @ x.mT


called: list[int] = []


@torch.library.custom_op("fusepass_recipe_test::count", mutates_args=())
def count(x: Tensor) -> Tensor:
    called.append(1)
    return x.clone()


@count.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch._dynamo.allow_in_graph
def not_looked_into(x: Tensor) -> Tensor:
    return torch.ops.fusepass_recipe_test.count(x)  # type: ignore[no-any-return]


OTHERS: dict[str, Callable[[Tensor], Tensor]] = {
    "by its Python name": count,
    "a packet": torch.ops.fusepass_recipe_test.count,
    "an overload": torch.ops.fusepass_recipe_test.count.default,
    "in a function that is not looked into": not_looked_into,
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("program", "reason"),
    [(drawing, "random"), (writing, "writes its inputs"), (of_a_view, "writes its inputs")],
)
def test_graphs_with_side_effects_are_not_timed(
    program: Any, reason: str, times: dict[str, float]
) -> None:
    x = X.clone()
    compiled = torch.compile(program, backend="fusepass", options={"mode": MODE})
    with torch.no_grad():
        torch.manual_seed(3)
        compiled(x)
        state, report = torch.get_rng_state(), fusepass.last_report(compiled)
        mine = X.clone()
        torch.compiler.reset()
        torch.manual_seed(3)
        torch.compile(program)(mine)
    torch.testing.assert_close(x, mine)
    assert torch.equal(state, torch.get_rng_state())
    (one,) = (d for d in report.decisions if d.rule == RULE)
    assert one.outcome == "rejected"
    assert reason in one.reason
    assert not tune.table_for(torch.device("cpu")).entries


@pytest.mark.parametrize("name", OTHERS)
def test_operators_of_others_are_called_when_it_is_due(name: str, times: dict[str, float]) -> None:
    called.clear()
    operator = OTHERS[name]
    compiled = torch.compile(
        lambda x: operator(x) @ x.mT, backend="fusepass", options={"mode": MODE}
    )
    with torch.no_grad():
        compiled(X)
        first = len(called)
        compiled(X)
    assert len(called) - first == 1
    assert first <= 2  # Dynamo itself calls what it was told not to look into
    decisions = fusepass.last_report(compiled).decisions
    assert all("nobody knows" in one.reason for one in decisions if one.rule == RULE)


def test_settings_that_fail_only_in_the_end(
    times: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program goes on as asked, and the choice is not taken again."""
    times["layout_as_it_is"] = 5.0
    real = inductor_compile.compile_with_inductor

    def fails(gm: Any, inputs: Any, patches: Mapping[str, Any], name: Any = None) -> Any:
        if not patches["layout_optimization"] and "triton.cudagraphs" not in patches:
            raise RuntimeError("no such layout in the end")
        return real(gm, inputs, patches, name)

    def with_layout(*given: Any) -> Any:
        return fails(given[0], given[1], {"layout_optimization": True, **given[2]}, *given[3:])

    monkeypatch.setattr(inductor_compile, "compile_with_inductor", with_layout)
    with pytest.warns(CandidateFailed, match="config layout_as_it_is"):
        (one,) = decided(network(), rules={"conv_layout": False})
    assert (one.outcome, one.reason_code) == ("rejected", "internal")
    (again,) = decided(network(), rules={"conv_layout": False})
    assert "could not be compiled in the end" in again.reason


@pytest.mark.parametrize(
    "entry",
    [ChoiceEntry("library_products", {}), ChoiceEntry("gone", {"inductor": 1.0, "gone": 0.5})],
)
def test_an_entry_that_cannot_be_used_is_found_anew(
    entry: ChoiceEntry, times: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings_search, "_key", lambda *given: "the one")
    tune.table_for(torch.device("cpu")).add("the one", entry)
    (one,) = decided(network())
    assert "as asked is fastest" in one.reason


def test_nothing_is_written_while_it_is_tried(times: dict[str, float]) -> None:
    """What the graph would write stays until the program is really called."""
    module = nn.Sequential(nn.Linear(81, 81), nn.BatchNorm1d(81)).train()
    compiled = torch.compile(module, backend="fusepass", options={"mode": MODE})
    with torch.no_grad():
        compiled(torch.randn(5, 81))
    assert int(module[1].num_batches_tracked) == 1  # type: ignore[arg-type]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("default", {}),
        (MODE, {"rules": {"inductor_configs": False}}),
        (MODE, {"frozen": True}),
        (MODE, {"codegen": "eager"}),
    ],
)
def test_graphs_for_which_no_config_is_tried(
    mode: str,
    options: dict[str, Any],
    times: dict[str, float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(
        settings_search, "cached_decisions"
    )  # nothing is done that a trial would need
    assert decided(network(), mode=mode, **options) == []


def test_with_gradients_nothing_is_tried(times: dict[str, float]) -> None:
    module = network()
    compiled = torch.compile(module, backend="fusepass", options={"mode": MODE})
    compiled(X).sum().backward()
    decisions = fusepass.last_report(compiled).decisions
    assert not [one for one in decisions if one.rule == RULE]


def test_what_the_user_has_set_stays(times: dict[str, float]) -> None:
    (one,) = decided(network(), **{"inductor.layout_optimization": True})
    assert "layout_as_it_is" not in one.reason
    assert "library_products" in one.reason


def test_what_the_user_has_set_for_all_stays(times: dict[str, float]) -> None:
    from torch._inductor import config

    with config.patch(max_autotune_gemm_backends="TRITON,ATEN"):
        (one,) = decided(network())
    assert "library_products" not in one.reason
    assert "layout_as_it_is" in one.reason


def test_a_choice_by_timing_is_not_deterministic(times: dict[str, float]) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        assert decided(network()) == []
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_setting_that_this_torch_lacks_is_not_tried(
    times: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = (
        InductorConfig("odd", {"no_such_key": 1}),
        InductorConfig("as_it_is", {"layout_optimization": True}),
    )
    monkeypatch.setattr(settings_search, "CONFIGS", odd)
    assert decided(network()) == []


def test_a_recipe_that_fails_is_one_warning(
    times: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(graph: Any) -> None:
        raise RuntimeError("no such layout")

    bad = InductorConfig("bad", {"post_grad_custom_pre_pass": broken})
    monkeypatch.setattr(settings_search, "CONFIGS", (bad, *settings_search.CONFIGS))
    with pytest.warns(CandidateFailed, match="config bad"):
        (one,) = decided(network())
    assert "bad" not in one.reason


def test_a_recipe_that_changes_results_is_left_out(
    times: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoilt(made: Any, expected: Any) -> bool:
        return False

    monkeypatch.setattr(settings_search, "agree", spoilt)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        (one,) = decided(network())
    assert any("results differ" in str(w.message) for w in caught)
    assert one.outcome == "rejected"


def test_a_graph_that_cannot_be_timed_is_compiled_as_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(self: Any, calls: Any) -> Samples:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(SettingsTrial, "_time_calls", fails)
    with pytest.warns(CandidateFailed, match="the device is gone"):
        assert decided(network()) == []


def test_sizes_that_vary(times: dict[str, float]) -> None:
    times["library_products"] = 5.0
    compiled = torch.compile(
        lambda x, w: (x @ w).relu(), backend="fusepass", dynamic=True, options={"mode": MODE}
    )
    with torch.no_grad():
        for rows in (3, 5, 6):
            x, w = torch.randn(rows, 7), torch.randn(7, 4)
            torch.testing.assert_close(compiled(x, w), (x @ w).relu())
    report = fusepass.last_report(compiled)
    assert len([one for one in report.decisions if one.rule == RULE]) == 1


@pytest.mark.parametrize(
    ("program", "asked"),
    [
        (lambda x: torch.softmax(x, 0), True),
        (lambda x: x - x.mean((0, 2), keepdim=True), True),
        (lambda x: torch.nn.functional.group_norm(x, 4), True),
        (lambda x: (x - x.min()) / (x.max() - x.min()), True),
        (lambda x: torch.nn.functional.normalize(x, dim=1), True),
        (lambda x: x * 2 + 1, False),
    ],
)
def test_recipes_for_reductions(
    program: Callable[[Tensor], Tensor], asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a graph has one, however Dynamo writes it; on CUDA, where Inductor parts them."""
    seen: list[set[str]] = []

    def noted(gm: Any, options: Any, settings: Any, device: torch.device) -> list[InductorConfig]:
        found = suitable(gm, options, settings, torch.device("cuda"))
        seen.append({one.name for one in found if one.name.endswith("reductions")})
        return []

    suitable = settings_search._applicable_configs
    monkeypatch.setattr(settings_search, "_applicable_configs", noted)
    assert decided(program) == []
    assert seen == [{"whole_reductions", "cooperative_reductions"} if asked else set()]
