"""A convolution with what is done to its channels, a residual and a ReLU: found in an ATen graph.

Read backwards from the ReLU: a sum of a convolution, to whose result numbers were added and by
which it was multiplied, one per channel (a bias, a batch norm that does not take statistics), and
maybe of a tensor of the same shape, or of a second such convolution. So the whole is

    relu(s * conv(x, w) + t + z),    s and t one number per channel

and with the scale folded into the weights, ``conv(x, s * w) = s * conv(x, w)``, it is what cuDNN
computes in one kernel. Casts between half and single precision in between are looked through: what
is computed in one kernel is not rounded there. The whole has the dtype of its convolutions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, fx

from fusepass.fusion.aten_to_epilogue import FLOATS, VIEWS, calls_of, is_cast, widened
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.report.decision import Reason
from fusepass.rewrite.apply.snapshot import insert_call
from fusepass.rewrite.rule import Reject
from fusepass.torch_private.fx.graphs import known_equal, operator_name, size_hint
from fusepass.tune import ConvProblem

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_DIMS = 4
_CHANNEL_OPS = frozenset({"add", "sub", "mul", "div"})


class NoChain(Exception):
    """Why there is no chain that ends at a ReLU."""


@dataclass(frozen=True)
class ChannelOp:
    """What happens to each channel of a convolution's result.

    Attributes:
        op: ``add``, ``sub``, ``mul`` or ``div``.
        by: a node with one number per channel, or a number.
        reversed: whether it is the left operand: ``by - value``.
    """

    op: str
    by: fx.Node | float
    reversed: bool = False


@dataclass(frozen=True)
class ScaledConv:
    """A convolution and the changes of its result's channels, in order."""

    conv: fx.Node
    changes: tuple[ChannelOp, ...]

    @property
    def scales_weights(self) -> bool:
        """Whether the weights have to be scaled, and are not only given a bias."""
        return any(one.op in ("mul", "div") or one.reversed for one in self.changes)


@dataclass(frozen=True)
class ConvReluChain:
    """``relu(first + second + residual)``.

    Attributes:
        relu: the node that the chain ends at.
        first: the convolution into whose kernel the rest goes: the last of two.
        second: of a sum of two; None otherwise.
        residual: a tensor of the same shape; None where there is none, or ``second`` is one.
        nodes: all that the chain computes, and nothing else needs.
    """

    relu: fx.Node
    first: ScaledConv
    second: ScaledConv | None = None
    residual: fx.Node | None = None
    nodes: frozenset[fx.Node] = field(default=frozenset())


def is_conv(node: Any) -> bool:
    """Whether a node is a convolution over two dimensions of images, of a dtype we know."""
    if not isinstance(node, fx.Node) or op_name(node) != "convolution":
        return False
    value, args = tensor_value(node), list[Any](node.args)
    if len(args) != 9 or args[6] is not False:
        return False
    if any(len(one) != _DIMS - 2 for one in args[3:6]):  # one number for both sides
        return False
    return value is not None and value.dim() == _DIMS and value.dtype in DTYPES


_Problem = TypeVar("_Problem", bound=ConvProblem)


def conv_problem(kind: type[_Problem], conv: fx.Node, **more: Any) -> _Problem | Reject:
    """A convolution as the tuner sees it, with the ``more`` that its kind of problem holds."""
    args: Any = conv.args
    x, weight = args[0].meta["val"], args[1].meta["val"]
    shape = [size_hint(size) for size in x.shape]
    if None in shape:
        return Reject(Reason.COST, "its sizes depend on data: nothing can be timed", conv)
    return kind(
        dtype=x.dtype,
        m=0,
        n=weight.shape[0],
        k=math.prod(weight.shape[1:]),
        x_strides=(0, 0),
        weight_strides=(0, 0),
        device=x.device,
        images=tuple(shape),  # type: ignore[arg-type]
        kernel=tuple(map(int, weight.shape)),  # type: ignore[arg-type]
        sizes=tuple(map(tuple, args[3:6])),
        groups=args[8],
        **more,
    )


def is_relu(node: fx.Node) -> bool:
    """Whether a chain could end at a node."""
    value = tensor_value(node)
    return op_name(node) == "relu" and value is not None and value.dim() == _DIMS


def scaled_conv_at(conv: fx.Node) -> tuple[ScaledConv, fx.Node]:
    """A convolution with all changes of its channels that nothing else reads in between.

    Returns:
        Both, and the node that holds the result.
    """
    changes: list[ChannelOp] = []
    node = conv
    while len(node.users) == 1:
        (user,) = node.users
        change = _channel_op(user)
        if change is not None and change[0] is node:
            changes.append(change[1])
        elif not (is_cast(user) and tensor_value(user).dtype in DTYPES):  # type: ignore[union-attr]
            break
        node = user
    return ScaledConv(conv, tuple(changes)), node


def conv_relu_chain_at(relu: fx.Node) -> ConvReluChain:
    """The chain that ends at a ReLU.

    Raises:
        NoChain: there is none, and why.
    """
    nodes: set[fx.Node] = {relu}
    source = _through_casts(relu.args[0], nodes)
    terms = [source]
    is_sum = isinstance(source, fx.Node) and op_name(source) == "add"
    if is_sum and _channel_op(source) is None:
        left, right = source.args[:2]
        if _is_full(left, relu) and _is_full(right, relu) and not source.kwargs:
            _only_used_once(source)
            nodes.add(source)
            terms = [left, right]
    found: list[tuple[ScaledConv, set[fx.Node]]] = []
    rest: list[Any] = []
    why = NoChain("no convolution in front of it")
    for term in terms:
        taken: set[fx.Node] = set()
        try:
            found.append((_scaled_conv_before(term, taken), taken))
        except NoChain as obstacle:
            why = obstacle
            rest.append(term)
    if not found:
        raise why
    order = {node: place for place, node in enumerate(relu.graph.nodes)}
    found.sort(key=lambda one: order[one[0].conv], reverse=True)
    nodes.update(*(taken for _, taken in found))
    if any(tensor_value(one.conv).dtype != tensor_value(relu).dtype for one, _ in found):  # type: ignore[union-attr]
        raise NoChain("its convolution has another dtype")
    (first, _), *others = found
    if rest and tensor_value(rest[0]).dtype != tensor_value(relu).dtype:  # type: ignore[union-attr]
        bare = _through_casts(rest[0], set())
        if tensor_value(bare).dtype != tensor_value(relu).dtype:  # type: ignore[union-attr]
            raise NoChain("what is added has another dtype")
        rest = [bare]
    second = others[0][0] if others else None
    return ConvReluChain(relu, first, second, rest[0] if rest else None, frozenset(nodes))


def _scaled_conv_before(value: Any, nodes: set[fx.Node]) -> ScaledConv:
    """A convolution with changes of its channels, read backwards from their result."""
    changes: list[ChannelOp] = []
    while True:
        value = _through_casts(value, nodes)
        if not isinstance(value, fx.Node):
            raise NoChain("no convolution in front of it")
        _only_used_once(value)
        nodes.add(value)
        if is_conv(value):
            return ScaledConv(value, tuple(reversed(changes)))
        change = _channel_op(value)
        if change is None:
            raise NoChain(f"{op_name(value)} in front of it is no change of channels")
        value, made = change
        changes.append(made)


def _channel_op(node: fx.Node) -> tuple[Any, ChannelOp] | None:
    name, value = op_name(node), tensor_value(node)
    if name not in _CHANNEL_OPS or value is None or node.kwargs or len(node.args) != 2:
        return None
    left, right = node.args
    if _is_full(left, node) and _changes_channels(right, value):
        if name == "div" and not isinstance(right, fx.Node) and right == 0:
            return None
        return left, ChannelOp(str(name), right)  # type: ignore[arg-type]
    if _is_full(right, node) and _changes_channels(left, value) and name != "div":
        turned = name == "sub"
        return right, ChannelOp(str(name), left, turned)  # type: ignore[arg-type]
    return None


def _is_full(value: Any, like: fx.Node) -> bool:
    given, wanted = tensor_value(value), tensor_value(like)
    return given is not None and wanted is not None and given.shape == wanted.shape


def _changes_channels(value: Any, like: Tensor) -> bool:
    """Whether a value is a number, or a tensor with one for each channel of ``like``."""
    if isinstance(value, (int, float)):
        return not isinstance(value, bool)
    tensor = tensor_value(value)
    if tensor is None or tensor.dtype not in DTYPES:
        return False
    shape: Sequence[Any] = [1] * (_DIMS - tensor.dim()) + list(tensor.shape)
    return list(shape) == [1, like.shape[1], 1, 1]


def _through_casts(value: Any, nodes: set[fx.Node]) -> Any:
    """What is cast from one floating dtype to another; to whole numbers or truth is no cast."""
    while is_cast(value) and len(value.users) == 1:
        inner, outer = tensor_value(value.args[0]), tensor_value(value)
        if inner is None or outer is None or not {inner.dtype, outer.dtype} <= {*DTYPES}:
            break
        nodes.add(value)
        value = value.args[0]
    return value


def _only_used_once(node: fx.Node) -> None:
    if len(node.users) != 1:
        raise NoChain(f"the result of {op_name(node)} is read elsewhere, too")


# --- Write calls into an ATen graph that compute a vector per channel -----------------------------

_aten = torch.ops.aten
ADD, SUB, MUL, DIV = (getattr(_aten, name).Tensor for name in ("add", "sub", "mul", "div"))
_CALLS = {"add": ADD, "sub": SUB, "mul": MUL, "div": DIV}
_FLOATS = {*FLOATS, torch.float64}
CONVERT = torch.ops.prims.convert_element_type.default
RESHAPE, PERMUTE = _aten.reshape.default, _aten.permute.default
_RESHAPES = {f"aten.{name}.default" for name in (*VIEWS, "unsqueeze", "squeeze")}


@dataclass
class ChannelWriter:
    """Writes calls where the graph inserts at the moment.

    Attributes:
        graph: written to.
        behind: the dimensions of vectors behind the channels.
        seen: what was written.
    """

    graph: fx.Graph
    behind: tuple[int, ...] = ()
    seen: dict[Any, fx.Node] = field(default_factory=dict)

    def call(self, target: Any, *args: Any) -> fx.Node:
        """A call, with the fake result that it has; what was written before where it is equal."""
        key = (target, str(args))
        if key not in self.seen:
            self.seen[key] = self.fresh_call(target, *args)
        return self.seen[key]

    def fresh_call(self, target: Any, *args: Any, **given: Any) -> fx.Node:
        """A call of its own: two equal results of a program are two tensors."""
        return insert_call(self.graph, None, target, *args, **given)

    def to_float32(self, node: fx.Node) -> fx.Node:
        """A tensor in single precision, or in double if it is; truth values as they are."""
        kept = node.meta["val"].dtype in (torch.float32, torch.float64, torch.bool)
        return node if kept else self.call(CONVERT, node, torch.float32)

    def to_dtype(self, node: fx.Node, dtype: torch.dtype) -> fx.Node:
        """A tensor in a dtype; what was only widened from that is taken as it was."""
        if node.meta["val"].dtype is dtype:
            return node
        source = widened(node)
        if source is not None and source.meta["val"].dtype is dtype:
            return source
        return self.call(CONVERT, node, dtype)

    def channel_vector(self, value: Any, channels: int) -> Any:
        """A number, or what has one per channel, in single precision.

        Written anew from where it is no longer computed element by element, so that all that is
        done to channels can be done where they are used.
        """
        if not isinstance(value, fx.Node):
            return value
        if _has_numel(value, 1):
            return self.to_float32(self.call(RESHAPE, value, [1, *(1 for _ in self.behind)]))
        inner = value.args[0] if value.args else None
        if operator_name(value.target) and isinstance(inner, fx.Node):
            same = _has_numel(inner, channels)
            if same and (_is_rounding(value) or str(value.target) in _RESHAPES):
                return self.channel_vector(inner, channels)
            given = [one for one in value.args if isinstance(one, fx.Node)]
            whole = calls_of(value) is not None and _has_numel(value, channels)
            if whole and not value.kwargs and all(_is_vector(one, channels) for one in given):
                return self.call(
                    value.target, *(self.channel_vector(one, channels) for one in value.args)
                )
        return self.to_float32(self.call(RESHAPE, value, [channels, *self.behind]))

    def scale_and_shift(self, one: ScaledConv) -> tuple[Any, Any]:
        """What the changes of a convolution's channels come to, its bias included.

        Returns:
            Scale and shift: vectors, or the numbers 1.0 and 0.0 where nothing is done.
        """
        args: Any = one.conv.args
        channels = args[1].meta["val"].shape[0]
        scale: Any = 1.0
        shift: Any = 0.0 if args[2] is None else self.channel_vector(args[2], channels)
        for change in one.changes:
            by = self.channel_vector(change.by, channels)
            if change.op in ("mul", "div"):
                scale = self._fold_or_call(change.op, scale, by)
                # What is nothing stays so, even times what is not finite: eager has no such term.
                if isinstance(shift, fx.Node) or shift != 0.0:
                    shift = self._fold_or_call(change.op, shift, by)
            elif change.reversed:
                scale = self._fold_or_call("mul", scale, -1.0)
                shift = self._fold_or_call("sub", by, shift)
            else:
                shift = self._fold_or_call(change.op, shift, by)
        return scale, shift

    def _fold_or_call(self, op: str, left: Any, right: Any) -> Any:
        """A call, or what it comes to where a number is 0 or 1 or both are numbers."""
        if isinstance(left, fx.Node):
            return self.call(_CALLS[op], left, right)
        if not isinstance(right, fx.Node):
            return _compute_in_float32(_CALLS[op], left, right)
        if op == "div":
            op, right = "mul", self.call(_aten.reciprocal.default, right)
        if op == "sub":
            op, right = "add", self.call(MUL, right, -1.0)
        nothing = left == (1.0 if op == "mul" else 0.0)
        return right if nothing else self.call(_CALLS[op], right, left)


def _compute_in_float32(call: Any, left: float, right: float) -> float:
    """What comes of two numbers in single precision, as of tensors: NaN or infinity, too."""
    return float(call(*(torch.tensor(one, dtype=torch.float32) for one in (left, right))))


def _is_rounding(node: fx.Node) -> bool:
    """Whether a node casts from one floating dtype to another, which single precision holds."""
    return is_cast(node) and {node.meta["val"].dtype, node.args[0].meta["val"].dtype} <= _FLOATS  # type: ignore[union-attr]


def _has_numel(node: fx.Node, count: int) -> bool:
    return known_equal(node.meta["val"].numel(), count)


def _is_vector(node: fx.Node, channels: int) -> bool:
    """Whether a node can be an operand of what is written anew: one number per channel, or one."""
    value = node.meta.get("val")
    if not isinstance(value, Tensor) or value.dtype not in (*FLOATS, torch.float64, torch.bool):
        return False
    return _has_numel(node, channels) or _has_numel(node, 1)
