"""Join two traced arms: check them, merge their values, add one select node."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from torch import fx

from fusepass.capture.branch import legality
from fusepass.capture.branch.attribute_writes import merge_attributes
from fusepass.capture.branch.container_writes import merge_contents
from fusepass.capture.branch.merge import merge, merge_locals
from fusepass.capture.branch.outputs import Outputs, Results, settle
from fusepass.capture.branch.snapshot import BLOCKS, Arm, OpenBranch, restore_iterators
from fusepass.capture.branch.stand_ins import ArmRecorder
from fusepass.capture.bytecode.control_flow import EXIT, live_names
from fusepass.capture.bytecode.number_uses import is_in_loop, needed_by_python
from fusepass.capture.frame_state import BranchSite
from fusepass.capture.masks.lowering import has_data_size, remove_data_sizes
from fusepass.capture.masks.masked_store import GETITEM, SETITEM, lower_masked_stores
from fusepass.capture.masks.mixed_index import split_index, split_mixed_indices
from fusepass.capture.mutation.shadow_copies import Shadows, shadow_arms, write_back
from fusepass.capture.nodes.events import is_line, is_message_only, nodes_of
from fusepass.capture.nodes.predicate import held_predicate
from fusepass.capture.nodes.select_node import (
    BRANCH,
    HIDES_GRAD,
    ONE_SIDED,
    WRITTEN,
    Branch,
    select,
)
from fusepass.capture.refusal import Refusal
from fusepass.capture.restarts import NUMBERS, restart_with_phis, why_kept
from fusepass.capture.scalars.arm_scalars import record_choice
from fusepass.capture.scalars.number_tensors import read_number
from fusepass.graph.dataflow.effects import written_nodes
from fusepass.graph.dataflow.memory import memories
from fusepass.graph.dataflow.reached import reached
from fusepass.graph.ops.op_names import op_name
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo import stack
from fusepass.torch_private.dynamo.phi import PhiVariable, make_phi
from fusepass.torch_private.dynamo.side_effects import bind_attribute
from fusepass.torch_private.dynamo.stack import proxy_of, wrap_tensor


def join_arms(branch: OpenBranch, arms: dict[bool, Arm]) -> BranchSite:
    """Turn two traced arms into one branch of the graph and put the translator at the join.

    Raises:
        Refusal: what the arms do or leave does not allow it; the translator is then unchanged.
    """
    translator, taken, other = branch.translator, arms[True], arms[False]
    rewritten = _rewrite_arms(branch, {True: taken.nodes, False: other.nodes})
    shadows = rewritten.shadows
    effects = translator.output.side_effects
    outputs = Outputs(
        settled=shadows.settled,
        effects=effects,
        number_nodes=why_kept(branch.frame, NUMBERS, branch.place.instruction) is None,
        is_made=branch.is_made,
        arms=ArmRecorder(branch, rewritten.nodes),
    )
    merge_states = _merge_returns if branch.join == EXIT else _merge_states
    index, finish = merge_states(branch, taken, other, outputs)
    bound = merge_attributes(taken.writes, other.writes, outputs)
    contents = merge_contents(translator, taken.writes.containers, other.writes.containers, outputs)
    read = len(outputs.pairs)  # what follows is written back instead
    for final in shadows.finals.values():
        outputs.pairs.append(
            (proxy_of(translator, final[True]), proxy_of(translator, final[False]))
        )
    pairs = [(a.node, b.node) for a, b in outputs.pairs]
    verdict = _check_treatment(branch, pairs, outputs, rewritten, read)
    where = branch.place.file, branch.place.line
    facts = Branch(branch.site, branch.outer, verdict.treatment, verdict.gated, *where)
    site = BranchSite(facts, None, verdict.decision(branch.place), pairs=pairs)
    site.leaves_numbers = len(outputs.numbers)
    held = held_predicate(translator, branch.predicate) if outputs.phis else None
    for outcome, arm in arms.items():
        arm.writes.check(rewritten.nodes[outcome])
    if held is not None and (taken.writes.outside or other.writes.outside):
        site.changes = held.as_proxy().node
    tensors: list[Any] = []
    if pairs:
        site.select, tensors = _record_select(branch, facts, outputs.pairs, verdict, read)
        site.select.meta[ONE_SIDED] = dict(outputs.one_sided)
        write_back(translator, shadows, tensors[read:])
    elif not outputs.numbers:
        branch.frame.leave_arms((*taken.nodes, *other.nodes), branch.site, branch.outer)
    if outputs.numbers and verdict.treatment != "where":
        text = "a Python number differs between the arms"
        restart_with_phis(branch.frame, branch.place, (Reason.PYTHON_VALUE, text))
    numbers = [record_choice(translator, branch.predicate, pair, facts) for pair in outputs.numbers]
    phi = functools.partial(_phi, branch, held)
    number = functools.partial(read_number, translator, branch.frame)
    results = Results(tensors, numbers, effects, phi, number)
    finish(results)
    for item, name, value in bound:
        bind_attribute(effects, item, name, settle(value, results))
    for change in contents:
        change(results)
    _go_on(translator, taken, other, index)
    return site


def _go_on(translator: Any, taken: Arm, other: Arm, index: int) -> None:
    bindings = [arm.bindings["symbolic_globals"] for arm in (taken, other)]
    translator.symbolic_globals = {**bindings[0], **bindings[1]}  # those that either has bound
    translator.instruction_pointer = translator.start_point = index
    translator.kw_names = None  # of a call that was traced in both arms


def _phi(
    branch: OpenBranch, held: Any, predicate: Any, taken: Any, other: Any, told: str
) -> PhiVariable:
    """A value that is one of two, of an inner branch or (``predicate`` is None) of this one."""
    translator = branch.translator
    if predicate is None:
        predicate = branch.predicate
    else:
        held = held_predicate(translator, predicate)
    return make_phi(translator, predicate, held, taken, other, branch.site, told)


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


def _rewrite_arms(branch: OpenBranch, nodes: dict[bool, list[fx.Node]]) -> _FunctionalArms:
    """Take out of both arms what a select cannot stand behind: unknown sizes, stores, writes."""
    fake_mode, judged = branch.translator.fake_mode, branch.frame.judged
    new = [node for node in chain(*nodes.values()) if node not in judged]
    erased: frozenset[fx.Node] = frozenset()
    shadows = Shadows()
    if any(map(_is_rewritten, new)):  # in branches inside an arm that is done
        for arm in nodes.values():
            split_mixed_indices(arm, fake_mode)
        erased = remove_data_sizes(branch.translator, nodes)
        for arm in nodes.values():
            lower_masked_stores(arm, fake_mode)
        shadows = shadow_arms(branch.graph, nodes, branch.site, fake_mode)
    new = [node for node in chain(*nodes.values()) if node not in judged]
    legality.mark_total_functions(branch.translator, new)
    return _FunctionalArms(nodes, shadows, erased, legality.check_arms(nodes, judged))


def _is_rewritten(node: fx.Node) -> bool:
    """Whether a node of an arm may have to become others: it writes, or masks give its size."""
    indexes = op_name(node) in (*GETITEM, *SETITEM) and split_index(node) is not None
    return indexes or bool(written_nodes(node)) or has_data_size(node)


def _check_treatment(
    branch: OpenBranch,
    pairs: list[tuple[fx.Node, fx.Node]],
    outputs: Outputs,
    rewritten: _FunctionalArms,
    read: int,
) -> legality.BranchVerdict:
    """Choose the treatment by what the arms do and leave; refuse a branch that must stay."""
    predicate = branch.predicate.as_proxy().node
    raises_inside = any(branch.site in inner.inside for inner in branch.frame.sites)
    left = {getattr(side, "node", side) for pair in (*pairs, *outputs.numbers) for side in pair}
    if not rewritten.erased.isdisjoint(left):
        raise Refusal(Reason.SHAPE_MISMATCH, "the arms leave tensors whose size depends on data")
    if raises_inside and rewritten.shadows.finals:
        raise Refusal(Reason.RAISES, "an arm both raises and writes what existed before it")
    lines = [
        node
        for node in filter(is_line, branch.graph.nodes)
        if any(test is predicate for test, _ in node.args[0])
    ]
    printed = {operand for node in lines for operand in nodes_of(node)}
    if not rewritten.erased.isdisjoint(printed):
        raise Refusal(Reason.SHAPE_MISMATCH, "an arm prints a tensor whose size depends on data")
    if not _written(rewritten.shadows).isdisjoint(memories(_shown(branch, printed))):
        text = "an arm writes what existed before it, and prints what is made of it"
        raise Refusal(Reason.SIDE_EFFECT, text)
    verdict = legality.check_outputs(
        branch,
        predicate,
        pairs,
        rewritten.nodes,
        rewritten.partial,
        read=read,
        one_sided=outputs.one_sided,
    )
    if raises_inside and verdict.treatment == "cond":
        raise Refusal(Reason.RAISES, f"an arm raises, and may not always run: {verdict.text}")
    if lines and verdict.treatment == "cond":
        raise Refusal(Reason.SIDE_EFFECT, f"an arm prints, and may not always run: {verdict.text}")
    return verdict


def _shown(branch: OpenBranch, printed: set[fx.Node]) -> Iterator[fx.Node]:
    """What lines show, and what that is made of in the arms or for the message alone."""

    def made_of(node: fx.Node) -> list[fx.Node]:
        here = branch.is_made(node) or is_message_only(node)
        return node.all_input_nodes if here else []

    return reached(printed, made_of)


def _written(shadows: Shadows) -> set[int]:
    """The memory that arms write: the older one, and the copies in its place."""
    return set(
        memories(node for root, left in shadows.finals.items() for node in (root, *left.values()))
    )


def _record_select(
    branch: OpenBranch,
    facts: Branch,
    pairs: list[tuple[Any, Any]],
    verdict: legality.BranchVerdict,
    read: int,
) -> tuple[fx.Node, list[Any]]:
    """Put the select of a branch into the graph; the node and the tracked tensors it gives."""
    sides = tuple(a for a, _ in pairs), tuple(b for _, b in pairs)
    proxy = branch.translator.output.create_proxy(
        "call_function", select, (branch.predicate.as_proxy(), *sides), {}
    )
    fakes = verdict.fakes
    proxy.node.meta |= {"example_value": tuple(fakes), BRANCH: facts, WRITTEN: read}
    if verdict.hides:
        proxy.node.meta[HIDES_GRAD] = verdict.hides
    tensors = [wrap_tensor(branch.translator, proxy[i], fake) for i, fake in enumerate(fakes)]
    return proxy.node, tensors


def _merge_states(
    branch: OpenBranch, taken: Arm, other: Arm, outputs: Outputs
) -> tuple[int, Callable[[Results], None]]:
    """Join the stacks and locals of two arms at the instruction where they meet."""
    translator, a, b = branch.translator, taken.bindings, other.bindings
    if len(a["stack"]) != len(b["stack"]):
        raise Refusal(Reason.UNTRACEABLE, "the arms leave stacks of different depth")
    if [id(x) for x in a["block_stack"]] != [id(x) for x in b["block_stack"]]:
        raise Refusal(Reason.SIDE_EFFECT, "the arms enter or leave different with-blocks")
    if not _same_positions(taken, other):
        raise Refusal(Reason.LOOP, "the arms advance an iterator that existed before differently")
    live = live_names(translator.f_code, translator.instructions, branch.join) | set(
        translator.cell_and_freevars()
    )
    stack = [
        merge(x, y, "the value of the expression", outputs)
        for x, y in zip(a["stack"], b["stack"], strict=True)
    ]
    before = branch.before.values["symbolic_locals"]
    left = a["symbolic_locals"], b["symbolic_locals"]
    needed = functools.partial(_is_needed, branch)
    names = merge_locals(*left, live, before, outputs, needed=needed)

    def finish(results: Results) -> None:
        _adopt(translator, other, stack, names)(results)
        restore_iterators(other.iterators)

    return branch.join, finish


def _is_needed(branch: OpenBranch, name: str) -> bool:
    """Whether Python needs the number that a branch leaves under a name, as the bytecode says.

    In a loop each round would double what a number may be, so it is left open as long as it can be.
    """
    jump, translator = branch.place.instruction, branch.translator
    code, instructions = translator.f_code, translator.instructions
    if jump in branch.frame.long_loops or is_in_loop(code, instructions, jump[1]):
        return False
    return needed_by_python(code, instructions, branch.join, name)


def _same_positions(taken: Arm, other: Arm) -> bool:
    """Whether iterators older than the branch stand at the same place after both arms.

    One that is used up and dropped in an arm (a loop left by ``break``) is not on the stack any
    more.
    """
    held = {id(v) for v in [*other.bindings["stack"], *other.bindings["symbolic_locals"].values()]}
    there = {id(iterator): state for iterator, state in taken.iterators}
    for iterator, state in other.iterators:
        if id(iterator) in held:
            older = there.get(id(iterator), {})
            if older.keys() != state.keys() or not all(
                _same_part(older[k], state[k]) for k in state
            ):
                return False
    return True


def _same_part(a: Any, b: Any) -> bool:
    if isinstance(a, Iterator) and isinstance(b, Iterator):  # copies of one, some items taken
        return type(a) is type(b) and operator.length_hint(a) == operator.length_hint(b)
    return a is b or (isinstance(a, (int, bool, list)) and bool(a == b))


def _merge_returns(
    branch: OpenBranch, taken: Arm, other: Arm, outputs: Outputs
) -> tuple[int, Callable[[Results], None]]:
    """Join two arms that both stand before a return: only the returned value matters."""
    translator, arms = branch.translator, (taken, other)
    values: list[Any] = []
    at: Arm | None = None
    for arm in arms:
        instruction = translator.instructions[arm.index]
        if instruction.opname == "RETURN_CONST":
            values.append(stack.constant(instruction.argval))
        else:
            at = arm
            values.append(arm.bindings["stack"][-1])
    value = merge(values[0], values[1], "the returned value", outputs)
    if at is not None:
        return at.index, _adopt(translator, at, [value])
    if value is values[0]:
        return other.index, _adopt(translator, other, [])
    raise Refusal(Reason.PYTHON_VALUE, "the arms return different constants")


def _adopt(
    translator: Any, arm: Arm, stack: list[Any], names: dict[str, Any] | None = None
) -> Callable[[Results], None]:
    """Put the translator where an arm is, with joined values on its stack and under these names."""
    names = arm.bindings["symbolic_locals"] if names is None else names

    def finish(results: Results) -> None:
        translator.stack = [settle(value, results) for value in stack]
        translator.symbolic_locals = {n: settle(value, results) for n, value in names.items()}
        for name in BLOCKS:  # the with-blocks that the arm is in at its end
            setattr(translator, name, list(arm.bindings[name]))

    return finish
