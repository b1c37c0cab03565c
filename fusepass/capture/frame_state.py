"""Keep the state of capture for the frame being compiled: options, branches, depth in arms."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import fx

from fusepass.capture.effects.listener_guard import ListenerCheck
from fusepass.capture.grad_tracking import UntrackedTensors
from fusepass.capture.nodes.select_node import ARM, BRANCH, Branch
from fusepass.capture.refusal import Refusal
from fusepass.errors import FusepassError
from fusepass.graph.dataflow.writes import MemoryWrites
from fusepass.options import Options
from fusepass.report.decision import Decision, Outcome, Reason, Station
from fusepass.rewrite.option_scope import resolve_checked
from fusepass.torch_private.dynamo.compile_state import (
    compile_wrapper_arguments,
    compiler_chain,
    transparent,
)
from fusepass.torch_private.dynamo.hooks import Attempts, was_emptied

Instruction = tuple[Any, int]  # code object and index


@dataclass(frozen=True)
class Place:
    """A place where the program asks for something that capture may let into the graph.

    Attributes:
        rule: that decides about it, by its name in the report.
        instruction: where it is in the code traced, the same when the frame starts again.
        position: where it is in the source, the same in resumed functions.
        file, line: for the report.
        dtype: of the tensor, where a number is read from one.
    """

    rule: str
    instruction: Instruction
    position: tuple[Any, ...]
    file: str
    line: int
    dtype: torch.dtype | None = None

    @property
    def everywhere(self) -> tuple[Any, ...]:
        """The key of the place in every frame."""
        return self.rule, self.position, self.dtype

    def decided(self, outcome: Outcome, code: Reason, text: str, treatment: str) -> Decision:
        """The decision about the place, for the report."""
        where = self.file, self.line
        return Decision(Station.CAPTURE, self.rule, outcome, code, text, treatment, *where)


@dataclass
class BranchSite:
    """One branch of the program that was met while tracing and captured.

    Attributes:
        branch: what the rules will read.
        speculation: Dynamo's checkpoint, through which the capture can still be taken back.
        decision: about the branch, for the report.
        place: of the jump.
        select: the select node, once it exists (None when the arms leave nothing that differs).
        pairs: nodes the arms left, as (taken, other).
        items: numbers its condition was made of, which go back with it.
        inside: of a branch whose arm only raises, the sites of the branches around it.
        leaves_numbers: how many Python numbers differ between the arms.
        changes: where the arms meet, if they change something outside: a copy of the tested tensor.
        asks: whether it only asks for the outcome of another branch, which left a value.
        instead: starts the frame again with something else tried in place of the branch, if
            there is such a thing that has not been tried.
        leads_to: if the test is made together with the next one, the jump that follows both.
    """

    branch: Branch
    speculation: Any
    decision: Decision
    place: Any = None
    select: Any = None
    pairs: list[tuple[Any, Any]] = field(default_factory=list)
    items: tuple[Any, ...] = ()
    inside: frozenset[int] = frozenset()
    leaves_numbers: int = 0
    changes: Any = None
    asks: bool = False
    leads_to: Any = None
    instead: Callable[[], None] | None = None


_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass
class Frame:
    """State of capture for one attempt to trace one frame (Dynamo makes a new one per restart).

    Attributes:
        compiler: the callback torch.compile made; reports are kept under it.
        options: the options in force.
        asked: the mode and the options that torch.compile was given.
        sites: captured branches in program order.
        arms: the arms being traced, outermost first, as (site id, arm).
        active: jumps being forked, as (code, instruction index), to recognise loops.
        repeats: how often each jump was forked inside its own arms.
        long_loops: by jump, what starts the frame again to capture the long loop around it.
        items: numbers that are not read, by graph node, and where the program reads them.
        stands_for: branches made while lowering a site, to the site.
        ungraded: what did not require grad before the arms being traced.
        predicates: the tracked tensor each branch tests, by site id.
        judged: nodes in arms that were joined, each with why it must not run untaken.
        selections: masks let select while tracing, and where, by graph node.
        empties: sinks for where a mask selects nothing, by site, and the place of the selection.
        passed: outcomes of predicates that are known because the other arm only raises, each with
            the arms in which it is.
        written: what the graph has written so far.
        steps: instructions traced since the first value that is one of two.
        steps_again: those of them that are traced for one of its values only.
        folded: results of known values that are one of two, by predicate and sides: equal ones are
            one object, so that a counter of n rounds takes n values, not two to the power of n.
        truths: operations on truth values that are recorded, by function and operands.
        tensor_uses, tensor_waits: of two tensors that no select joins, by the branch that left
            them: instructions traced for both, and host round trips that these need.
        collects: whether all items of a generator are being made.
        arms_of_uses: how many instructions are being traced so, inside one another.
        settled: whether the graph is complete, and nothing more is traced.
        in_message: whether what is traced is only a message: of an exception, or of a line.
        due: while the message of an exception is traced, the tracked 0-d bool that says it is due.
        lines: calls that write a line, recorded in this graph: place, and sites they are inside.
        hearing: what the frame asks before each call about who hears these lines, if any.
        speakers: where print and the like were loaded, by translator and height of the stack.
        rounds: how many rounds of loops, each inside the one before, are being traced.
        gaps: how far counters are from the bounds that end loops, by head.
        rounds_left: how many rounds that makes.
        tensor_tests: where in the source loops have been tested on tensors, by head.
        known_tests: jumps at which a tensor is tested together with a value that was known.
        round_trips: what was decided about host round trips other than branches, by position.
        callers: frames that run in eager around this one; None until somebody asks.
        next_id: the last number given to a site.
        attempts: Dynamo's, to compile the frame.
        plain: whether Dynamo traces the frame as it would without capture.
        code: of the function.
        traced: the complete graph, where torch may compile it again later.
    """

    compiler: Any
    options: Options
    asked: tuple[str | None, Mapping[str, Any]] = (None, _NOTHING)
    sites: list[BranchSite] = field(default_factory=list)
    arms: list[tuple[int, bool]] = field(default_factory=list)
    active: list[tuple[Any, int]] = field(default_factory=list)
    repeats: Counter[tuple[Any, int]] = field(default_factory=Counter)
    long_loops: dict[tuple[Any, int], Callable[[], None]] = field(default_factory=dict)
    ungraded: UntrackedTensors = field(default_factory=UntrackedTensors)
    items: dict[fx.Node, Place] = field(default_factory=dict)
    stands_for: dict[int, int] = field(default_factory=dict)
    predicates: dict[int, Any] = field(default_factory=dict)
    passed: list[tuple[tuple[tuple[int, bool], ...], fx.Node, bool]] = field(default_factory=list)
    written: MemoryWrites = field(default_factory=MemoryWrites)
    steps: int = 0
    steps_again: int = 0
    folded: dict[Any, Any] = field(default_factory=dict)
    truths: dict[Any, Any] = field(default_factory=dict)
    tensor_uses: Counter[int] = field(default_factory=Counter)
    tensor_waits: Counter[int] = field(default_factory=Counter)
    collects: bool = False
    arms_of_uses: int = 0
    judged: dict[fx.Node, Refusal | None] = field(default_factory=dict)
    selections: dict[fx.Node, Place] = field(default_factory=dict)
    empties: dict[int, Place] = field(default_factory=dict)
    settled: bool = False
    in_message: bool = False
    due: Any = None
    lines: list[tuple[Any, frozenset[int]]] = field(default_factory=list)
    hearing: ListenerCheck | None = None
    speakers: dict[tuple[int, int], Any] = field(default_factory=dict)
    rounds: int = 0
    gaps: dict[Instruction, float] = field(default_factory=dict)
    rounds_left: dict[Instruction, float] = field(default_factory=dict)
    tensor_tests: dict[Instruction, set[Any]] = field(default_factory=dict)
    known_tests: set[Instruction] = field(default_factory=set)
    round_trips: dict[tuple[Any, ...], Decision] = field(default_factory=dict)
    callers: list[Any] | None = None
    next_id: int = 0
    attempts: Any = None
    plain: bool = False
    code: Any = None
    traced: Any = None

    @property
    def captures(self) -> bool:
        """Whether the graph holds anything that it would not hold without capture."""
        return bool(self.sites or self.items or self.selections or self.lines or self.round_trips)

    @property
    def decisions(self) -> list[Decision]:
        """The decisions about what is captured so far."""
        conds = {
            self.stands_for[site.branch.site]: site.decision
            for site in reversed(self.sites)
            if site.asks and site.decision.treatment == "cond"
        }
        branches = [
            dataclasses.replace(
                conds.get(site.branch.site, site.decision),
                file=site.decision.file,
                line=site.decision.line,
            )
            for site in self.sites
            if not site.asks
        ]
        return [*branches, *self.round_trips.values()]

    def new_id(self) -> int:
        """Number for the next site of this graph."""
        self.next_id += 1
        return self.next_id

    def tests_before(self, jump: Instruction, until: BranchSite | None = None) -> list[BranchSite]:
        """The sites whose tests were made together with the later test of a jump, last first.

        Sites from ``until`` on are left out.
        """
        known = self.sites if until is None else self.sites[: self.sites.index(until)]
        jumps, found = {jump}, []
        for site in reversed(known):
            if site.leads_to not in jumps:
                break
            jumps.add(site.place.instruction)
            found.append(site)
        return found

    def leave_arms(
        self, nodes: Iterable[fx.Node], site: int, outer: tuple[int, bool] | None
    ) -> None:
        """Move nodes from the arms of a site that left no select to where the site stands."""
        for node in nodes:
            tag = node.meta.get(ARM)
            if tag is not None and tag[0] == site:
                node.meta[ARM] = outer
                if outer is None:
                    del node.meta[ARM]
        for inner in self.sites:
            if inner.branch.outer is not None and inner.branch.outer[0] == site:
                inner.branch = replace(inner.branch, outer=outer)
                if inner.select is not None:
                    inner.select.meta[BRANCH] = inner.branch

    def new_branch(self, site: int) -> int:
        """Number for one more branch that stands for a captured site."""
        made = self.new_id()
        self.stands_for[made] = self.stands_for.get(site, site)
        return made


PLAIN = "frame", None  # among what is left to Dynamo: all of the frame
_OURS: list[Any] = []  # the backend that frames are compiled for, once it is known
_FRAME = "fusepass_frame"  # attribute on the output graph: it lives exactly as long as the attempt


def frame_of(output_graph: Any) -> Frame | None:
    """The frame's state, or None when capture has no part in it.

    Raises:
        FusepassError: the options given to torch.compile are not valid.
    """
    frame = any_frame_of(output_graph)
    return None if frame is None or frame.plain else frame


def any_frame_of(output_graph: Any) -> Frame | None:
    """The frame's state, or None when it is not being compiled for fusepass.

    Raises:
        FusepassError: the options given to torch.compile are not valid.
    """
    held = output_graph.__dict__
    if _FRAME not in held:
        frame = held[_FRAME] = new_frame(output_graph.compiler_fn)
        if frame is not None and was_emptied(output_graph):
            frame.plain = True  # it ended before capture was asked anything
        elif frame is not None:
            frame.code = output_graph.root_tx.f_code
            frame.attempts = Attempts(output_graph)
            frame.plain = PLAIN in frame.attempts.kept
    return held[_FRAME]  # type: ignore[no-any-return]


def in_arm(output_graph: Any) -> bool:
    """Whether an arm is being traced; a frame that captured nothing yet is not asked."""
    frame = output_graph.__dict__.get(_FRAME)
    return frame is not None and not frame.plain and bool(frame.arms)


def is_frozen(output_graph: Any) -> bool:
    """Whether the weights of a frame are to be constants of its graph.

    Raises:
        FusepassError: the options given to torch.compile are not valid.
    """
    frame = any_frame_of(output_graph)
    return frame is not None and frame.options.frozen


def is_ours(output_graph: Any) -> bool:
    """Whether a frame is compiled for fusepass, whatever its options."""
    return any(map(_is_ours, compiler_chain(output_graph.compiler_fn)))


def recognise(backend: Any) -> None:
    """Say which backend is ours: capture acts on the frames that are compiled for it."""
    _OURS[:] = [backend]


def _is_ours(link: Any) -> bool:
    return any(link is backend for backend in _OURS)


def new_frame(compiler: Any) -> Frame | None:
    """State for a frame that a callback of Dynamo's compiles; None if it is not for fusepass.

    Raises:
        FusepassError: the options given to torch.compile are not valid.
    """
    chain = list(compiler_chain(compiler))
    if not any(map(_is_ours, chain)):
        return None
    mode: str | None = None
    given: dict[str, Any] = {}
    owner = compiler
    for link in chain:
        link_mode, link_options, _ = compile_wrapper_arguments(link)
        mode = link_mode or mode
        given = link_options or given
        if not _is_ours(link):
            owner = link
    try:
        return Frame(owner, resolve_checked(mode, given), (mode, given))
    except FusepassError as error:
        raise transparent(error) from None
