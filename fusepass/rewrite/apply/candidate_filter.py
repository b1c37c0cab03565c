"""Every reason to reject a match before its rule may act on it.

In order: what its parameters are, whether its calls can be taken out, the options, what the rule's
own ``check`` says, and whether the replacement, run on fake tensors, fits.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from fusepass.graph.dataflow.effects import written_nodes
from fusepass.graph.dataflow.node_recorder import autocasts_at
from fusepass.graph.ops.op_names import tensor_value
from fusepass.graph.terms.term_graph import TermGraph
from fusepass.options import Options
from fusepass.report.decision import Reason
from fusepass.report.user_code import is_users_file
from fusepass.rewrite.apply.replacement import (
    MatchSite,
    fake_operands,
    record_replacement,
    saves_a_result,
    sizes_in,
)
from fusepass.rewrite.apply.splice import REPLACED_BY_RULE
from fusepass.rewrite.match.binding import Binding, bind
from fusepass.rewrite.match.legality import Cut, Surroundings, cut, written_later
from fusepass.rewrite.match.matcher import MatchState
from fusepass.rewrite.match.pattern import Pattern
from fusepass.rewrite.match.trace import GradModeError, TraceError
from fusepass.rewrite.rule import Accept, Match, Place, Reject, Rule
from fusepass.torch_private.fx.graphs import is_backward_graph
from fusepass.torch_private.fx.size_nodes import unheld_symbols


class CheckFailed(Exception):
    """A rule's own ``check`` raised, or returned something that is no answer."""


@dataclass(frozen=True)
class GraphSearch:
    """One graph and what is needed to look at every match in it."""

    terms: TermGraph
    surroundings: Surroundings
    options: Options
    fake_mode: Any
    training: bool
    place: Place
    faulty: set[str]  # names of rules that raised: warned of once, then left alone


def is_training(terms: TermGraph, place: Place) -> bool:
    """Whether a backward of a graph will follow, or, after autograd, whether it is one.

    A backward starts at what a graph hands out, or leaves in memory it was given.
    """
    graph = terms.graph
    if place == "after":
        return is_backward_graph(graph)
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    written = [w for node in graph.nodes for w in written_nodes(node) if not terms.is_fresh(w)]
    values = map(tensor_value, (*output.all_input_nodes, *written))
    return any(value is not None and value.requires_grad for value in values)


def filter_match(within: GraphSearch, pattern: Pattern, state: MatchState) -> MatchSite | Reject:
    """Where the rule of a match may act, or why it may not.

    Raises:
        CheckFailed: the rule's ``check`` did.
    """
    rule = pattern.rule
    terms = [state.parts[id(root)] for root in pattern.roots]
    outputs = [term.node for term in terms]
    if any(node is None for node in outputs):
        text = "an output of the rule is inside another operation here"
        return Reject(Reason.OTHER_OP, text, terms[0].owner)
    nodes: list[fx.Node] = [n for n in outputs if n is not None]
    binding = bind(pattern, state)
    if isinstance(binding, Reject):
        return binding
    bases = tuple(dict.fromkeys(operand.node for operand in binding.operands.values()))
    taken = cut(within.surroundings, _without_kept_views(state, nodes), nodes, bases)
    if isinstance(taken, Reject):
        return taken
    again = _repeats_itself(pattern, taken)
    return again or _checked_replacement(within, rule, pattern, binding, taken, nodes, bases)


def _without_kept_views(state: MatchState, outputs: list[fx.Node]) -> list[fx.Node]:
    """The calls of a match, less reshapes of its outputs that others read too: these stay."""
    own = {term.node for term in state.parts.values()}
    inside = set(state.nodes)
    kept: list[fx.Node] = list(outputs)
    for node in kept:
        for user in node.users:
            if user in inside and user not in own and any(u not in inside for u in user.users):
                inside.discard(user)
                kept.append(user)
    return [node for node in state.nodes if node in inside]


def _repeats_itself(pattern: Pattern, taken: Cut) -> Reject | None:
    """A rule that matches what it made itself would never come to an end."""
    made = [n for n in taken.nodes if pattern.rule.name in n.meta.get(REPLACED_BY_RULE, ())]
    if not made:
        return None
    text = "its own replacement matches its pattern again; it was applied once"
    return Reject(Reason.REPEAT, text, made[0])


def _checked_replacement(
    within: GraphSearch,
    rule: Rule,
    pattern: Pattern,
    binding: Binding,
    taken: Cut,
    outputs: list[fx.Node],
    bases: tuple[fx.Node, ...],
) -> MatchSite | Reject:
    if not within.options.rule_on(rule.name):
        return Reject(Reason.RULE_OFF, "switched off in options", outputs[0])
    values = [tensor_value(node) for node in outputs]
    differentiable = any(v is not None and v.requires_grad for v in values)
    grad = within.place == "before" and differentiable
    write = written_later(within.terms, bases, taken.nodes) if grad else None
    if write is not None:
        text = "an operand is written to later; a backward that saved it would not run"
        return Reject(Reason.ALIAS, text, write)
    _, seen = fake_operands(binding, bases, within.fake_mode, grad=grad)
    training = within.training and (grad or within.place == "after")
    match = Match(
        {**binding.scalars, **seen},
        taken.nodes,
        tuple(values),
        tuple(outputs),
        within.options,
        training,
        within.place,
    )
    verdict = _run_check(rule, match)
    if isinstance(verdict, Reject):
        return verdict
    autocasts = autocasts_at(outputs[0]) if within.place == "before" else []
    try:
        graph = record_replacement(
            pattern,
            binding,
            bases,
            outputs,
            within.fake_mode,
            grad=grad,
            autocasts=autocasts,
        )
    except TraceError as fault:
        code = Reason.NO_GRADIENT if isinstance(fault, GradModeError) else Reason.UNTRACEABLE
        return Reject(code, f"the replacement cannot be used: {fault}", outputs[0])
    except Exception as fault:  # noqa: BLE001 - the replacement cannot take these operands
        text = f"the replacement does not take these operands: {type(fault).__name__}: {fault}"
        return Reject(Reason.SHAPE_MISMATCH, text.split("\n")[0], outputs[0])
    if isinstance(graph, Reject):
        return graph
    write = written_later(within.terms, outputs, taken.nodes) if grad else None
    if write is not None and saves_a_result(graph):
        text = "a result is written to later, and the replacement's backward would read it"
        return Reject(Reason.ALIAS, text, write)
    unheld = unheld_symbols(sizes_in(graph), outputs[0].graph)
    if unheld:
        text = f"the replacement computes with {min(unheld)}, a size that the graph does not hold"
        return Reject(Reason.SHAPE_MISMATCH, text, outputs[0])
    return MatchSite(pattern, binding, taken, tuple(outputs), match, verdict, graph, bases)


def _run_check(rule: Rule, match: Match) -> Reject | Accept | None:
    if rule.check is None:
        return None
    try:
        with torch.set_grad_enabled(torch.is_grad_enabled()):  # as it was, whatever the check does
            verdict = rule.check(match)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if is_users_file(frame.filename)]  # not `match[...]`'s
        at = (own or frames)[-1]
        problem = f"check raised {type(error).__name__}: {error} ({at.filename}:{at.lineno})"
        raise CheckFailed(problem) from error
    if not isinstance(verdict, Reject | Accept | None):
        raise CheckFailed(
            f"check returned {verdict!r}, not None, a fusepass.Reject or a fusepass.Accept"
        )
    return verdict
