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

from fusepass.fusion.aten_to_epilogue import calls_of
from fusepass.fusion.conv.chain import scaled_conv_at
from fusepass.fusion.conv.channel_writer import ADD, CONVERT, MUL, PERMUTE, RESHAPE, ChannelWriter
from fusepass.graph.ops.op_names import tensor_value
from fusepass.rewrite.apply.snapshot import inherit_meta
from fusepass.torch_private.fx.graphs import known_equal

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

    Args:
        trial: with the convolution.
        multiply: writes the convolution, without its bias, as a matrix.
        only: of the nodes behind the convolution and the changes of its channels, those to write in
            matrix form; None for all that can be.

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
