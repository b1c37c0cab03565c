"""Join two traced arms: check them, merge their values, add one select node."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import fx

from fusepass.capture.branch import legality
from fusepass.capture.branch.attribute_merge import merge_attributes
from fusepass.capture.branch.custom_functions import mark_total_functions
from fusepass.capture.branch.merge import Outputs, Results, merge, merge_locals, settle
from fusepass.capture.branch.snapshot import Arm, Bindings, enter_blocks, restore_iterators
from fusepass.capture.bytecode.control_flow import EXIT, live_names
from fusepass.capture.effects.raise_operands import nodes_of
from fusepass.capture.frame_state import BranchSite, Frame
from fusepass.capture.masks.masked_store import lower_masked_stores
from fusepass.capture.masks.mixed_index import split_mixed_indices
from fusepass.capture.masks.unbacked_sizes import remove_data_sizes
from fusepass.capture.mutation.shadow_copies import Shadows, shadow_arms, write_back
from fusepass.capture.nodes.print_node import is_line_inside
from fusepass.capture.nodes.select_node import BRANCH, HIDES_GRAD, WRITTEN, Branch, select
from fusepass.capture.refusal import Refusal
from fusepass.capture.scalars.arm_scalars import record_choice
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.side_effects import bind_attribute
from fusepass.torch_private.dynamo.stack import constant_of, proxy_of, realized, wrap_tensor


def join_arms(
    translator: Any,
    frame: Frame,
    site_id: int,
    before: Bindings,
    arms: dict[bool, Arm],
    join: int,
    predicate: Any,
    where: tuple[str, int],
) -> BranchSite:
    """Turn two traced arms into one branch of the graph and put the translator at the join.

    Raises:
        Refusal: what the arms do or leave does not allow it; the translator is then unchanged.
    """
    taken, other = arms[True], arms[False]
    rewritten = _rewrite_arms(translator, site_id, {True: taken.nodes, False: other.nodes})
    shadows = rewritten.shadows
    effects = translator.output.side_effects
    outputs = Outputs(settled=shadows.settled, effects=effects)
    if join == EXIT:
        index, finish = _merge_returns(translator, taken, other, outputs)
    else:
        index, finish = join, _merge_states(translator, before, taken, other, join, outputs)
    bound = merge_attributes(
        taken.writes, other.writes, lambda a, b, what: merge(a, b, what, outputs)
    )
    read = len(outputs.pairs)  # what follows is written back instead
    for final in shadows.finals.values():
        ends = [proxy_of(translator, final[arm]) for arm in (True, False)]
        outputs.pairs.append((ends[0], ends[1]))
    pairs = [(a.node, b.node) for a, b in outputs.pairs]
    predicate_node = predicate.as_proxy().node
    verdict = _check_treatment(
        translator, frame, site_id, predicate_node, pairs, outputs.numbers, rewritten, read
    )
    outer = frame.arms[-1] if frame.arms else None
    branch = Branch(site_id, outer, verdict.treatment, verdict.gated, *where)
    site = BranchSite(branch, None, verdict.decision(branch), predicate=predicate_node, pairs=pairs)
    site.leaves_numbers = bool(outputs.numbers)
    tensors: list[Any] = []
    if pairs:
        site.select, tensors = _record_select(
            translator, branch, predicate, outputs.pairs, verdict, read
        )
        write_back(translator, shadows, tensors[read:])
    elif not outputs.numbers:
        frame.leave_arms((*taken.nodes, *other.nodes), site_id, branch.outer)
    if outputs.numbers and verdict.treatment != "where":
        raise Refusal(Reason.PYTHON_VALUE, "a Python number differs between the arms")
    numbers = [record_choice(translator, predicate, pair, branch) for pair in outputs.numbers]
    results = Results(tensors, numbers, effects)
    finish(results)
    for item, name, value in bound:
        bind_attribute(effects, item, name, settle(value, results))
    translator.instruction_pointer = translator.start_point = index
    return site


@dataclass(frozen=True)
class _FunctionalArms:
    """Two arms that are pure now.

    Attributes:
        nodes: what stands in them.
        shadows: what they wrote, as copies.
        erased: nodes that are gone.
        partial: why an arm may not run untaken, if that is so.
    """

    nodes: dict[bool, list[fx.Node]]
    shadows: Shadows
    erased: frozenset[fx.Node]
    partial: Refusal | None


def _rewrite_arms(
    translator: Any, site_id: int, nodes: dict[bool, list[fx.Node]]
) -> _FunctionalArms:
    """Take out of both arms what a select cannot stand behind: unknown sizes, stores, writes."""
    fake_mode = translator.fake_mode
    for arm in nodes.values():
        split_mixed_indices(arm, fake_mode)
    erased = remove_data_sizes(translator, nodes)
    for arm in nodes.values():
        lower_masked_stores(arm, fake_mode)
    shadows = shadow_arms(translator.output.graph, nodes, site_id, fake_mode)
    for arm in nodes.values():
        mark_total_functions(translator, arm)
    return _FunctionalArms(nodes, shadows, erased, legality.check_arms(nodes))


def _check_treatment(
    translator: Any,
    frame: Frame,
    site_id: int,
    predicate: fx.Node,
    pairs: list[tuple[fx.Node, fx.Node]],
    numbers: list[tuple[Any, Any]],
    rewritten: _FunctionalArms,
    read: int,
) -> legality.BranchVerdict:
    """How the branch may be treated, by what the arms do and the pairs that they leave.

    Raises:
        Refusal: it may not be captured.
    """
    raises_inside = any(site_id in inner.inside for inner in frame.sites)
    _check_values_left([*pairs, *numbers], rewritten, raises_inside)
    lines = [node for node in translator.output.graph.nodes if is_line_inside(node, predicate)]
    _check_prints(lines, rewritten)
    verdict = legality.check_outputs(
        translator, frame.options, predicate, pairs, rewritten.nodes, rewritten.partial, read=read
    )
    if raises_inside and verdict.treatment == "cond":
        raise Refusal(Reason.RAISES, f"an arm raises, and may not always run: {verdict.text}")
    if lines and verdict.treatment == "cond":
        raise Refusal(Reason.SIDE_EFFECT, f"an arm prints, and may not always run: {verdict.text}")
    return verdict


def _check_values_left(
    pairs: list[tuple[Any, Any]], rewritten: _FunctionalArms, raises_inside: bool
) -> None:
    left = {getattr(side, "node", side) for pair in pairs for side in pair}
    if not rewritten.erased.isdisjoint(left):
        raise Refusal(Reason.SHAPE_MISMATCH, "the arms leave tensors whose size depends on data")
    if raises_inside and rewritten.shadows.finals:
        raise Refusal(Reason.RAISES, "an arm both raises and writes what existed before it")


def _check_prints(lines: list[fx.Node], rewritten: _FunctionalArms) -> None:
    """What an arm prints must still be there when it has been rewritten."""
    operands = {operand for node in lines for operand in nodes_of(node)}
    if not rewritten.erased.isdisjoint(operands):
        raise Refusal(Reason.SHAPE_MISMATCH, "an arm prints a tensor whose size depends on data")
    if operands and rewritten.shadows.finals:
        text = "an arm both prints and writes what existed before it"
        raise Refusal(Reason.SIDE_EFFECT, text)


def _record_select(
    translator: Any,
    branch: Branch,
    predicate: Any,
    pairs: list[tuple[Any, Any]],
    verdict: legality.BranchVerdict,
    read: int,
) -> tuple[fx.Node, list[Any]]:
    """Put the select of a branch into the graph; the node and the tracked tensors it gives."""
    sides = tuple(a for a, _ in pairs), tuple(b for _, b in pairs)
    proxy = translator.output.create_proxy(
        "call_function", select, (predicate.as_proxy(), *sides), {}
    )
    meta = proxy.node.meta
    meta["example_value"] = tuple(verdict.fakes)
    meta[BRANCH] = branch
    meta[WRITTEN] = read
    if verdict.hides:
        meta[HIDES_GRAD] = verdict.hides
    tensors = [wrap_tensor(translator, proxy[i], fake) for i, fake in enumerate(verdict.fakes)]
    return proxy.node, tensors


def _merge_states(
    translator: Any, before: Bindings, taken: Arm, other: Arm, join: int, outputs: Outputs
) -> Callable[[Results], None]:
    a, b = taken.bindings, other.bindings
    if len(a["stack"]) != len(b["stack"]):
        raise Refusal(Reason.UNTRACEABLE, "the arms leave stacks of different depth")
    if [id(x) for x in a["block_stack"]] != [id(x) for x in b["block_stack"]]:
        raise Refusal(Reason.SIDE_EFFECT, "the arms enter or leave different with-blocks")
    if any(
        a["symbolic_globals"].get(k) is not b["symbolic_globals"].get(k)
        for k in {*a["symbolic_globals"], *b["symbolic_globals"]}
    ):
        raise Refusal(Reason.SIDE_EFFECT, "an arm writes a global")
    if not _same_positions(taken, other):
        raise Refusal(Reason.LOOP, "the arms advance an iterator that existed before differently")
    live = live_names(translator.f_code, translator.instructions, join) | set(
        translator.cell_and_freevars()
    )
    stack = [
        merge(x, y, "the value of the expression", outputs)
        for x, y in zip(a["stack"], b["stack"], strict=True)
    ]
    names = merge_locals(
        a["symbolic_locals"], b["symbolic_locals"], live, before.values["symbolic_locals"], outputs
    )

    def finish(results: Results) -> None:
        translator.stack = [settle(value, results) for value in stack]
        translator.symbolic_locals = {n: settle(value, results) for n, value in names.items()}
        enter_blocks(translator, other)
        restore_iterators(other.iterators)

    return finish


def _same_positions(taken: Arm, other: Arm) -> bool:
    """Whether iterators older than the branch stand at the same place after both arms.

    One that is used up and dropped in an arm (a loop left by ``break``) is not on the stack any
    more.
    """
    held = {id(v) for v in [*other.bindings["stack"], *other.bindings["symbolic_locals"].values()]}
    there = {id(iterator): state for iterator, state in taken.iterators}
    for iterator, state in other.iterators:
        if id(iterator) in held and not _same_state(there.get(id(iterator), {}), state):
            return False
    return True


def _same_state(a: dict[str, Any], b: dict[str, Any]) -> bool:
    if a.keys() != b.keys():
        return False
    return all(map(_same_part, a.values(), (b[k] for k in a)))


def _same_part(a: Any, b: Any) -> bool:
    if isinstance(a, Iterator) and isinstance(b, Iterator):  # copies of one, some items taken
        return type(a) is type(b) and operator.length_hint(a) == operator.length_hint(b)
    return a is b or (isinstance(a, (int, bool, list)) and bool(a == b))


def _merge_returns(
    translator: Any, taken: Arm, other: Arm, outputs: Outputs
) -> tuple[int, Callable[[Results], None]]:
    """Join two arms that both stand before a return: only the returned value matters."""
    a_inst, b_inst = translator.instructions[taken.index], translator.instructions[other.index]
    if a_inst.opname == "RETURN_CONST" and b_inst.opname == "RETURN_CONST":
        if type(a_inst.argval) is not type(b_inst.argval) or a_inst.argval != b_inst.argval:
            raise Refusal(
                Reason.PYTHON_VALUE, f"the arms return {a_inst.argval!r} and {b_inst.argval!r}"
            )
        return other.index, _adopt(translator, other, [])
    if "RETURN_CONST" in (a_inst.opname, b_inst.opname):
        const, value_arm = (a_inst, other) if a_inst.opname == "RETURN_CONST" else (b_inst, taken)
        constant, value = constant_of(realized(value_arm.bindings["stack"][-1]))
        if not constant or type(value) is not type(const.argval) or value != const.argval:
            raise Refusal(
                Reason.PYTHON_VALUE, f"one arm returns {const.argval!r}, the other another value"
            )
        return value_arm.index, _adopt(translator, value_arm, [value_arm.bindings["stack"][-1]])
    value = merge(
        taken.bindings["stack"][-1], other.bindings["stack"][-1], "the returned value", outputs
    )
    return other.index, _adopt(translator, other, [value])


def _adopt(translator: Any, arm: Arm, stack: list[Any]) -> Callable[[Results], None]:
    def finish(results: Results) -> None:
        translator.stack = [settle(value, results) for value in stack]
        translator.symbolic_locals = dict(arm.bindings["symbolic_locals"])
        enter_blocks(translator, arm)

    return finish
