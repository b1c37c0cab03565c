"""The examples of rules of one's own: they act, in every way a model is run, and change nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fusepass
from fusepass import testing

FOLDER = Path(__file__).resolve().parents[2] / "examples"
NAMES = ["custom_rule", "custom_kernel_rule"]


@pytest.fixture(params=NAMES)
def module(request: pytest.FixtureRequest, example: Callable[[str], ModuleType]) -> ModuleType:
    """Each of the two."""
    return example(request.param)


@pytest.fixture
def swiglu(example: Callable[[str], ModuleType]) -> ModuleType:
    return example("custom_rule")


@pytest.fixture
def norm(example: Callable[[str], ModuleType]) -> ModuleType:
    return example("custom_kernel_rule")


def model_of(module: ModuleType) -> tuple[nn.Module, Callable[[int], Tensor]]:
    """A model the example's rule acts on once, and inputs for a batch size."""
    if module.__name__ == "custom_rule":
        return module.FeedForward(), lambda batch: torch.randn(batch, 64)
    return nn.Sequential(module.RMSNorm(32), nn.Linear(32, 8)), lambda batch: torch.randn(
        batch, 3, 32
    )


class Autocast(nn.Module):
    """A model that switches to bfloat16 by itself."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.model(x)


def applied(compiled: Any, rule: fusepass.Rule) -> int:
    """Times the rule was applied."""
    found = fusepass.last_report(compiled).decisions
    return sum((d.rule, d.outcome) == (rule.name, "applied") for d in found)


def test_program(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert module.main() == 0
    printed = capsys.readouterr().out
    assert re.search(rf"before +{module.RULE.name} +applied", printed)
    differences = [float(n) for n in re.findall(r"[\d.]+e[-+]\d+", printed)]
    assert len(differences) == 1
    assert differences[0] < 1e-5


def test_rule_is_short(module: ModuleType) -> None:
    """Twelve lines in the first example, definition of the operator left out."""
    text = (FOLDER / f"{module.__name__}.py").read_text()
    (part,) = re.findall(r"^# --- the rule -+\n(.*?)^# ---", text, re.MULTILINE | re.DOTALL)
    lines = [line for line in part.splitlines() if line.strip()]
    assert len(lines) <= {"custom_rule": 12, "custom_kernel_rule": 30}[module.__name__]


@pytest.mark.sampled(2)
def test_rule_is_right(module: ModuleType) -> None:
    testing.check_rule(module.RULE)


@pytest.mark.parametrize("codegen", ["eager", "eager-decomposed"])
def test_training(module: ModuleType, codegen: str) -> None:
    found = module.run(codegen=codegen)
    outcomes = [d.outcome for d in found["report"].decisions if d.rule == module.RULE.name]
    assert outcomes == ["applied"]
    assert max(found.get("errors", [found.get("difference")])) < 1e-5


def test_autocast(module: ModuleType) -> None:
    """Inside and around the model."""
    model, inputs = model_of(module)
    x = inputs(4).requires_grad_()

    with fusepass.rules(module.RULE):
        testing.assert_rewrites(Autocast(model), x, rules={module.RULE.name: 1})
        with torch.autocast("cpu", dtype=torch.bfloat16):
            testing.assert_rewrites(model, x, rules={module.RULE.name: 1})


def test_dynamic_shapes(module: ModuleType) -> None:
    """One compile for all batch sizes, and the right gradients for each."""
    model, inputs = model_of(module)
    options = {"codegen": "eager"}
    compiled = torch.compile(model, backend="fusepass", options=options, dynamic=True)
    with fusepass.rules(module.RULE):
        for batch in (5, 9, 2):
            x = inputs(batch)
            pairs = zip(
                module.gradients(compiled, model, x),
                module.gradients(model, model, x),
                strict=True,
            )
            for ours, eager in pairs:
                torch.testing.assert_close(ours, eager)
    assert applied(compiled, module.RULE) == 1
    assert len(fusepass.last_report(compiled).to_dict()["operations"]) == 1


def test_inference_mode(module: ModuleType) -> None:
    model, inputs = model_of(module)
    compiled = torch.compile(model, backend="fusepass")
    with fusepass.rules(module.RULE), torch.inference_mode():
        x = inputs(4)
        torch.testing.assert_close(compiled(x), model(x))
    assert applied(compiled, module.RULE) == 1


def test_without_the_rule_nothing_acts(module: ModuleType) -> None:
    model, inputs = model_of(module)
    testing.assert_untouched(model, inputs(4), rules=[module.RULE.name])


def test_operators_are_well_formed(swiglu: ModuleType, norm: ModuleType) -> None:
    def made(*shape: int) -> Tensor:
        return torch.randn(*shape, requires_grad=True)

    torch.library.opcheck(swiglu.swiglu, (made(3, 4), made(3, 4)))
    torch.library.opcheck(swiglu.swiglu, (made(3, 4), made(4, 3).t()))
    torch.library.opcheck(norm.rms_norm, (made(2, 3, 4), made(4), 1e-5))


def test_operator_keeps_less_than_the_pattern(swiglu: ModuleType) -> None:
    """As the docstring says: two tensors for the backward, eager three."""
    size = 32 * 128 * 4
    assert swiglu.kept_for_backward(swiglu.pattern) == 3 * size
    assert swiglu.kept_for_backward(swiglu.swiglu) == 2 * size


class TestNorm:
    """The rule for RMSNorm."""

    def test_unmodified_llama(self, norm: ModuleType) -> None:
        """The pattern is the code of transformers, whatever its eps."""
        models = pytest.importorskip("transformers.models.llama.modeling_llama")
        layer = models.LlamaRMSNorm(16, eps=0.5)
        with fusepass.rules(norm.RULE):
            for dtype in (torch.float32, torch.bfloat16):
                x = torch.randn(2, 3, 16, dtype=dtype, requires_grad=True)
                testing.assert_rewrites(layer.to(dtype), x, rules={norm.RULE.name: 1})

    def test_check_says_why(self, norm: ModuleType) -> None:
        layer = norm.RMSNorm(3)
        with fusepass.rules(norm.RULE):
            report = fusepass.explain(layer, torch.randn(3, 4).t())
            (found,) = (d for d in report.decisions if d.rule == norm.RULE.name)
            assert (found.outcome, found.reason_code) == ("rejected", "stride_mismatch")
            report = fusepass.explain(norm.RMSNorm(20000), torch.randn(2, 20000))
            (found,) = (d for d in report.decisions if d.rule == norm.RULE.name)
            assert (found.outcome, found.reason_code) == ("rejected", "cost")

    def test_other_norm_is_left_alone(self, norm: ModuleType) -> None:
        def mean_subtracted(x: Tensor, weight: Tensor) -> Tensor:
            x = x - x.mean(-1, keepdim=True)
            h = x * torch.rsqrt(x.pow(2).mean(0, keepdim=True) + 1e-5)
            return weight * h

        with fusepass.rules(norm.RULE):
            testing.assert_untouched(
                mean_subtracted, torch.randn(8, 8), torch.randn(8), rules=[norm.RULE.name]
            )

    def test_kernels_in_the_interpreter(self, tmp_path: Path) -> None:
        """What the kernels compute is what the reference computes; Triton's interpreter runs them."""
        pytest.importorskip("triton", reason="CPU builds of torch come without Triton")
        script = tmp_path / "interpreted.py"
        script.write_text(INTERPRETED)
        environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(FOLDER)}
        command = [sys.executable, str(script)]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr


INTERPRETED = """
import torch
import custom_kernel_rule as example

torch.manual_seed(0)
for dtype in (torch.float32, torch.bfloat16, torch.float16):
    for shape in ((5, 7), (2, 3, 33), (300, 2), (0, 8), (1, 1)):
        x, grad = torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype)
        weight = torch.randn(shape[-1], dtype=dtype)
        expected = example.rms_norm(x, weight, 1e-5)
        torch.testing.assert_close(example.launch_forward(x, weight, 1e-5), expected)
        saved = (x, weight, expected[1])
        found = example.launch_backward(grad, *saved)
        torch.testing.assert_close(found, example.rms_norm_backward(grad, *saved))
"""


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"mode": "reduce-overhead"}])
def test_kernel_on_cuda(norm: ModuleType, dtype: torch.dtype, options: dict[str, Any]) -> None:
    found = norm.run("cuda", dtype, **options)
    outcomes = [d.outcome for d in found["report"].decisions if d.rule == norm.RULE.name]
    assert outcomes == ["applied"]
    assert max(found["errors"]) < {torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]


@pytest.mark.gpu
def test_first_example_on_cuda(swiglu: ModuleType) -> None:
    gate, up = (torch.randn(3, 4, device="cuda", requires_grad=True) for _ in range(2))
    with fusepass.rules(swiglu.RULE):
        testing.assert_rewrites(
            lambda a, b: F.silu(a) * b, gate, up, rules={swiglu.RULE.name: 1}, codegen="inductor"
        )
