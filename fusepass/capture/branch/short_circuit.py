"""Evaluate all tests of ``if a and b`` or ``if a or b`` at once, so that a chain is one branch.

Python compiles a chain of tests into one jump per test. Taken one by one, the second jump stands in
an arm of the first, and what follows the chain is traced once for each way that leads there: twice
for two tests, and twice more in every round of a loop it stands in. But the first jump only decides
whether the second test is made. Where making it has no effect and cannot fail, both are made, and
the branch is one jump on ``a & b`` (or ``a | b``): the arm that makes the second test ends at the
jump behind it, and there the truth values are joined.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from fusepass.capture.branch.join import join_arms
from fusepass.capture.branch.snapshot import Bindings
from fusepass.capture.branch.trace_arm import trace_arm
from fusepass.capture.bytecode.control_flow import Region
from fusepass.capture.frame_state import BranchSite, Frame
from fusepass.capture.nodes.predicate import as_bool_scalar
from fusepass.capture.refusal import Refusal
from fusepass.capture.restarts import restart_leaving, why_kept
from fusepass.capture.scalars import item_hooks
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo import stack
from fusepass.torch_private.dynamo.stack import (
    constant_of,
    node_of,
    proxy_of,
    realized,
    tensor_on_top,
)


@dataclass(frozen=True)
class ShortCircuit:
    """A jump that only decides whether another test is made.

    Attributes:
        key: what it is remembered by between restarts.
        end: index of the last jump of the chain.
        settled: the truth value at that jump that leads where this one jumps.
    """

    key: tuple[Any, int]
    end: int
    settled: bool


@dataclass
class _LaterTests:
    """What the further tests came to.

    Attributes:
        constant: the tracked value, where it is known while tracing.
        items: numbers read from tensors that it was made of.
    """

    constant: Any = None
    items: tuple[Any, ...] = ()


def short_circuit_at(
    translator: Any, frame: Frame, region: Region, jump: int
) -> ShortCircuit | None:
    """The chain that the jump at an index begins, if its tests may be made together."""
    found = region.chains.get(jump)
    key = (translator.f_code, jump)
    if found is None or frame.options.treatment not in ("auto", "where"):
        return None
    if why_kept(frame, "chain", key) is not None:
        return None
    return ShortCircuit(key, *found)


@contextlib.contextmanager
def or_separately(frame: Frame, chain: ShortCircuit, before: Bindings) -> Iterator[None]:
    """Start the frame again where tests cannot be made together; it then takes them one by one.

    Args:
        frame: capture's state for this frame.
        chain: the chain.
        before: the bindings at its first jump.
    """
    try:
        yield
    except Refusal:
        before.restore()
        why = Reason.PARTIAL_OP, "tests are made one by one"
        restart_leaving(frame, {("chain", chain.key): why})


def join_tests(
    translator: Any,
    frame: Frame,
    chain: ShortCircuit,
    site_id: int,
    before: Bindings,
    starts: dict[bool, tuple[int, list[Any]]],
    predicate: Any,
    where: tuple[str, int],
) -> BranchSite:
    """Make all tests of a chain; the translator then stands at its last jump, one truth on top.

    Args:
        translator: Dynamo's translator.
        frame: capture's state for this frame.
        chain: the chain.
        site_id: number of the site.
        before: the bindings at the jump.
        starts: instruction index and stack that each arm starts with, by truth of the predicate.
        predicate: the first test, as a tracked 0-d bool tensor.
        where: file and line.

    Raises:
        Refusal: the further tests must not always be made.
    """
    asks = next(
        arm for arm, (start, _) in starts.items() if start == before.values["instruction_pointer"]
    )
    rest = starts[asks][1]
    settled = predicate
    if chain.settled is asks:  # the truth value of the chain where the second test is not made
        settled = stack.wrap_call(
            translator, "call_function", torch.logical_not, (predicate.as_proxy(),), {}
        )
    second = _LaterTests()

    def note_second() -> None:
        second.constant, second.items = _as_bool_tensor(translator, frame, settled)

    end = chain.end
    asked = trace_arm(translator, frame, (site_id, asks), before, starts[asks], end, note_second)
    skipped = trace_arm(
        translator, frame, (site_id, not asks), before, (end, [*rest, settled]), end
    )
    before.restore()
    arms = {asks: asked, not asks: skipped}
    site = join_arms(translator, frame, site_id, before, arms, end, predicate, where)
    if site.branch.treatment != "where":
        raise Refusal(Reason.PARTIAL_OP, "the second test must not always be made")
    # The instruction pointer is that of the jump itself: it comes next, with one truth value.
    if second.constant is not None:
        _, value = constant_of(second.constant)
        translator.stack[-1] = second.constant if bool(value) is chain.settled else settled
    else:
        _dissolve(translator, frame, site, chain, settled)
    site.items = second.items
    site.leads_to = (translator.f_code, end)
    text = "tested together with what follows it, which has no effect and cannot fail"
    site.decision = dataclasses.replace(site.decision, reason=text)
    return site


def _as_bool_tensor(translator: Any, frame: Frame, settled: Any) -> tuple[Any, tuple[Any, ...]]:
    """Replace the value tested by a 0-d bool tensor; a constant is handed out instead."""
    tested = tensor_on_top(translator)
    if tested is not None:
        translator.stack[-1] = as_bool_scalar(translator, realized(tested))
        return None, ()
    if item_hooks.tests_a_number(translator, frame):
        items = item_hooks.items_tested(translator, frame)
        item_hooks.put_predicate(translator)
        tested = realized(translator.stack[-1])
        translator.stack[-1] = as_bool_scalar(translator, tested)
        return None, items
    value = realized(translator.stack[-1])
    if not constant_of(value)[0]:
        raise Refusal(Reason.PYTHON_VALUE, "an object is tested behind a tensor")
    translator.stack[-1] = settled
    return value, ()


def _dissolve(
    translator: Any, frame: Frame, site: BranchSite, chain: ShortCircuit, settled: Any
) -> None:
    """Take the selection between two truth values out again: ``and`` or ``or`` says the same.

    Not where the tests leave something else to select (a tensor written, a name bound), nor where
    the selection is none, both ways leading to one truth value.
    """
    site_id, graph = site.branch.site, translator.output.graph
    skipped = settled.as_proxy().node
    selected = node_of(translator.stack[-1])
    if len(site.pairs) != 1 or skipped not in site.pairs[0] or selected not in site.select.users:
        return
    if selected is None or selected.users or any(site_id in inner.inside for inner in frame.sites):
        return
    asked = next(node for node in site.pairs[0] if node is not skipped)
    joined = torch.logical_or if chain.settled else torch.logical_and
    pair = (settled.as_proxy(), proxy_of(translator, asked))
    translator.stack[-1] = stack.wrap_call(translator, "call_function", joined, pair, {})
    graph.erase_node(selected)
    graph.erase_node(site.select)
    site.select, site.pairs = None, []
    frame.leave_arms(graph.nodes, site_id, site.branch.outer)
