"""A torch or Python that was not tested: one warning, branches break as under Inductor, all else works."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._dynamo.symbolic_convert import InstructionTranslatorBase
from torch._dynamo.variables import TensorVariable

import fusepass
from fusepass import errors
from fusepass.backend import fusepass as fusepass_backend
from fusepass.capture import dynamo_hooks
from fusepass.torch_private import versions
from fusepass.torch_private.dynamo import calls, hooks
from fusepass.torch_private.dynamo.errors import error_hooks
from fusepass.torch_private.versions import TESTED_TORCH, capture_supported, torch_version

EAGER = {"codegen": "eager"}


def branch(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x - 1


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    """The answer is kept for the process: ask again in each test, and after it."""
    dynamo_hooks._supported.cache_clear()
    yield
    dynamo_hooks._supported.cache_clear()


@pytest.fixture(params=["TESTED_TORCH", "TESTED_PYTHON"])
def unsupported(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which of the two is out of range."""
    monkeypatch.setattr(versions, request.param, ((9, 0), (9, 1)))
    return str(request.param)


def test_one_warning_that_names_the_versions(unsupported: str) -> None:
    with pytest.warns(errors.UnsupportedVersion) as caught:
        for size in (2, 3, 4):
            torch.compile(branch, backend="fusepass", options=EAGER, dynamic=False)(
                torch.ones(size)
            )
        fusepass.explain(branch, torch.ones(2))
    ours = [one for one in caught if issubclass(one.category, errors.UnsupportedVersion)]
    assert len(ours) == 1
    text = str(ours[0].message)
    assert torch.__version__ in text
    assert ".".join(map(str, sys.version_info[:3])) in text
    assert "9.0 to 9.1" in text


@pytest.mark.filterwarnings("ignore::fusepass.errors.UnsupportedVersion")
def test_program_works_and_the_report_says_why(unsupported: str) -> None:
    compiled = torch.compile(branch, backend="fusepass", options=EAGER)
    for x in (torch.ones(2), -torch.ones(2)):
        assert torch.equal(compiled(x), branch(x))
    report = fusepass.last_report(compiled)
    (decision,) = (d for d in report.decisions if d.rule == "branch")
    assert (decision.treatment, decision.reason_code) == ("keep", "unsupported_version")
    assert len(report.graph_breaks) == 1


@pytest.mark.filterwarnings("ignore::fusepass.errors.UnsupportedVersion")
def test_rules_still_work(unsupported: str) -> None:
    def attention(q: Tensor) -> Tensor:
        mask = torch.ones(4, 4, dtype=torch.bool)
        return torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask)

    report = fusepass.explain(attention, torch.randn(1, 1, 4, 4))
    assert [d.outcome for d in report.decisions if d.station == "before"] == ["applied"]


def test_program_without_branches_is_not_warned(unsupported: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = torch.compile(lambda x: x + 1, backend="fusepass", options=EAGER)
        assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]


def test_this_pair_is_supported() -> None:
    """The tests run on versions that are listed; a new one is listed when they pass on it."""
    assert capture_supported()
    low, high = TESTED_TORCH
    assert low <= torch_version() <= high
    assert fusepass.explain(branch, torch.ones(2)).graph_breaks == ()


def without(name: str) -> Callable[..., None]:
    def hook(*handlers: object) -> None:
        raise KeyError(name)

    return hook


PLACES = {"hook_questions": calls, "hook_graphs": hooks}


@pytest.fixture(params=PLACES)
def changed_torch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Capture is installed where Dynamo lacks what one of the hooks is put in front of."""
    dynamo_hooks.uninstall()
    with monkeypatch.context() as patched:
        patched.setattr(PLACES[request.param], request.param, without("a name"))
        with pytest.warns(errors.UnsupportedVersion, match="KeyError: 'a name'"):
            dynamo_hooks.install(fusepass_backend)
    yield request.param
    dynamo_hooks.uninstall()
    dynamo_hooks.install(fusepass_backend)


def test_a_torch_without_what_capture_is_put_in_front_of(changed_torch: str) -> None:
    """Programs and rules work as without capture, and there is a report if one can be made."""
    compiled = torch.compile(branch, backend="fusepass", options=EAGER)
    for x in (torch.ones(2), -torch.ones(2)):
        assert torch.equal(compiled(x), branch(x))
    if changed_torch == "hook_questions":
        assert len(fusepass.last_report(compiled).graph_breaks) == 1
        test_rules_still_work("")


@pytest.mark.parametrize("breaks", [False, True])
def test_what_cannot_be_installed_leaves_no_hook(
    breaks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    dynamo_hooks.uninstall()
    try:
        table = list(InstructionTranslatorBase.dispatch_table)
        method = vars(TensorVariable)["call_method"]
        with monkeypatch.context() as patched, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if breaks:
                patched.setattr(error_hooks, "hook_failing_calls", without("a name"))
            dynamo_hooks.install(fusepass_backend)
        assert (vars(TensorVariable)["call_method"] is method) == breaks
        assert (list(InstructionTranslatorBase.dispatch_table) == table) == breaks
    finally:
        dynamo_hooks.uninstall()
        dynamo_hooks.install(fusepass_backend)


WITHOUT_A_NAME = """
import sys

import torch
import torch._dynamo.variables.misc

owner, name = sys.argv[1:]
delattr(sys.modules[owner], name)


def branch(x):
    return x * 2 if x.sum() > 0 else x - 1


compiled = torch.compile(branch, backend="fusepass", options={"codegen": "eager"})
for x in (torch.ones(2), -torch.ones(2)):
    assert torch.equal(compiled(x), branch(x))
"""


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        ("torch._dynamo.variables.misc", "LoggingLoggerVariable"),
        ("torch._dynamo.variables", "SkipFunctionVariable"),
    ],
)
def test_a_torch_without_a_class_that_capture_needs(owner: str, name: str, tmp_path: Path) -> None:
    """Capture is not even imported there: programs work as without it, after one warning."""
    script = tmp_path / "program.py"
    script.write_text(WITHOUT_A_NAME)
    done = subprocess.run(
        [sys.executable, str(script), owner, name], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("UnsupportedVersion") == 1
    assert name in done.stderr
