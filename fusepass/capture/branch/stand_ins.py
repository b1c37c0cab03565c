"""Record further nodes in an arm: a tensor that stands beside one that only the other arm made.

A select chooses between two tensors of one shape, layout, dtype and device. The stand-in is zero:
code looks at the result only if the other arm was taken.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from fusepass.capture.branch.known_outcomes import TRUTH, outcomes, tested_now
from fusepass.capture.branch.phi_truth import logical_choice
from fusepass.capture.branch.snapshot import OpenBranch, last_node, recorded_since
from fusepass.capture.nodes.select_node import ARM
from fusepass.capture.refusal import Refusal
from fusepass.capture.scalars.number_tensors import NumberTensors
from fusepass.capture.scalars.scalar import Range
from fusepass.graph.ops.op_names import tensor_value
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo import stack
from fusepass.torch_private.fx.graphs import size_hint
from fusepass.torch_private.fx.size_nodes import size_as_node, symbol_nodes


@dataclass(frozen=True)
class ArmRecorder:
    """Records nodes in the arms of a branch, which have been traced; ``nodes`` are theirs."""

    branch: OpenBranch
    nodes: dict[bool, list[fx.Node]]

    def known(self, arm: bool) -> dict[fx.Node, bool]:
        """What is known of predicates in an arm."""
        tested = self.branch.predicate.as_proxy().node
        return outcomes(self.branch.frame, [(tested, arm)])

    @contextlib.contextmanager
    def inside(self, arm: bool) -> Iterator[None]:
        """What is recorded inside stands in an arm."""
        last = last_node(self.branch.graph)
        yield
        for node in recorded_since(self.branch.graph, last):
            node.meta[ARM] = (self.branch.site, arm)
            self.nodes[arm].append(node)

    def stand_in(self, like: fx.Node, arm: bool) -> fx.Proxy:
        """A zero tensor like that of a node of the other arm.

        Raises:
            Refusal: there is none.
        """
        value = tensor_value(like)
        if value is None or value.layout is not torch.strided:
            raise Refusal(Reason.UNTRACEABLE, "a value at the join has no known shape")
        with self.inside(arm):
            made = _zeros(self.branch, value)
        if value.dtype is torch.bool and value.dim() == 0:
            made.node.meta[TRUTH] = False
        return made

    def number(self, value: Any, arm: bool, device: torch.device) -> tuple[Any, Range] | None:
        """A number that an arm leaves, as a tracked tensor, and its range; None if it has none.

        Raises:
            Refusal: no tensor holds it exactly.
        """
        with self.inside(arm):
            return NumberTensors(device).tensor_of(self.branch.translator, value, None)  # type: ignore[no-any-return]

    def leave(self, nodes: Iterable[fx.Node]) -> None:
        """Have nodes stand where the branch stands, because they depend on no arm."""
        nodes = list(nodes)
        for node in nodes:
            node.meta.pop(ARM, None)
            if self.branch.outer is not None:
                node.meta[ARM] = self.branch.outer
        for arm in self.nodes.values():
            arm[:] = [node for node in arm if node not in nodes]

    def truth(self, value: Any, arm: bool) -> Any:
        """A truth value that an arm leaves, as a tracked tensor."""
        translator = self.branch.translator
        constant, python = stack.constant_of(value)
        with self.inside(arm):
            if not constant:
                tested = tested_now(self.branch.frame, value)
                sides = (stack.constant_of(side)[1] for side in (value.taken, value.other))
                return logical_choice(translator, tested, *sides)
            like = tensor_value(self.branch.predicate.as_proxy().node)
            kwargs = {"dtype": torch.bool, "device": None if like is None else like.device}
            made = stack.wrap_call(translator, "call_function", torch.full, ((), python), kwargs)
        made.as_proxy().node.meta[TRUTH] = python
        return made


def _zeros(branch: OpenBranch, value: torch.Tensor) -> fx.Proxy:
    """Zeros of a shape, laid out as dense memory in the order of the strides."""
    translator = branch.translator
    known = symbol_nodes(branch.graph)
    shape: tuple[Any, ...] = value.shape
    try:
        sizes = [n if isinstance(n, int) else size_as_node(n, known, branch.graph) for n in shape]
    except KeyError:
        text = "a tensor that one arm leaves has a size that depends on data"
        raise Refusal(Reason.SHAPE_MISMATCH, text) from None
    order = sorted(range(value.dim()), key=lambda dim: -_as_known(value.stride(dim)))
    given = [
        stack.proxy_of(translator, n) if isinstance(n, fx.Node) else n
        for n in (sizes[dim] for dim in order)
    ]
    kwargs = {"dtype": value.dtype, "device": value.device}
    made = stack.wrap_call(translator, "call_function", torch.zeros, (given,), kwargs)
    if order == sorted(order):
        return made.as_proxy()  # type: ignore[no-any-return]
    back = [order.index(dim) for dim in range(value.dim())]
    args = (made.as_proxy(), back)
    return stack.wrap_call(translator, "call_method", "permute", args, {}).as_proxy()  # type: ignore[no-any-return]


def _as_known(stride: Any) -> int:
    """A stride, for the order of dimensions: a symbolic one as in this call."""
    known = size_hint(stride)
    return 0 if known is None else int(known)
