"""The twin of a program: timed under Inductor beside the others, to hold capture against it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fusepass.__main__ import main
from fusepass.bench import table
from fusepass.bench.variants import baseline, inductor, variants_for


def test_each_mode_is_compared_with_the_handwritten_twin() -> None:
    variants = variants_for("fusepass", ("default", "reduce-overhead"), twin=True)
    by_label = {one.label: one for one in variants}
    hand = by_label["hand/reduce-overhead"]
    assert inductor(by_label["fusepass/reduce-overhead"], variants, "twin") is hand
    # The better of eager and Inductor is that of the program as it is.
    assert baseline(by_label["fusepass/default"], variants) is by_label["inductor/default"]
    assert inductor(hand, variants_for("fusepass", ("default",)), "twin") is None


@pytest.mark.slow
def test_the_command_times_the_twin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    arguments = "bench --suite sync --only branch-on-sum --device cpu --modes default --rounds 5"
    quick = "--round-seconds 0.01 --compile-times none"
    assert main([*arguments.split(), *quick.split(), "--json", str(out)]) == 0
    assert "/ hand" in capsys.readouterr().out
    result = json.loads(out.read_text())
    (program,) = result["programs"]
    variants = {one["variant"]: one for one in program["variants"]}
    assert variants.keys() == {"eager", "inductor/default", "fusepass/default", "hand/default"}
    ours, hand = variants["fusepass/default"], variants["hand/default"]
    assert ours["over_hand"] > 0
    assert hand["over_hand"] is None
    assert hand["error"]["passed"] is True
    assert hand["graphs"]["regions_per_call"] == ours["graphs"]["regions_per_call"] == 1
    ours["over_hand"] = 1.04
    assert "1.040 <" in table.render(result)
    variants["inductor/default"]["over_hand"] = ours["over_hand"] = 1.02
    assert "1.020" in table.render(result)
    assert "1.020 <" not in table.render(result)
