"""The Triton text of a GEMM with an epilogue; one text per epilogue, for every tile and stage.

Two main loops, both persistent, with TMA descriptors made on the device:

``one``: ``epilogue(x @ w.T)``.

``pair``: ``epilogue(x @ w.T, x @ w2.T)`` in one accumulator twice as wide. One three-dimensional
descriptor covers both weights; its outermost stride is the distance between their addresses. A
block of it, ``(2, H, BK)``, lies in shared memory as a ``(2 H, BK)`` operand, so a single dot
serves both, and nothing is copied or laid out anew. The halves of the accumulator are in the same
threads, so taking it apart is free. Measured on an H200: cuBLAS's speed for the merged weight,
where two accumulators of half the width are a fifth slower (docs/decisions/gemm.md).

The distance may be negative (then the halves change places) or, between allocations that lie 2**40
bytes apart, more than a descriptor can hold: then the two weights are loaded by two descriptors.
"""

from __future__ import annotations

from fusepass.fusion.kernel_ir.epilogue import Epilogue
from fusepass.kernels.codegen.epilogue_source import epilogue_parts, helpers, parameters, reduction

BEGINNING = """\
import triton
import triton.language as tl


"""
OPERAND = """\
@triton.jit
def _operand(x):
    if x.dtype == tl.float32:
        bits = (x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000
        x = tl.where(x == x, bits.to(tl.float32, bitcast=True), x)  # of NaN the sum may be finite
    return x


"""
"""What tensor cores multiply: of fp32 they drop all but 10 bits behind the point, which makes 2.6
times the error of cuBLAS, that rounds to these bits; so do we."""

_ONE = """

@triton.jit
def fusepass_gemm(x_ptr, w0_ptr, $params M, N, K, sx, sw,
                  BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
                  SPLIT: tl.constexpr, TRANSPOSED: tl.constexpr):
    tiles_m, tiles_n, steps = tl.cdiv(M, BM), tl.cdiv(N, BN), tl.cdiv(K, BK)
    x_tiles = tl.make_tensor_descriptor(x_ptr, [M, K], [sx, 1], [BM, BK])
    if TRANSPOSED:  # the weight lies as (N, K)
        w_tiles = tl.make_tensor_descriptor(w0_ptr, [N, K], [sw, 1], [BN, BK])
    else:
        w_tiles = tl.make_tensor_descriptor(w0_ptr, [K, N], [sw, 1], [BK, BN])
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=True):
        m, n = _place(tile, tiles_m, tiles_n, GROUP)
        product = tl.zeros((BM, BN), tl.float32)
        for k in range(steps):
            x = x_tiles.load([m * BM, k * BK])
            if TRANSPOSED:
                w = w_tiles.load([n * BN, k * BK]).T
            else:
                w = w_tiles.load([k * BK, n * BN])
            product = tl.dot(_operand(x), _operand(w), product, input_precision="tf32")
        rows = m * BM + tl.arange(0, BM)
        if SPLIT:
            left, right = tl.split(tl.reshape(product, (BM, 2, BN // 2)).permute(0, 2, 1))
            columns = n * BN + tl.arange(0, BN // 2)
            _epilogue(left, m, 2 * n, rows, columns, M, N $given)
            _epilogue(right, m, 2 * n + 1, rows, columns + BN // 2, M, N $given)
        else:
            _epilogue(product, m, n, rows, n * BN + tl.arange(0, BN), M, N $given)
"""

_PAIR = """

@triton.jit
def fusepass_gemm(x_ptr, w0_ptr, w1_ptr, $params M, N, K, sx, sw,
                  BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):
    H: tl.constexpr = BN // 2
    tiles_m, tiles_n, steps = tl.cdiv(M, BM), tl.cdiv(N, H), tl.cdiv(K, BK)
    second = w1_ptr
    size: tl.constexpr = w0_ptr.dtype.element_ty.primitive_bitwidth // 8
    apart = (second.to(tl.int64) - w0_ptr.to(tl.int64)) // size  # in elements
    swapped = apart < 0
    apart = tl.abs(apart)
    near = apart < (1 << 38)
    lower = w0_ptr
    if swapped:
        lower = second
    x_tiles = tl.make_tensor_descriptor(x_ptr, [M, K], [sx, 1], [BM, BK])
    if near:
        both = tl.make_tensor_descriptor(lower, [2, N, K], [apart, sw, 1], [2, H, BK])
        for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=True):
            m, n = _place(tile, tiles_m, tiles_n, GROUP)
            products = tl.zeros((BM, BN), tl.float32)
            for k in range(steps):
                x = x_tiles.load([m * BM, k * BK])
                w = both.load([0, n * H, k * BK]).reshape(BN, BK)
                products = tl.dot(_operand(x), _operand(w).T, products, input_precision="tf32")
            first, other = tl.split(tl.reshape(products, (BM, 2, H)).permute(0, 2, 1))
            rows, columns = m * BM + tl.arange(0, BM), n * H + tl.arange(0, H)
            product = tl.where(swapped, other, first)
            other = tl.where(swapped, first, other)
            _epilogue(product, other, m, n, rows, columns, M, N $given)
    else:
        w_tiles = tl.make_tensor_descriptor(w0_ptr, [N, K], [sw, 1], [H, BK])
        v_tiles = tl.make_tensor_descriptor(second, [N, K], [sw, 1], [H, BK])
        for tile in range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0)):
            m, n = _place(tile, tiles_m, tiles_n, GROUP)
            first = tl.zeros((BM, H), tl.float32)
            other = tl.zeros((BM, H), tl.float32)
            for k in tl.range(steps, num_stages=2):
                x = x_tiles.load([m * BM, k * BK])
                w = w_tiles.load([n * H, k * BK])
                v = v_tiles.load([n * H, k * BK])
                x = _operand(x)
                first = tl.dot(x, _operand(w).T, first, input_precision="tf32")
                other = tl.dot(x, _operand(v).T, other, input_precision="tf32")
            rows, columns = m * BM + tl.arange(0, BM), n * H + tl.arange(0, H)
            _epilogue(first, other, m, n, rows, columns, M, N $given)
"""


def source(epilogue: Epilogue) -> str:
    """The text of a module whose ``fusepass_gemm`` computes ``epilogue`` of its products.

    Its parameters after the weights: each operand's pointer (``p0``, …), with the row stride of one
    that is full; each output's pointer (``o0``, …); then sizes and strides. Outputs are contiguous;
    one that is reduced is of partial results, see
    :func:`fusepass.kernels.codegen.epilogue_source.reduction`.
    """
    return complete_source(epilogue, _ONE if epilogue.products == 1 else _PAIR)


def complete_source(epilogue: Epilogue, body: str, in_single: bool = False) -> str:
    """The module of a kernel's text: helpers and the epilogue before it, its parameters put in.

    Args:
        epilogue: what it computes of its products.
        body: the kernel.
        in_single: whether it multiplies float32 as it is, not as TF32.
    """
    names, called = list(parameters(epilogue)), helpers(epilogue, in_single=in_single)
    text = BEGINNING + OPERAND + called + "\n\n" + epilogue_function(epilogue) + body
    replaced = {
        "$params": "".join(f"{name}, " for name in names),
        " $given": "".join(f", {name}" for name in names),
    }
    for key, value in replaced.items():
        text = text.replace(key, value)
    return text


def epilogue_function(epilogue: Epilogue, name: str = "_epilogue") -> str:
    """The function that computes and stores an epilogue, given products, places and parameters."""
    products = [f"v{i}" for i in range(epilogue.products)]
    computed, values = epilogue_parts(epilogue)
    given = [*products, *"m n rows columns M N".split(), *parameters(epilogue)]
    lines = [
        "@triton.jit",
        f"def {name}({', '.join(given)}):",
        *(f"    {line}" for line in computed),
    ]
    for i, (output, value) in enumerate(zip(epilogue.outputs, values, strict=True)):
        if output.over:
            lines += [f"    {line}" for line in reduction(i, output, value)]
            continue
        place = f"o{i} + at * N + columns[None, :]"
        cast = f"tl.broadcast_to({value}, inside.shape).to(o{i}.dtype.element_ty)"
        lines.append(f"    tl.store({place}, {cast}, mask=inside)")
    return "\n".join(lines) + "\n"


_POINTWISE = """

@triton.jit
def fusepass_pointwise($products $params M, N, BM: tl.constexpr, BN: tl.constexpr):
    m, n = tl.program_id(1), tl.program_id(0)
    rows = m * BM + tl.arange(0, BM)
    columns = n * BN + tl.arange(0, BN)
    at = rows.to(tl.int64)[:, None] * N + columns[None, :]
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    _epilogue($loaded m, n, rows, columns, M, N $given)
"""


def pointwise_source(epilogue: Epilogue) -> str:
    """The same epilogue as a kernel of its own, as Inductor would run it behind its GEMMs."""
    loads = [f"tl.load(q{i} + at, mask=inside).to(tl.float32), " for i in range(epilogue.products)]
    body = _POINTWISE.replace("$loaded ", "".join(loads))
    body = body.replace("$products ", "".join(f"q{i}, " for i in range(epilogue.products)))
    return complete_source(epilogue, body)
