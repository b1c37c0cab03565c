"""An arm that is not taken loads no module, and changes no setting of torch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fusepass


def _decided(change: Callable[[], Any]) -> tuple[str, str]:
    """How a branch is decided of which one arm, not taken, makes a change."""

    def program(x: Tensor) -> Tensor:
        y = x.sin()
        if x.isnan().any():
            change()
            y = y + 1
        return y * 2

    torch._dynamo.reset()  # one code object for all changes
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    x = torch.ones(3)
    assert torch.equal(compiled(x), x.sin() * 2)
    (decision,) = (d for d in fusepass.last_report(compiled).decisions if d.rule == "branch")
    return decision.treatment, decision.reason_code.value


def test_modules_that_are_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "fusepass_lazy"
    package.mkdir()
    for name in ("__init__", "inner"):
        (package / f"{name}.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))

    def whole() -> None:
        import fusepass_lazy  # type: ignore[import-not-found]

        fusepass_lazy.__name__  # noqa: B018

    def member() -> None:
        from fusepass_lazy import inner

        inner.__name__  # noqa: B018

    assert _decided(whole) == ("keep", "side_effect")
    assert "fusepass_lazy" not in sys.modules
    __import__("fusepass_lazy")
    assert _decided(whole) == ("where", "pure_total")
    assert _decided(member) == ("keep", "side_effect")
    assert "fusepass_lazy.inner" not in sys.modules
    del sys.modules["fusepass_lazy"]


@pytest.mark.parametrize(
    ("change", "setting"),
    [
        (
            lambda: torch.set_float32_matmul_precision("high"),
            torch.get_float32_matmul_precision,
        ),
        (
            lambda: torch.backends.cuda.enable_flash_sdp(enabled=False),
            torch.backends.cuda.flash_sdp_enabled,
        ),
        (lambda: torch.set_warn_always(True), torch.is_warn_always_enabled),
        (
            lambda: torch.set_autocast_dtype("cpu", torch.float16),
            lambda: torch.get_autocast_dtype("cpu"),
        ),
        (
            lambda: torch._C._set_cublas_allow_fp16_reduced_precision_reduction(False, False),
            torch._C._get_cublas_allow_fp16_reduced_precision_reduction,
        ),
    ],
)
def test_settings(change: Callable[[], Any], setting: Callable[[], Any]) -> None:
    before = setting()
    treatment, _ = _decided(change)
    assert treatment == "keep"
    assert setting() == before


def test_what_cannot_be_called_while_tracing(recwarn: pytest.WarningsRecorder) -> None:
    import time

    assert _decided(lambda: time.sleep(0.1)) == ("keep", "untraceable")
    assert _decided(lambda: sys.exit(1)) == ("keep", "untraceable")
    assert _decided(lambda: exit(1)) == ("keep", "untraceable")
    assert not recwarn
