"""The Triton text of a GEMM of few rows with an epilogue: its time is that of reading the weights.

Each program takes BN columns of the product, that is, as many rows of each weight, and all of K.
Weights lie as (N, K) and are read once, in long pieces of their rows, by plain loads: on an H200
TMA is slower here (docs/kernels.md).

``rows``: BM rows of x, at least 16, by tensor cores. The rows of the dot are the weight's for up to
32 rows of x, else those of x, as it was faster.

``row``: one row of x. Elements of K are multiplied and added up where they lie, and across threads
once, at the end.
"""

from __future__ import annotations

from fusepass.graph.epilogue import Epilogue
from fusepass.kernels.gemm_source import completed

_SKINNY = """

@triton.jit
def fusepass_gemm(x_ptr, $weights $params M, N, K, sx, sw,
                  BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr):
    WEIGHT_FIRST: tl.constexpr = BM <= 32
    tiles_n = tl.cdiv(N, BN)
    m, n = tl.program_id(0) // tiles_n, tl.program_id(0) % tiles_n
    rows = m * BM + tl.arange(0, BM)
    columns = n * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    at_x = x_ptr + rows.to(tl.int64)[:, None] * sx + k[None, :]
    offsets = columns.to(tl.int64)[:, None] * sw + k[None, :]
$starts
    for start in tl.range(0, K, BK, num_stages=STAGES):
        here = (k < K - start)[None, :]
        x = tl.load(at_x + start, mask=(rows < M)[:, None] & here, other=0.0)
        inside = (columns < N)[:, None] & here
$steps
    _epilogue($products, m, n, rows, columns, M, N $given)
"""

_ROWS = {
    "start": "    product{0} = tl.zeros((BN, BM) if WEIGHT_FIRST else (BM, BN), tl.float32)",
    "load": "        w{0} = tl.load(w{0}_ptr + offsets + start, mask=inside, other=0.0,"
    ' eviction_policy="evict_first")',
    "step": """\
        if WEIGHT_FIRST:
            product{0} = tl.dot(w{0}, x.T, product{0}, input_precision="tf32")
        else:
            product{0} = tl.dot(x, w{0}.T, product{0}, input_precision="tf32")""",
    "product": "tl.trans(product{0}) if WEIGHT_FIRST else product{0}",
}
_ROW = {
    **_ROWS,
    "start": "    product{0} = tl.zeros((BN, BK), tl.float32)",
    "step": "        product{0} += w{0}.to(tl.float32) * x.to(tl.float32)",
    "product": "tl.sum(product{0}, 1)[None, :]",
}
LINES = {"rows": _ROWS, "row": _ROW}
"""How a weight is loaded and multiplied, in the loop over K; ``{0}`` is its number."""


def skinny_source(epilogue: Epilogue, form: str) -> str:
    """The text of a module whose ``fusepass_gemm`` computes ``epilogue`` of its products.

    Args:
        epilogue: of one or two products.
        form: ``rows`` or ``row``, as above.
    """
    lines = LINES[form]
    each = range(epilogue.products)
    parts = {
        "$weights ": "".join(f"w{i}_ptr, " for i in each),
        "$starts": "\n".join(lines["start"].format(i) for i in each),
        "$steps": "\n".join(lines[key].format(i) for key in ("load", "step") for i in each),
        "$products": ", ".join(lines["product"].format(i) for i in each),
    }
    body = _SKINNY
    for key, value in parts.items():
        body = body.replace(key, value)
    return completed(epilogue, body)
