"""Suites ``conv`` and ``elementwise``: what is in them, and that the command runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fusepass.__main__ import main
from fusepass.bench.program import suite_programs
from tests.perf.suites import conv


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(("suite", "count"), [("conv", 2), ("elementwise", 2)])
def test_names_differ_and_nothing_branches(suite: str, count: int, device: str) -> None:
    programs = suite_programs(suite, device)
    assert len({program.name for program in programs}) == len(programs) >= count
    assert not any(program.branches for program in programs)


def test_networks_give_numbers_in_either_order() -> None:
    found = {program.name: program.build() for program in suite_programs("conv", "cpu")}
    assert found.keys() == {"resnet-1-channels-last", "resnet-1-contiguous"}
    with torch.no_grad():
        for name, (model, (x,)) in found.items():
            last = name.endswith("last")
            assert x.is_contiguous(memory_format=torch.channels_last) == last
            out = model(x)
            assert out.shape == (1, 1000)
            assert out.isfinite().all()
            assert out.std() > 0


def test_the_deep_network_is_resnet_50() -> None:
    model = conv.ResNet(conv.LAYERS["cuda"], deep=True)
    convolutions = [one for one in model.modules() if isinstance(one, nn.Conv2d)]
    assert len(convolutions) == 53
    assert sum(p.numel() for p in model.parameters()) == 25_557_032


def test_floors_move_the_bytes_that_pooling_moves() -> None:
    for program in suite_programs("elementwise", "cpu"):
        if program.floor is None:
            continue
        (pooled, (x,)), (copied, (same,)) = program.build(), program.floor()
        moved = x.nbytes + pooled(x).nbytes
        result: Tensor = copied(same)
        assert result.data_ptr() != same.data_ptr()
        assert 2 * result.nbytes == moved


@pytest.mark.slow
@pytest.mark.parametrize("program", ["elementwise relu-max-pool", "conv resnet-1-channels"])
def test_the_command_runs_image_suites(program: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    suite, only = program.split()
    arguments = f"bench --suite {suite} --only {only} --device cpu --modes default --rounds 5"
    quick = "--round-seconds 0.01 --compile-times none"
    assert main([*arguments.split(), *quick.split(), "--json", str(out)]) == 0
    (found,) = json.loads(out.read_text())["programs"]
    variants = {one["variant"]: one for one in found["variants"]}
    assert variants["fusepass/default"]["error"]["passed"]


def test_zero_initialised_models_give_finite_outputs() -> None:
    zeros = nn.Linear(8, 4)
    nn.init.zeros_(zeros.weight)
    nn.init.zeros_(zeros.bias)
    assert conv.as_if_trained(zeros)(torch.randn(3, 8)).std() > 0
    given = nn.Linear(8, 4)
    kept = given.weight.clone()
    assert torch.equal(conv.as_if_trained(given).weight, kept)
