"""The Gluon text of a GEMM with an epilogue for Hopper: warps that load, warps that multiply.

One warp each for x and the weights keeps a ring of tiles filled by TMA (two, so that making one's
descriptor does not wait for the other's); groups of four or eight warps multiply from there. Two
forms:

``pingpong``: two groups of four warps take every other tile. While one computes its epilogue, the
other's products run, which costs them about a cycle for each of its instructions. Each waits for
its turn: a group far ahead would take the ring's older contents for its own.

``cooperative``: one group of eight warps, for products with hardly more tiles than
multiprocessors, where there is nothing to hide an epilogue behind.

TMA's descriptors are parameters, made by the host. Of batches, and of matrices whose rows overlap,
the kernel makes them of pointers: it takes a microsecond longer, and each launch an allocation.

Matrices that an epilogue reads come by TMA, too, while the products are computed, into the place
its results will take on their way out: threads of a product's layout read pieces of 16 bytes.

A gated pair is one accumulator whose halves are columns of two weights, as in ``gemm_source.py``.

A lone product's epilogue goes through its tile in two halves, by a loop whose length the compiler
does not know: unrolled, its text is twice as long, and fetching instructions, which each group
does anew for each tile, was measured to take as long as the epilogue itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from fusepass.graph.epilogue import Epilogue
from fusepass.kernels.epilogue_text import epilogue_parts, helpers, parameters, reduction
from fusepass.kernels.hopper_copies import GROUPS, ahead, fetched

_LOADER = """

@gluon.jit
def _load_{name}({pointers}, M, N, K, stride, ring, full, empty,
          BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, GROUP: gl.constexpr,
          STAGES: gl.constexpr, TRANSPOSED: gl.constexpr, WIDTH: gl.constexpr):
    element: gl.constexpr = ring.dtype
{descriptors}
    slot = 0
    phase = 1
    tiles_m, tiles_n = gl.cdiv(M, BM), gl.cdiv(N, WIDTH)
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        m, n = _place(tile, tiles_m, tiles_n, GROUP)
        for k in range(gl.cdiv(K, BK)):
            mbarrier.wait(empty.index(slot), phase)
            here = full.index(slot)
            mbarrier.expect(here, {rows} * BK * (element.primitive_bitwidth // 8))
{copies}
            slot += 1
            if slot == STAGES:
                slot = 0
                phase ^= 1
"""
_DESCRIPTOR_OF_X = """\
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BM, BK], element)
    x_tiles = tma.make_tensor_descriptor(x_ptr, [M, K], [stride, 1], [BM, BK], layout)"""
_DESCRIPTOR = """\
    if TRANSPOSED:  # the weight lies as (N, K)
        shape{0}: gl.constexpr = gl.NVMMASharedLayout.get_default_for([WIDTH, BK], element)
        w{0}_tiles = tma.make_tensor_descriptor(
            w{0}_ptr, [N, K], [stride, 1], [WIDTH, BK], shape{0})
    else:
        shape{0}: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BK, WIDTH], element)
        w{0}_tiles = tma.make_tensor_descriptor(
            w{0}_ptr, [K, N], [stride, 1], [BK, WIDTH], shape{0})"""
_COPY_X = """\
            tma.$fetch(x_tiles, [m * BM, k * BK], here, ring.index(slot))"""
_COPY_ONE = """\
            if TRANSPOSED:
                tma.$fetch(w0_tiles, [n * BN, k * BK], here, ring.index(slot))
            else:
                tma.$fetch(w0_tiles, [k * BK, n * BN], here, ring.index(slot))"""
_COPY_OF_PAIR = """\
            if TRANSPOSED:
                tma.$fetch(w{0}_tiles, [n * WIDTH, k * BK], here,
                           ring.index(slot).slice({0} * WIDTH, WIDTH))
            else:
                tma.$fetch(w{0}_tiles, [k * BK, n * WIDTH], here,
                           ring.index(slot).slice({0} * WIDTH, WIDTH, dim=1))"""

_MULTIPLIER = """

@gluon.jit
def _multiply($params xs, ws, staged, ready, full, empty, turn, M, N, K, WHICH: gl.constexpr,
              BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, GROUP: gl.constexpr,
              STAGES: gl.constexpr, TRANSPOSED: gl.constexpr, WIDTH: gl.constexpr,
              GROUPS: gl.constexpr, STAGED: gl.constexpr, AHEAD: gl.constexpr):
    warps: gl.constexpr = gl.num_warps()
    HALF: gl.constexpr = BN // 2
    depth: gl.constexpr = 256 // xs.dtype.primitive_bitwidth  # of one instruction
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, BN, depth])
    half: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, HALF, depth])
    result: gl.constexpr = staged.dtype
    o_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BM, HALF], result)
$stores
    tiles_m, tiles_n, steps = gl.cdiv(M, BM), gl.cdiv(N, WIDTH), gl.cdiv(K, BK)
    parts = min(tiles_m, $parts - 1) + 1  # a number the compiler does not know
    step = WHICH * steps
    turn_phase = 1 - WHICH
    ready_phase = 0
    stride = gl.num_programs(0)
    for tile in range(gl.program_id(0) + WHICH * stride, tiles_m * tiles_n, GROUPS * stride):
        m, n = _place(tile, tiles_m, tiles_n, GROUP)
        first = n * WIDTH
$ahead        if GROUPS == 2:
            mbarrier.wait(turn.index(WHICH), turn_phase)
            turn_phase ^= 1
        products = gl.zeros((BM, BN), gl.float32, layout)
        slot = step % STAGES
        phase = (step // STAGES) & 1
        step += GROUPS * steps
        for k in range(steps):
            mbarrier.wait(full.index(slot), phase)
            if TRANSPOSED:
                w = ws.index(slot).permute((1, 0))
            else:
                w = ws.index(slot)
            queued = warpgroup_mma(xs.index(slot), w, products, use_acc=k > 0, is_async=True)
            products = warpgroup_mma_wait(1, deps=[queued])
            mbarrier.arrive(empty.index((slot + STAGES - 1) % STAGES), count=1, pred=k > 0)
            slot += 1
            if slot == STAGES:
                slot = 0
                phase ^= 1
        if GROUPS == 2:
            mbarrier.arrive(turn.index(1 - WHICH), count=1)
        products = warpgroup_mma_wait(0, deps=[products])
        mbarrier.arrive(empty.index((slot + STAGES - 1) % STAGES), count=1)
        left, right = gl.split(products.reshape((BM, 2, HALF)).permute((0, 2, 1)))
        left = gl.convert_layout(left, half)
        right = gl.convert_layout(right, half)
        rows = m * BM + gl.arange(0, BM, layout=gl.SliceLayout(1, half))
$epilogue
    tma.store_wait(0)
"""
_GIVEN = "    {0}_tiles = {1}"
_STORE = """\
    o{0}_tiles = tma.make_tensor_descriptor(o{0}, [M, N], [N, 1], [BM, HALF], o_layout)"""
_READ = """\
    p{0}_tiles = tma.make_tensor_descriptor(p{0}, [M, N], [s{0}, 1], [BM, HALF], o_layout)"""
_EXPECT = """\
{indent}here = ready.index(WHICH * AHEAD + {part})
{indent}mbarrier.expect(here, {count} * BM * HALF * result.primitive_bitwidth // 8)"""
_GET = """\
{indent}tma.$fetch(p{i}_tiles, [m * BM, {column}], here, staged.index(WHICH * STAGED + {spot}))"""
_PUT = """\
{indent}spot = staged.index(WHICH * STAGED + ({number}) % STAGED)
{indent}tma.store_wait({pending})
{indent}spot.store({value}.to(result))
{indent}fence_async_shared()
{indent}tma.$send(o{i}_tiles, [m * BM, first], spot)"""

_KERNEL = """

@gluon.jit
def $name(x_ptr, $weights, $params M, N, K, sx, sw,
          BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, GROUP: gl.constexpr,
          STAGES: gl.constexpr, STAGED: gl.constexpr, AHEAD: gl.constexpr,
          TRANSPOSED: gl.constexpr):
    WIDTH: gl.constexpr = BN // $products
    HALF: gl.constexpr = BN // 2
    element: gl.constexpr = x_ptr.dtype$of_pointer
    result: gl.constexpr = o0.dtype$of_pointer
    x_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BM, BK], element)
    o_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BM, HALF], result)
    barriers: gl.constexpr = mbarrier.MBarrierLayout()
    xs = gl.allocate_shared_memory(element, [STAGES, BM, BK], x_layout)
    if TRANSPOSED:
        w_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BN, BK], element)
        ws = gl.allocate_shared_memory(element, [STAGES, BN, BK], w_layout)
    else:
        w_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BK, BN], element)
        ws = gl.allocate_shared_memory(element, [STAGES, BK, BN], w_layout)
    staged = gl.allocate_shared_memory(result, [$groups * STAGED, BM, HALF], o_layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barriers)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barriers)
    turn = gl.allocate_shared_memory(gl.int64, [2, 1], barriers)
    ready = gl.allocate_shared_memory(gl.int64, [$groups * AHEAD, 1], barriers)
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=2)
        mbarrier.init(empty.index(i), count=1)
    for i in gl.static_range(2):
        mbarrier.init(turn.index(i), count=1)
    for i in gl.static_range($groups * AHEAD):
        mbarrier.init(ready.index(i), count=1)
    fence_async_shared()
    gl.warp_specialize([
$partitions
        (_load_x, (x_ptr, M, N, K, sx, xs, full, empty,
                   BM, BN, BK, GROUP, STAGES, TRANSPOSED, WIDTH)),
        (_load_w, ($weights, M, N, K, sw, ws, full, empty,
                   BM, BN, BK, GROUP, STAGES, TRANSPOSED, WIDTH)),
    ], $warps, $registers)
"""
_PARTITION = """\
        (_multiply, ($params xs, ws, staged, ready, full, empty, turn, M, N, K, {0},
                     BM, BN, BK, GROUP, STAGES, TRANSPOSED, WIDTH, $groups, STAGED, AHEAD)),"""

_IMPORTS = """\
import triton
import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait,
)

"""
NAME = "fusepass_gemm_hopper"


def hopper_source(epilogue: Epilogue, form: str, *, hosted: bool) -> str:
    """The text of a module whose ``fusepass_gemm_hopper`` computes ``epilogue`` of its products.

    Parameters as of :func:`fusepass.kernels.gemm_source.source`. Outputs that are not reduced
    come first; there is one, and all are of one half type (of fp32 where x is), with rows that
    start at multiples of 16 bytes.

    Args:
        epilogue: of one or two products.
        form: ``pingpong`` or ``cooperative``, as above.
        hosted: whether the host makes the descriptors, of what ``described`` of
            ``hopper_copies.py`` names, in place of pointers.
    """
    groups, pair = GROUPS[form], epilogue.products == 2
    each = range(epilogue.products)
    outputs = [i for i, output in enumerate(epilogue.outputs) if not output.over]
    weights = ", ".join(f"w{i}_ptr" for i in each)
    load_x = _LOADER.format(
        name="x",
        pointers="x_ptr",
        descriptors=_GIVEN.format("x", "x_ptr") if hosted else _DESCRIPTOR_OF_X,
        rows="BM",
        copies=_COPY_X,
    )
    load_w = _LOADER.format(
        name="w",
        pointers=weights,
        descriptors="\n".join(
            _GIVEN.format(f"w{i}", f"w{i}_ptr") if hosted else _DESCRIPTOR.format(i) for i in each
        ),
        rows="BN",
        copies="\n".join(_COPY_OF_PAIR.format(i) for i in each) if pair else _COPY_ONE,
    )
    text = load_x + load_w + _MULTIPLIER + _KERNEL
    replaced = {
        "$partitions": "\n".join(_PARTITION.format(i) for i in range(groups)),
        "$weights": weights,
        "$stores": "\n".join(
            _GIVEN.format(name, name) if hosted else made.format(name[1:])
            for made, name in [
                *((_STORE, f"o{i}") for i in outputs),
                *((_READ, f"p{i}") for i in fetched(epilogue)),
            ]
        ),
        "$of_pointer": "" if hosted else ".element_ty",
        "$ahead": _ahead(epilogue, form),
        "$epilogue": _epilogue(epilogue, form),
        "$params": "".join(f"{name}, " for name in parameters(epilogue)),
        "$parts": "1" if pair else "2",
        "$products": str(epilogue.products),
        "$groups": str(groups),
        # Of 512 registers per lane of a warp in four; the first group gets what these leave.
        "$warps": "[4, 1, 1]" if groups == 2 else "[1, 1]",
        "$registers": "[240, 24, 24]" if groups == 2 else "[24, 24]",
        "$fetch": _named("async_load", "async_copy_global_to_shared"),
        "$send": _named("async_store", "async_copy_shared_to_global"),
        "$name": NAME,
    }
    for key, value in replaced.items():
        text = text.replace(key, value)
    return _IMPORTS + in_gluon(helpers()) + text


def _named(new: str, old: str) -> str:
    """What this Triton calls a copy by TMA; newer ones keep the old name, to say it is gone."""
    from triton.experimental.gluon.language.nvidia.hopper import tma

    return new if hasattr(tma, new) else old


def in_gluon(text: str) -> str:
    """Triton's text as Gluon, for what both languages call the same."""
    text = text.replace("tl.PropagateNan", "triton.language.PropagateNan").replace("tl.", "gl.")
    return text.replace("@triton.jit", "@gluon.jit")


def _ahead(epilogue: Epilogue, form: str) -> str:
    """The lines that ask for what an epilogue reads, before its products are computed."""
    reads = fetched(epilogue)
    if not reads:
        return ""
    indent = " " * 8
    lines = [f"{indent}tma.store_wait(0)"]
    for part in range(ahead(epilogue, form)):
        column = f"first + {part} * HALF" if part else "first"
        lines += _fetching(reads, indent, part, column)
    return "\n".join(lines) + "\n"


def _fetching(reads: Sequence[int], indent: str, part: int, column: str) -> list[str]:
    lines = [_EXPECT.format(indent=indent, part=part, count=len(reads))]
    for place, i in enumerate(reads):
        lines.append(_GET.format(indent=indent, i=i, column=column, spot=part + place))
    return lines


def _epilogue(epilogue: Epilogue, form: str) -> str:
    """The lines that compute one half of a tile, or all of a pair's, and send it out."""
    pair, reads = epilogue.products == 2, fetched(epilogue)
    both = ahead(epilogue, form) == 2
    indent = " " * (8 if pair else 12)
    lines = [] if pair else ["        for part in range(parts):"]
    lines += [f"{indent}v0 = left"] + [f"{indent}v1 = right"] * pair
    lines.append(f"{indent}columns = first + gl.arange(0, HALF, layout=gl.SliceLayout(0, half))")
    loads = {}
    if reads:
        part = "part" if both else "0"
        lines.append(f"{indent}mbarrier.wait(ready.index(WHICH * AHEAD + {part}), ready_phase)")
        for place, i in enumerate(reads):
            spot = f"staged.index(WHICH * STAGED + {part} + {place})"
            loads[i] = f"{spot}.load(half).to(gl.float32)"
    computed, values = epilogue_parts(epilogue, loads)
    lines += [indent + in_gluon(line) for line in computed]
    count = len(epilogue.stored)
    for i, (output, value) in enumerate(zip(epilogue.outputs, values, strict=True)):
        if output.over:
            text = reduction(i, output, value, "n" if pair else "(2 * n + part)")
            lines += [indent + in_gluon(line) for line in text]
            continue
        number = str(i) if pair else f"part * {count} + {i}"
        if reads and not both:
            number = str(i)
        # What is fetched takes the place of results that have left: there is none to wait for.
        pending = "STAGED - 1" if not reads else "STAGED"
        lines.append(_PUT.format(indent=indent, i=i, value=value, number=number, pending=pending))
    if reads and not both and not pair:
        lines += [f"{indent}ready_phase ^= 1", f"{indent}if part + 1 < parts:"]
        lines.append(f"{indent}    tma.store_wait(0)")
        lines += _fetching(reads, indent + "    ", 0, "first + HALF")
    if not pair:
        lines += [f"{indent}left = right", f"{indent}first += HALF"]
    if reads and (both or pair):
        lines.append("        ready_phase ^= 1")
    return "\n".join(lines)
