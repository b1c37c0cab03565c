"""An NHWC convolution, written as a GEMM for a trial.

Images (B, C, H, W) that lie so are matrices (B * H * W, C), of which both are views. What follows
the convolution element by element is written in matrix form beside the images, so that what looks
for regions behind products finds one there. If nothing comes of it, the graph is left as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, fx

from fusepass.fusion import kernel_gate
from fusepass.fusion.aten_to_epilogue import NoRegion, calls_of
from fusepass.fusion.conv.conv_epilogue import (
    ADD,
    CONVERT,
    MUL,
    PERMUTE,
    RESHAPE,
    ChannelWriter,
    conv_problem,
    is_conv,
    scaled_conv_at,
)
from fusepass.fusion.extern_calls import feeds_generated_code
from fusepass.fusion.gemm.grow import grow_region
from fusepass.fusion.gemm.region import GemmRegion
from fusepass.graph.ops.op_names import tensor_value
from fusepass.report.decision import Reason
from fusepass.rewrite.apply.snapshot import inherit_meta
from fusepass.rewrite.rule import Accept, Reject, RuleSite, written_before
from fusepass.torch_private.fx.graphs import known_equal
from fusepass.tune import ConvRegionProblem
from fusepass.tune.problems.gemm import digest

TO_NHWC, TO_NCHW = [0, 2, 3, 1], [0, 3, 1, 2]


class OtherStrides(Exception):
    """Images made of the matrices would not lie in memory as the site's do."""


@dataclass
class MatrixForm:
    """A site in matrix form.

    Attributes:
        conv: the convolution.
        matrix: for each node that is computed as a matrix too, that matrix.
        back: for those that something else reads, images made of the matrix.
    """

    conv: fx.Node
    matrix: dict[fx.Node, fx.Node] = field(default_factory=dict)
    back: dict[fx.Node, fx.Node] = field(default_factory=dict)

    def undo(self, before: set[fx.Node]) -> None:
        """Leave the graph as it was."""
        for node, image in self.back.items():
            image.replace_all_uses_with(node)
        for node in reversed(list(self.conv.graph.nodes)):
            if node not in before:
                self.conv.graph.erase_node(node)


def is_nhwc(value: Tensor) -> bool:
    """Whether images lie channels last, without gaps, whatever the size of a batch that varies."""
    known, extent = known_equal, 1
    for dim in reversed(TO_NHWC):
        if not known(value.shape[dim], 1) and not known(value.stride(dim), extent):
            return False
        extent *= value.shape[dim]
    return True


def has_static_batch(value: Tensor) -> bool:
    """Whether a value is a batch of images whose size does not vary, and which are not empty."""
    sizes: Sequence[Any] = value.shape  # a batch that varies is no int, and never empty
    batch, *image = sizes
    filled = not isinstance(batch, int) or batch > 0
    return filled and all(isinstance(size, int) and size > 0 for size in image)


def nhwc_conv(node: fx.Node, dtypes: Container[Any]) -> tuple[Tensor, Tensor, Tensor] | None:
    """Images, weight and result of a convolution of known sizes whose images lie channels last."""
    if not is_conv(node):
        return None
    args: Any = node.args
    values = [tensor_value(one) for one in (*args[:2], node)]
    known = [one for one in values if one is not None and one.dtype in dtypes]
    if len(known) < len(values):
        return None
    x, weight, made = known
    sizes = *weight.shape, *args[3], *args[4], *args[5]
    images = all(has_static_batch(one) and is_nhwc(one) for one in (x, made))
    return (x, weight, made) if images and all(isinstance(one, int) for one in sizes) else None


def as_matrix(write: ChannelWriter, node: fx.Node) -> fx.Node:
    """Images as a matrix with a row for each pixel."""
    channels = node.meta["val"].shape[1]
    return write.call(RESHAPE, write.call(PERMUTE, node, TO_NHWC), [-1, channels])


def _same_shape(value: Tensor, other: Tensor) -> bool:
    pairs = zip(value.shape, other.shape, strict=False)
    return value.dim() == other.dim() and all(known_equal(*pair) for pair in pairs)


def write_matrix_form(
    trial: MatrixForm,
    multiply: Callable[[ChannelWriter, fx.Node], fx.Node],
    only: Container[fx.Node] | None = None,
) -> fx.Node:
    """Write a site in matrix form beside what it is, and let others read it.

    ``multiply`` writes the convolution, without its bias, as a matrix. If ``only`` is given,
    other nodes behind it stay as they are.

    Returns:
        What ``multiply`` wrote.

    Raises:
        OtherStrides: it cannot stand in the site's place. The graph is to be left as it was.
    """
    conv = trial.conv
    graph, write = conv.graph, ChannelWriter(conv.graph)
    scaled, last = scaled_conv_at(conv)
    with graph.inserting_before(last.next):
        product = multiply(write, conv)
        scale, shift = write.scale_and_shift(scaled)
        made = product
        if isinstance(scale, fx.Node) or scale != 1.0:
            made = write.call(MUL, write.to_float32(made), scale)
        if isinstance(shift, fx.Node) or shift != 0.0:
            made = write.call(ADD, write.to_float32(made), shift)
        if made.meta["val"].dtype is not last.meta["val"].dtype:
            made = write.call(CONVERT, made, last.meta["val"].dtype)
    for one in (product, made):
        inherit_meta(one, last)
    trial.matrix[last] = made
    _write_pointwise(trial, write, last, only)
    for node, matrix in trial.matrix.items():
        users = [one for one in node.users if one not in trial.matrix]
        if users:
            behind_both = (matrix if node is last else node).next
            with graph.inserting_before(behind_both):
                image = _image(write, matrix, node.meta["val"])
            if image.meta["val"].stride() != node.meta["val"].stride():
                raise OtherStrides
            trial.back[node] = image
            _replace_uses(node, image, users)
    return product


def _write_pointwise(
    trial: MatrixForm, write: ChannelWriter, last: fx.Node, only: Container[fx.Node] | None
) -> None:
    """Write in matrix form, too, what works element by element on the matrices there are."""
    images = trial.conv.meta["val"]
    node = last.next
    while node.op != "output":
        following = node.next
        value = tensor_value(node)
        reads = any(one in trial.matrix for one in node.all_input_nodes)
        wanted = reads and (only is None or node in only)
        if wanted and value is not None and _same_shape(value, images) and calls_of(node):
            with trial.conv.graph.inserting_before(node):
                given = [_in_matrix_form(trial, write, arg) for arg in node.args]
                if None not in given:
                    made = write.fresh_call(node.target, *given, **node.kwargs)
                    inherit_meta(made, node)
                    if made.meta["val"].dtype is value.dtype:
                        trial.matrix[node] = made
        node = following


def _in_matrix_form(trial: MatrixForm, write: ChannelWriter, arg: Any) -> Any:
    """An argument beside matrices; None if it has no such form."""
    images: Any = trial.conv.meta["val"]
    value = tensor_value(arg)
    if value is None:
        return arg
    if arg in trial.matrix:
        return trial.matrix[arg]
    if _same_shape(value, images) and is_nhwc(value):
        return as_matrix(write, arg)
    columns = images.shape[1]
    shape = [1] * (images.dim() - value.dim()) + list(value.shape)
    by_channel = all(map(known_equal, shape, [1, columns, 1, 1]))
    return write.call(RESHAPE, arg, [columns]) if by_channel else None


def _image(write: ChannelWriter, matrix: fx.Node, like: Tensor) -> fx.Node:
    """A matrix as images, which lie channels last; those of one pixel lie so in two ways."""
    _, columns, height, width = like.shape
    if height * width == 1 and like.stride()[2:] == (1, 1):
        return write.fresh_call(RESHAPE, matrix, [-1, columns, 1, 1])
    whole = write.fresh_call(RESHAPE, matrix, [-1, height, width, columns])
    return write.fresh_call(PERMUTE, whole, TO_NCHW)


def _replace_uses(node: fx.Node, image: fx.Node, users: list[fx.Node]) -> None:
    node.replace_all_uses_with(image, delete_user_cb=lambda one: one in users)


# --- Try the matrix form of a convolution and what follows it; undo it if the rule declines -------

CheckMatmul = Callable[[RuleSite, fx.Node], Accept | Reject]
"""Given the site of the product and the convolution."""


def try_matrix_form(
    site: RuleSite,
    multiply: Callable[[ChannelWriter, fx.Node], fx.Node],
    asked: CheckMatmul,
    behind: Callable[[fx.Node], GemmRegion] | None = None,
) -> Accept | Reject:
    """What ``asked`` says of a convolution in matrix form; that form stays if it accepts.

    The site of the product is then in the notes, as ``product``. What is not in the region
    (``behind``, by default :func:`region_of_matmul`) stays as it was, for other convolutions to
    find.
    """
    conv = site.anchor
    nowhere = kernel_gate.gate_reason(conv.meta["val"].device, site.options, conv)
    if nowhere is not None:
        return nowhere
    if written_before(site, scaled_conv_at(conv)[1].next):
        return Reject(Reason.VARIANT, "something is written in front of it", conv)
    before = set(site.gm.graph.nodes)
    trial = MatrixForm(conv)
    verdict: Accept | Reject | None = None
    try:
        product = write_matrix_form(trial, multiply)
        joined = (behind or region_of_matmul)(product).nodes
        taken = {node for node, matrix in trial.matrix.items() if matrix in joined}
        if len(taken) < len(trial.matrix):  # the rest stays what other convolutions find
            trial.undo(before)
            trial = MatrixForm(conv)
            product = write_matrix_form(trial, multiply, taken)
        inner = RuleSite(site.gm, product, site.options, site.fake_mode, site.nested)
        verdict = asked(inner, conv)
    except OtherStrides:
        return Reject(Reason.STRIDE_MISMATCH, "its images would lie otherwise", conv)
    except NoRegion as why:
        return Reject(Reason.VARIANT, str(why), conv)
    finally:
        if not isinstance(verdict, Accept):
            trial.undo(before)
    site.notes["product"] = inner
    return verdict


def conv_arguments(conv: fx.Node) -> tuple[list[int], list[int], list[int]]:
    """Stride, padding and dilation."""
    stride, padding, dilation = (list(pair) for pair in conv.args[3:6])  # type: ignore[arg-type]
    return stride, padding, dilation


def multiply_by(operator: Any) -> Callable[[ChannelWriter, fx.Node], fx.Node]:
    """What writes a convolution without its bias, in matrix form, as a call of an operator."""

    def multiply(write: ChannelWriter, conv: fx.Node) -> fx.Node:
        return write.call(operator, *conv.args[:2], *conv_arguments(conv))

    return multiply


def region_of_matmul(product: fx.Node) -> GemmRegion:
    """What one kernel computes: all that follows, or nothing where it is better computed there.

    Raises:
        NoRegion: there is nothing.
    """
    try:
        region = grow_region([product], ())
    except NoRegion:
        return grow_region([product], (), alone=True)
    stored = (nodes for nodes in region.outputs if nodes)
    if any(feeds_generated_code(one, region.nodes, alike) for one, *alike in stored):
        return grow_region([product], (), alone=True)
    return region


def problem_of(
    kind: type[ConvRegionProblem], op: str, region: GemmRegion, conv: fx.Node
) -> ConvRegionProblem | Reject:
    """The convolution with the region behind it, as the tuner sees it."""
    epilogue = region.epilogue
    return conv_problem(
        kind, conv, op=op, activation=digest(epilogue), bias=False, epilogue=epilogue
    )
