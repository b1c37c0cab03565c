"""The Triton text of a GEMM with an epilogue; one text per epilogue, for every tile and stage.

Two main loops, both persistent, with TMA descriptors made on the device:

``one``: ``epilogue(x @ w.T)``.

``pair``: ``epilogue(x @ w.T, x @ w2.T)`` in one accumulator twice as wide. One three-dimensional
descriptor covers both weights; its outermost stride is the distance between their addresses. A
block of it, ``(2, H, BK)``, lies in shared memory as a ``(2 H, BK)`` operand, so a single dot
serves both, and nothing is copied or laid out anew. The halves of the accumulator are in the same
threads, so taking it apart is free. Measured on an H200: cuBLAS's speed for the merged weight,
where two accumulators of half the width are a fifth slower (docs/kernels.md).

The distance may be negative (then the halves change places) or, between allocations that lie 2**40
bytes apart, more than a descriptor can hold: then the two weights are loaded by two descriptors.
"""

from __future__ import annotations

from collections.abc import Iterator

from fusepass.graph.epilogue import Argument, Epilogue, Operand, Step

# erf(x / sqrt(2)) = 2 s(x p(x²)) - 1 with s(t) = 1 / (1 + 2**-t): p by weighted least squares on
# (0, 5.5), largest error of x s(x p(x²)) against x Φ(x): 3.1e-6.
_NORMAL = (2.3020438192662556, 0.10522991652679782, -3.620242383641106e-4)
_NORMAL_REST = (-8.791303694468331e-5, 3.2105199753848347e-6)

_HELPERS = '''\
import triton
import triton.language as tl


@triton.jit
def _reciprocal(x):
    """1 / x for x of at least 1, by one instruction in place of a division"""
    return $reciprocal


@triton.jit
def _logistic(t):
    """1 / (1 + 2**-t)"""
    return _reciprocal(1.0 + tl.exp2(-t))


@triton.jit
def _one_and_erf(z):
    """1 + erf(z)"""
    y = tl.minimum(z * z * 2.0, 30.25)
    p = $rest0 + y * $rest1
    p = $normal0 + y * ($normal1 + y * ($normal2 + y * p))
    return 2.0 * _logistic(z * 1.4142135623730951 * p)


@triton.jit
def _one_and_tanh(x):
    """1 + tanh(x)"""
    return 2.0 * _logistic(x * 2.8853900817779268)


@triton.jit
def _erf(z):
    """To 3e-6, for results of half precision: the library's takes half as long as the GEMM."""
    far = _one_and_erf(z) - 1.0
    return tl.where(tl.abs(z) < 0.03125, z * (1.1283791670955126 - z * z * 0.3761263890318375), far)


@triton.jit
def _tanh(x):
    far = _one_and_tanh(x) - 1.0
    return tl.where(tl.abs(x) < 0.03125, x - x * x * x * 0.3333333333333333, far)


@triton.jit
def _expm1(x):
    near = x * (1.0 + x * (0.5 + x * 0.16666666666666666))
    return tl.where(tl.abs(x) < 0.03125, near, tl.exp2(x * 1.4426950408889634) - 1.0)


@triton.jit
def _log1p(x):
    near = x * (1.0 - x * (0.5 - x * (0.3333333333333333 - x * 0.25)))
    return tl.where(tl.abs(x) < 0.03125, near, tl.log(1.0 + x))


@triton.jit
def _place(tile, tiles_m, tiles_n, GROUP: tl.constexpr):
    """Row and column of a tile: columns of GROUP rows of tiles, which share their weights in L2."""
    in_group = GROUP * tiles_n
    first = (tile // in_group) * GROUP
    size = min(tiles_m - first, GROUP)
    return first + (tile % in_group) % size, (tile % in_group) // size
'''

_RECIPROCAL = """tl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )"""

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
            product = tl.dot(x, w, product)
        rows = m * BM + tl.arange(0, BM)
        if SPLIT:
            left, right = tl.split(tl.reshape(product, (BM, 2, BN // 2)).permute(0, 2, 1))
            columns = n * BN + tl.arange(0, BN // 2)
            _epilogue(left, rows, columns, M, N $given)
            _epilogue(right, rows, columns + BN // 2, M, N $given)
        else:
            _epilogue(product, rows, n * BN + tl.arange(0, BN), M, N $given)
"""

_PAIR = """

@triton.jit
def fusepass_gemm(x_ptr, w0_ptr, w1_ptr, $params M, N, K, sx, sw,
                  BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):
    H: tl.constexpr = BN // 2
    tiles_m, tiles_n, steps = tl.cdiv(M, BM), tl.cdiv(N, H), tl.cdiv(K, BK)
    second = w1_ptr
    apart = (second.to(tl.int64) - w0_ptr.to(tl.int64)) // 2  # in elements of a half type
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
                products = tl.dot(x, w.T, products)
            first, other = tl.split(tl.reshape(products, (BM, 2, H)).permute(0, 2, 1))
            rows, columns = m * BM + tl.arange(0, BM), n * H + tl.arange(0, H)
            product = tl.where(swapped, other, first)
            _epilogue(product, tl.where(swapped, first, other), rows, columns, M, N $given)
    else:
        w_tiles = tl.make_tensor_descriptor(w0_ptr, [N, K], [sw, 1], [H, BK])
        v_tiles = tl.make_tensor_descriptor(second, [N, K], [sw, 1], [H, BK])
        for tile in range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0)):
            m, n = _place(tile, tiles_m, tiles_n, GROUP)
            first = tl.zeros((BM, H), tl.float32)
            other = tl.zeros((BM, H), tl.float32)
            for k in tl.range(steps, num_stages=2):
                x = x_tiles.load([m * BM, k * BK])
                first = tl.dot(x, w_tiles.load([n * H, k * BK]).T, first)
                other = tl.dot(x, v_tiles.load([n * H, k * BK]).T, other)
            rows, columns = m * BM + tl.arange(0, BM), n * H + tl.arange(0, H)
            _epilogue(first, other, rows, columns, M, N $given)
"""

EXPRESSIONS = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "neg": "-{0}",
    "abs": "tl.abs({0})",
    "exp": "tl.exp2({0} * 1.4426950408889634)",
    "expm1": "_expm1({0})",
    "log": "tl.log({0})",
    "log1p": "_log1p({0})",
    "sqrt": "tl.sqrt({0})",
    "rsqrt": "tl.rsqrt({0})",
    "reciprocal": "1.0 / {0}",
    "erf": "_erf({0})",
    "tanh": "_tanh({0})",
    "sigmoid": "_logistic({0} * 1.4426950408889634)",
    "relu": "tl.maximum({0}, 0.0, propagate_nan=tl.PropagateNan.ALL)",
    "maximum": "tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "minimum": "tl.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "where": "tl.where({0}, {1}, {2})",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "logical_not": "{0} == 0",
    "logical_and": "{0} & {1}",
    "logical_or": "{0} | {1}",
}


def source(epilogue: Epilogue) -> str:
    """The text of a module whose ``fusepass_gemm`` computes ``epilogue`` of its products.

    Its parameters after the weights: each operand's pointer (``p0``, …), with the row stride of one
    that is full; each output's pointer (``o0``, …); then sizes and strides. Outputs are contiguous.
    """
    return completed(epilogue, _ONE if epilogue.products == 1 else _PAIR)


def completed(epilogue: Epilogue, body: str) -> str:
    """The module of a kernel's text: helpers and the epilogue before it, its parameters put in."""
    names = list(_parameters(epilogue))
    given = "".join(f", {name}" for name in names)
    text = _HELPERS + "\n\n" + _epilogue_text(epilogue, names) + body
    replaced = {
        "$reciprocal": "1.0 / x" if interpreted() else _RECIPROCAL,
        "$params": "".join(f"{name}, " for name in names),
        " $given": given,
        "$normal0": repr(_NORMAL[0]),
        "$normal1": repr(_NORMAL[1]),
        "$normal2": repr(_NORMAL[2]),
        "$rest0": repr(_NORMAL_REST[0]),
        "$rest1": repr(_NORMAL_REST[1]),
    }
    for key, value in replaced.items():
        text = text.replace(key, value)
    return text


def interpreted() -> bool:
    """Whether Triton's kernels run in its interpreter, which knows no inline assembly."""
    import triton

    return bool(triton.knobs.runtime.interpret)


def _parameters(epilogue: Epilogue) -> Iterator[str]:
    for i, operand in enumerate(epilogue.operands):
        yield f"p{i}"
        if operand.kind == "full":
            yield f"s{i}"
    for i in range(len(epilogue.outputs)):
        yield f"o{i}"


def _epilogue_text(epilogue: Epilogue, names: list[str]) -> str:
    products = [f"v{i}" for i in range(epilogue.products)]
    lines = [
        "@triton.jit",
        f"def _epilogue({', '.join([*products, 'rows', 'columns', 'M', 'N', *names])}):",
        "    inside = (rows < M)[:, None] & (columns < N)[None, :]",
        "    at = rows.to(tl.int64)[:, None]",
    ]
    known = epilogue.products
    for i, operand in enumerate(epilogue.operands):
        lines.append(f"    v{known} = {_load(i, operand)}")
        known += 1
    for step in epilogue.steps:
        lines.append(f"    v{known} = {_expression(epilogue, step)}")
        known += 1
    for i, output in enumerate(epilogue.outputs):
        place = f"o{i} + at * N + columns[None, :]"
        cast = f"tl.broadcast_to({_value(output.value)}, inside.shape).to(o{i}.dtype.element_ty)"
        lines.append(f"    tl.store({place}, {cast}, mask=inside)")
    return "\n".join(lines) + "\n"


def _expression(epilogue: Epilogue, step: Step) -> str:
    """One operation; what is left without a use the compiler takes out."""

    def behind(arg: Argument) -> Step | None:
        """The operation that gives an argument."""
        first = epilogue.products + len(epilogue.operands)
        index = int(arg[1:]) - first if isinstance(arg, str) else -1
        return epilogue.steps[index] if index >= 0 else None

    if step.op == "add" and 1.0 in step.args:  # 1 + tanh(x), of GELU, needs no care near 0
        for inner in map(behind, step.args):
            if inner is not None and inner.op in ("erf", "tanh"):
                return f"_one_and_{inner.op}({_value(inner.args[0])})"
    below = behind(step.args[1]) if step.op == "div" else None
    if below is not None and below.op == "add" and 1.0 in below.args:
        added = [inner.op for inner in map(behind, below.args) if inner is not None]
        if added == ["exp"]:  # x / (1 + exp(-x)), of SiLU
            return f"{_value(step.args[0])} * _reciprocal({_value(step.args[1])})"
    return EXPRESSIONS[step.op].format(*map(_value, step.args))


def _load(i: int, operand: Operand) -> str:
    place, mask, shape = {
        "row": (f"p{i} + columns", "columns < N", "[None, :]"),
        "column": (f"p{i} + rows", "rows < M", "[:, None]"),
        "full": (f"p{i} + at * s{i} + columns[None, :]", "inside", ""),
        "scalar": (f"p{i}", "", ""),
    }[operand.kind]
    masked = f", mask={mask}, other=0" if mask else ""
    kind = "tl.int1" if operand.dtype == "bool" else "tl.float32"
    return f"tl.load({place}{masked}).to({kind}){shape}"


def _value(arg: Argument) -> str:
    if isinstance(arg, str):
        return f"v{arg[1:]}"
    if isinstance(arg, bool):
        return repr(arg)
    if arg != arg or abs(arg) == float("inf"):
        return f'float("{arg!r}")'
    return repr(float(arg))


_POINTWISE = """

@triton.jit
def fusepass_pointwise($products $params M, N, BM: tl.constexpr, BN: tl.constexpr):
    rows = tl.program_id(1) * BM + tl.arange(0, BM)
    columns = tl.program_id(0) * BN + tl.arange(0, BN)
    at = rows.to(tl.int64)[:, None] * N + columns[None, :]
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    _epilogue($loaded rows, columns, M, N $given)
"""


def pointwise_source(epilogue: Epilogue) -> str:
    """The same epilogue as a kernel of its own, as Inductor would run it behind its GEMMs."""
    loads = [f"tl.load(q{i} + at, mask=inside).to(tl.float32), " for i in range(epilogue.products)]
    body = _POINTWISE.replace("$loaded ", "".join(loads))
    body = body.replace("$products ", "".join(f"q{i}, " for i in range(epilogue.products)))
    return completed(epilogue, body)
