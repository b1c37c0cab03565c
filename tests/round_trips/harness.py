"""Hold a program of the table to eager, call after call, and its report to what its lines expect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import fusepass
from fusepass.testing.compare import tensors
from tests.harness.call import call
from tests.harness.same_call import Rounded, assert_same_call

from .program import Decided, Program

RULES = ("item", "print", "masked", "host_tensor")


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
        wanted = call(eager, args, eager, context, program.state, warned=program.warned)
        got = call(compiled, others, owner, context, program.state, warned=program.warned)
        # CUDA divides by a number through its reciprocal.
        summed = program.rounded or device != "cpu" or codegen != "eager"
        rounded: Rounded = "everything" if summed else "nothing"
        assert_same_call(wanted, got, where=where, rounded=rounded)
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
