"""Evaluate all tests of ``if a and b`` or ``if a or b`` at once, so that a chain is one branch.

Python compiles a chain of tests into one jump per test. Taken one by one, the second jump stands in
an arm of the first, and what follows the chain is traced once for each way that leads there: twice
for two tests, and twice more in every round of a loop it stands in. But the first jump only decides
whether the second test is made. Where making it has no effect and cannot fail, both are made, and
the branch is one jump on ``a & b`` (or ``a | b``): the arm that makes the second test ends at the
jump behind it, and there the truth values are joined.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch

from fusepass.capture.branch.join import join_arms
from fusepass.capture.branch.phi_truth import Undecided, truth_of
from fusepass.capture.branch.snapshot import OpenBranch
from fusepass.capture.branch.trace_arm import trace_arm
from fusepass.capture.bytecode.control_flow import Region
from fusepass.capture.frame_state import BranchSite, Frame
from fusepass.capture.nodes.predicate import as_bool_scalar
from fusepass.capture.refusal import Refusal
from fusepass.capture.restarts import restart_leaving, why_kept
from fusepass.capture.scalars import item_hooks
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo import stack
from fusepass.torch_private.dynamo.phi import is_phi


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


def short_circuit_at(
    translator: Any, frame: Frame, region: Region, jump: int
) -> ShortCircuit | None:
    """The chain that the jump at an index begins, if its tests may be made together."""
    found = region.chains.get(jump)
    key = (translator.f_code, jump)
    if found is None or frame.options.treatment not in ("auto", "where"):
        return None
    return ShortCircuit(key, *found) if why_kept(frame, "chain", key) is None else None


def join_tests(branch: OpenBranch, chain: ShortCircuit) -> BranchSite:
    """Make all tests of a chain as one.

    The translator then stands at the last jump, with the truth of all on top of its stack. Where
    the tests cannot be made as one, the frame starts again, and takes them one by one.
    """
    try:
        return _join_tests(branch, chain)
    except Refusal:
        branch.before.restore()
        why = Reason.PARTIAL_OP, "tests are made one by one"
        restart_leaving(branch.frame, {("chain", chain.key): why})


def _join_tests(branch: OpenBranch, chain: ShortCircuit) -> BranchSite:
    translator, frame = branch.translator, branch.frame
    here = branch.before.values["instruction_pointer"]
    asks = next(arm for arm, (start, _) in branch.starts.items() if start == here)
    settled = branch.predicate
    if chain.settled is asks:  # the truth value of the chain where the second test is not made
        settled = stack.wrap_call(
            translator, "call_function", torch.logical_not, (settled.as_proxy(),), {}
        )
    skips = chain.end, [*branch.starts[asks][1], settled]
    starts = {asks: branch.starts[asks], not asks: skips}
    branch = dataclasses.replace(branch, starts=starts, join=chain.end)
    second: list[Any] = []
    asked = trace_arm(
        branch, asks, lambda: second.extend(_as_bool_tensor(translator, frame, settled))
    )
    arms = {asks: asked, not asks: trace_arm(branch, not asks)}
    branch.before.restore()
    site = join_arms(branch, arms)
    if site.branch.treatment != "where":
        raise Refusal(Reason.PARTIAL_OP, "the second test must not always be made")
    # The instruction pointer is that of the jump itself: it comes next, with one truth value.
    known, site.items = second
    if known is not None:
        frame.known_tests.add((translator.f_code, chain.end))
        _, value = stack.constant_of(known)
        translator.stack[-1] = known if bool(value) is chain.settled else settled
    else:
        _dissolve(branch, site, chain, settled)
    site.leads_to = (translator.f_code, chain.end)
    text = "tested together with what follows it, which has no effect and cannot fail"
    site.decision = dataclasses.replace(site.decision, reason=text)
    return site


def _as_bool_tensor(translator: Any, frame: Frame, settled: Any) -> tuple[Any, tuple[Any, ...]]:
    """Replace the value tested by a 0-d bool tensor; hand a constant out instead.

    Returns:
        The tracked constant or None, and the numbers read from tensors that the test was made of.
    """
    items: tuple[Any, ...] = ()
    tested = stack.tensor_on_top(translator)
    if tested is None and item_hooks.tests_a_number(translator, frame):
        items = item_hooks.items_tested(translator, frame)
        item_hooks.put_predicate(translator)
        tested = translator.stack[-1]
    if tested is not None:
        translator.stack[-1] = as_bool_scalar(translator, stack.realized(tested))
        return None, items
    value = stack.realized(translator.stack[-1])
    if is_phi(value):
        truth = _truth(translator, value)
        if not isinstance(truth, bool):
            translator.stack[-1] = truth
            return None, items
        value = stack.constant(truth)
    if not stack.constant_of(value)[0]:
        raise Refusal(Reason.PYTHON_VALUE, "an object is tested behind a tensor")
    translator.stack[-1] = settled
    return value, ()


def _truth(translator: Any, phi: Any) -> Any:
    try:
        return truth_of(translator, phi)
    except Undecided:
        text = "a value that differs between arms is tested behind a tensor"
        raise Refusal(Reason.PYTHON_VALUE, text) from None


def _dissolve(branch: OpenBranch, site: BranchSite, chain: ShortCircuit, settled: Any) -> None:
    """Take the selection between two truth values out again: ``and`` or ``or`` says the same.

    Not where the tests leave something else to select (a tensor written, a name bound), nor where
    the selection is none, both ways leading to one truth value.
    """
    translator, frame, graph = branch.translator, branch.frame, branch.graph
    skipped = settled.as_proxy().node
    selected = stack.node_of(translator.stack[-1])
    if len(site.pairs) != 1 or skipped not in site.pairs[0] or selected not in site.select.users:
        return
    inside = any(branch.site in inner.inside for inner in frame.sites)
    if selected is None or selected.users or inside:
        return
    asked = next(node for node in site.pairs[0] if node is not skipped)
    joined = torch.logical_or if chain.settled else torch.logical_and
    pair = (settled.as_proxy(), stack.proxy_of(translator, asked))
    translator.stack[-1] = stack.wrap_call(translator, "call_function", joined, pair, {})
    graph.erase_node(selected)
    graph.erase_node(site.select)
    site.select, site.pairs = None, []
    frame.leave_arms(graph.nodes, branch.site, branch.outer)
