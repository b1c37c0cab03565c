"""Run a program in eager and compiled, side by side, and compare everything that can be seen.

Each draw is compiled anew and called with all its inputs. After every call the two sides are
compared: result or exception, arguments, state, aliasing, what was said (text, log records with
their lines, warnings with theirs) in order, random state and gradients. Then the report is held
against what the lines of the program expect.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import fusepass
from fusepass.testing.compare import (
    Difference,
    assert_same,
    assert_same_bits,
    same_bits,
    sharing,
    tensors,
)
from fusepass.testing.transcript import Said, recorded

from .program import Decided, Program

RULES = ("item", "print", "masked", "host_tensor")
ROUNDING = 32  # units in the last place of the largest value, for the order of a sum
CONTEXTS: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "plain": contextlib.nullcontext,
    "grad": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "float64": lambda: _default_dtype(torch.float64),
}


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@dataclass
class Seen:
    """What one call did."""

    args: tuple[Any, ...]
    result: Any = None
    error: tuple[type[BaseException], str] | None = None
    said: list[Said] = field(default_factory=list)
    rng: Any = None
    grads: list[Tensor | None] = field(default_factory=list)
    backward_error: type[BaseException] | None = None
    state: Any = None


def call(program: Program, target: Any, args: tuple[Any, ...], owner: Any, context: str) -> Seen:
    """One call, with its gradients when the context is ``grad``; ``owner`` holds all state."""
    seen = Seen(args)
    leaves = [leaf for leaf in (*tensors(args), *tensors(owner)) if leaf.is_leaf]
    for leaf in leaves:
        leaf.grad = None
    torch.manual_seed(7)
    random.seed(7)
    with recorded(program.warned) as transcript, CONTEXTS[context]():
        try:
            seen.result = target(*args)
        except Exception as error:  # noqa: BLE001 - programs raise what they like
            seen.error = (type(error), str(error))
    seen.rng = [torch.get_rng_state().tolist(), random.getstate()]
    if torch.cuda.is_initialized():
        seen.rng.append(torch.cuda.get_rng_state().tolist())
    seen.state = program.state(owner) if program.state else None
    seen.said = transcript.said
    if context == "grad" and seen.error is None:
        with recorded(program.warned) as transcript:
            try:
                _backward(seen.result)
            except RuntimeError as error:  # its text names nodes of the graph, which may differ
                seen.backward_error = type(error)
        seen.said += transcript.said
        seen.grads = [leaf.grad for leaf in leaves if leaf.requires_grad]
    return seen


def _backward(result: Any) -> None:
    outputs = [out for out in tensors(result) if out.requires_grad and out.is_floating_point()]
    generator = torch.Generator().manual_seed(11)
    given = [
        torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.device, out.dtype)
        for out in outputs
    ]
    if outputs:
        torch.autograd.backward(outputs, given)


def assert_same_call(
    eager: Seen, compiled: Seen, owners: tuple[Any, Any], where: str, *, rounded: bool
) -> None:
    """Compare all that two calls left behind."""
    values = _same_up_to_rounding if rounded else assert_same_bits
    assert eager.error == compiled.error, (
        f"{where}: eager raised {eager.error}, compiled {compiled.error}"
    )
    assert eager.said == compiled.said, _other_words(eager.said, compiled.said, where)
    assert_same(eager.result, compiled.result, f"{where}: result", values)
    assert_same(eager.args, compiled.args, f"{where}: arguments after the call", values)
    assert_same(eager.state, compiled.state, f"{where}: state", values)
    states = [list(tensors(owner)) for owner in owners]
    assert_same(states[0], states[1], f"{where}: parameters and buffers", values)
    assert eager.rng == compiled.rng, f"{where}: a random generator is in another state"
    shared = [
        sharing(seen.args, state, seen.state, seen.result)
        for seen, state in zip((eager, compiled), states, strict=True)
    ]
    for kind, one in shared[0].items():
        other = shared[1][kind]
        assert one == other, f"{where}: other {kind} are shared: {one} in eager, {other} compiled"
    if eager.backward_error:
        return  # a value saved for backward was written; compilers save a copy, torch's own too
    assert compiled.backward_error is None, f"{where}: backward raised {compiled.backward_error}"
    for index, (one, other) in enumerate(zip(eager.grads, compiled.grads, strict=True)):
        assert (one is None) == (other is None), (
            f"{where}: gradient {index} is {one} in eager, {other} compiled"
        )
        if one is not None and other is not None and not same_bits(one, other, zero_signs=False):
            assert rounded, f"{where}: gradient {index}\neager    {one}\ncompiled {other}"
            _same_up_to_rounding(one, other, f"{where}: gradient {index}")


def _other_words(eager: list[Said], compiled: list[Said], where: str) -> str:
    pair = ["\n  ".join(["", *map(str, said)]) for said in (eager, compiled)]
    return f"{where}: eager said{pair[0]}\ncompiled{pair[1]}"


def _same_up_to_rounding(eager: Tensor, compiled: Tensor, path: str) -> None:
    if not eager.is_floating_point():
        return assert_same_bits(eager, compiled, path)
    one, other = eager.detach().double(), compiled.detach().double()
    finite = one[one.isfinite()].abs()
    scale = max(1.0, float(finite.max()) if finite.numel() else 0.0)
    slack = ROUNDING * torch.finfo(eager.dtype).eps * scale
    if not torch.allclose(one, other, rtol=0.0, atol=slack, equal_nan=True):
        raise Difference("values", path, f"values\neager    {eager}\ncompiled {compiled}")
    return None


def prepare(program: Program, draw: str, context: str, device: str) -> list[tuple[Any, ...]]:
    """Fresh arguments; with ``grad`` every floating leaf requires grad."""
    calls = [
        tuple(_on(arg, "cpu" if i in program.hosted else device) for i, arg in enumerate(args))
        for args in program.draws[draw]()
    ]
    for args in calls if context == "grad" else ():
        for tensor in tensors(args):
            if tensor.is_floating_point() and tensor.is_leaf:
                tensor.requires_grad_()
    return calls


def _on(value: Any, device: str) -> Any:
    if isinstance(value, Tensor) and device != "cpu":
        if 0 in value.stride():  # several elements in one place, which cannot be written at once
            return value[:1].to(device).expand(value.shape)
        moved = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
        return moved.copy_(value)
    return [_on(item, device) for item in value] if isinstance(value, list) else value


def build(program: Program, context: str, device: str) -> Callable[..., Any]:
    """The program's callable; without gradients its parameters are frozen."""
    target = program.make()
    if isinstance(target, nn.Module):
        target.to(device)
        if context != "grad":
            target.requires_grad_(False)
    return target


def check(
    program: Program,
    draw: str,
    context: str = "plain",
    *,
    device: str = "cpu",
    backend: str = "fusepass",
    codegen: str = "eager",
) -> Any:
    """Hold one draw of a program, compiled once, to eager; returns the report, if there is one.

    Args:
        program: of the table.
        draw: the name of one of its draws.
        context: what it is called in.
        device: where its tensors are.
        backend: ``eager`` tells what Dynamo itself gets wrong.
        codegen: of fusepass; other than ``eager``, values are compared up to rounding, and only
            those of the first four calls, which do not overflow.
    """
    fusepass.reset()
    eager, owner = build(program, context, device), build(program, context, device)
    options = {"codegen": codegen, **program.options} if backend == "fusepass" else {}
    compiled = torch.compile(owner, backend=backend, options=options, dynamic=program.dynamic)
    if program.state:
        program.state(eager), program.state(owner)  # forgets what an earlier run left behind
    calls = [prepare(program, draw, context, device) for _ in range(2)]
    several = None if codegen == "eager" else 4
    for index, (args, others) in enumerate(list(zip(*calls, strict=True))[:several]):
        where = f"{program.name} ({draw}, {context}), call {index}"
        wanted = call(program, eager, args, eager, context)
        got = call(program, compiled, others, owner, context)
        # CUDA divides by a number through its reciprocal.
        rounded = program.rounded or device != "cpu" or codegen != "eager"
        assert_same_call(wanted, got, (eager, owner), where, rounded=rounded)
    return fusepass.last_report(compiled).to_dict() if backend == "fusepass" else None


def check_decisions(
    program: Program, draw: str, context: str, report: dict[str, Any], device: str = "cpu"
) -> None:
    """Every line is decided as it expects, and no other line is decided on."""
    found: dict[tuple[str, int], set[tuple[str, str, str]]] = {}
    for decision in report["decisions"]:
        if decision["rule"] in RULES:
            assert decision["reason"], f"{program.name}: a decision without a sentence: {decision}"
            applied = decision["outcome"] == "applied"
            assert applied == (decision["treatment"] in ("device", "late")), decision
            place = (decision["file"], decision["line"])
            made = (decision["rule"], decision["treatment"], decision["reason_code"])
            found.setdefault(place, set()).add(made)
    expected = program.expected(draw, context, device)
    for place, choices in expected.items():
        got = found.pop(place, set())
        where = f"{program.name} ({draw}, {context}), line {place[1]}"
        shown = " or ".join(map(_shown, choices))
        fits = not choices or any(_fits(got, wanted) for wanted in choices)
        assert fits, f"{where}: {got or 'nothing'}, expected {shown}"
    assert not found, f"{program.name} ({draw}, {context}): decisions elsewhere: {found}"
    whole = all(
        choices and all(treatment != "keep" for wanted in choices for _, treatment, _ in wanted)
        for choices in expected.values()
    )
    if whole and expected and not program.breaks:
        assert report["graph_breaks"] == [], f"{program.name}: {report['graph_breaks']}"


def _fits(got: set[tuple[str, str, str]], wanted: Decided) -> bool:
    """Whether these are the decisions wanted, each made once."""
    return len(got) == len(wanted) and all(
        any((r, t) == (rule, treatment) and c in codes for r, t, c in got)
        for rule, treatment, codes in wanted
    )


def _shown(wanted: Decided) -> str:
    return ", ".join(sorted(f"{r} {t} {'|'.join(sorted(c))}" for r, t, c in wanted)) or "none"
