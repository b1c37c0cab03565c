"""Errors that are for the user to see come as without fusepass, and are no fault of ours."""

from __future__ import annotations

import contextlib
import io
import textwrap
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

import fusepass

FRONTS = {
    "nothing": "",
    "branch": "if x.sum() > 0: x = x * 2",
    "line": "print(x.sum().item())",
    "check": "n = x.sum().item(); torch._check(n > -1e9)",
    "number": "x = x * x.max().item()",
    "mask": "x = x + x[x > 0].sum()",
    "sink": "if x.min() < -100: raise ValueError('low')",
}
Marking = Callable[[Tensor], None]


def program_of(front: str, body: str) -> Callable[..., Any]:
    """A function of these lines."""
    lines = textwrap.indent(f"{FRONTS[front]}\n{body}", "    ")
    names: dict[str, Any] = {"torch": torch}
    exec(f"def program(x):\n{lines}", names)
    return names["program"]  # type: ignore[no-any-return]


def dynamic(**limits: int) -> Marking:
    """Mark the rows as varying."""
    return lambda x: torch._dynamo.mark_dynamic(x, 0, **limits)


def outcome(
    program: Callable[..., Any], backend: str | None, mark: Marking, **more: Any
) -> list[tuple[Any, str]]:
    """What two calls give or raise, and write."""
    torch._dynamo.reset()
    options = {"options": {"codegen": "eager"}} if backend == "fusepass" else {}
    if backend is not None:
        program = torch.compile(program, backend=backend, **options, **more)
    seen: list[tuple[Any, str]] = []
    for _ in range(2):
        x = torch.arange(16.0).reshape(8, 2)
        if backend is not None:
            mark(x)
        written = io.StringIO()
        with contextlib.redirect_stdout(written):
            try:
                seen.append((program(x).tolist(), written.getvalue()))
            except Exception as error:  # noqa: BLE001 - compared
                seen.append((type(error), written.getvalue()))
    return seen


BODIES: dict[str, tuple[str, Marking]] = {
    "a range that the input is not in": ("return x + 1", dynamic(min=2, max=5)),
    "the same, asked for": (
        "return x + 1 if x.shape[0] > 3 else x - 1",
        dynamic(min=2, max=5),
    ),
    "a size that the code makes one": ("return x + torch.ones(8, 2)", dynamic()),
    "a size that is compared": ("return x + 1 if x.shape[0] == 8 else x", dynamic()),
    "half of a range": ("return x + 1 if x.shape[0] > 5 else x", dynamic(min=2, max=50)),
    "none violated": ("return x + 1 if x.shape[0] > 3 else x", dynamic(min=4, max=50)),
    "an arm that makes it one": (
        "if x.sum() < -1e5: x = x + torch.ones(8, 2)\nreturn x",
        dynamic(),
    ),
    "the arm taken": ("if x.sum() > -1e5: x = x + torch.ones(8, 2)\nreturn x", dynamic()),
    "an arm that asks for half of it": (
        "if x.sum() < -1e5: x = x + (1 if x.shape[0] > 6 else 2)\nreturn x",
        dynamic(min=2, max=64),
    ),
    "a size that is unbacked": (
        "return x + torch.ones(8, 2)",
        lambda x: torch._dynamo.decorators.mark_unbacked(x, 0, strict=True),
    ),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("body", BODIES)
def test_marked_sizes_are_refused_where_torch_refuses_them(body: str, front: str) -> None:
    text, mark = BODIES[body]
    program = program_of(front, text)
    eager, control = outcome(program, None, mark), outcome(program, "eager", mark)
    with warnings.catch_warnings():
        warnings.simplefilter("error", fusepass.errors.CaptureFault)
        ours = outcome(program, "fusepass", mark)
    assert ours in (eager, control)
    if front in ("nothing", "branch", "line", "check", "sink") and "range that" in body:
        assert [kind for kind, _ in ours] == [ConstraintViolationError] * 2


def behind(x: Tensor, y: Tensor) -> Tensor:
    if x.sum() > 0:
        x = x + 1
    return x[:2] + y[:2]


def in_an_arm(x: Tensor, y: Tensor) -> Tensor:
    if x.sum() > 0:
        x = x + y.sum()
    return x * 2


@pytest.mark.parametrize("program", [behind, in_an_arm])
@pytest.mark.parametrize("sign", [1, -1])
def test_an_input_first_read_behind_a_branch(program: Callable[..., Any], sign: int) -> None:
    """It is no fault of capture, which must not say so."""
    torch._dynamo.reset()
    x, y = sign * torch.ones(3, 2), torch.ones(8, 2)
    torch._dynamo.mark_dynamic(y, 0, min=2, max=5)
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    control = torch.compile(program, backend="eager")

    def seen(function: Callable[..., Any]) -> Any:
        torch._dynamo.reset()
        try:
            return function(x, y).tolist()
        except ConstraintViolationError as error:
            return str(error)[:20]

    with warnings.catch_warnings():
        warnings.simplefilter("error", fusepass.errors.CaptureFault)
        ours = seen(compiled)
    assert ours == seen(control)


@pytest.mark.parametrize("program", [behind, in_an_arm])
def test_where_the_graph_may_not_break_the_error_is_that_of_the_mark(
    program: Callable[..., Any],
) -> None:
    """And not that there is a branch, which is captured but for the error."""
    torch._dynamo.reset()
    x, y = torch.ones(3, 2), torch.ones(8, 2)
    options = {"codegen": "eager"}
    compiled = torch.compile(program, backend="fusepass", fullgraph=True, options=options)
    assert torch.equal(compiled(x, y), program(x, y))
    torch._dynamo.reset()
    torch._dynamo.mark_dynamic(y, 0, min=2, max=5)
    kinds = (ConstraintViolationError, torch._dynamo.exc.Unsupported)
    with pytest.raises(kinds, match=r"8 not in range \[2, 5\]"):
        compiled(x, y)


def specialised(x: Tensor) -> Tensor:
    return x + torch.ones(8, 2) if x.sum() > 0 else x - 1


def test_the_same_for_a_size_that_is_made_one() -> None:
    torch._dynamo.reset()
    x = torch.ones(8, 2)
    torch._dynamo.mark_dynamic(x, 0)
    options = {"codegen": "eager"}
    compiled = torch.compile(specialised, backend="fusepass", fullgraph=True, options=options)
    with pytest.raises(ConstraintViolationError):
        compiled(x)


def test_an_error_at_the_start_of_a_frame_does_not_start_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was started again a hundred times, and then left uncompiled, without a word."""
    torch._dynamo.reset()
    attempts = []

    def fails(*_: Any, **__: Any) -> Any:
        attempts.append(1)
        raise KeyError("boom")

    monkeypatch.setattr(torch._dynamo.variables.builder, "wrap_fx_proxy", fails)
    compiled = torch.compile(lambda x: x + 1, backend="fusepass", options={"codegen": "eager"})
    with pytest.raises(Exception, match="boom"):
        compiled(torch.ones(3))
    assert len(attempts) == 1  # capture was not asked anything yet


def test_settings_that_forbid_to_compile_again() -> None:
    program = program_of("branch", "return x + x.dim()")
    torch._dynamo.reset()
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    compiled(torch.ones(2))
    with torch._dynamo.config.patch(error_on_recompile=True):
        with pytest.raises(torch._dynamo.exc.RecompileError):
            compiled(torch.ones(2, 2))
    with torch.compiler.set_stance("fail_on_recompile"):
        with pytest.raises(RuntimeError, match="fail_on_recompile"):
            compiled(torch.ones(2, 2, 2))
    limits = {"recompile_limit": 1, "fail_on_recompile_limit_hit": True}
    with torch._dynamo.config.patch(**limits):
        with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit):
            compiled(torch.ones(2, 2, 2, 2))


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("front", ["nothing", "branch", "check"])
def test_system_exit_is_not_caught(
    kind: type[BaseException], front: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stops(*_: Any, **__: Any) -> Any:
        raise kind

    program = program_of(front, "return x.cos()")
    monkeypatch.setattr(fusepass.backend, "rewrite", stops)
    torch._dynamo.reset()
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    with pytest.raises(kind):
        compiled(torch.ones(3))


@pytest.mark.parametrize("front", FRONTS)
def test_a_cond_whose_arms_differ_raises_what_it_raises(front: str) -> None:
    text = "return torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: 3, (x,))"
    program = program_of(front, text)
    with warnings.catch_warnings():
        warnings.simplefilter("error", fusepass.errors.CaptureFault)
        ours = outcome(program, "fusepass", lambda _: None)
    assert ours == outcome(program, "eager", lambda _: None)


@pytest.mark.parametrize("front", ["branch", "number", "sink"])
def test_a_cond_with_a_side_effect_is_no_fault_of_capture(front: str) -> None:
    text = """
        found = []
        def taken(a):
            found.append(1)
            return a + 1
        return torch.cond(x.sum() > 0, taken, lambda a: a - 1, (x,))
    """
    program = program_of(front, textwrap.dedent(text))
    with warnings.catch_warnings():
        warnings.simplefilter("error", fusepass.errors.CaptureFault)
        ours = outcome(program, "fusepass", lambda _: None)
    assert ours == outcome(program, "eager", lambda _: None)
