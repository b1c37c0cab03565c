"""One program against eager: compiled once per context, called with every input set, compared."""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from fusepass.errors import CaptureFault, NoReport
from fusepass.report import log
from fusepass.report.explain import last_report, reset
from fusepass.testing.compare import Difference
from tests.fuzz.program import Loaded, Program, loaded
from tests.fuzz.run import CONTEXTS, call, side
from tests.harness.call import Seen
from tests.harness.same_call import Rounded, assert_same_call
from tests.harness.transcript import Said

_NAME = re.compile(r",?\s*grad_fn=<\w+>")
_TOLD = ("exception", "backward")  # kinds that are different faults if the texts differ


@dataclass(frozen=True)
class Failure:
    """One difference between eager and compiled.

    Attributes:
        context: ``inference`` or ``training``.
        call: number of the input set, from 0.
        kind: what differs; ``capture fault`` where fusepass warned of a fault of its own.
        path: where.
        text: how.
        dynamo: the same difference is there with ``backend="eager"`` (``"inductor"`` if code is
            generated): torch's own.
    """

    context: str
    call: int
    kind: str
    path: str
    text: str
    dynamo: bool = False

    def like(self, other: Failure) -> bool:
        """Whether two failures look like one fault."""
        same = (self.context, self.kind) == (other.context, other.kind)
        return same and (self.kind not in _TOLD or self._head == other._head)

    @property
    def _head(self) -> str:
        return re.sub(r"\d+", "#", self.text)[:100]

    def __str__(self) -> str:
        return f"{self.context}, input set {self.call}: {self.kind} differs at {self.text}"


@dataclass
class Examined:
    """What came of one program.

    Attributes:
        failures: at most one per context.
        treatments: for each site, in each context: what was done with it. ``keep`` if any visit
            of it broke the graph, ``""`` if Dynamo never came there.
        unintended: what eager raised although no ``raise`` or ``assert`` of the program did.
        no_backward: calls after which eager autograd refused to go backward.
        rounded: calls whose gradients differ by the order of a sum.
        calls: calls compared.
    """

    failures: list[Failure] = field(default_factory=list)
    treatments: list[dict[str, str]] = field(default_factory=list)
    unintended: list[str] = field(default_factory=list)
    no_backward: int = 0
    rounded: int = 0
    calls: int = 0

    @property
    def failure(self) -> Failure | None:
        """The first difference that is fusepass's."""
        return next((failure for failure in self.failures if not failure.dynamo), None)


def examine(program: Program, *, codegen: str = "eager", device: str = "cpu") -> Examined:
    """Run a program in eager mode and compiled, in inference and, where it trains, in training.

    Args:
        program: what to run.
        codegen: of fusepass: ``eager`` compares bit by bit, ``inductor`` by the error rule.
        device: where arguments and state are; on others than the CPU values need only be equal up
            to rounding, because CUDA divides by a number through its reciprocal.
    """
    found = Examined(treatments=[{} for _ in program.sites])
    with loaded(program) as names, log.trial():
        for context in CONTEXTS[: 1 + program.training]:
            with _fresh_compiler():
                failure = _compare(names, context, codegen, device, "fusepass", program, found)
            if failure is not None and failure.kind == "gradient":
                # Terms that cancel leave noise, in eager too: how much, float64 tells.
                with _fresh_compiler():
                    by_rule = _compare(names, context, codegen, device, "fusepass", exact=True)
                found.rounded += by_rule is None
                failure = failure if by_rule is not None else None
            if failure is not None:
                with _fresh_compiler():
                    plain = "eager" if codegen == "eager" else "inductor"
                    # Plain Dynamo, which breaks more graphs, may have failed in earlier calls too.
                    since = failure.call if failure.kind == "exception" else 0
                    again = _compare(names, context, codegen, device, plain, since=since)
                same = again is not None and (again.call, again.kind, again.path) == (
                    failure.call,
                    failure.kind,
                    failure.path,
                )
                if same:
                    failure = Failure(**{**vars(failure), "dynamo": True})
                found.failures.append(failure)
    return found


def _compare(
    names: Loaded,
    context: str,
    codegen: str,
    device: str,
    backend: str,
    program: Program | None = None,
    found: Examined | None = None,
    since: int = 0,
    exact: bool = False,
) -> Failure | None:
    """The first difference, in calls before ``since`` none that is only an exception.

    ``exact``: gradients are held against those of a float64 run, by the error rule.
    """
    eager, other = (side(names, context, device=device) for _ in range(2))
    inexact = codegen == "inductor"
    truth = side(names, context, exact=True, device=device) if inexact or exact else None
    rounded: Rounded = "everything" if names.rounded or device != "cpu" else "gradients"
    compiled = torch.compile(other.target, backend=backend, options=_options(codegen, backend))
    other.target = compiled
    failure = named = None
    for index in range(len(eager.sets)):
        wanted, got = call(eager, index, context), call(other, index, context)
        if found is not None:
            _count_call(found, wanted, names.file)
        reference = None if truth is None else call(truth, index, context)
        try:
            faults = [str(fault) for fault in got.faults if isinstance(fault, CaptureFault)]
            if faults:
                raise Difference("capture fault", "call", faults[0])
            got.faults.clear()  # other warnings are in order
            if wanted.said != got.said and without_names(wanted.said) == without_names(got.said):
                said = f"eager said {wanted.said}; compiled {got.said}"
                named = named or Failure(context, index, "printed text", "call", said)
                got.said = wanted.said
            if wanted.raised is not None and not meant(wanted.raised, names.file):
                _assert_same_class(wanted.raised, got.raised)
                break  # what was due in front of the error in one graph is lost: docs/limits.md
            same = assert_same_call(
                wanted, got, reference, rounded=rounded, only_gradients=not inexact
            )
        except Difference as difference:
            if difference.kind == "exception" and index < since:
                continue
            failure = Failure(context, index, difference.kind, difference.path, str(difference))
            break
        if found is not None:
            found.rounded += not same
    if failure is None and not (backend == "fusepass" and _breaks(compiled)):
        failure = named
    if found is not None and program is not None:
        for treated, treatment in zip(
            found.treatments, _treatments(compiled, program, names.file), strict=True
        ):
            treated[context] = treatment
    return failure


def _options(codegen: str, backend: str) -> dict[str, Any]:
    options: dict[str, Any] = {"codegen": codegen} if backend == "fusepass" else {}
    if codegen == "inductor":  # its own random numbers are others than eager's
        options["inductor.fallback_random" if backend == "fusepass" else "fallback_random"] = True
    return options


def _count_call(found: Examined, wanted: Seen, file: str) -> None:
    """Count a call, and what eager mode did in it that the program was not written for."""
    found.calls += 1
    found.no_backward += wanted.backward_error is not None
    if wanted.raised is not None and not meant(wanted.raised, file):
        found.unintended.append(f"{type(wanted.raised).__name__}: {wanted.raised}")


def without_names(said: list[Said]) -> list[Said]:
    """What was said, but for the names of gradient functions and the line breaks they lead to."""
    return [replace(one, text=" ".join(_NAME.sub("", one.text).split())) for one in said]


def _breaks(compiled: Any) -> bool:
    """Whether there is a graph break.

    What is shown behind it comes out of a compiled graph. Its ``grad_fn`` is that of the graph,
    with every compiler of backward passes; only op by op may it be eager's.
    """
    try:
        return bool(last_report(compiled).graph_breaks)
    except NoReport:
        return True


def _treatments(compiled: Any, program: Program, file: str) -> list[str]:
    """What fusepass did with each site."""
    try:
        report = last_report(compiled)
    except NoReport:
        return ["" for _ in program.sites]
    by_line: dict[int, set[str]] = {}
    for decision in report.decisions:
        if decision.treatment and decision.file == file:
            by_line.setdefault(decision.line, set()).add(decision.treatment)
    kept = {site["line"] for site in report.graph_breaks if site["file"] == file}
    found = []
    for site in program.sites:
        there = by_line.get(site.line, set()) | ({"keep"} if site.line in kept else set())
        found.append("keep" if "keep" in there else "+".join(sorted(there)))
    return found


def _assert_same_class(wanted: BaseException, got: BaseException | None) -> None:
    """That an operation fails compiled, too, with an error that the same handlers catch."""
    if not isinstance(got, type(wanted)):
        text = f"eager raised {wanted!r}, compiled {got!r}"
        raise Difference("exception", "call", text)


def meant(error: BaseException, file: str) -> bool:
    """Whether the program's own ``raise`` or ``assert`` raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return last.filename == file and (last.line or "").lstrip().startswith(("raise ", "assert "))


@contextlib.contextmanager
def _fresh_compiler() -> Iterator[None]:
    """Nothing compiled before, nothing kept after."""
    reset()
    try:
        yield
    finally:
        reset()
