"""Refuse arms that a ``torch.cond`` cannot hold, and conds that would rule out CUDA graphs.

A cond runs one arm only, so that an arm may fail. What it asks of arms instead follows from how
torch builds one: an arm is traced as a graph of its own, every result comes out as a tensor, and in
training a joint graph computes the arm again and hands on a gradient for every operand.
"""

from __future__ import annotations

import functools
from itertools import chain
from typing import Any

import torch
from torch import fx

from fusepass.capture.nodes.select_node import arms_from, branches_of
from fusepass.capture.refusal import Refusal
from fusepass.graph.dataflow.effects import is_random, is_state_change, written_nodes
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.graph.safety.totality import EXCLUDED, TOTAL
from fusepass.options import Options
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.errors.wording import operation
from fusepass.torch_private.fx.effect_tokens import effect_of
from fusepass.torch_private.fx.graphs import call_target, operator_name

_SOLVERS = frozenset(
    """cholesky cholesky_inverse cholesky_solve det eig eigh inv inverse logdet lstsq lu lu_factor
    matrix_exp matrix_power pinverse qr slogdet solve solve_triangular svd""".split()
)
# With each one more torch compiles 1.4 times as long, in training twice: 7 and 5 seconds for these.
_MOST_NESTED = {False: 9, True: 4}
_NUMBERS = (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)
_MODULES = ("torch", "torch.nn.functional", "torch._C._nn", "torch.functional", "torch.special")


def check_cond(
    options: Options,
    tested: torch.Tensor,
    why: Refusal,
    arms: dict[bool, list[fx.Node]],
    fakes: list[torch.Tensor],
    *,
    writes: bool,
    checkpointed: bool,
) -> None:
    """Refuse what a ``torch.cond`` cannot hold.

    ``why`` says why both arms cannot run, ``writes`` whether one writes memory older than it, and
    ``checkpointed`` whether activation checkpointing runs the function of the branch.
    """
    if checkpointed:  # torch decides there, call by call, what is computed again
        text = "torch.cond cannot stand in a function that torch.utils.checkpoint runs"
        raise Refusal(Reason.UNTRACEABLE, f"{why.text}; {text}")
    nodes = [*chain(*arms.values())]
    for name in filter(None, map(foreign_call, nodes)):
        text = f"torch.cond cannot hold {operation(name)}"
        raise Refusal(Reason.UNTRACEABLE, f"{why.text}; {text}")
    _check_operands(nodes)
    if options.codegen == "inductor":
        check_held(why, nodes)
    trained = any(fake.requires_grad for fake in fakes)
    if options.codegen != "eager":
        _check_depth(why, nodes, trained)
    if trained:
        _check_training(nodes, fakes, writes)
    graphs = tested.device.type == "cuda" and options.codegen == "inductor"
    replayed = graphs and options.mode in ("reduce-overhead", "max-autotune")
    if replayed and options.treatment != "cond":
        text = "torch.cond would cost the whole graph its CUDA graphs"
        raise Refusal(Reason.COST, f"{why.text}; {text}")


def _check_depth(why: Refusal, nodes: list[fx.Node], trained: bool) -> None:
    """Each torch.cond around another one has torch trace that one again, in training twice."""
    branches = branches_of(nodes)
    conds = {site for site, branch in branches.items() if branch.treatment == "cond"}
    around = ([s for s, _ in arms_from(branches[inner].outer, branches)] for inner in conds)
    deepest = max((2 + len(conds.intersection(sites)) for sites in around), default=0)
    if deepest > _MOST_NESTED[trained]:
        text = f"with it {deepest} branches of which only one arm may run stand in one another"
        raise Refusal(Reason.COST, f"{why.text}; {text}, and torch would compile for minutes")


def _check_operands(nodes: list[fx.Node]) -> None:
    """A ``torch.cond`` is given tensors and integers; it has no kernel for lazy tensors."""
    inside = set(nodes)
    for operand in chain(*(node.all_input_nodes for node in nodes)):
        value = None if operand in inside else operand.meta.get("example_value")
        if isinstance(value, torch.Tensor) and (value.is_conj() or value.is_neg()):
            text = "an arm uses a lazily conjugated or negated view"
            raise Refusal(Reason.UNTRACEABLE, f"{text}, which torch.cond has no kernel for")
        if isinstance(value, (torch.SymFloat, torch.SymBool)):
            kind = "a float" if isinstance(value, torch.SymFloat) else "a truth value"
            text = f"an arm uses {kind} that varies, which torch.cond takes none of"
            raise Refusal(Reason.PYTHON_VALUE, text)


def check_held(why: Refusal, nodes: list[fx.Node]) -> None:
    """Inductor reads a float argument where it is first used, and has no place for effects."""
    for node in nodes:
        value = node.meta.get("example_value")
        if op_name(node) == "item" and isinstance(value, torch.SymFloat):
            text = "an arm uses a float that varies, which Inductor cannot read there"
            raise Refusal(Reason.PYTHON_VALUE, text)
    for node in nodes:
        if not (_is_solver(node) or operator_name(node.target)):
            continue
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: n.meta.get("example_value"))
        effect = effect_of(functools.partial(call_target, node.target, args, kwargs))
        if effect is not None:
            text = f"{_display_call(node)} in an arm runs {effect}, which has an effect"
            raise Refusal(Reason.UNTRACEABLE, f"{why.text}; {text} that Inductor cannot hold there")


def _is_solver(node: fx.Node) -> bool:
    """Whether a call may raise for the values of a matrix."""
    name = op_name(node) or ""
    return name in _SOLVERS or name.startswith("linalg_")


def _check_training(nodes: list[fx.Node], fakes: list[torch.Tensor], writes: bool) -> None:
    for node in nodes:
        if is_random(node):
            text = "draws random numbers in an arm, and the backward of torch.cond would draw anew"
            raise Refusal(Reason.RANDOM_OP, f"{op_name(node)} {text}")
        if op_name(node) is None and operator_name(node.target) is not None:
            text = "in an arm, a custom operator, may have no backward: eager asks only if it ran"
            raise Refusal(Reason.PARTIAL_OP, f"{_display_call(node)} {text}")
        if _is_solver(node):
            text = "has an effect that the backward of torch.cond cannot hold"
            raise Refusal(Reason.PARTIAL_OP, f"{op_name(node)} in an arm {text}")
    if writes:
        text = "an arm that may not always run writes what existed before it, in training"
        raise Refusal(Reason.SIDE_EFFECT, text)
    if not all(fake.is_floating_point() for fake in fakes):
        text = "the backward of torch.cond cannot hold a result beside it that has no gradient"
        raise Refusal(Reason.NONE_GRAD, text)


def foreign_call(node: fx.Node) -> str | None:
    """The name of a call that is no operation on tensors, or that writes a list of them."""
    if node.op not in ("call_function", "call_method") or is_state_change(node):
        return None
    name, pure = op_name(node) or "", getattr(node.target, "fusepass_pure", False)
    if pure or tensor_value(node) is None:
        if name.startswith("_foreach") and written_nodes(node):
            return name
        if pure or isinstance(node.meta.get("example_value"), _NUMBERS):
            return None
    return None if _is_operation(node) else _display_call(node)


def _is_operation(node: fx.Node) -> bool:
    name = op_name(node)
    if name is None:  # a custom operator
        return operator_name(node.target) is not None
    if name in ("__abs__", "__neg__"):  # as torch 2.11 records `abs(x)`
        name = name.strip("_")
    base = name.rstrip("_")
    if {name, base} & (TOTAL | EXCLUDED.keys()) or name.strip("_") in ("getitem", "setitem"):
        return True
    functional = getattr(node.target, "__module__", None) in _MODULES
    return hasattr(torch.ops.aten, base) or (functional and not name.startswith("_"))


def _display_call(node: fx.Node) -> Any:
    return op_name(node) or getattr(node.target, "__name__", node.target)
