"""The Triton text of a GEMM of few rows with an epilogue: its time is that of reading the weights.

Each program takes BN columns of the product, that is, as many rows of each weight, and all of K.
Weights lie as (N, K) and are read once, in long pieces of their rows, by plain loads: on an H200
TMA is slower here (docs/decisions/few_rows.md).

``rows``: BM rows of x, at least 16, by tensor cores. The rows of the dot are the weight's for up to
32 rows of x, else those of x, as it was faster.

``row``: one row of x. Elements of K are multiplied and added up where they lie, and across threads
once, at the end.
"""

from __future__ import annotations

from fusepass.fusion.kernel_ir.epilogue import Epilogue
from fusepass.fusion.kernel_ir.norm import Norm
from fusepass.kernels.gemm.triton_source import complete_source

_SKINNY = """

@triton.jit
def fusepass_gemm(x_ptr, $gain $weights $params M, N, K, sx, sw,
                  BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr):
    WEIGHT_FIRST: tl.constexpr = BM <= 32
    program = tl.program_id(0)
$leads
    tiles_n = tl.cdiv(N, BN)
    m, n = program // tiles_n, program % tiles_n
    rows = m * BM + tl.arange(0, BM)
    columns = n * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    at_x = x_ptr + rows.to(tl.int64)[:, None] * sx + k[None, :]
    offsets = columns.to(tl.int64)[:, None] * sw + k[None, :]
$starts
$norm_starts
    for start in tl.range(0, K, BK, num_stages=STAGES):
        here = (k < K - start)[None, :]
        x = tl.load(at_x + start, mask=(rows < M)[:, None] & here, other=0.0)
        inside = (columns < N)[:, None] & here
$norm_steps
$steps
$norm_ends
    _epilogue($products, m, n, rows, columns, M, N $given)
"""

# Not ``gdc_launch_dependents``: Inductor asks of each kernel which of its inputs it writes. With
# torch 2.11 one with assembly that does more than compute passes for writing all, the weights, too.
_LEADS = """\
    program = tl.inline_asm_elementwise(
        "griddepcontrol.launch_dependents; mov.b32 $0, $1;", "=r,r", [program],
        dtype=tl.int32, is_pure=True, pack=1,
    )
"""
_ROWS = {
    "start": "    product{0} = tl.zeros((BN, BM) if WEIGHT_FIRST else (BM, BN), tl.float32)",
    "load": "        w{0} = tl.load(w{0}_ptr + offsets + start, mask=inside, other=0.0,"
    ' eviction_policy="evict_first")',
    "step": """\
        w{0} = _operand(w{0})
        if WEIGHT_FIRST:
            product{0} = tl.dot(w{0}, _operand(x).T, product{0}, input_precision="tf32")
        else:
            product{0} = tl.dot(_operand(x), w{0}.T, product{0}, input_precision="tf32")""",
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

# What a norm of one row adds: its gain is multiplied where x is read, and its scale, which is known
# behind the last of x, to the products. With more rows x would have to go back to shared memory
# for the tensor cores: on an H200 0.4 to 1.03 of the speed with a kernel for the norm.
_GAIN = """\
        gain = tl.load(gain_ptr + start + k, mask=k < K - start, other=0.0).to(tl.float32)
        x = x.to(tl.float32)"""
_NORM = {
    "$gain ": "gain_ptr, ",
    "$norm_starts": "    squares = tl.zeros((1, BK), tl.float32)",
    "$norm_steps": f"""\
{_GAIN}
        squares += x * x
        x *= ({{gain}})[None, :]""",
    "$norm_ends": "    scale = tl.rsqrt(tl.sum(squares, 1) / K + {eps})[:, None]",
}
# A centred norm computes mean and scale first, from all of x at once, and so without cancellation:
# sums of x times gain, gain and shift beside the products took 1.03 to 1.26 times as long.
_CENTRED = {
    "$gain ": "gain_ptr, {shift_ptr}WHOLE: tl.constexpr, ",
    "$norm_starts": """\
    every = tl.arange(0, WHOLE)
    whole = tl.load(x_ptr + every, mask=every < K, other=0.0).to(tl.float32)
    mean = tl.sum(whole, 0) / K
    whole = tl.where(every < K, whole - mean, 0.0)
    scale = tl.rsqrt(tl.sum(whole * whole, 0) / K + {eps})""",
    "$norm_steps": f"""\
{_GAIN}
        x = tl.where(here, (x - mean) * scale * ({{gain}})[None, :], 0.0){{shift}}""",
    "$norm_ends\n": "",
}
_SHIFT = """
        shift = tl.load(shift_ptr + start + k, mask=k < K - start, other=0.0)
        x += shift.to(tl.float32)[None, :]"""
_NO_NORM = dict.fromkeys(("$gain ", "$norm_starts\n", "$norm_steps\n", "$norm_ends\n"), "")


def norm_parts(norm: Norm | None) -> dict[str, str]:
    """What takes the place of a norm's markers in a kernel's text.

    Args:
        norm: of x, for form ``row``; None where x is multiplied as it is.
    """
    if norm is None:
        return _NO_NORM
    parts = _CENTRED if norm.centred else _NORM
    words = {
        "gain": f"gain + {norm.offset!r}" if norm.offset else "gain",
        "eps": repr(norm.eps),
        "shift_ptr": "shift_ptr, " if norm.shifted else "",
        "shift": _SHIFT if norm.shifted else "",
    }
    return {key: text.format(**words) for key, text in parts.items()}


def scaled(product: str, norm: Norm | None) -> str:
    """A product's text, with the scale of its rows if a norm leaves it to the end."""
    return product if norm is None or norm.centred else f"({product}) * scale"


def skinny_source(
    epilogue: Epilogue, form: str, norm: Norm | None = None, *, leads: bool = False
) -> str:
    """The text of a module whose ``fusepass_gemm`` computes ``epilogue`` of its products.

    Args:
        epilogue: of one or two products.
        form: ``rows`` or ``row``, as above.
        norm: of x, in front of the products of form ``row``; its gain, its shift if it has one,
            and for a centred one a power of two that is K at least are the parameters behind x.
        leads: whether it lets a launch behind it begin before it ends (``programmatic_launch.py``);
            for Hopper and later.
    """
    lines = LINES[form]
    each = range(epilogue.products)
    parts = {
        "$leads\n": _LEADS * leads,
        "$weights ": "".join(f"w{i}_ptr, " for i in each),
        "$starts": "\n".join(lines["start"].format(i) for i in each),
        "$steps": "\n".join(lines[key].format(i) for key in ("load", "step") for i in each),
        "$products": ", ".join(scaled(lines["product"].format(i), norm) for i in each),
    }
    body = _SKINNY
    for key, value in (parts | norm_parts(norm)).items():
        body = body.replace(key, value)
    return complete_source(epilogue, body, in_single=form == "row")
