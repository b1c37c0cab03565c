"""The Gluon text of a GEMM with an epilogue for Hopper: warps that load, warps that multiply.

One warp each for x and the weights keeps a ring of tiles filled by TMA (two, so that making one's
descriptor does not wait for the other's); groups of four or eight warps multiply from there. Two
forms:

``pingpong``: two groups of four warps take every other tile. While one computes its epilogue, the
other's products run, which costs them about a cycle for each of its instructions. Each waits for
its turn: a group far ahead would take the ring's older contents for its own.

``cooperative``: one group of eight warps, for products with hardly more tiles than
multiprocessors, where there is nothing to hide an epilogue behind.

TMA's descriptors are parameters, made by the host. For batches, and matrices whose rows overlap,
the kernel makes them from pointers: it takes a microsecond longer, and each launch an allocation.

Matrices that an epilogue reads come by TMA, too, while the products are computed, into the place
its results will take on their way out: threads of a product's layout read pieces of 16 bytes.

A gated pair is one accumulator whose halves are columns of two weights, as in ``triton_source.py``.

A lone product's epilogue goes through its tile in two halves, by a loop whose length the compiler
does not know: unrolled, its text is twice as long, and fetching instructions, which each group
does anew for each tile, was measured to take as long as the epilogue itself. A tile whose last
steps are computed by halves (``gluon_mma.py``) has it unrolled: products run meanwhile.

Here is the kernel, and the frame of the warps that multiply; what fills it stands in
``gluon_mma.py`` and ``gluon_epilogue.py``, the warps that load in ``gluon_loads.py``.
"""

from __future__ import annotations

from fusepass.fusion.kernel_ir.epilogue import Epilogue
from fusepass.kernels.codegen.epilogue_source import helpers, parameters
from fusepass.kernels.gemm.hopper.gluon_compat import IMPORTS, copies, in_gluon
from fusepass.kernels.gemm.hopper.gluon_epilogue import prefetch_operands, store_outputs
from fusepass.kernels.gemm.hopper.gluon_loads import GIVEN, loaders
from fusepass.kernels.gemm.hopper.gluon_mma import ADD, HALVES, WHOLE
from fusepass.kernels.gemm.hopper.tma_plan import GROUPS, fetched_by_tma

_MULTIPLIER = """

@gluon.jit
def _multiply($params xs, ws, staged, ready, full, empty, turn, M, N, K, WHICH: gl.constexpr,
              BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, GROUP: gl.constexpr,
              STAGES: gl.constexpr, TRANSPOSED: gl.constexpr, WIDTH: gl.constexpr,
              GROUPS: gl.constexpr, STAGED: gl.constexpr, AHEAD: gl.constexpr,
              TAIL: gl.constexpr):
    warps: gl.constexpr = gl.num_warps()
    HALF: gl.constexpr = BN // 2
    depth: gl.constexpr = 256 // xs.dtype.primitive_bitwidth  # of one instruction
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, BN, depth])
    half: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, HALF, depth])
    result: gl.constexpr = staged.dtype
    o_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BM, HALF], result)
$stores
    tiles_m, tiles_n = gl.cdiv(M, BM), gl.cdiv(N, WIDTH)
    steps = max(gl.cdiv(K, BK), TAIL)  # of those beyond K, TMA gives zeros
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
        slot = step % STAGES
        phase = (step // STAGES) & 1
        step += GROUPS * steps
$products        rows = m * BM + gl.arange(0, BM, layout=gl.SliceLayout(1, half))
$epilogue
    tma.store_wait(0)
"""
_STORE = """\
    o{0}_tiles = tma.make_tensor_descriptor(o{0}, [M, N], [N, 1], [BM, HALF], o_layout)"""
_READ = """\
    p{0}_tiles = tma.make_tensor_descriptor(p{0}, [M, N], [s{0}, 1], [BM, HALF], o_layout)"""
_KERNEL = """

@gluon.jit
def $name(x_ptr, $weights, $params M, N, K, sx, sw,
          BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, GROUP: gl.constexpr,
          STAGES: gl.constexpr, STAGED: gl.constexpr, AHEAD: gl.constexpr, TAIL: gl.constexpr,
          TRANSPOSED: gl.constexpr):
    WIDTH: gl.constexpr = BN // $count
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
                   BM, BN, BK, GROUP, STAGES, TRANSPOSED, WIDTH, TAIL)),
        (_load_w, ($weights, M, N, K, sw, ws, full, empty,
                   BM, BN, BK, GROUP, STAGES, TRANSPOSED, WIDTH, TAIL)),
    ], $warps, $registers)
"""
_PARTITION = """\
        (_multiply, ($params xs, ws, staged, ready, full, empty, turn, M, N, K, {0},
                     BM, BN, BK, GROUP, STAGES, TRANSPOSED, WIDTH, $groups, STAGED, AHEAD,
                     TAIL)),"""

NAME = "fusepass_gemm_hopper"


def hopper_source(epilogue: Epilogue, form: str, *, hosted: bool, tail: bool = False) -> str:
    """The text of a module whose ``fusepass_gemm_hopper`` computes ``epilogue`` of its products.

    Parameters as of :func:`fusepass.kernels.gemm.triton_source.source`. Outputs that are not
    reduced come first; there is one, and all are of one half type (of fp32 where x is), with rows
    that start at multiples of 16 bytes.

    Args:
        epilogue: of one or two products.
        form: ``pingpong`` or ``cooperative``, as above.
        hosted: whether the host makes the descriptors, of what ``described`` of
            ``tma_plan.py`` names, in place of pointers.
        tail: whether a tile's last products are computed by halves (``TAIL`` is not 0).
    """
    groups, pair = GROUPS[form], epilogue.products == 2
    each = range(epilogue.products)
    outputs = [i for i, output in enumerate(epilogue.outputs) if not output.over]
    weights = ", ".join(f"w{i}_ptr" for i in each)
    text = loaders(epilogue, hosted=hosted) + ADD * tail + _MULTIPLIER + _KERNEL
    replaced = {
        "$partitions": "\n".join(_PARTITION.format(i) for i in range(groups)),
        "$weights": weights,
        "$stores": "\n".join(
            GIVEN.format(name, name) if hosted else made.format(name[1:])
            for made, name in [
                *((_STORE, f"o{i}") for i in outputs),
                *((_READ, f"p{i}") for i in fetched_by_tma(epilogue)),
            ]
        ),
        "$of_pointer": "" if hosted else ".element_ty",
        "$ahead": prefetch_operands(epilogue, form),
        "$products": HALVES if tail else WHOLE,
        "$epilogue": store_outputs(epilogue, form, tail),
        "$params": "".join(f"{name}, " for name in parameters(epilogue)),
        "$parts": "1" if pair else "2",
        "$count": str(epilogue.products),
        "$groups": str(groups),
        # Out of 512 registers per lane of a warp in four; the first group gets what these leave.
        "$warps": "[4, 1, 1]" if groups == 2 else "[1, 1]",
        "$registers": "[240, 24, 24]" if groups == 2 else "[24, 24]",
        **copies(),
        "$name": NAME,
    }
    for key, value in replaced.items():
        text = text.replace(key, value)
    return IMPORTS + in_gluon(helpers(epilogue)) + text
