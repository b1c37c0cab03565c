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

from fusepass.capture.nodes.select_node import BRANCH, Branch
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
    """Turn down what a ``torch.cond`` cannot hold.

    Args:
        options: the options in force.
        tested: fake value of the predicate.
        why: why both arms cannot run.
        arms: nodes of each arm.
        fakes: fake values of the results.
        writes: whether an arm writes memory older than it.
        checkpointed: whether the branch is in a function that activation checkpointing runs.

    Raises:
        Refusal: with the reason.
    """
    if checkpointed:  # torch decides there, call by call, what is computed again
        text = "torch.cond cannot stand in a function that torch.utils.checkpoint runs"
        raise Refusal(Reason.UNTRACEABLE, f"{why.text}; {text}")
    for node in chain(*arms.values()):
        name = _foreign_call(node)
        if name is not None:
            text = f"torch.cond cannot hold {operation(name)}"
            raise Refusal(Reason.UNTRACEABLE, f"{why.text}; {text}")
    _check_operands(arms)
    if options.codegen == "inductor":
        _check_numbers(arms)
        _check_effects(why, arms)
    trained = any(fake.requires_grad for fake in fakes)
    if options.codegen != "eager":
        _check_depth(why, arms, trained)
    if trained:
        _check_training(arms, fakes, writes)
    if cuda_graphs(options, tested) and options.treatment != "cond":
        text = "torch.cond would cost the whole graph its CUDA graphs"
        raise Refusal(Reason.COST, f"{why.text}; {text}")


def _check_depth(why: Refusal, arms: dict[bool, list[fx.Node]], trained: bool) -> None:
    """Each torch.cond around another one has torch trace that one again, in training twice."""
    sites = (node.meta[BRANCH] for node in chain(*arms.values()) if BRANCH in node.meta)
    branches: dict[int, Branch] = {branch.site: branch for branch in sites}
    deepest = 0
    for inner in branches.values():
        depth, branch = 1, inner if inner.treatment == "cond" else None
        while branch is not None:
            depth += branch.treatment == "cond"
            branch = branches.get(branch.outer[0]) if branch.outer is not None else None
        deepest = max(deepest, depth)
    if deepest > _MOST_NESTED[trained]:
        text = f"with it {deepest} branches of which only one arm may run stand in one another"
        raise Refusal(Reason.COST, f"{why.text}; {text}, and torch would compile for minutes")


def _check_operands(arms: dict[bool, list[fx.Node]]) -> None:
    """A ``torch.cond`` is given tensors and integers; it has no kernel for lazy tensors."""
    for nodes in arms.values():
        inside = set(nodes)
        for operand in chain(*(node.all_input_nodes for node in nodes)):
            if operand in inside:
                continue
            value = operand.meta.get("example_value")
            if isinstance(value, torch.Tensor) and (value.is_conj() or value.is_neg()):
                text = "an arm uses a lazily conjugated or negated view"
                raise Refusal(Reason.UNTRACEABLE, f"{text}, which torch.cond has no kernel for")
            if isinstance(value, (torch.SymFloat, torch.SymBool)):
                kind = "a float" if isinstance(value, torch.SymFloat) else "a truth value"
                text = f"an arm uses {kind} that varies, which torch.cond takes none of"
                raise Refusal(Reason.PYTHON_VALUE, text)


def _check_numbers(arms: dict[bool, list[fx.Node]]) -> None:
    """A float argument is an input that is read where the program first uses it."""
    for node in chain(*arms.values()):
        value = node.meta.get("example_value")
        if op_name(node) == "item" and isinstance(value, torch.SymFloat):
            text = "an arm uses a float that varies, which Inductor cannot read there"
            raise Refusal(Reason.PYTHON_VALUE, text)


def _check_effects(why: Refusal, arms: dict[bool, list[fx.Node]]) -> None:
    """Inductor has no place for operations with effects in the arms of a ``torch.cond``."""
    for node in chain(*arms.values()):
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


def _check_training(
    arms: dict[bool, list[fx.Node]], fakes: list[torch.Tensor], writes: bool
) -> None:
    for node in chain(*arms.values()):
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


def cuda_graphs(options: Options, tested: torch.Tensor) -> bool:
    """Whether the graph will be replayed as a CUDA graph, which cannot hold a cond."""
    return (
        tested.device.type == "cuda"
        and options.codegen == "inductor"
        and options.mode in ("reduce-overhead", "max-autotune")
    )


def _foreign_call(node: fx.Node) -> str | None:
    """The name of a call that is no operation on tensors, or that writes a list of them."""
    if node.op not in ("call_function", "call_method") or is_state_change(node):
        return None
    if getattr(node.target, "fusepass_pure", False) or tensor_value(node) is None:
        return _writes_tensor_list(node)
    return None if _is_operation(node) else _display_call(node)


def _writes_tensor_list(node: fx.Node) -> str | None:
    name = op_name(node) or ""
    if name.startswith("_foreach") and written_nodes(node):
        return name
    results = node.meta.get("example_value")
    known = getattr(node.target, "fusepass_pure", False) or _is_operation(node)
    number = isinstance(results, (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool))
    return None if known or number else _display_call(node)


def _is_operation(node: fx.Node) -> bool:
    name = op_name(node)
    if name is None:  # a custom operator
        return operator_name(node.target) is not None
    base = name.rstrip("_")
    if {name, base} & (TOTAL | EXCLUDED.keys()) or name.strip("_") in ("getitem", "setitem"):
        return True
    functional = getattr(node.target, "__module__", None) in _MODULES
    return hasattr(torch.ops.aten, base) or (functional and not name.startswith("_"))


def _display_call(node: fx.Node) -> Any:
    return op_name(node) or getattr(node.target, "__name__", node.target)
