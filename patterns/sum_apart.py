"""``addmm`` as a GEMM and a sum, where the library multiplies faster without the sum.

    ``addmm(c, x, w)``  ->  ``add(c, mm(x, w))``

where the program has the right side. Inductor makes the left one of it, for which c is copied into
the result and the library adds to that; the right one is a product and a kernel that reads both
matrices, and maybe does more. Such a sum is the gradient of the input of a gated pair,
``g W + h V``. An ``addmm`` that the program has itself stays: it rounds once, the right side twice.

No rule of its own: a candidate where a GEMM region is asked about, taken where it is measured to be
faster than ``addmm`` and than one kernel for all of it.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, fx

from fusepass.fusion.gemm.one_row import made_by_inductor
from fusepass.fusion.kernel_ir.epilogue import Epilogue
from fusepass.kernels.gemm.baseline import run_epilogue
from fusepass.rewrite.apply.snapshot import inherit_meta
from fusepass.tune import Candidate

NAME = "the sum apart"
_aten = torch.ops.aten
_ADD, _MM, _ADDMM = _aten.add.Tensor, _aten.mm.default, _aten.addmm.default


def was_separate(node: fx.Node) -> bool:
    """Whether Inductor made a product with a whole matrix added out of a product and a sum."""
    if node.target is not _ADDMM or node.kwargs or not made_by_inductor(node):
        return False
    added, *factors = node.args
    if not isinstance(added, fx.Node) or any(map(_padded, factors)):
        return False
    value, made = added.meta["val"], node.meta["val"]
    return bool(value.shape == made.shape and value.dtype is made.dtype)


def _padded(factor: object) -> bool:
    """Whether Inductor has padded what is multiplied: then who made the product is not known."""
    targets = (_aten.constant_pad_nd.default, _aten.cat.default)
    return isinstance(factor, fx.Node) and factor.target in targets


def is_sum(epilogue: Epilogue) -> bool:
    """Whether it is the sum of a product and a matrix, and nothing else."""
    sums = [step.op for step in epilogue.steps] == ["add"]
    kinds = [operand.kind for operand in epilogue.operands]
    made = [(output.value, output.over) for output in epilogue.outputs]
    return sums and epilogue.products == 1 and kinds == ["full"] and made == [("%2", "")]


def candidate(epilogue: Epilogue) -> Candidate:
    """Called with x, the weight and the other matrix."""
    return Candidate(NAME, partial(_run, epilogue=epilogue.text()))


def _run(x: Tensor, weight: Tensor, other: Tensor, *, epilogue: str) -> list[Tensor]:
    return run_epilogue([x @ weight], [other], epilogue)


def write(node: fx.Node) -> None:
    """Put a product and a sum in the place of both in one."""
    added, x, weight = node.args
    with node.graph.inserting_before(node):
        product = node.graph.call_function(_MM, (x, weight))
        total = node.graph.call_function(_ADD, (added, product))
    for made in (product, total):
        made.meta["val"] = node.meta["val"]
        inherit_meta(made, node)
    node.replace_all_uses_with(total)
    node.graph.erase_node(node)
