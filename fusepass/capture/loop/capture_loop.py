"""Capture a loop where it begins: trace a round, put one node into the graph, go on behind it.

The node runs no round where its flag is false. So a loop in an arm of a branch, which may run
though the arm is not taken, begins with a flag that also says that the arm is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from fusepass.capture.branch.fork import trace_both
from fusepass.capture.branch.snapshot import Bindings, OpenBranch
from fusepass.capture.bytecode.control_flow import region_of
from fusepass.capture.frame_state import BranchSite, Frame, Place
from fusepass.capture.loop.carried_tuples import rebuilt
from fusepass.capture.loop.late_values import IS
from fusepass.capture.loop.same_tensor import add_flags
from fusepass.capture.loop.seal import Sealed, seal
from fusepass.capture.loop.trace_round import (
    Start,
    Traced,
    trace_round,
    which,
)
from fusepass.capture.loop.unbound import raise_unbound
from fusepass.capture.nodes.select_node import BRANCH, HIDES_GRAD, WRITTEN, Branch, select
from fusepass.capture.refusal import Refusal
from fusepass.graph.ops.op_names import tensor_value
from fusepass.report.decision import Outcome, Reason
from fusepass.torch_private.dynamo import stack
from fusepass.torch_private.dynamo.errors.raising import is_nested_graph


def capture_loop(translator: Any, frame: Frame, start: Start, place: Place) -> list[BranchSite]:
    """Capture a loop that is about to begin; the translator then stands behind it.

    Raises:
        Refusal: it must stay; the translator is then as it was, but for nodes recorded in a graph
            that Dynamo is going to discard.
    """
    if is_nested_graph(translator):
        raise Refusal(Reason.LOOP, "the loop stands in a function that runs as a graph of its own")
    before = Bindings(translator)
    try:
        return _Capture(translator, frame, start, place).run()
    except BaseException:
        before.restore()
        raise


class _Capture:
    def __init__(self, translator: Any, frame: Frame, start: Start, place: Place) -> None:
        self.translator, self.frame, self.place = translator, frame, place
        self.outer = frame.arms[-1] if frame.arms else None
        self.start = start
        self.facts = Branch(start.site, self.outer, "loop", False, place.file, place.line)

    def run(self) -> list[BranchSite]:
        inner = len(self.frame.sites)
        self.start = _gated(self.translator, self.frame, self.start)
        skips = self._skips()
        traced = trace_round(self.translator, self.frame, self.start)
        flags = add_flags(self.translator, traced.numbers, self.start, traced)
        sealed = seal(self.translator, self.frame, self.start, traced, flags)
        inside = self.frame.sites[inner:]
        del self.frame.sites[inner:]
        line = self.place.file, self.place.line
        for site in inside:
            if site.asks or (site.place.file, site.place.line) == line:
                continue  # one of the tests that the loop is made of
            self.frame.round_trips.setdefault(site.place.position, site.decision)
        self.sites = [self._site()]
        self.frame.sites.append(self.sites[0])
        values = self._values(traced, sealed)
        self._choose(traced, values, flags, skips)
        self._write_back(sealed)
        self._raise_unbound(traced, skips)
        true = traced.true.as_proxy().node
        if not true.users:
            true.graph.erase_node(true)
        self._go_on(traced, values)
        return self.sites

    def _site(self) -> BranchSite:
        text = "the loop runs in the graph: its condition is read back in each round"
        made = self.place.decided(Outcome.APPLIED, Reason.LOOP, text, "loop")
        return BranchSite(self.facts, None, made, self.place)

    def _skips(self) -> Any:
        """The tracked condition under which no round is made; None if one surely is."""
        flag = self.start.goes_on
        if not self.start.may_skip:
            return None
        args = (flag.as_proxy(),)
        return stack.wrap_call(self.translator, "call_function", torch.logical_not, args, {})

    def _choose(
        self, traced: Traced, values: dict[str, Any], flags: dict[str, Any], skips: Any
    ) -> None:
        """Select an input itself where the loop has handed it on unchanged."""
        by_name = {one.name: one for one in traced.carried}
        for name, flag in flags.items():
            if name not in values or values[name] is by_name[name].initial:
                continue
            same = skips if flag is None else values[flag.name]
            pair = by_name[name].initial.as_proxy(), values[name].as_proxy()
            values[name] = self._selected(same, pair)

    def _selected(self, same: Any, pair: tuple[Any, Any]) -> Any:
        translator = self.translator
        taken, other, tested = (_fake(p) for p in (*pair, same.as_proxy()))
        with translator.fake_mode:
            made = torch.where(tested, taken, other)
        if made.stride() != other.stride():
            text = "the tensor that a loop begins with has strides that no selection gives"
            raise Refusal(Reason.STRIDE_MISMATCH, text)
        facts = dataclasses.replace(
            self.facts, site=self.frame.new_branch(self.start.site), treatment="where"
        )
        sides = (pair[0],), (pair[1],)
        args = (same.as_proxy(), *sides)
        proxy = translator.output.create_proxy("call_function", select, args, {})
        proxy.node.meta |= {"example_value": (made,), BRANCH: facts, WRITTEN: 1}
        if taken.requires_grad != made.requires_grad:
            proxy.node.meta[HIDES_GRAD] = (0,)
        return stack.wrap_tensor(translator, proxy[0], made)

    def _values(self, traced: Traced, sealed: Sealed) -> dict[str, Any]:
        values = {}
        for one, result in zip(traced.carried, sealed.results, strict=True):
            if is_ours(one.name):
                values[one.name] = result
            elif one.name in traced.late.specs:
                made = one.initial if one in sealed.stays else result
                flag, may_skip = values[IS + one.name], self.start.may_skip
                values[one.name] = traced.late.behind(
                    self.translator, one.name, made, flag, may_skip
                )
            elif one in sealed.stays:
                values[one.name] = one.initial
            elif one.number is not None:
                values[one.name] = traced.numbers.read(self.translator, result, one.name)
            else:
                values[one.name] = result
        return values

    def _write_back(self, sealed: Sealed) -> None:
        for node, result in sealed.written:
            args = stack.proxy_of(self.translator, node), result.as_proxy()
            stack.wrap_call(self.translator, "call_method", "copy_", args, {})

    def _raise_unbound(self, traced: Traced, skips: Any) -> None:
        if not traced.unbound:
            return
        frame, index = self.frame, traced.code.exits[self.start.skips_to - 1].index
        site = raise_unbound(self.translator, frame, self.place, traced.unbound, index, skips)
        self.sites.append(site)
        frame.sites.append(site)

    def _go_on(self, traced: Traced, values: dict[str, Any]) -> None:
        translator = self.translator
        for name, value in traced.tuples.items():
            values[name] = rebuilt(name, value, values.__getitem__)
        for name, value in {**values, **traced.constants}.items():
            if not is_ours(name) and "." not in name:
                translator.symbolic_locals[name] = value
        held = list(translator.stack)
        places = [(one.index, held[: len(held) - one.popped]) for one in traced.code.exits]
        if len(places) == 1:
            translator.instruction_pointer = translator.start_point = places[0][0]
            translator.stack = places[0][1]
            return
        flags = [values[which(number)] for number in range(2, len(places) + 1)]
        self._part(places, flags)

    def _part(self, places: list[Any], flags: list[Any]) -> None:
        """Go on at several places behind the loop: branches on which way led out of it."""
        if len(places) == 1:
            index, held = places[0]
            self.translator.instruction_pointer = self.translator.start_point = index
            self.translator.stack = list(held)
            return
        translator, frame = self.translator, self.frame
        region = region_of(translator.f_code, translator.instructions)
        join = region.join_of_all([index for index, _ in places])
        site = frame.new_branch(self.start.site)
        frame.predicates[site] = flags[-1]
        starts = {True: places[-1], False: places[0]}
        before = Bindings(translator)
        branch = _Parting(
            translator,
            frame,
            site,
            before,
            starts,
            flags[-1],
            join,
            self.place,
            lambda: self._part(places[:-1], flags[:-1]),
        )
        made = trace_both(branch)
        made.speculation, made.place = None, self.place
        made.decision = self.sites[0].decision  # it is part of the loop
        self.sites.append(made)
        frame.sites.append(made)


@dataclasses.dataclass(frozen=True)
class _Parting(OpenBranch):
    """A branch on one way out of a loop, with branches on the others in its other arm."""

    others: Callable[[], None]

    def enter(self, arm: bool) -> None:
        """Put the translator at the start of an arm."""
        super().enter(arm)
        if not arm:
            self.others()


def is_ours(name: str) -> bool:
    """Whether a carried value is none of the program's."""
    return name.startswith("fusepass_")


def _fake(proxy: Any) -> torch.Tensor:
    value = tensor_value(proxy.node)
    assert value is not None
    return value


def _gated(translator: Any, frame: Frame, start: Start) -> Start:
    """A loop in an arm makes no round where the arm is not taken."""
    flag = start.goes_on
    gated = False
    for site, taken in frame.arms:
        tested = frame.predicates.get(site)
        if tested is None:
            continue
        proxy = tested.as_proxy()
        if not taken:
            made = stack.wrap_call(translator, "call_function", torch.logical_not, (proxy,), {})
            proxy = made.as_proxy()
        gated = True
        if flag is None:
            flag = stack.wrap_call(translator, "call_method", "clone", (proxy,), {})
        else:
            args = (flag.as_proxy(), proxy)
            flag = stack.wrap_call(translator, "call_function", torch.logical_and, args, {})
    return dataclasses.replace(start, goes_on=flag) if gated else start
