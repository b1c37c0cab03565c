"""``assert_no_syncs``: what fails, what is let through, and what the message says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from fusepass.errors import HostSyncs, UnknownSyncKind
from fusepass.report.host_syncs import residence
from fusepass.testing import assert_no_syncs

EAGER = {"codegen": "eager"}


@pytest.fixture(autouse=True)
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU stands in for a device on every machine."""
    monkeypatch.setattr(residence, "no_device", lambda: True)


def quiet(t: Tensor) -> Tensor:
    return t * 2 + t.sum()


def chosen(t: Tensor) -> Tensor:
    return t * 2 if t.sum() > 0 else t - 1


def reads(t: Tensor) -> float:
    return t.sum().item()


def both(t: Tensor) -> Tensor:
    print(t.sum())  # noqa: T201
    return t[t > 0]


def test_passes_where_nothing_waits() -> None:
    assert_no_syncs(quiet, torch.ones(3))
    assert_no_syncs(torch.nn.Linear(3, 3), torch.ones(3))


def test_eager_program_that_waits() -> None:
    with pytest.raises(HostSyncs) as caught:
        assert_no_syncs(chosen, torch.ones(3))
    assert isinstance(caught.value, AssertionError)
    text = str(caught.value)
    assert "in 1 place." in text
    line = chosen.__code__.co_firstlineno + 1
    assert f"test_no_syncs.py:{line}" in text
    assert "torch.where" in text
    assert [row.line for row in caught.value.syncs] == [line]


def test_compiled_with_fusepass_counts_what_remains() -> None:
    assert_no_syncs(torch.compile(chosen, backend="fusepass", options=EAGER), torch.ones(3))
    with pytest.raises(HostSyncs, match="0-d tensor"):
        assert_no_syncs(
            torch.compile(lambda t: {t.sum().item(): 1}, backend="fusepass", options=EAGER),
            torch.ones(3),
        )


def test_compiled_with_another_backend_counts_what_that_leaves() -> None:
    with pytest.raises(HostSyncs):
        assert_no_syncs(torch.compile(chosen, backend="eager"), torch.ones(3))
    assert_no_syncs(torch.compile(quiet, backend="eager"), torch.ones(3))


@pytest.mark.parametrize(
    "allow",
    [
        ("item",),
        "item",
        ("test_no_syncs.py:*",),
        (f"testing/test_no_syncs.py:{reads.__code__.co_firstlineno + 1}",),
        (f"*/{Path(__file__).name}:*",),
        ("print", "item"),
    ],
)
def test_allowed(allow: tuple[str, ...] | str) -> None:
    assert_no_syncs(reads, torch.ones(3), allow=allow)


@pytest.mark.parametrize(
    "allow", [("print",), ("other.py:*",), (f"{Path(__file__).name}:1",), ("yncs.py:*",)]
)
def test_not_allowed(allow: tuple[str, ...]) -> None:
    with pytest.raises(HostSyncs):
        assert_no_syncs(reads, torch.ones(3), allow=allow)


def test_the_rest_is_listed() -> None:
    with pytest.raises(HostSyncs) as caught:
        assert_no_syncs(both, torch.ones(3), allow=("print",))
    assert [row.kind for row in caught.value.syncs] == ["nonzero"]


def test_unknown_kind() -> None:
    with pytest.raises(UnknownSyncKind, match=r"Did you mean 'item'.*branch, item"):
        assert_no_syncs(reads, torch.ones(3), allow=("itme",))


def test_keyword_arguments_reach_the_program() -> None:
    def scaled(t: Tensor, *, scale: float) -> Tensor:
        return t * scale

    assert_no_syncs(scaled, torch.ones(3), scale=2.0)
