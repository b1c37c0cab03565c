"""What the kernels of ``gluon_source.py`` copy by TMA, and the room that takes."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fusepass.fusion.kernel_ir.epilogue import Epilogue

GROUPS = {"pingpong": 2, "cooperative": 1}
"""Groups of warps that multiply, by form."""

TmaOperand = tuple[str, str, str, tuple[int, int], bool]
_PLACES = 2


def tma_operands(
    epilogue: Epilogue, bm: int, bn: int, bk: int, transposed: bool
) -> dict[str, TmaOperand]:
    """What the host makes descriptors of, by parameter.

    For each matrix: the names of the parameters that say how many rows and columns it has and how
    far apart its rows begin; the rows and columns of a tile; and whether tensor cores multiply it.
    Then TMA rounds fp32 to TF32, whereas tensor cores would drop bits.

    Args:
        epilogue: whose kernel it is.
        bm: the kernel's ``BM``.
        bn: its ``BN``.
        bk: its ``BK``.
        transposed: whether weights lie as (N, K).
    """
    width = bn // epilogue.products
    weight = ("N", "K", "sw", (width, bk), True)
    if not transposed:
        weight = ("K", "N", "sw", (bk, width), True)
    found = {"x_ptr": ("M", "K", "sx", (bm, bk), True)}
    found |= {f"w{i}_ptr": weight for i in range(epilogue.products)}
    found |= {f"p{i}": ("M", "N", f"s{i}", (bm, bn // 2), False) for i in fetched_by_tma(epilogue)}
    whole = [i for i, output in enumerate(epilogue.outputs) if not output.over]
    return found | {f"o{i}": ("M", "N", "N", (bm, bn // 2), False) for i in whole}


def fetched_by_tma(epilogue: Epilogue) -> list[int]:
    """The operands that come by TMA: matrices of the results' dtype, if there is room."""
    kinds = {output.dtype for output in epilogue.stored}
    if len(kinds) != 1 or len(epilogue.stored) > _PLACES:
        return []
    whole = [
        i
        for i, operand in enumerate(epilogue.operands)
        if operand.kind == "full" and {operand.dtype} == kinds
    ]
    return whole[:_PLACES]


def places(epilogue: Epilogue, form: str, itemsize: int = 2) -> int:
    """Pieces of results, and of what comes in, that each group has in shared memory.

    Those of fp32 take twice the room: rather one, and more tiles of operands in flight.
    """
    stored, reads = len(epilogue.stored), len(fetched_by_tma(epilogue))
    if epilogue.products == 2 or GROUPS[form] == 1:
        return max(reads, 2 if stored == 2 and (reads or GROUPS[form] == 2) else 1)
    return 2 if reads or (not epilogue.reduced and itemsize == 2) else 1


def prefetched(epilogue: Epilogue, form: str) -> int:
    """Halves of a tile whose operands are fetched before its products are computed."""
    one = len(fetched_by_tma(epilogue)) == len(epilogue.stored) == 1
    return 2 if epilogue.products == 1 and one and places(epilogue, form) == 2 else 1


def by_host(values: Sequence[Tensor], epilogue: Epilogue) -> bool:
    """Whether the host can make a kernel's descriptors: of matrices whose rows lie apart.

    Args:
        values: tensors (fake ones too) of x, the weights and the operands.
        epilogue: whose kernel it is.
    """
    x, weight, operands = values[0], values[1], values[1 + epilogue.products :]
    if x.dim() == 3:
        return False
    if weight.stride(-2) == 1:
        weight = weight.mT
    read = [x, weight, *(operands[i] for i in fetched_by_tma(epilogue))]
    apart = [isinstance(one.stride(0), int) and one.stride(0) >= one.shape[1] for one in read]
    return all(apart)
