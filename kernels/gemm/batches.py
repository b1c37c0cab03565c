"""Products of batches of matrices, by the same kernels: each program works for one batch.

Programs are numbered batch after batch, ``EACH`` of them for one. A program of the kernel for one
product reads its number among all and how many there are; here it reads its number among those of
its batch, and pointers are moved to where its batch begins.
"""

from __future__ import annotations

from typing import Any

import torch

from fusepass.fusion.kernel_ir.epilogue import Epilogue

_AT_ONCE = 16  # batches that are worked on
_MOVED = """\
    batch = ($tl.program_id(0) // EACH).to($tl.int64)
    x_ptr += batch * bx
"""


def per_batch(text: str, epilogue: Epilogue, language: str) -> str:
    """The text of a kernel, for batches.

    Three parameters are added in front of ``sx``: ``EACH``, and how far apart the batches of x
    (``bx``) and of the weights (``bw``) begin. Operands and outputs lie as (batches * M, ...).

    Args:
        text: of a module with a function that has these parameters.
        epilogue: whose kernel it is; none of its outputs is reduced.
        language: what the module calls it, ``tl`` or ``gl``.
    """
    lines = [_MOVED.replace("$tl", language)]
    lines += [f"    w{i}_ptr += batch * bw\n" for i in range(epilogue.products)]
    for i, operand in enumerate(epilogue.operands):
        if operand.kind in ("full", "column"):
            apart = f"M * s{i}" if operand.kind == "full" else "M"
            lines.append(f"    p{i} += batch * {apart}\n")
    lines += [f"    o{i} += batch * M * N\n" for i in range(len(epilogue.outputs))]
    head, body = text.split("M, N, K, sx, sw", 1)
    signature, body = body.split("):\n", 1)
    text = f"{head}M, N, K, bx, bw, sx, sw{signature}):\n{''.join(lines)}{body}"
    text = text.replace("M, N, K,", "M, N, K, EACH,")
    counted = {"program_id": "({0}.program_id(0) % EACH)", "num_programs": "EACH"}
    for name, instead in counted.items():
        before, *rest = text.split(f"{language}.{name}(0)")
        text = before
        for part in rest:  # but for the line that finds out which batch it is
            own = name == "program_id" and part.startswith(" // EACH).to(")
            text += (f"{language}.{name}(0)" if own else instead.format(language)) + part
    return text


def programs_each(tiles: Any, at_a_time: int, batches: int) -> Any:
    """Programs for one batch, of those that work on several tiles one after the other.

    As many as make the fewest rounds: of tiles in a program, times of programs on the device. And
    so many that few batches are read at a time: of 64, reading all at once took 1.6 times as long
    as reading six.

    Args:
        tiles: of one batch; maybe symbolic.
        at_a_time: programs that run at a time on the device.
        batches: how many there are.
    """
    share = max(at_a_time // min(max(batches, 1), _AT_ONCE), 1)
    if not isinstance(tiles, int):
        return torch.sym_min(tiles, share)

    def rounds(each: int) -> int:
        return -(-each * batches // at_a_time) * -(-tiles // each)

    every = (share, 2 * share, -(-tiles // 4), -(-tiles // 2), tiles)
    some = {each for each in every if 0 < min(share, tiles) <= each <= tiles}
    return min(sorted(some), key=rounds, default=tiles)
