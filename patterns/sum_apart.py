"""A product and the matrix added to it, where the library is better off without the sum.

    ``add(mm(x, w), c)``  ->  ``sub(mm(x, w), neg(c))``

Both sides are the same number: IEEE 754 defines a - b as a + (-b). Of the left one Inductor makes
``addmm(c, x, w)``, which copies c into its result and has the library add to it; of the right one
a product and a kernel of its own that reads both matrices. It is such a sum that the gradient of
the input of a gated pair is, ``g W + h V``.

No rule of its own: a candidate where a GEMM region is asked about, taken where it is measured to be
faster than ``addmm`` and than one kernel for all of it.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, fx

from fusepass.graph.epilogue import Epilogue
from fusepass.kernels.gemm_unfused import behind
from fusepass.rewrite.provenance import inherit
from fusepass.tune import Candidate

NAME = "the sum apart"
_aten = torch.ops.aten
_ADD, _MM = _aten.add.Tensor, _aten.mm.default


def sum_behind(product: fx.Node) -> fx.Node | None:
    """The sum that Inductor would make an ``addmm`` with a whole matrix of; None if there is none.

    Args:
        product: a GEMM of an ATen graph.
    """
    if product.target is not _MM or len(product.users) != 1:
        return None
    (total,) = product.users
    if total.target is not _ADD or total.kwargs or len(total.args) != 2:
        return None
    both = [one.meta["val"] for one in total.args if isinstance(one, fx.Node)]
    if len(both) != 2 or both[0].shape != both[1].shape or both[0].dtype is not both[1].dtype:
        return None
    return total


def is_sum(epilogue: Epilogue) -> bool:
    """Whether it is the sum of a product and a matrix, and nothing else."""
    sums = [step.op for step in epilogue.steps] == ["add"]
    kinds = [operand.kind for operand in epilogue.operands]
    made = [(output.value, output.over) for output in epilogue.outputs]
    return sums and epilogue.products == 1 and kinds == ["full"] and made == [("%2", "")]


def candidate(epilogue: Epilogue) -> Candidate:
    """Called with x, the weight and the other matrix.

    Args:
        epilogue: the sum of a product and a matrix.
    """
    return Candidate(NAME, partial(_run, epilogue=epilogue.text()))


def _run(x: Tensor, weight: Tensor, other: Tensor, *, epilogue: str) -> list[Tensor]:
    return behind([x @ weight], [other], epilogue)


def write(total: fx.Node) -> None:
    """Put the difference in the sum's place.

    Args:
        total: a sum as :func:`sum_behind` finds them.
    """
    graph = total.graph
    left, right = total.args
    assert isinstance(left, fx.Node)  # both are, see there
    assert isinstance(right, fx.Node)
    if left.target is _MM and right.target is not _MM:
        left, right = right, left  # the negated one is computed by itself where another reads it
    with graph.inserting_before(total):
        negated = graph.call_function(_aten.neg.default, (right,))
        negated.meta["val"] = _aten.neg.default(right.meta["val"])
        made = graph.call_function(_aten.sub.Tensor, (left, negated))
    made.meta["val"] = total.meta["val"]
    inherit(negated, total)
    inherit(made, total)
    total.replace_all_uses_with(made)
    graph.erase_node(total)
