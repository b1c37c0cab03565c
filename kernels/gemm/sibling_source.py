"""The Triton text of several GEMMs of one operand, each with its epilogue, in one launch.

    ``e0(x @ w0), e1(x @ w1), …``

A program takes one tile of one of the products; which, is found by counting the columns' tiles. All
lies where it lay: weights are not joined, and each product is a tensor of its own. So what it saves
is launches, and multiprocessors that wait where one product alone has fewer tiles than there are.
The loop over K is that of ``few_rows_source.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

from fusepass.fusion.kernel_ir.epilogue import Epilogue
from fusepass.fusion.kernel_ir.norm import Norm
from fusepass.kernels.codegen.epilogue_source import helpers, parameters
from fusepass.kernels.gemm.few_rows_source import LINES, norm_parts, scaled
from fusepass.kernels.gemm.triton_source import BEGINNING, OPERAND, epilogue_function

NAME = "fusepass_siblings"

_BODY = """

@triton.jit
def fusepass_siblings(x_ptr, $gain $params M, K, sx, sw, BM: tl.constexpr, BN: tl.constexpr,
                      BK: tl.constexpr, GROUP: tl.constexpr, STAGES: tl.constexpr):
    WEIGHT_FIRST: tl.constexpr = BM <= 32
$ends
    m, n = _place(tl.program_id(0), tl.cdiv(M, BM), $all, GROUP)
    which, first, N, w_ptr = 0, 0, N0, w0_ptr
$picked
    n -= first
    rows = m * BM + tl.arange(0, BM)
    columns = n * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    at_x = x_ptr + rows.to(tl.int64)[:, None] * sx + k[None, :]
    offsets = columns.to(tl.int64)[:, None] * sw + k[None, :]
$start
$norm_starts
    for start in tl.range(0, K, BK, num_stages=STAGES):
        here = (k < K - start)[None, :]
        x = tl.load(at_x + start, mask=(rows < M)[:, None] & here, other=0.0)
        inside = (columns < N)[:, None] & here
$norm_steps
$load
$step
$norm_ends
    product = $product
$stored
"""

_END = "    end{0} = {1}tl.cdiv(N{0}, BN)"
_PICKED = """\
    if n >= end{1}:
        which, first, N, w_ptr = {0}, end{1}, N{0}, w{0}_ptr"""
_STORED = """\
    if which == {0}:
        _epilogue{0}(product, m, n, rows, columns, M, N{1})"""


def sibling_source(epilogues: Sequence[Epilogue], form: str, norm: Norm | None = None) -> str:
    """The text of a module whose ``fusepass_siblings`` computes an epilogue of each product.

    Its parameters: x; for each product its weight, then operands, strides and outputs of its
    epilogue, named as :func:`fusepass.kernels.codegen.epilogue_source.parameters` does with ``_``
    and the product's number behind, then its columns; rows, K, and the row strides of x and the
    weights.

    Args:
        epilogues: each of one product, without reductions.
        form: ``rows`` or ``row``, see ``few_rows_source.py``.
        norm: of x, in front of the products of form ``row``; for its parameters see
            ``skinny_source``.
    """
    each = range(len(epilogues))
    names = [[f"{name}_{i}" for name in parameters(one)] for i, one in enumerate(epilogues)]
    given = [", ".join([f"w{i}_ptr", *names[i], f"N{i}"]) for i in each]
    parts = {
        "$params": "".join(f"{one}, " for one in given),
        "$ends": "\n".join(_END.format(i, f"end{i - 1} + " if i else "") for i in each),
        "$all": f"end{each[-1]}",
        "$picked": "\n".join(_PICKED.format(i, i - 1) for i in each if i),
        "$stored": "\n".join(
            _STORED.format(i, "".join(f", {name}" for name in names[i])) for i in each
        ),
    }
    lines = {key: LINES[form][key].format("") for key in ("start", "load", "step", "product")}
    lines["product"] = scaled(lines["product"], norm)
    parts |= {f"${key}": value for key, value in lines.items()}
    text = _BODY
    for key, value in (norm_parts(norm) | parts).items():
        text = text.replace(key, value)
    functions = (epilogue_function(one, f"_epilogue{i}") for i, one in enumerate(epilogues))
    called = helpers(*epilogues, in_single=form == "row")
    return "\n\n".join([BEGINNING + OPERAND + called, *functions]) + text
