"""The table of choices that comes with the package: that it is read, and still asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fusepass.fusion.kernel_ir.epilogue import Epilogue
from fusepass.kernels.gemm.tiles import tiles
from fusepass.tune import table
from fusepass.tune.problems.gemm import digest
from tests.perf import gemm_regions
from tests.perf.suites.linear import ACTIVATIONS, ROWS

TABLES = sorted(table._SHIPPED.glob("*.json"))


def entries(path: Path) -> dict[str, table.ChoiceEntry]:
    text = path.read_text("utf-8")
    return table.parse(text, "NVIDIA H200")[1]


def epilogues() -> dict[str, Epilogue]:
    """As compiled graphs have them: a change of decompositions or of their form changes these."""
    found = {
        f"linear {name}": gemm_regions.epilogue_of(
            gemm_regions._linear(act), (32, 16), (16, 24), (24,), pairs=False
        )
        for name, act in ACTIVATIONS.items()
    }
    found |= {
        f"gated {name}": gemm_regions.epilogue_of(
            gemm_regions._gated(ACTIVATIONS[name]), (32, 16), (16, 24), (16, 24), pairs=True
        )
        for name in ("silu", "gelu", "gelu-tanh")
    }
    return found


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_what_compiled_graphs_ask_for_is_there(path: Path) -> None:
    """If it fails, make it anew: python tests/perf/gemm_regions.py --ship (on that device)."""
    held = entries(path)
    for epilogue in epilogues().values():
        keys = [key for key in held if key.split("/")[1] == digest(epilogue)]
        assert len(keys) >= (len(ROWS["cuda"]) if epilogue.products == 1 else 10)
        for key in keys:
            entry = held[key]
            assert entry.how == "shipped"
            names = {tile.candidate for tile in tiles(epilogue).values()}
            assert entry.candidate in {"inductor", "cublaslt", *names}


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_the_fastest_is_chosen_where_it_is_faster_than_inductor(path: Path) -> None:
    for key, entry in entries(path).items():
        times = entry.microseconds
        assert times[entry.candidate] <= times["inductor"], key
        if min(times.values()) < 0.95 * times["inductor"]:
            assert times[entry.candidate] <= 1.02 * min(times.values()), key


def test_a_region_of_the_suite_has_the_key_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm_regions, "DEVICE", torch.device("cpu"))
    epilogue = epilogues()["linear silu"]
    x, w = torch.empty(8192, 1024, device="meta"), torch.empty(4096, 1024, device="meta").t()
    problem = gemm_regions.problem_of(epilogue, x.bfloat16(), [w.bfloat16()])
    assert problem.key("default") in entries(TABLES[-1])
