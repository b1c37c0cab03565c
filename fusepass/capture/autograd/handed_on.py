"""Hand out the object that eager hands out, where an arm hands on a tensor unchanged.

    y = x * 2 if p else x; return y      ->      return y if p else x, behind the graph

A selection is a fresh tensor. Where eager's is an input of the graph, or something else that is
visible outside, the graph also hands out the predicate and that tensor. The code behind it reads
the predicate back and chooses. A view of a selection is made again of what the arm hands on.
"""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate

from fusepass.capture.autograd.gradient_paths import carries_grad
from fusepass.capture.effects.runtime import OutputSlot, Values, on_host
from fusepass.capture.mutation.shadow_rewriter import SHADOW_OF
from fusepass.capture.nodes.select_node import (
    ARM,
    WRITTEN,
    Branch,
    arms_from,
    branches_of,
    selects_of,
)
from fusepass.graph.dataflow.effects import RANDOM_OPS, is_random
from fusepass.graph.dataflow.memory import memories
from fusepass.graph.ops.op_names import op_name
from fusepass.torch_private.fx.graphs import call_target

Compiled = Callable[..., Any]
Choosing = Callable[[Compiled], Compiled]  # puts around a graph what chooses its results
# Calls that give views of their operand, or the operand itself, and do nothing else.
_VIEWS = frozenset(
    """
    alias bfloat16 chunk contiguous cpu cuda detach diagonal double expand expand_as flatten float
    getitem half hsplit int long mT moveaxis movedim narrow permute ravel real reshape reshape_as
    select slice split split_with_sizes squeeze swapaxes swapdims t tensor_split to transpose type
    type_as unbind unflatten unfold unsqueeze view view_as view_as_complex view_as_real
    view_dtype vsplit
    """.split()
)
_ATTRIBUTES = ("T", "mT", "real")
_HOOKS = frozenset("register_hook retain_grad requires_grad_ set_ detach_".split())


@dataclass(frozen=True)
class Leaf:
    """One object that a result may be: a node, or views of it that are made again in turn."""

    node: fx.Node
    views: tuple[fx.Node, ...] = ()


@dataclass(frozen=True)
class Choice:
    """A result that is one of two, by a predicate."""

    predicate: fx.Node
    taken: Choice | Leaf
    other: Choice | Leaf

    def leaves(self) -> Iterator[Leaf]:
        """What it may be in the end."""
        yield from (part for part in self._parts() if isinstance(part, Leaf))

    def predicates(self) -> Iterator[fx.Node]:
        """All that decides it."""
        yield from (part.predicate for part in self._parts() if isinstance(part, Choice))

    def _parts(self) -> Iterator[Choice | Leaf]:
        """Itself and all inside it, from left to right."""
        todo: list[Choice | Leaf] = [self]
        while todo:
            part = todo.pop()
            yield part
            if isinstance(part, Choice):
                todo += [part.other, part.taken]


@dataclass
class HandedOn:
    """The results of a complete graph that have to be chosen behind it.

    Attributes:
        gm: the graph.
        choices: by result.
        refused: results for which that cannot be done.
    """

    gm: fx.GraphModule
    choices: dict[fx.Node, Choice] = field(default_factory=dict)
    refused: set[fx.Node] = field(default_factory=set)

    def refuse_graded(self) -> None:
        """Leave out results that have a gradient function, which is not eager's."""
        graded = [node for node in self.choices if carries_grad(node)]
        self.refused.update(graded)
        for node in graded:
            del self.choices[node]

    def lower(self) -> Choosing | None:
        """Rewrite the graph in place.

        Returns:
            What to put around it once it is compiled; None if there is nothing to choose.
        """
        return _Lowering(self).run() if self.choices else None


def results_handed_on(gm: fx.GraphModule, results: set[fx.Node]) -> HandedOn:
    """Find which objects some results of a graph are in eager."""
    found = HandedOn(gm)
    tracer = _Tracer(gm)
    for result in results:
        choice = tracer.object_of(result)
        if isinstance(choice, Choice):
            found.choices[result] = choice
        else:
            found.refused.add(result)
    seen = _seen_outside(found)
    for result, choice in [*found.choices.items()]:
        if not tracer.can_be_chosen(choice, seen):
            found.refused.add(result)
            del found.choices[result]
    return found


def _seen_outside(found: HandedOn) -> Counter[int]:
    """How many inputs and results there are of each memory, or may be in eager."""
    seen: Counter[int] = Counter()
    for node in found.gm.graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            seen.update(set(memories([node])))
    for node in found.gm.graph.output_node().all_input_nodes:
        choice = found.choices.get(node)
        leaves = [] if choice is None else [leaf.node for leaf in choice.leaves()]
        seen.update(set(memories([node, *leaves])))
    return seen


def _is_own(leaf: Leaf, seen: Counter[int]) -> bool:
    """Whether an object is seen under one name only: a fresh tensor will do in its place."""
    return all(seen[key] == 1 for key in memories([leaf.node]))


class _Tracer:
    """Follows results back to what the arms hand on."""

    def __init__(self, gm: fx.GraphModule) -> None:
        selects = selects_of(gm.graph)
        self.selects = set(selects)
        self.branches = branches_of(selects)
        self.shadows = {
            key for node in gm.graph.nodes if SHADOW_OF in node.meta for key in memories([node])
        }
        self.seen: dict[fx.Node, Choice | Leaf] = {}
        self.path: set[fx.Node] = set()

    def object_of(self, node: fx.Node) -> Choice | Leaf:
        """What a node is in eager, by the arms that are taken.

        Hundreds of branches may follow one another, so no function calls itself for each of them.
        """
        todo = [node]
        while todo:
            waits = [one for one in self._made_of(todo[-1]) if one not in self.seen]
            if waits:
                todo += waits
            else:
                one = todo.pop()
                if one not in self.seen:
                    self.seen[one] = self._object_of(one)
        return self.seen[node]

    def _made_of(self, node: fx.Node) -> list[fx.Node]:
        """The nodes that :meth:`_object_of` asks about for a node."""
        if is_chosen(node, self.selects):
            chosen: Any = node.args[0]
            return [side[node.args[1]] for side in chosen.args[1:]]
        base = _base(node)
        return [] if base is None else [base]

    def _object_of(self, node: fx.Node) -> Choice | Leaf:
        if is_chosen(node, self.selects):
            chosen: Any = node.args[0]
            position: Any = node.args[1]
            predicate, taken, other = chosen.args
            sides = (self.seen[side[position]] for side in (taken, other))
            return Choice(predicate, *sides)
        base = _base(node)
        if base is None:
            return Leaf(node)
        below = self.seen[base]
        if _is_nothing(node):
            return below
        if isinstance(below, Choice):
            return _with_view(below, node)
        if ARM not in node.meta or ARM in below.node.meta:
            return Leaf(node)
        return Leaf(below.node, (*below.views, node))

    def can_be_chosen(self, choice: Choice, seen: Counter[int]) -> bool:
        """Whether what it is made of can be had behind the graph."""
        needed = [*choice.predicates()]
        for leaf in choice.leaves():
            if _is_own(leaf, seen):
                continue
            needed.append(leaf.node)
            for view in leaf.views:
                base = _base(view)
                others = [node for node in view.all_input_nodes if node is not base]
                plain = _is_plain_view(view) and all(n.op == "placeholder" for n in others)
                if not plain:
                    return False
        if any(node.op == "get_attr" for node in needed):
            return False
        if any(op_name(user) in _HOOKS for node in needed for user in node.users):
            return False
        if not self.shadows.isdisjoint(memories(needed)):
            return False
        return all(self._runs_always(node) for node in needed)

    def _runs_always(self, node: fx.Node) -> bool:
        """Whether it is computed whichever arms are taken."""
        around = arms_from(node.meta.get(ARM), self.branches)
        found: list[Branch | None] = [self.branches.get(site) for site, _ in around]
        return all(one is not None and one.treatment == "where" for one in found)


def is_chosen(node: fx.Node, selects: set[fx.Node]) -> bool:
    """Whether a node is a result of a select that the program reads."""
    if node.target is not operator.getitem or node.args[0] not in selects:
        return False
    source: Any = node.args[0]
    return WRITTEN in source.meta and node.args[1] < source.meta[WRITTEN]


def _base(node: fx.Node) -> fx.Node | None:
    """What a node is a view of, or the tuple of views that it is taken from."""
    if not node.op.startswith("call"):
        return None
    keys = set(memories([node]))
    sharing = [one for one in node.all_input_nodes if not keys.isdisjoint(memories([one]))]
    return sharing[0] if len(sharing) == 1 else None


def _is_plain_view(node: fx.Node) -> bool:
    name = op_name(node)
    return name in _VIEWS or (name == "getattr" and node.args[1] in _ATTRIBUTES)


def _is_nothing(node: fx.Node) -> bool:
    """Whether eager hands the operand itself on, where a trace may not: dropout in inference."""
    name = op_name(node)
    return name in RANDOM_OPS and "dropout" in str(name) and not is_random(node)


def _with_view(choice: Choice | Leaf, view: fx.Node) -> Choice | Leaf:
    if isinstance(choice, Leaf):
        return Leaf(choice.node, (*choice.views, view))
    return Choice(choice.predicate, _with_view(choice.taken, view), _with_view(choice.other, view))


@dataclass(frozen=True)
class _Pick:
    """Where one of two objects is once the graph has run."""

    predicate: OutputSlot
    taken: _Pick | _Viewed | OutputSlot
    other: _Pick | _Viewed | OutputSlot

    def find(self, values: Values, host: Values) -> Any:
        side: _Pick | _Viewed | OutputSlot = self
        while isinstance(side, _Pick):
            side = side.taken if bool(side.predicate.find(host)) else side.other
        return side.find(values)


_OBJECT = object()  # stands for what a view is made of, among its operands


@dataclass(frozen=True)
class _View:
    """A view that is made behind the graph.

    Attributes:
        target: the call.
        given: its positional and named operands; :data:`_OBJECT` and places among them.
        is_graded: whether autograd follows it.
    """

    target: Any
    given: Any
    is_graded: bool

    def of(self, found: Any, values: Values) -> Any:
        """The view of an object."""

        def known(operand: Any) -> Any:
            if operand is _OBJECT:
                return found
            return operand.find(values) if isinstance(operand, OutputSlot) else operand

        args, kwargs = map_aggregate(self.given, known)
        with torch.set_grad_enabled(self.is_graded):
            return call_target(self.target, args, kwargs)


@dataclass(frozen=True)
class _Viewed:
    """Views, each of the one before, of an object of eager's."""

    source: OutputSlot
    views: tuple[_View, ...]

    def find(self, values: Values) -> Any:
        found = self.source.find(values)
        for view in self.views:
            found = view.of(found, values)
        return found


class _Lowering:
    """The rewrite of one graph."""

    def __init__(self, found: HandedOn) -> None:
        self.found, self.graph = found, found.gm.graph
        self.inputs = [node for node in self.graph.nodes if node.op == "placeholder"]
        self.output = self.graph.output_node()
        self.results: list[Any] = list(self.output.args[0])  # type: ignore[arg-type]
        self.seen = _seen_outside(found)

    def run(self) -> Choosing:
        count = len(self.results)
        picks = {
            index: self._pick(self.found.choices[node], node, index)
            for index, node in enumerate(self.results[:count])
            if node in self.found.choices
        }
        self.output.args = (tuple(self.results),)
        self.graph.lint()
        self.found.gm.recompile()
        predicates = dict.fromkeys(
            (slot.kind, slot.position) for pick in picks.values() for slot in _slots(pick)
        )
        return functools.partial(_choosing, count, picks, tuple(predicates))

    def _pick(self, choice: Choice | Leaf, result: fx.Node, index: int) -> Any:
        if isinstance(choice, Choice):
            sides = (self._pick(side, result, index) for side in (choice.taken, choice.other))
            return _Pick(self._slot(choice.predicate), *sides)
        if _is_own(choice, self.seen):
            return OutputSlot("output", index)
        source = self._slot(choice.node)
        if not choice.views:
            return source
        return _Viewed(source, tuple(map(self._view, choice.views)))

    def _view(self, view: fx.Node) -> _View:
        base = _base(view)

        def place_of(node: fx.Node) -> Any:
            return _OBJECT if node is base else self._slot(node)

        given = fx.map_arg((view.args, view.kwargs), place_of)
        return _View(view.target, given, _is_graded(view))

    def _slot(self, node: fx.Node) -> OutputSlot:
        if node.op == "placeholder":
            return OutputSlot("input", self.inputs.index(node))
        if node not in self.results:
            self.results.append(node)
        return OutputSlot("output", self.results.index(node))


def _is_graded(view: fx.Node) -> bool:
    """Whether autograd follows a view, if it follows what that is of."""
    base = _base(view)
    return carries_grad(view) or base is None or not carries_grad(base)


def tested_outputs(choosing: Any) -> list[int]:
    """The positions of predicates that were handed out for a choice alone."""
    count, _, predicates = choosing.args
    return [i for kind, i in predicates if kind == "output" and i >= count]


def _slots(pick: Any) -> Iterator[OutputSlot]:
    if isinstance(pick, _Pick):
        yield pick.predicate
        yield from (*_slots(pick.taken), *_slots(pick.other))


def _choosing(
    count: int,
    picks: dict[int, Any],
    predicates: tuple[tuple[str, int], ...],
    compiled: Compiled,
) -> Compiled:
    """``compiled``, with some of its results chosen, and the program's results only."""

    @functools.wraps(compiled)
    def call(*args: Any) -> Any:
        boxed = len(args) == 1 and isinstance(args[0], list)
        inputs = tuple(args[0]) if boxed else args  # a boxed call empties its list
        values = Values(inputs, compiled(*args))
        host = on_host(values, predicates)
        results = list(values.outputs[:count])
        for index, pick in picks.items():
            results[index] = pick.find(values, host)
        return results

    return call
