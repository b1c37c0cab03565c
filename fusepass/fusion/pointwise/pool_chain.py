"""A pooling of an ATen graph with the pointwise work on either side of it.

What comes before is computed from one tensor that is there anyway: an input, or what a library call
gives. What follows reads nothing but what was pooled. Both are found as far as they go: a shorter
chain would be read from, or written to, memory in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx

from fusepass.fusion.aten_to_epilogue import FLOATS, NoRegion, calls_of
from fusepass.fusion.extern_calls import feeds_generated_code, is_library_call, is_view
from fusepass.fusion.kernel_ir.epilogue import (
    Epilogue,
    EpilogueStep,
    Output,
    compose,
    depends_on_zero_sign,
    is_monotone,
)
from fusepass.fusion.pointwise.groups import without_views
from fusepass.graph.dataflow.reached import reached
from fusepass.graph.dataflow.readers import readers
from fusepass.graph.ops.op_names import argument, op_name, tensor_value
from fusepass.torch_private.fx.graphs import known_equal, operator_name

_MAXIMA = frozenset("_low_memory_max_pool_with_offsets max_pool2d_with_indices".split())
_RELAYOUTS_INPUT = frozenset("convolution cudnn_convolution_relu conv_relu".split())
_MOST_STEPS = 32
Pair = tuple[int, int]


@dataclass(frozen=True)
class PoolChain:
    """What one kernel computes.

    Attributes:
        source: what it reads.
        last: the node whose value it gives.
        largest: whether it is a maximum; else an average.
        kernel, stride, padding: in pixels.
        divisor: of an average; 0 where only pixels inside the image count.
        before, behind: what is done to each number of the source, and of what was pooled.
    """

    source: fx.Node
    last: fx.Node
    largest: bool
    kernel: Pair
    stride: Pair
    padding: Pair
    divisor: int
    before: Epilogue
    behind: Epilogue


def is_pool(node: fx.Node) -> bool:
    """Whether a node pools images of two dimensions."""
    return node.op == "call_function" and (
        op_name(node) in _MAXIMA or op_name(node) == "avg_pool2d"
    )


def pool_chain_at(node: fx.Node) -> PoolChain:
    """The chain around a pooling.

    Raises:
        NoRegion: no kernel computes it, for the reason given.
    """
    largest = op_name(node) in _MAXIMA
    pooled = _only_result(node) if largest else node
    kernel, stride, padding, divisor = _sizes(node, pooled, largest)
    image: Any = node.args[0]
    source, computed = _prologue_before(image)
    _check_layout(source)
    before = _body(source, computed, image)
    nodes, last = _epilogue_after(pooled)
    pools = [user for user in last.users if is_pool(user)]
    if feeds_generated_code(last, [*nodes, *pools]):
        raise NoRegion("Inductor computes it in the kernel that reads it")
    if any(_is_convolution(user) for user, _ in readers(last, is_view)):
        raise NoRegion("a convolution reads it, for which Inductor may lay it out in another way")
    if any(one is not node and _have_same_result_size(one, node) for one in _pools_of(source)):
        raise NoRegion("Inductor pools it in one kernel with another of the same image")
    behind = _body(pooled, nodes, last)
    if largest and is_monotone(before) and not depends_on_zero_sign(behind):
        before, behind = _body(source, (), source), compose(before, behind)
    return PoolChain(
        source, last, largest, kernel, stride, padding, divisor, before, _typed(behind, last)
    )


# --- the pooling ----------------------------------------------------------------------------------


def _only_result(node: fx.Node) -> fx.Node:
    """The maxima, where nothing asks for their places."""
    users = list(node.users)
    if len(users) != 1 or op_name(users[0]) != "getitem" or users[0].args[1] != 0:
        raise NoRegion("the places of its maxima are wanted")
    return users[0]


def _sizes(node: fx.Node, pooled: fx.Node, largest: bool) -> tuple[Pair, Pair, Pair, int]:
    kernel = _pair(argument(node, 1, "kernel_size"))
    stride = _pair(argument(node, 2, "stride", ()) or kernel)
    padding = _pair(argument(node, 3, "padding", 0))
    divisor = 0
    if largest:
        if _pair(argument(node, 4, "dilation", 1)) != (1, 1):
            raise NoRegion("its windows have gaps")
    else:
        counted = argument(node, 5, "count_include_pad", True)
        given = argument(node, 6, "divisor_override")
        divisor = given or (kernel[0] * kernel[1] if counted or padding == (0, 0) else 0)
        if type(divisor) is not int or divisor < 0:
            raise NoRegion("its divisor is no positive number")
    image, value = (tensor_value(one) for one in (node.args[0], pooled))
    if image is None or value is None or value.dtype not in FLOATS:
        raise NoRegion("it is not of floating point")
    sizes: list[Any] = list(image.shape[-2:])
    sides = zip(sizes, value.shape[-2:], kernel, stride, padding, strict=True)
    for size, made, window, step, edge in sides:
        if not isinstance(size, int) or (size + 2 * edge - window) // step + 1 != made:
            raise NoRegion("its windows go beyond the edge, or sizes of its image vary")
    return kernel, stride, padding, divisor


def _pair(given: Any) -> Pair:
    numbers = list(given) if isinstance(given, (list, tuple)) else [given]
    if not 1 <= len(numbers) <= 2 or not all(type(one) is int for one in numbers):
        raise NoRegion("its windows are not known")
    return numbers[0], numbers[-1]


# --- on either side -------------------------------------------------------------------------------


def _prologue_before(image: fx.Node) -> tuple[fx.Node, Sequence[fx.Node]]:
    """What everything before a pooling is computed from, and by which calls, in order."""
    sources: set[fx.Node] = set()
    computed: set[fx.Node] = set()
    waiting = [image]
    while waiting:
        node = waiting.pop()
        if node in computed or node in sources:
            continue
        if calls_of(node) is None:
            sources.add(node)
            continue
        computed.add(node)
        waiting += node.all_input_nodes
        if len(computed) > _MOST_STEPS:
            raise NoRegion("too much is computed before it")
    if len(sources) != 1:
        raise NoRegion("it is computed from more than one tensor")
    (source,) = sources
    for node in computed:
        if any(user not in computed for user in node.users if node is not image):
            raise NoRegion("what comes before it is read elsewhere, too")
    if computed and len(image.users) > 1:
        raise NoRegion("what it pools is read elsewhere, too")
    if not _is_materialized(source):
        raise NoRegion("Inductor computes it in the kernel that makes what it reads")
    return source, sorted(computed)


def _is_materialized(node: fx.Node) -> bool:
    """Whether a tensor is in memory, and lies as its fake says.

    What a convolution gives Inductor may lay out in another way than the graph says. It reads what
    another pooling gives from memory: each number is wanted by several windows.
    """
    node = without_views(node)
    if op_name(node) == "getitem":
        node = node.all_input_nodes[0]
    if node.op in ("placeholder", "get_attr") or is_pool(node):
        return True
    return is_library_call(node) and not _is_convolution(node)


def _is_convolution(node: fx.Node) -> bool:
    _, name = operator_name(node.target) or ("", "")
    return name in _RELAYOUTS_INPUT


def _pools_of(source: fx.Node) -> list[fx.Node]:
    """The poolings of what is computed from a tensor alone, element by element."""

    def behind(node: fx.Node) -> list[fx.Node]:
        further = () if is_pool(node) and node is not source else node.users
        return [user for user in further if is_pool(user) or calls_of(user) is not None]

    return list(filter(is_pool, reached([source], behind)))


def _have_same_result_size(one: fx.Node, other: fx.Node) -> bool:
    """Whether two poolings have as many results of an image."""
    sizes = [
        value[0] if isinstance(value := node.meta["val"], (tuple, list)) else value
        for node in (one, other)
    ]
    return tuple(sizes[0].shape[-2:]) == tuple(sizes[1].shape[-2:])


def _check_layout(source: fx.Node) -> None:
    value = tensor_value(source)
    if value is None or value.dtype not in FLOATS or value.dim() < 3:
        raise NoRegion("it does not read images of floating point")
    if not _contiguous(value):
        raise NoRegion("its image is not NCHW")


def _contiguous(value: Tensor) -> bool:
    extent: Any = 1
    for size, stride in zip(reversed(value.shape), reversed(value.stride()), strict=True):
        if not known_equal(stride, extent):
            return False
        extent = extent * size
    return True


def _epilogue_after(pooled: fx.Node) -> tuple[Sequence[fx.Node], fx.Node]:
    """What is computed from what was pooled alone, in order, and the one that others read."""
    found: dict[fx.Node, None] = {pooled: None}
    grown = True
    while grown and len(found) <= _MOST_STEPS:
        grown = False
        for node in list(found):
            for user in node.users:
                if user in found or calls_of(user) is None:
                    continue
                if all(one in found for one in user.all_input_nodes):
                    found[user] = None
                    grown = True
    wanted = [node for node in found if any(user not in found for user in node.users)]
    if len(wanted) != 1 or not _same_size(wanted[0], pooled):
        return (), pooled
    return sorted(one for one in found if one is not pooled), wanted[0]


def _same_size(node: fx.Node, other: fx.Node) -> bool:
    one, two = tensor_value(node), tensor_value(other)
    if one is None or two is None or one.dtype not in FLOATS or one.dim() != two.dim():
        return False
    return all(a is b or a == b for a, b in zip(one.shape[-2:], two.shape[-2:], strict=True))


def _body(source: fx.Node, nodes: Iterable[fx.Node], last: fx.Node) -> Epilogue:
    """What some calls compute from one tensor, as an epilogue of one product.

    Raises:
        NoRegion: an epilogue cannot say it.
    """
    names: dict[fx.Node, Any] = {source: "%0"}
    steps: list[EpilogueStep] = []

    def value(arg: Any) -> Any:
        if not isinstance(arg, fx.Node):
            return arg
        if arg not in names:
            raise NoRegion("it is computed from more than one tensor")
        return names[arg]

    def emit(op: str, *args: Any) -> str:
        steps.append(EpilogueStep(op, tuple(map(value, args))))
        return f"%{len(steps)}"

    for node in nodes:
        write = calls_of(node)
        if write is None:
            raise NoRegion("not pointwise")
        names[node] = value(write(emit, node))
    return Epilogue(1, (), tuple(steps), (Output(str(value(last)), "float32"),))


def _typed(body: Epilogue, last: fx.Node) -> Epilogue:
    dtype = str(last.meta["val"].dtype).removeprefix("torch.")
    return Epilogue(1, (), body.steps, (Output(body.outputs[0].value, dtype),))
