"""Decide whether two traced arms may become one graph, and by which treatment.

The order of the checks is the order of the reasons in docs/reasons.md: what the arms do, then what
they leave, then what it costs. Facts come from fake tensors, so nothing here depends on values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import fx

from fusepass.capture.branch.cond_legality import check_cond
from fusepass.capture.branch.snapshot import OpenBranch
from fusepass.capture.branch.tensor_pairs import all_equal, difference, display_sizes
from fusepass.capture.frame_state import Place
from fusepass.capture.nodes.select_node import ARM
from fusepass.capture.refusal import Refusal
from fusepass.graph.cost import roofline
from fusepass.graph.dataflow.effects import (
    copies_between_devices,
    is_random,
    is_state_change,
    written_nodes,
)
from fusepass.graph.dataflow.memory import memory_of
from fusepass.graph.dataflow.reached import reached
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.graph.safety import saved_for_backward
from fusepass.graph.safety.gradient_gates import changes_output_strides, zero_safe
from fusepass.graph.safety.tensor_kinds import begins_transform
from fusepass.graph.safety.totality import KNOWN_TOTAL, partial_reason
from fusepass.options import Options
from fusepass.report.decision import Decision, Outcome, Reason
from fusepass.torch_private.dynamo.calls import subgraph_of
from fusepass.torch_private.fx.graphs import tree_flatten
from fusepass.torch_private.inductor.checkpoints import is_checkpointed

Nodes = dict[bool, list[fx.Node]]
Pairs = list[tuple[fx.Node, fx.Node]]

_MOST_MODELED = 128  # nodes of both arms whose time is estimated together

# What these leave is no value that could be selected: a hook, a cut in autograd's graph.
_MARKS_A_TENSOR = frozenset(
    """backward detach_ register_hook register_post_accumulate_grad_hook requires_grad_ retain_grad
    share_memory_""".split()
)


@dataclass(frozen=True)
class BranchVerdict:
    """A legal branch: its treatment, why, and the fake values of its outputs.

    Attributes:
        hides: positions of outputs that require grad in one arm only, where autograd is off.
    """

    treatment: str
    reason: Reason
    text: str
    gated: bool
    fakes: tuple[torch.Tensor, ...]
    estimates: dict[str, float]
    hides: tuple[int, ...] = ()

    def decision(self, place: Place) -> Decision:
        """The line of the report for this branch."""
        made = place.decided(Outcome.APPLIED, self.reason, self.text, self.treatment)
        return dataclasses.replace(made, candidates=self.estimates)


def mark_total_functions(translator: Any, nodes: list[fx.Node]) -> None:
    """Mark the calls of a custom ``autograd.Function`` that are total, forward and backward.

    In training Dynamo records such a call as one of a higher-order operator with two graphs. The
    arm that is not taken runs both, the backward with a zero gradient. The gates of its operands
    keep back what comes out of that, as for any operation.
    """
    for node in nodes:
        if op_name(node) == "autograd_function_apply":
            bodies: Any = [subgraph_of(translator, arg) for arg in node.args[:2]]
            total = all(body is not None and _is_total(body.graph) for body in bodies)
            # Where an operand gets None eager leaves it out, and a selection would send a zero.
            gradients = tree_flatten(bodies[1].graph.output_node().args)[0] if total else ()
            if total and all(isinstance(part, fx.Node) for part in gradients):
                node.meta[KNOWN_TOTAL] = True


def _is_total(graph: fx.Graph) -> bool:
    return not any(
        node.op in ("call_module", "get_attr")
        or is_random(node)
        or (is_state_change(node) and op_name(node) != "_set_grad_enabled")
        or written_nodes(node)
        or partial_reason(node) is not None
        for node in graph.nodes
    )


def check_arms(arms: Nodes, judged: dict[fx.Node, Refusal | None]) -> Refusal | None:
    """Check what the arms do: writes, then operations that can fail, then random draws.

    ``judged`` are nodes of branches inside the arms, which have been checked, each with why it must
    not run untaken; it gains the others. So each node is looked at once, however deep it stands.

    Returns:
        Why the arm that is not taken must not run, or None when both may.

    Raises:
        Refusal: an arm writes older memory (in a way that shadows could not take over).
    """
    new = {arm: [node for node in nodes if node not in judged] for arm, nodes in arms.items()}
    for node in chain(*new.values()):
        name = op_name(node) or ""
        if begins_transform(name):
            text = "a transform of functions (torch.func) in an arm changes what its calls do"
            raise Refusal(Reason.UNTRACEABLE, text)
        if name in _MARKS_A_TENSOR:
            text = f"{op_name(node)} in an arm changes a tensor beyond its contents"
            raise Refusal(Reason.SIDE_EFFECT, text)
    for arm, nodes in arms.items():
        writing = [node for node in new[arm] if written_nodes(node)]
        made_here = {memory_of(n) for n in nodes} - {None} if writing else set()
        for node in writing:
            for written in written_nodes(node):
                if memory_of(written) not in made_here or _shares_older(written, set(nodes)):
                    raise Refusal(
                        Reason.SIDE_EFFECT,
                        f"{op_name(node)} writes memory that existed before the arm",
                    )
    judged |= {node: _why_not_untaken(node) for node in chain(*new.values())}
    found = [why for why in map(judged.__getitem__, chain(*arms.values())) if why is not None]
    return next((why for why in found if why.code is Reason.PARTIAL_OP), next(iter(found), None))


def _why_not_untaken(node: fx.Node) -> Refusal | None:
    if is_random(node):
        return Refusal(Reason.RANDOM_OP, f"{op_name(node)} draws random numbers in an arm")
    why = partial_reason(node)
    return None if why is None else Refusal(Reason.PARTIAL_OP, why)


def check_outputs(
    branch: OpenBranch,
    predicate: fx.Node,
    pairs: Pairs,
    arms: Nodes,
    untaken: Refusal | None,
    *,
    read: int,
    one_sided: Collection[int] = (),
) -> BranchVerdict:
    """Check what the arms leave, and choose the treatment that pays.

    ``untaken`` says why the arm that is not taken must not run. The program reads the first
    ``read`` pairs; the others are written back into older memory. It looks at ``one_sided``
    pairs only if the arm was taken that made the tensor.
    """
    translator, options, tested = branch.translator, branch.frame.options, tensor_value(predicate)
    if untaken is not None and not pairs:
        raise untaken
    fakes: list[torch.Tensor] = []
    hides = []
    for taken, other in pairs:
        a, b = tensor_value(taken), tensor_value(other)
        if a is None or b is None or tested is None:
            raise Refusal(Reason.UNTRACEABLE, "a value at the join has no known shape")
        _check_pair(a, b, tested)
        fakes.append(_fake_select(translator, tested, a, b))
        position = len(fakes) - 1
        if position in one_sided:
            continue
        if _hides_grad(options, a, b, fakes[-1], read=position < read) and position < read:
            hides.append(position)
    if tested is None:
        raise Refusal(Reason.PREDICATE, "the tensor tested has no known shape")
    trained = any(fake.requires_grad for fake in fakes)
    treatment, reason, text, estimates = _choose(branch, arms, pairs, tested, untaken, trained)
    if treatment == "cond":
        why, writes = Refusal(reason, text), len(pairs) > read
        inside = is_checkpointed(translator)
        check_cond(options, tested, why, arms, fakes, writes=writes, checkpointed=inside)
    gated = treatment == "where" and trained and not all(map(zero_safe, chain(*arms.values())))
    if gated and changes_output_strides(arms, [*chain(*pairs)], translator.fake_mode):
        raise Refusal(
            Reason.STRIDE_MISMATCH,
            "gating the operands of an arm for training would change its strides",
        )
    return BranchVerdict(treatment, reason, text, gated, tuple(fakes), estimates, tuple(hides))


def _check_pair(a: torch.Tensor, b: torch.Tensor, tested: torch.Tensor) -> None:
    differs = difference(a, b)
    if differs is not None:
        raise differs
    if tested.device != a.device:
        raise Refusal(
            Reason.DEVICE_MISMATCH, f"the predicate is on {tested.device}, the arms on {a.device}"
        )
    if a.is_conj() or a.is_neg():
        raise Refusal(Reason.STRIDE_MISMATCH, "an arm leaves a lazily conjugated or negated view")


def _fake_select(
    translator: Any, tested: torch.Tensor, a: torch.Tensor, b: torch.Tensor
) -> torch.Tensor:
    with translator.fake_mode:
        result = torch.where(tested, a, b)
    if not all_equal(result.stride(), a.stride()):
        raise Refusal(
            Reason.STRIDE_MISMATCH,
            f"a selected tensor would have strides {display_sizes(result.stride())}, "
            f"the arms leave {display_sizes(a.stride())}",
        )
    return result


def _hides_grad(
    options: Options, a: torch.Tensor, b: torch.Tensor, result: torch.Tensor, *, read: bool
) -> bool:
    """``requires_grad`` is visible: both arms must agree, and selecting must not change it.

    Without autograd nothing computed requires grad, and a parameter handed on does. With it the
    arms may differ. Whether either is visible is known when the graph is complete. What is written
    back stays what it is.
    """
    agreed = a.requires_grad == b.requires_grad or options.allow_zero_grad
    if agreed and result.requires_grad == (a.requires_grad or b.requires_grad):
        return False
    if not torch.is_grad_enabled() or (read and result.requires_grad):
        return True
    text = "a result requires grad in an arm, and not where it is selected, or the other way round"
    if not agreed:
        text = (
            "a result requires grad in one arm only: selected, it would always "
            "(allow_zero_grad permits it)"
        )
    raise Refusal(Reason.NONE_GRAD, text)


def _choose(
    branch: OpenBranch,
    arms: Nodes,
    pairs: Pairs,
    tested: torch.Tensor,
    untaken: Refusal | None,
    trained: bool,
) -> tuple[str, Reason, str, dict[str, float]]:
    options = branch.frame.options
    if untaken is not None:
        if options.treatment == "where":
            raise untaken
        text = f"only the arm taken may run: {untaken.text}"
        return "cond", untaken.code, text, {}
    if options.treatment == "where":
        return "where", Reason.FORCED, "options ask for where", {}
    if options.treatment == "cond":
        return "cond", Reason.FORCED, "options ask for cond", {}
    own, inside = _modeled(branch, arms, tested.device)
    for node in chain(*own.values()):
        if copies_between_devices(node):
            raise Refusal(Reason.COST, f"{op_name(node)} in an arm copies between devices")
    estimates = roofline.estimates(own, pairs, tested.device, training=trained, inside=inside)
    excess = saved_for_backward.memory_excess(arms, options) if trained else None
    if excess is None and estimates["where"] <= estimates["cond"]:
        return (
            "where",
            Reason.PURE_TOTAL,
            "both arms are pure and total and cost less than a host round trip",
            estimates,
        )
    text = excess or (
        f"running both arms would cost about {estimates['where']:.0f} µs, "
        f"waiting for the host and running one {estimates['cond']:.0f} µs"
    )
    return "cond", Reason.COST, text, estimates


def _modeled(
    branch: OpenBranch, arms: Nodes, device: torch.device
) -> tuple[Nodes, dict[bool, float]]:
    """The nodes whose time is estimated, and what branches inside the arms take beside them.

    The nodes of small arms are estimated together: those of several branches may be one kernel.
    Where many branches stand inside one another, each counts as what was estimated for it, less the
    launch that it shares. Its nodes would be looked at for every branch around it otherwise.
    """
    if sum(map(len, arms.values())) <= _MOST_MODELED:
        return arms, {}
    inner: dict[bool, list[float | None]] = {True: [], False: []}
    for site in branch.frame.sites:
        around, sink = site.branch.outer, site.branch.treatment == "sink"
        if around is not None and around[0] == branch.site:
            inner[around[1]].append(0.0 if sink else site.decision.candidates.get("where"))
    if None in chain(*inner.values()):
        return arms, {}
    own = {
        arm: [node for node in nodes if node.meta.get(ARM) == (branch.site, arm)]
        for arm, nodes in arms.items()
    }
    launch = roofline.launch(device)
    return own, {
        arm: sum(max(cost - launch, 0.0) for cost in costs if cost is not None)
        for arm, costs in inner.items()
    }


def _shares_older(node: fx.Node, inside: set[fx.Node]) -> bool:
    """Whether a node's memory also belongs to something recorded before the arm."""
    key = memory_of(node)
    made_of = reached([node], lambda one: one.all_input_nodes if one in inside else ())
    return any(one not in inside and memory_of(one) == key for one in made_of)
