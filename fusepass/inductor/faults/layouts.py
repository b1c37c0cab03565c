"""Whether what a call reads lies in memory in the order of its dimensions.

Inductor chooses the order of a kernel's loops by how memory lies, also that of what it computes in
the same kernel, so that one operand of a kernel that lies otherwise decides.
"""

from __future__ import annotations

import itertools

from torch import Tensor, fx

from fusepass.inductor.faults.fault import value_of
from fusepass.torch_private.fx.tracing import size_hint

_MAX_NODES = 200  # nodes looked at: behind so many nobody knows
_KERNELS = frozenset(  # of libraries, whose results lie as their meta data say
    "mm addmm bmm baddbmm convolution _convolution convolution_backward _scaled_dot_product".split()
)


def may_be_permuted(node: fx.Node, last: int | None = None) -> bool:
    """Whether a tensor, or one that may be computed in its kernel, lies in another order.

    Args:
        node: the tensor.
        last: how many dimensions, from the last on, must lie in order; all if not given.
    """
    seen, waiting = {node}, [node]
    while waiting:
        one = waiting.pop()
        value = value_of(one)
        if len(seen) > _MAX_NODES or (value is not None and not _in_order(value, last)):
            return True
        packet = getattr(one.target, "overloadpacket", None)
        name = getattr(packet, "__name__", "")
        if one.op != "call_function" or name.startswith(tuple(_KERNELS)):
            continue
        new = [given for given in one.all_input_nodes if given not in seen]
        seen.update(new)
        waiting += new
    return False


def _in_order(value: Tensor, last: int | None) -> bool:
    if last is not None and value.dim() <= last:
        return True
    sizes, strides = list(value.shape), list(value.stride())
    if last is not None:
        sizes, strides = sizes[-last:], strides[-last:]
    known = [
        size_hint(stride)
        for size, stride in zip(sizes, strides, strict=True)
        if size_hint(size) != 1
    ]
    numbers = [one for one in known if one is not None]
    return len(numbers) == len(known) and all(a >= b > 0 for a, b in itertools.pairwise(numbers))
