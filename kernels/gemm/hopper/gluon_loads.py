"""The Gluon text of the warps that load: a ring of tiles, filled by TMA."""

from __future__ import annotations

from fusepass.fusion.kernel_ir.epilogue import Epilogue

_LOADER = """

@gluon.jit
def _load_{name}({pointers}, M, N, K, stride, ring, full, empty,
          BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, GROUP: gl.constexpr,
          STAGES: gl.constexpr, TRANSPOSED: gl.constexpr, WIDTH: gl.constexpr,
          TAIL: gl.constexpr):
    element: gl.constexpr = ring.dtype
{descriptors}
    slot = 0
    phase = 1
    tiles_m, tiles_n = gl.cdiv(M, BM), gl.cdiv(N, WIDTH)
    steps = max(gl.cdiv(K, BK), TAIL)  # of those beyond K, TMA gives zeros
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        m, n = _place(tile, tiles_m, tiles_n, GROUP)
        for k in range(steps):
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
GIVEN = "    {0}_tiles = {1}"
"""Where the host made a descriptor."""


def loaders(epilogue: Epilogue, *, hosted: bool) -> str:
    """Functions ``_load_x`` and ``_load_w``; see ``hopper_source``."""
    pair = epilogue.products == 2
    each = range(epilogue.products)
    load_x = _LOADER.format(
        name="x",
        pointers="x_ptr",
        descriptors=GIVEN.format("x", "x_ptr") if hosted else _DESCRIPTOR_OF_X,
        rows="BM",
        copies=_COPY_X,
    )
    load_w = _LOADER.format(
        name="w",
        pointers=", ".join(f"w{i}_ptr" for i in each),
        descriptors="\n".join(
            GIVEN.format(f"w{i}", f"w{i}_ptr") if hosted else _DESCRIPTOR.format(i) for i in each
        ),
        rows="BN",
        copies="\n".join(_COPY_OF_PAIR.format(i) for i in each) if pair else _COPY_ONE,
    )
    return load_x + load_w
