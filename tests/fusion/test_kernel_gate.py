"""What rules say of a choice, and of a kernel that cannot be compiled."""

from __future__ import annotations

import pytest
from torch import fx

from fusepass.errors import CandidateFailed
from fusepass.fusion import kernel_gate
from fusepass.report.decision import Reason
from fusepass.rewrite.rule import Accept, Reject
from fusepass.tune import Choice

NODE = fx.Graph().placeholder("x")


@pytest.mark.parametrize(
    ("times", "code"), [({"inductor": 3.0, "ours": 4.0}, Reason.SLOWER), ({}, Reason.NO_RULE)]
)
def test_a_losing_kernel_is_rejected(times: dict[str, float], code: Reason) -> None:
    said = kernel_gate.verdict(Choice("inductor", times, "measured", "because"), NODE)
    assert isinstance(said, Reject)
    assert (said.code, said.text) == (code, "left to Inductor: because")
    assert said.microseconds == times


@pytest.mark.parametrize(
    ("source", "code"), [("forced", Reason.FORCED), ("table", Reason.MEASURED)]
)
def test_a_winning_kernel_is_accepted(source: str, code: Reason) -> None:
    said = kernel_gate.verdict(Choice("ours", {"ours": 1.0}, source, "because"), NODE)
    assert isinstance(said, Accept)
    assert (said.code, said.text, said.microseconds) == (code, "ours: because", {"ours": 1.0})


def test_a_kernel_that_cannot_be_compiled() -> None:
    def fails() -> None:
        raise RuntimeError("no NVRTC here")

    assert kernel_gate.compile_check("pool", lambda: None, NODE) is None
    with pytest.warns(CandidateFailed, match="pool.*no NVRTC here"):
        said = kernel_gate.compile_check("pool", fails, NODE)
    assert isinstance(said, Reject)
    assert said.code is Reason.INTERNAL
    assert "no NVRTC here" in said.text
