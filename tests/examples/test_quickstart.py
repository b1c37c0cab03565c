"""The quickstart: what it prints is true, on the model it says, with the guard's both outcomes."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import fusepass

pytest.importorskip("transformers", reason="the quickstart runs transformers' BART")

LAYERS = 2


@pytest.fixture(scope="module")
def quickstart() -> ModuleType:
    """examples/quickstart.py as a module."""
    path = Path(__file__).resolve().parents[2] / "examples" / "quickstart.py"
    spec = importlib.util.spec_from_file_location("quickstart", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def result(quickstart: ModuleType) -> dict[str, Any]:
    """One run on CPU, for all tests of this file."""
    return quickstart.run("cpu", layers=LAYERS, rounds=2)


def check(result: dict[str, Any], modes: tuple[str, ...]) -> None:
    """What holds on any device."""
    assert result["guarded_layers"] == LAYERS
    variants = {(one["name"], one["mode"]): one for one in result["variants"]}
    names = [("eager", "")] + [(name, mode) for mode in modes for name in ("Inductor", "fusepass")]
    assert list(variants) == names
    for one in variants.values():
        assert one["within_bound"], one
        assert one["latency_ms"] > 0
    assert variants["eager", ""]["regions_per_call"] == 0
    for mode in modes:
        before, after = variants["Inductor", mode], variants["fusepass", mode]
        assert before["regions_per_call"] >= LAYERS
        assert before["graph_breaks"] >= 1
        assert after["regions_per_call"] == 1
        assert after["graph_breaks"] == 0
        assert len(after["operations"]) == 1
        assert sum(after["operations"]) > sum(before["operations"])


@pytest.mark.sampled(3)  # .ci/run runs the same script on every commit
def test_one_region_where_inductor_enters_one_per_guarded_layer(result: dict[str, Any]) -> None:
    check(result, ("default",))


def test_report_names_every_guard(result: dict[str, Any]) -> None:
    report = result["report"]
    assert report["graphs"] == report["regions_per_call"] == 1
    assert report["graph_breaks"] == []
    guards = [one for one in report["decisions"] if one["rule"] == "branch"]
    assert len(guards) == LAYERS
    for guard in guards:
        assert (guard["outcome"], guard["treatment"]) == ("applied", "where")
        assert guard["file"].endswith("modeling_bart.py")
        line = Path(guard["file"]).read_text().splitlines()[guard["line"] - 1]
        assert "isfinite" in line


def test_what_is_printed_is_what_was_found(
    quickstart: ModuleType,
    result: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(quickstart, "run", lambda *_, **__: result)
    assert quickstart.main([]) == 0
    printed = capsys.readouterr().out
    assert result["explanation"] in printed
    (row,) = (line for line in printed.splitlines() if line.startswith("fusepass default"))
    operations = result["variants"][-1]["operations"][0]
    assert row.split()[2:6] == ["1", "0", "1", str(operations)]


def test_an_error_out_of_bounds_fails_the_program(
    quickstart: ModuleType, result: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = result | {"variants": [one | {"within_bound": False} for one in result["variants"]]}
    monkeypatch.setattr(quickstart, "run", lambda *_, **__: wrong)
    assert quickstart.main([]) == 1


def test_guard_that_fires(quickstart: ModuleType) -> None:
    """Overflow in the last encoder layer: clamped as in eager, and only then."""
    model, inputs = quickstart.bart("cpu", small=True, layers=1)
    encoder = model.encoder
    compiled = torch.compile(encoder, backend="fusepass", options={"codegen": "eager"})
    highest = torch.finfo(torch.float16).max - 1000
    with torch.inference_mode():
        for scale, fires in ((1.0, False), (6e4, True)):
            encoder.layers[-1].final_layer_norm.weight.fill_(scale)
            expected = encoder(**inputs).last_hidden_state
            assert bool((expected.abs() == highest).any()) == fires
            assert torch.equal(compiled(**inputs).last_hidden_state, expected)
    assert fusepass.last_report(compiled).to_dict()["graph_breaks"] == []


@pytest.mark.gpu
def test_on_cuda_with_cuda_graphs(quickstart: ModuleType) -> None:
    result = quickstart.run("cuda", small=True, layers=LAYERS, rounds=2)
    check(result, ("default", "reduce-overhead"))
