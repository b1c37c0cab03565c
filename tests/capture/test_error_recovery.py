"""Errors while a frame is traced: what is unknown goes back, then all; users see what eager does."""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fusepass
import fusepass.capture.graph_checks
from fusepass.errors import CaptureFault, RuleError
from fusepass.torch_private.dynamo import stack

from .support.side_by_side import Outcome, side_by_side, signed

X = torch.tensor([1.0, -0.5, 2.0])


def paste(mask: Tensor, box: Tensor) -> Tensor:
    """What torchvision's Mask R-CNN does with each mask: numbers that are sizes and bounds."""
    left, top, right, bottom = box.tolist()
    w, h = max(int(right - left + 1), 1), max(int(bottom - top + 1), 1)
    wide = F.interpolate(mask.expand((1, 1, -1, -1)), size=(h, w), mode="bilinear")[0][0]
    canvas = torch.zeros((12, 14))
    x0, x1 = max(box[0], 0), min(box[2] + 1, 14)
    y0, y1 = max(box[1], 0), min(box[3] + 1, 12)
    canvas[y0:y1, x0:x1] = wide[(y0 - box[1]) : (y1 - box[1]), (x0 - box[0]) : (x1 - box[0])]
    return canvas


def paste_all(masks: Tensor, boxes: Tensor) -> Tensor:
    pasted = [paste(mask, box) for mask, box in zip(masks, boxes.to(torch.int64), strict=True)]
    return torch.stack(pasted)


def test_bounds_that_only_the_data_know_are_read() -> None:
    torch.manual_seed(0)
    masks = torch.rand(2, 5, 5)
    calls = [
        (masks, torch.tensor([[1.0, 2.0, 6.0, 5.0], [-2.0, 3.0, 4.0, 20.0]])),
        (masks, torch.tensor([[0.0, 0.0, 3.0, 3.0], [8.0, -1.0, 30.0, 2.0]])),
        (masks, torch.tensor([[4.0, 4.0, 4.0, 4.0], [9.0, 2.0, 3.0, 2.0]])),
    ]
    outcome = side_by_side(paste_all, *calls)
    assert ("keep", "size") in [(d["treatment"], d["reason_code"]) for d in outcome.decisions]


def sliced_by_difference(x: Tensor) -> Tensor:
    n = (x > 0).sum()
    return x[n : n + 1].sum() + x


def test_bounds_in_a_slice_are_read() -> None:
    side_by_side(sliced_by_difference, *signed(1.0, -0.5, 2.0, 3.0))


def branch_and_number(x: Tensor) -> Tensor:
    y = x * x.abs().sum().item()
    if (y > 1).any():
        y = y + 1
    torch._dynamo.graph_break()
    return y - 1


def _failing_while_captured(monkeypatch: pytest.MonkeyPatch, error: Exception) -> Outcome:
    """Settle graphs with a fault."""

    def fails(*_: Any) -> None:
        raise error

    monkeypatch.setattr(fusepass.capture.graph_checks, "copy_predicates", fails)
    return side_by_side(branch_and_number, *signed(1.0, -0.5, 2.0))


@pytest.mark.parametrize("kind", [ValueError, AssertionError, NotImplementedError, KeyError])
def test_a_frame_that_cannot_be_settled_goes_on_plain(
    monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    with pytest.warns(CaptureFault, match="boom"):
        outcome = _failing_while_captured(monkeypatch, kind("boom"))
    kept = {(d["rule"], d["treatment"], d["reason_code"]) for d in outcome.decisions}
    assert ("item", "keep", "untraceable") in kept
    assert ("branch", "keep", "internal") in kept
    assert outcome.breaks


def test_errors_for_the_user_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Exception, match="boom"):
        _failing_while_captured(monkeypatch, RuleError("mine", "here", "boom"))


def number_and_compiler(x: Tensor) -> Tensor:
    return x / x.norm().item()


def test_numbers_go_back_when_the_compiler_fails_on_what_took_their_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compile_graph = fusepass.backend.fusepass

    def fails(gm: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        if any(node.target == "detach" for node in gm.graph.nodes):
            raise NotImplementedError("no detach")
        return compile_graph(gm, *args, **kwargs)

    fails.compiler_fn = compile_graph  # type: ignore[attr-defined]
    monkeypatch.setattr(fusepass.backend, "fusepass", fails)
    outcome = side_by_side(number_and_compiler, *signed(1.0, -0.5, 2.0))
    assert [d["treatment"] for d in outcome.decisions] == ["keep"]


@pytest.mark.parametrize("context", [torch.no_grad, torch.enable_grad])
def test_what_only_dynamo_raises_is_not_caught_by_the_program(context: Any) -> None:
    """``len`` of a text with an unknown number raised, and the program's ``except`` took it."""

    def program(x: Tensor, number: Tensor) -> Tensor:
        try:
            y = x + len(f"<{number.item()}>")
        except TypeError:
            y = x * 100
        return y

    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    for value in (-2.0, 1e-8, 3.25):
        x, number = torch.randn(3), torch.tensor(value)
        with context():
            assert torch.equal(compiled(x, number), program(x, number))


def test_what_the_program_raises_is_caught_by_it() -> None:
    def program(x: Tensor, number: Tensor) -> Tensor:
        scale = number.item()
        try:
            y = x + len(3)  # type: ignore[arg-type]
        except TypeError:
            y = x * scale
        return y

    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    for value in (-2.0, 3.25):
        x, number = torch.randn(3), torch.tensor(value)
        assert torch.equal(compiled(x, number), program(x, number))


def bounded(x: Tensor, number: Tensor) -> Tensor:
    a = number.item()
    return x * a if 0 < a < 2 else x + a


def behind_a_branch(x: Tensor, flag: Tensor, number: Tensor) -> Tensor:
    if flag.item():
        return x * 2
    return bounded(x, number)


def test_dynamos_stand_ins_do_not_raise_for_the_program() -> None:
    """torch 2.11 says of an unknown bool that integers have no order; the program does not."""
    x, yes, no = torch.ones(3), torch.tensor([True]), torch.tensor([False])
    numbers = [torch.tensor(value) for value in (True, False, 1, 0.5, 3)]
    side_by_side(bounded, *[(x, number) for number in numbers])
    side_by_side(behind_a_branch, *[(x, f, number) for number in numbers for f in (no, yes)])


async def waits_behind_a_branch(x: Tensor) -> Tensor:
    y = x.sin()
    if y.sum() > 0:
        y = y * 2
    await asyncio.sleep(0)
    return y + 1


async def waits_behind_a_line(x: Tensor) -> Tensor:
    y = x.sin()
    print("sum", y.sum())  # noqa: T201
    await asyncio.sleep(0)
    return y + 1


@pytest.mark.parametrize("program", [waits_behind_a_branch, waits_behind_a_line])
def test_a_coroutine_that_torch_cannot_resume_is_no_fault_of_ours(program: Any) -> None:
    compiled = torch.compile(program, backend="fusepass")
    with warnings.catch_warnings(), contextlib.suppress(AssertionError):  # of torch, any backend's
        warnings.simplefilter("error", CaptureFault)
        asyncio.run(compiled(X))
    decisions = fusepass.last_report(compiled).decisions
    found = {(d.treatment, d.reason_code) for d in decisions if d.station == "capture"}
    assert ("keep", "internal") not in found
    # With Python 3.12 torch 2.11 runs whole coroutines as they are, with no graph to report on.
    assert ("keep", "generator") in found or not fusepass.last_report(compiled).operations


def cut_by_a_number_read(x: Tensor) -> Tensor:
    k = (x > 0).sum().item()
    if x.sum() > k:
        x = x[:k]
    return x


def cut_by_a_number_of_an_arm(x: Tensor) -> Tensor:
    k = 2 if x.sum() > 0 else 3
    return x[:k]


def indexed_in_an_arm(x: Tensor) -> Tensor:
    y = x + 1
    if y.isnan().any():
        y = y - y[0]
    return y


def shown_in_an_arm(x: Tensor) -> Tensor:
    y = x + 1
    if y.isnan().any():
        print("first row", y[0])  # noqa: T201
    return y


def shown(x: Tensor) -> Tensor:
    print(x, [x[0].sum()])  # noqa: T201
    return x


@pytest.mark.parametrize(
    ("program", "code"),
    [
        (cut_by_a_number_read, "untraceable"),
        (cut_by_a_number_of_an_arm, None),
        (indexed_in_an_arm, "untraceable"),
        (shown_in_an_arm, "untraceable"),
        (shown, "untraceable"),
    ],
)
@pytest.mark.filterwarnings("error::fusepass.errors.CaptureFault")
def test_a_call_that_fails_for_an_empty_tensor_is_no_fault_of_ours(
    program: Any, code: str | None
) -> None:
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    for x in (torch.full((3, 4), 0.5), torch.ones(0, 4), torch.ones(5, 4), torch.ones(0, 4)):
        try:
            want = program(x)
        except IndexError as error:
            with pytest.raises(type(error), match="index 0 is out of bounds"):
                compiled(x)
        else:
            torch.testing.assert_close(compiled(x), want, rtol=0, atol=0)
    decisions = [d for d in fusepass.last_report(compiled).decisions if d.station == "capture"]
    kept = {d.reason_code for d in decisions if d.treatment == "keep"}
    assert code in kept or (code is None and not kept)
    assert "internal" not in {d.reason_code for d in decisions}


class NotTaken(torch.Tensor):
    """A tensor around another that cannot be taken apart, so no frame that is given one traces."""

    part: Tensor

    @staticmethod
    def __new__(cls, part: Tensor) -> NotTaken:
        made = torch.Tensor._make_wrapper_subclass(cls, part.shape, dtype=part.dtype)
        made.part = part
        return made

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        raise ValueError("not to be taken apart")

    @staticmethod
    def __tensor_unflatten__(parts: Any, context: Any, size: Any, stride: Any) -> NotTaken:
        return NotTaken(parts["part"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any, kwargs: Any = None) -> Any:
        return cls(func(args[0].part, *args[1:]))


@pytest.mark.parametrize("fullgraph", [False, True])
def test_an_error_before_anything_is_captured_is_dynamos_own(fullgraph: bool) -> None:
    def program(x: Tensor) -> Tensor:
        return x * 2

    def raised(**how: Any) -> tuple[type[Exception], str]:
        torch._dynamo.reset()
        compiled = torch.compile(program, fullgraph=fullgraph, **how)
        with pytest.raises(Exception, match="not to be taken apart") as error:
            compiled(NotTaken(X))
        return error.type, str(error.value)

    want = raised(backend="eager")
    assert raised(backend="fusepass", options={"codegen": "eager"}) == want


def test_a_wrong_call_of_ours_is_our_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """A select that is out of range, recorded where a number is turned into a truth value."""
    own = stack.wrap_call

    def wrong(translator: Any, kind: str, target: Any, args: Any, kwargs: Any) -> Any:
        tensors = [one for one in args if isinstance(one, torch.fx.Proxy)]
        return own(translator, "call_method", "select", (tensors[0], 0, 99), {})

    def program(x: Tensor) -> Tensor:
        y = x + 1
        if x.sum():
            y = y * 2
        return y.reshape(-1)

    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    monkeypatch.setattr(stack, "wrap_call", wrong)
    with pytest.warns(CaptureFault, match="please report"):
        assert torch.equal(compiled(X), program(X))


def test_a_missing_compiler_is_no_fault_of_a_branch() -> None:
    def program(x: Tensor) -> Tensor:
        y = x * 2
        if y.isinf().any():
            y = y.clamp(max=3)
        return y + 1

    with (
        torch._inductor.config.patch({"cpp.cxx": (None, "/bin/false")}),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error", CaptureFault)
        with pytest.raises(Exception, match="No working C\\+\\+ compiler"):
            torch.compile(program, backend="fusepass")(torch.ones(5))
