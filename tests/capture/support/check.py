"""Hold a program of the corpus to eager, call after call, and its report to its verdicts.

Both sides get their own callable and their own inputs, built by the same factories.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from fusepass.testing.compare import tensors
from tests.harness.call import call
from tests.harness.precision import doubled
from tests.harness.same_call import assert_same_call

from .jumps import jumps_taken
from .program import Program, Verdict

# Running the corpus with FUSEPASS_CORPUS_BACKEND=eager tells what plain Dynamo itself gets wrong.
BACKEND = os.environ.get("FUSEPASS_CORPUS_BACKEND", "fusepass")
PROGRAMS = Path(__file__).parents[1] / "programs"
# Written down here anew: what fusepass's own filter does not know it cannot find.
INTERNAL = re.compile(
    r"SymNode|SymInt|SymFloat|SymBool|HOP|Observed[A-Z]|GuardOn|TorchRuntime|BackendCompiler"
    r"|[LG]\[|___|\bL_\w|Variable|FakeTensor|FunctionalTensor|fake tensor|UserDefined"
    r"|torch\._(?!dynamo\.graph_break|check|assert)|\baten\.|\bprims\.|\b(tp|nb|sq|mp)_|_impl\b"
    r"|\bu\d+\b|0x[0-9a-f]{4}|capture_scalar|capture_dynamic|fusepass_|call_(function|method)"
    r"|(LOAD|STORE|CALL|BUILD|POP)_[A-Z]|triton_|cpp_fused|meta kernel|wrapped_|tag_activation"
)


def prepare(
    program: Program, seed: int, *, grad: bool, exact: bool = False
) -> list[tuple[Any, ...]]:
    """Fresh input sets; with ``grad`` every floating leaf that is not frozen requires grad.

    With ``exact`` they are in float64.
    """
    sets = doubled(program.inputs(seed)) if exact else program.inputs(seed)
    for args in sets if grad else ():
        for position, arg in enumerate(args):
            for tensor in tensors(arg) if position not in program.frozen else ():
                if tensor.is_floating_point() and tensor.is_leaf:
                    tensor.requires_grad_()
                elif tensor.grad_fn is not None:
                    tensor.retain_grad()
    return sets


def build(program: Program, context: str) -> Callable[..., Any]:
    """The program's callable; without gradients its parameters are frozen."""
    target = program.make()
    if isinstance(target, nn.Module) and context == "plain":
        target.requires_grad_(False)
    return target


class _Tests(TorchFunctionMode):
    """Records at which lines of the corpus a tensor was tested, and how it came out."""

    def __init__(self) -> None:
        super().__init__()
        self.sites: dict[tuple[str, int, int], set[bool]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.Tensor.__bool__:
            return func(*args, **(kwargs or {}))
        frame = sys._getframe(1)
        while frame.f_back and Path(frame.f_code.co_filename).parent != PROGRAMS:
            frame = frame.f_back
        key = (frame.f_code.co_filename, frame.f_lineno, frame.f_lasti)
        outcomes = self.sites.setdefault(key, set())
        outcome = func(*args, **(kwargs or {}))
        outcomes.add(outcome)
        return outcome


def tensor_tests(program: Program, seed: int = 0) -> dict[tuple[str, int, int], set[bool]]:
    """(file, line, instruction) of every tensor test in eager, with the outcomes met."""
    target = build(program, "plain")
    if program.jumps:
        with jumps_taken(PROGRAMS) as sites:
            for args in prepare(program, seed, grad=False):
                with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(Exception):
                    target(*args)
        return sites
    recorder = _Tests()
    for args in prepare(program, seed, grad=False):
        with recorder, contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(Exception):
            target(*args)
    return recorder.sites


@contextlib.contextmanager
def fresh_compiler() -> Iterator[None]:
    """Nothing compiled before, nothing kept after."""
    torch._dynamo.reset()
    try:
        yield
    finally:
        torch._dynamo.reset()


def compile_for(program: Program, target: Any, **kwargs: Any) -> Any:
    """torch.compile with the options of the corpus."""
    if BACKEND != "fusepass":
        return torch.compile(target, backend=BACKEND, **kwargs)
    options = {"codegen": "eager", **program.options}
    return torch.compile(target, backend="fusepass", options=options, **kwargs)


def check(program: Program, context: str = "plain", seed: int = 0) -> None:
    """Hold one program, compiled once, to eager over all its input sets."""
    grad = context == "grad"
    with fresh_compiler():
        eager, module = build(program, context), build(program, context)
        compiled = compile_for(program, module)
        if program.state:
            program.state(eager), program.state(module)  # resets what an earlier run left behind
        eager_sets = prepare(program, seed, grad=grad)
        strict = program.captured(grad=grad) and not program.recompiles
        for index, args in enumerate(prepare(program, seed, grad=grad)):
            where = f"{program.name} ({context}), input set {index}"
            wanted = call(eager, eager_sets[index], eager, context, program.state)
            once = strict and index > 0 and BACKEND == "fusepass"
            with torch._dynamo.config.patch(error_on_recompile=once):
                got = call(compiled, args, module, context, program.state)
            assert_same_call(wanted, got, where=where)
        if BACKEND == "fusepass" and context != "autocast":
            check_report(program, compiled, program.verdicts(grad=grad), grad=grad)


def check_report(
    program: Program, compiled: Any, verdicts: tuple[Verdict, ...], *, grad: bool = False
) -> None:
    """Every line that tests a tensor has the decision the contract asks for, and no other has one."""
    import fusepass

    report = fusepass.last_report(compiled).to_dict()
    said = [one["reason"] for one in (*report["decisions"], *report["graph_breaks"])]
    internal = [text for text in said if INTERNAL.search(text)]
    assert not internal, f"{program.name}: names that no user knows: {internal}"
    decided: dict[tuple[str, int], set[tuple[str, str]]] = {}
    for decision in report["decisions"]:
        if decision["rule"] == "branch":
            assert decision["reason"], f"{program.name}: a decision without a sentence: {decision}"
            applied = decision["outcome"] == "applied"
            assert applied == (
                decision["treatment"] in {"drop", "where", "cond", "sink", "loop"}
            ), decision
            key = (decision["file"], decision["line"])
            decided.setdefault(key, set()).add((decision["treatment"], decision["reason_code"]))
    lines = sorted({(file, line) for file, line, _ in tensor_tests(program)})
    for broken in report["graph_breaks"]:
        place = (broken["file"], broken["line"])
        if place in lines and not verdicts[lines.index(place)].absent:
            kept = [treatment for treatment, _ in decided.get(place, ()) if treatment == "keep"]
            assert kept, f"{program.name}: the break at {place} has no decision to keep it"
    for (file, line), verdict in zip(lines, verdicts, strict=True):
        found = decided.pop((file, line), set())
        assert found or verdict.absent, f"{program.name}: no decision for {file}:{line}"
        for treatment, code in found:
            assert verdict.accepts(treatment, code), (
                f"{program.name}: {treatment} ({code}) at {file}:{line}, "
                f"expected {sorted(verdict.allowed) or 'no capture'}"
            )
    assert program.extra or not decided, f"{program.name}: decisions elsewhere: {decided}"
    if program.captured(grad=grad) and not program.recompiles:
        assert report["graphs"] == 1, f"{program.name}: {report['graphs']} graphs"
        assert report["graph_breaks"] == [], f"{program.name}: {report['graph_breaks']}"
