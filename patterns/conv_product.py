"""A convolution of single pixels is a product of matrices, with whatever is element-wise behind it.

    conv(x, w) with w of (O, I, 1, 1)  =  x as (B * H * W, I) @ w as (I, O)

for images that lie channels last, of which both sides are views. So what follows (a batch norm
without statistics, an activation, a residual) can be computed where the product is accumulated, by
the same kernels and under the same conditions as behind a linear layer: ``gemm_region``.

The changes of channels that come first are two vectors there: ``s * y + t``.

The site is written in matrix form on trial, put to that rule, and taken back unless a kernel of
ours was measured faster than the convolution with one element-wise kernel, and than the product
with one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from fusepass.graph.canonical import tensor_value
from fusepass.graph.conv_chain import is_conv, scaled_at
from fusepass.graph.epilogue import parse
from fusepass.graph.epilogue_of_aten import calls_of
from fusepass.graph.region import Region
from fusepass.kernels.gemm_unfused import behind, complete
from fusepass.patterns import gemm_region
from fusepass.report.decision import Reason
from fusepass.rewrite.channels import ADD, CONVERT, MUL, RESHAPE, ChannelWriter
from fusepass.rewrite.graph_rule import GraphRule, Site, written_before
from fusepass.rewrite.reject import Accept, Reject
from fusepass.tune import Candidate

CONVOLUTION = "convolution"
_HALF = (torch.float16, torch.bfloat16)
_PERMUTE = torch.ops.aten.permute.default
_TO_LAST, _TO_SECOND = [0, 2, 3, 1], [0, 3, 1, 2]


def is_pointwise_conv(node: fx.Node) -> bool:
    """Whether a node is a convolution of single pixels that lie channels last, of known sizes."""
    if not is_conv(node):
        return False
    args: Any = node.args
    values = [tensor_value(one) for one in (*args[:2], node)]
    if any(one is None or one.dtype not in _HALF for one in values):
        return False
    x, weight, made = (one for one in values if one is not None)
    sizes = *x.shape, *weight.shape
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        return False
    plain = list(args[3]) == [1, 1] and list(args[4]) == [0, 0] and args[8] == 1
    return plain and list(weight.shape[2:]) == [1, 1] and _lies_last(x) and _lies_last(made)


def _lies_last(value: Tensor) -> bool:
    return value.permute(_TO_LAST).is_contiguous()


# --- the matrix form ------------------------------------------------------------------------------


class _OtherStrides(Exception):
    """Images made of the matrices would not lie in memory as the site's do."""


@dataclass
class _Trial:
    """A site in matrix form.

    Attributes:
        conv: the convolution.
        matrix: for each node that is computed as a matrix too, that matrix.
        back: for those that something else reads, images made of the matrix.
    """

    conv: fx.Node
    matrix: dict[fx.Node, fx.Node] = field(default_factory=dict)
    back: dict[fx.Node, fx.Node] = field(default_factory=dict)

    def take_back(self, before: set[fx.Node]) -> None:
        """Leave the graph as it was."""
        for node, image in self.back.items():
            image.replace_all_uses_with(node)
        for node in reversed(list(self.conv.graph.nodes)):
            if node not in before:
                self.conv.graph.erase_node(node)


def _write(trial: _Trial) -> fx.Node:
    """Write a site in matrix form beside what it is, and let others read it. Gives the product."""
    conv = trial.conv
    graph, args = conv.graph, conv.args
    write = ChannelWriter(graph)
    images: Any = conv.meta["val"]
    columns, rows = images.shape[1], images.numel() // images.shape[1]
    scaled, last = scaled_at(conv)

    def as_matrix(node: Any) -> fx.Node:
        return write.call(RESHAPE, write.call(_PERMUTE, node, _TO_LAST), [rows, -1])

    with graph.inserting_before(last.next):
        weight = write.call(RESHAPE, args[1], [columns, -1])
        product = write.call(
            torch.ops.aten.mm.default, as_matrix(args[0]), write.call(_PERMUTE, weight, [1, 0])
        )
        scale, shift = write.scale_and_shift(scaled)
        made = product
        if isinstance(scale, fx.Node) or scale != 1.0:
            made = write.call(MUL, write.single(made), scale)
        if isinstance(shift, fx.Node) or shift != 0.0:
            made = write.call(ADD, write.single(made), shift)
        if made.meta["val"].dtype is not last.meta["val"].dtype:
            made = write.call(CONVERT, made, last.meta["val"].dtype)
    trial.matrix[last] = made

    def argument(arg: Any) -> Any:
        """In matrix form; None if it has none."""
        value = tensor_value(arg)
        if value is None:
            return arg
        if arg in trial.matrix:
            return trial.matrix[arg]
        if value.shape == images.shape and _lies_last(value):
            return as_matrix(arg)
        shape = [1] * (images.dim() - value.dim()) + list(value.shape)
        return write.call(RESHAPE, arg, [columns]) if shape == [1, columns, 1, 1] else None

    node = last.next
    while node.op != "output":
        following = node.next
        value = tensor_value(node)
        reads = any(one in trial.matrix for one in node.all_input_nodes)
        if reads and value is not None and value.shape == images.shape and calls_of(node):
            with graph.inserting_before(node):
                given = [argument(arg) for arg in node.args]
                if None not in given:
                    made = write.call(node.target, *given, given=node.kwargs)
                    if made.meta["val"].dtype is value.dtype:
                        trial.matrix[node] = made
        node = following
    for node, matrix in trial.matrix.items():
        users = [one for one in node.users if one not in trial.matrix]
        if users:
            behind_both = (matrix if node is last else node).next
            with graph.inserting_before(behind_both):
                image = _image(write, matrix, node.meta["val"])
            if image.meta["val"].stride() != node.meta["val"].stride():
                raise _OtherStrides
            trial.back[node] = image
            _instead(node, image, users)
    return product


def _image(write: ChannelWriter, matrix: fx.Node, like: Tensor) -> fx.Node:
    """A matrix as images, which lie channels last; those of one pixel lie so in two ways."""
    batch, columns, height, width = like.shape
    if like.is_contiguous() and like.stride()[2:] == (1, 1):
        return write.call(RESHAPE, matrix, [*like.shape])
    return write.call(
        _PERMUTE, write.call(RESHAPE, matrix, [batch, height, width, columns]), _TO_SECOND
    )


def _instead(node: fx.Node, image: fx.Node, users: list[fx.Node]) -> None:
    node.replace_all_uses_with(image, delete_user_cb=lambda one: one in users)


def _convolution(region: Region, images: Tensor, weight: Tensor) -> Candidate:
    """What Inductor does with the site as it is."""
    text = region.epilogue.text()
    batch, channels, height, width = images.shape
    shape = batch, height, width, channels

    def run(x: Tensor, weight_t: Tensor, *operands: Tensor) -> Any:
        y = torch.ops.aten.convolution.default(
            x.reshape(shape).permute(_TO_SECOND),
            weight_t.t().reshape(weight.shape),
            None,
            [1, 1],
            [0, 0],
            [1, 1],
            False,
            [0, 0],
            1,
        )
        product = y.permute(_TO_LAST).reshape(-1, y.shape[1])
        return complete(parse(text), behind([product], operands, text))

    return Candidate(CONVOLUTION, run)


# --- the rule -------------------------------------------------------------------------------------


def _check(site: Site) -> Accept | Reject:
    conv, graph = site.anchor, site.gm.graph
    if written_before(site, scaled_at(conv)[1].next):
        return Reject(Reason.FLAVOUR, "something is written in front of it", conv)
    before = set(graph.nodes)
    args: Any = conv.args
    trial = _Trial(conv)
    values = args[0].meta["val"], args[1].meta["val"]
    library = partial(_convolution, images=values[0], weight=values[1])
    verdict: Accept | Reject | None = None
    try:
        inner = Site(site.gm, _write(trial), site.options, site.fake_mode, site.nested)
        verdict = gemm_region.check(inner, False, library)
    except _OtherStrides:
        return Reject(Reason.STRIDE_MISMATCH, "its images would lie otherwise", conv)
    finally:
        if not isinstance(verdict, Accept):
            trial.take_back(before)
    if isinstance(verdict, Reject):
        return Reject(verdict.code, verdict.text, conv, verdict.microseconds)
    site.notes["product"] = inner
    return verdict


def _replace(site: Site) -> None:
    gemm_region.replace(site.notes["product"])
    site.gm.graph.eliminate_dead_code()


RULE = GraphRule("conv_product", is_pointwise_conv, _check, _replace, sources=(gemm_region,))
