"""The floor of a program: timed beside the others, judged by nobody, in the same rounds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fusepass.__main__ import main
from fusepass.bench.program import suite_programs
from fusepass.bench.variants import baseline, inductor, variants_for


def test_each_mode_has_its_floor() -> None:
    variants = variants_for("fusepass", ("default", "reduce-overhead"), floor=True)
    by_label = {one.label: one for one in variants}
    ours = by_label["fusepass/reduce-overhead"]
    assert inductor(ours, variants, "floor") is by_label["floor/reduce-overhead"]
    assert inductor(by_label["eager"], variants, "floor") is by_label["floor/default"]
    assert baseline(ours, variants) is by_label["inductor/reduce-overhead"]
    assert inductor(ours, variants_for("fusepass", ("default",)), "floor") is None


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("suite", ["linear", "gated"])
def test_every_program_of_the_suite_has_a_floor(suite: str, device: str) -> None:
    programs = suite_programs(suite, device)
    assert len({program.name for program in programs}) == len(programs) >= 4
    assert all(program.floor is not None for program in programs)


@pytest.mark.parametrize("suite", ["linear", "gated"])
def test_floors_have_the_programs_inputs_and_results(suite: str) -> None:
    for program in suite_programs(suite, "cpu"):
        (model, given), (floor, same) = program.build(), program.floor()  # type: ignore[misc]
        assert [one.shape for one in given] == [one.shape for one in same]
        out, least = model(*given), floor(*same)
        assert out.isfinite().all()
        assert least.shape[0] == out.shape[0]
        assert least.shape[1] in (out.shape[1], 2 * out.shape[1])


@pytest.mark.slow
@pytest.mark.parametrize("program", ["linear relu-16", "gated swiglu-16", "gated swiglu-mlp"])
def test_the_command_times_the_floor(
    program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    suite, only = program.split()
    arguments = f"bench --suite {suite} --only {only} --device cpu --modes default --rounds 5"
    quick = "--round-seconds 0.01 --compile-times none"
    assert main([*arguments.split(), *quick.split(), "--json", str(out)]) == 0
    assert "/ floor" in capsys.readouterr().out
    (program,) = json.loads(out.read_text())["programs"]
    variants = {one["variant"]: one for one in program["variants"]}
    assert variants.keys() == {"eager", "inductor/default", "fusepass/default", "floor/default"}
    assert variants["fusepass/default"]["over_floor"] > 0
    assert variants["floor/default"]["over_floor"] is None
    assert variants["floor/default"]["error"] is None
    assert variants["fusepass/default"]["error"]["passed"]
