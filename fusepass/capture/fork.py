"""At a jump on a tensor: trace both arms up to their join, check them, and leave one select node.

The translator is driven with its own ``step``, so whatever Dynamo can trace an arm may contain.
Nothing is rolled back by hand except the translator's position and bindings between the arms: if
an arm cannot be kept, Dynamo's own restart discards the whole attempt (hooks.py).
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from fusepass import torch_private
from fusepass.capture import legality
from fusepass.capture.frame import Frame, Site
from fusepass.capture.liveness import live_names
from fusepass.capture.merge import Outputs, merge, merge_locals, settle
from fusepass.capture.predicate import as_bool_scalar
from fusepass.capture.refusal import Refusal
from fusepass.capture.region import EXIT, Region
from fusepass.capture.select import ARM, BRANCH, Branch, select
from fusepass.report.decision import Reason

_RETURNS = ("RETURN_VALUE", "RETURN_CONST")
_COPIED = ("stack", "symbolic_locals", "symbolic_globals", "block_stack", "nn_module_stack")
_SAVED = (
    "instruction_pointer",
    "start_point",
    "lineno",
    "kw_names",
    "current_instruction",
    "current_speculation",
)


@dataclass
class Arm:
    """What one arm left: the translator's bindings at the join and the nodes it recorded."""

    bindings: dict[str, Any]
    index: int
    nodes: list[fx.Node]


def fork(translator: Any, jump: Any, region: Region, frame: Frame, where: tuple[str, int]) -> Site:
    """Capture the branch at ``jump``; on success the translator stands at the join.

    Args:
        translator: Dynamo's translator, the tensor tested on top of its stack.
        jump: the conditional jump.
        where: file and line of the branch.

    Raises:
        Refusal: the branch must stay; the translator is then as it was before the call, but for
            nodes recorded in a graph that Dynamo is going to discard.
    """
    site_id = frame.new_id()
    before = _Bindings(translator)
    jumps_if, keeps = torch_private.jump_kind(jump.opname)
    jump_index = translator.instruction_pointer - 1
    target = translator.indexof[jump.target]
    join = region.join_of(jump_index)
    for start in (target, translator.instruction_pointer):
        if region.only_raises(start):
            raise Refusal(Reason.RAISES, "an arm only raises")
    tested = translator.stack[-1]
    predicate = as_bool_scalar(translator, torch_private.realized(tested))
    rest = translator.stack[:-1]
    jumped = (target, [*rest, tested] if keeps else rest)
    passed = (translator.instruction_pointer, rest)
    starts = {jumps_if: jumped, not jumps_if: passed}
    arms: dict[bool, Arm] = {}
    try:
        for taken in (True, False):
            before.restore()
            start, stack = starts[taken]
            with _inside_arm(translator, frame, (site_id, taken)):
                arms[taken] = _trace(translator, start, list(stack), join, (site_id, taken))
        before.restore()
        return _join(translator, frame, site_id, before, arms, join, predicate, where)
    except BaseException:
        before.restore()
        raise


class _Bindings:
    """The translator's position and bindings at one moment."""

    def __init__(self, translator: Any) -> None:
        self.translator = translator
        self.values = {name: copy.copy(getattr(translator, name)) for name in _COPIED}
        self.values |= {name: getattr(translator, name) for name in _SAVED}
        self.modes = _modes()
        self.mutations = _mutations(translator)

    def restore(self) -> None:
        for name, value in self.values.items():
            setattr(self.translator, name, copy.copy(value) if name in _COPIED else value)


@contextlib.contextmanager
def _inside_arm(translator: Any, frame: Frame, arm: tuple[int, bool]) -> Iterator[None]:
    """No partial graph may be compiled inside an arm, and nothing made outside may be written."""
    shadowed = translator.__dict__.get("should_compile_partial_graph")
    translator.should_compile_partial_graph = lambda: False
    translator.current_speculation = None
    frame.arms.append(arm)
    try:
        with torch_private.new_scope():
            yield
    finally:
        frame.arms.pop()
        if shadowed is None:
            del translator.should_compile_partial_graph
        else:
            translator.should_compile_partial_graph = shadowed


def _trace(translator: Any, start: int, stack: list[Any], join: int, arm: tuple[int, bool]) -> Arm:
    graph = translator.output.graph
    last = next(iter(reversed(graph.nodes)), None)
    before = _Bindings(translator)
    translator.stack = stack
    translator.instruction_pointer = translator.start_point = start
    _run_to(translator, join)
    if _modes() != before.modes:
        raise Refusal(
            Reason.SIDE_EFFECT, "an arm leaves grad mode, autocast or inference mode changed"
        )
    if _mutations(translator) != before.mutations:
        raise Refusal(
            Reason.SIDE_EFFECT, "an arm writes an attribute or variable that existed before it"
        )
    nodes = _recorded_since(graph, last)
    for node in nodes:
        node.meta.setdefault(ARM, arm)
    bindings = {name: getattr(translator, name) for name in _COPIED}
    return Arm(bindings, translator.instruction_pointer, nodes)


def _run_to(translator: Any, join: int) -> None:
    try:
        while True:
            index = translator.instruction_pointer
            if index == join:
                return
            if join == EXIT and translator.instructions[index].opname in _RETURNS:
                return
            if not translator.step():
                raise Refusal(
                    Reason.UNTRACEABLE, "an arm leaves the frame in a way that cannot be joined"
                )
    except torch_private.restart_errors():
        raise
    except torch_private.observed_exceptions() as error:
        raise Refusal(Reason.RAISES, f"an arm raises ({type(error).__name__})") from error
    except torch_private.unsupported_errors() as error:
        raise _refusal_for(error) from error


def _refusal_for(error: BaseException) -> Refusal:
    text = str(getattr(error, "gb_type", None) or error).strip().split("\n")[0]
    message = str(error)
    if "side effect" in message.lower() or "from outside the scope" in message:
        return Refusal(
            Reason.SIDE_EFFECT, f"an arm writes something that existed before it ({text})"
        )
    return Refusal(Reason.UNTRACEABLE, f"an arm cannot be traced: {text}")


def _join(
    translator: Any,
    frame: Frame,
    site_id: int,
    before: _Bindings,
    arms: dict[bool, Arm],
    join: int,
    predicate: Any,
    where: tuple[str, int],
) -> Site:
    taken, other = arms[True], arms[False]
    graph_nodes = {True: taken.nodes, False: other.nodes}
    legality.check_arms(graph_nodes)
    outputs = Outputs()
    if join == EXIT:
        index, finish = _merge_returns(translator, taken, other, outputs)
    else:
        index, finish = join, _merge_states(translator, before, taken, other, join, outputs)
    pairs = [(a.as_proxy().node, b.as_proxy().node) for a, b in outputs.pairs]
    predicate_node = predicate.as_proxy().node
    verdict = legality.check_outputs(translator, frame.options, predicate_node, pairs, graph_nodes)
    file, line = where
    branch = Branch(
        site_id,
        frame.arms[-1] if frame.arms else None,
        verdict.treatment,
        verdict.gated,
        file,
        line,
    )
    site = Site(branch, None, verdict.decision(branch), predicate=predicate_node, pairs=pairs)
    tensors: list[Any] = []
    if pairs:
        proxy = translator.output.create_proxy(
            "call_function",
            select,
            (
                predicate.as_proxy(),
                tuple(a.as_proxy() for a, _ in outputs.pairs),
                tuple(b.as_proxy() for _, b in outputs.pairs),
            ),
            {},
        )
        proxy.node.meta["example_value"] = tuple(verdict.fakes)
        proxy.node.meta[BRANCH] = branch
        site.select = proxy.node
        tensors = [
            torch_private.wrap_tensor(translator, proxy[i], fake)
            for i, fake in enumerate(verdict.fakes)
        ]
    finish(tensors)
    translator.instruction_pointer = translator.start_point = index
    return site


def _merge_states(
    translator: Any, before: _Bindings, taken: Arm, other: Arm, join: int, outputs: Outputs
) -> Callable[[list[Any]], None]:
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
    live = live_names(translator.f_code, translator.instructions, join) | set(
        translator.cell_and_freevars()
    )
    stack = [
        merge(x, y, "a value on the stack", outputs)
        for x, y in zip(a["stack"], b["stack"], strict=True)
    ]
    names = merge_locals(
        a["symbolic_locals"], b["symbolic_locals"], live, before.values["symbolic_locals"], outputs
    )

    def finish(tensors: list[Any]) -> None:
        translator.stack = [settle(value, tensors) for value in stack]
        translator.symbolic_locals = {name: settle(value, tensors) for name, value in names.items()}
        translator.block_stack = list(b["block_stack"])

    return finish


def _merge_returns(
    translator: Any, taken: Arm, other: Arm, outputs: Outputs
) -> tuple[int, Callable[[list[Any]], None]]:
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
        constant, value = torch_private.constant_of(
            torch_private.realized(value_arm.bindings["stack"][-1])
        )
        if not constant or type(value) is not type(const.argval) or value != const.argval:
            raise Refusal(
                Reason.PYTHON_VALUE, f"one arm returns {const.argval!r}, the other another value"
            )
        return value_arm.index, _adopt(translator, value_arm, [value_arm.bindings["stack"][-1]])
    value = merge(
        taken.bindings["stack"][-1], other.bindings["stack"][-1], "the returned value", outputs
    )
    return other.index, _adopt(translator, other, [value])


def _adopt(translator: Any, arm: Arm, stack: list[Any]) -> Callable[[list[Any]], None]:
    def finish(tensors: list[Any]) -> None:
        translator.stack = [settle(value, tensors) for value in stack]
        translator.symbolic_locals = dict(arm.bindings["symbolic_locals"])
        translator.block_stack = list(arm.bindings["block_stack"])

    return finish


def _recorded_since(graph: fx.Graph, last: fx.Node | None) -> list[fx.Node]:
    nodes: list[fx.Node] = []
    for node in reversed(graph.nodes):
        if node is last:
            break
        if node.op != "placeholder":
            nodes.append(node)
    return nodes[::-1]


def _modes() -> tuple[Any, ...]:
    """Global modes that an arm must leave as it found them."""
    devices = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    autocast = tuple((torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in devices)
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        autocast,
    )


def _mutations(translator: Any) -> dict[Any, Any]:
    """Pending writes to objects that are older than the arm, by object and attribute."""
    effects = translator.output.side_effects
    pending: dict[Any, Any] = {}
    for item, writes in effects.store_attr_mutations.items():
        if torch_private.is_existing_mutation(item):
            for name, value in writes.items():
                pending[id(item), name] = id(value)
    pending["hooks"] = len(effects.tensor_hooks)
    pending["saved"] = len(effects.save_for_backward)
    pending["random"] = len(translator.output.random_calls)
    return pending
