"""The Gluon text of a tile's products along K."""

from __future__ import annotations

ADD = """

@gluon.jit
def _add(x, w, products, FIRST: gl.constexpr, COUNT: gl.constexpr, TRANSPOSED: gl.constexpr):
    if TRANSPOSED:
        columns = w.slice(FIRST, COUNT).permute((1, 0))
    else:
        columns = w.slice(FIRST, COUNT, dim=1)
    return warpgroup_mma(x, columns, products, is_async=True)
"""
"""A function: one step of some columns of a tile."""

WHOLE = """\
        products = gl.zeros((BM, BN), gl.float32, layout)
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
"""
"""All columns by one instruction; then the halves, ``left`` and ``right``."""

HALVES = """\
        left = gl.zeros((BM, HALF), gl.float32, half)
        right = gl.zeros((BM, HALF), gl.float32, half)
        for k in range(steps - TAIL):
            mbarrier.wait(full.index(slot), phase)
            left = _add(xs.index(slot), ws.index(slot), left, 0, HALF, TRANSPOSED)
            right = _add(xs.index(slot), ws.index(slot), right, HALF, HALF, TRANSPOSED)
            left, right = warpgroup_mma_wait(2, deps=[left, right])
            mbarrier.arrive(empty.index((slot + STAGES - 1) % STAGES), count=1, pred=k > 0)
            slot += 1
            if slot == STAGES:
                slot = 0
                phase ^= 1
        for i in gl.static_range(TAIL):
            last = (slot + i) % STAGES
            mbarrier.wait(full.index(last), phase ^ ((slot + i) // STAGES))
            left = _add(xs.index(last), ws.index(last), left, 0, HALF, TRANSPOSED)
            if i == 0:
                left, right = warpgroup_mma_wait(1, deps=[left, right])
                before = empty.index((slot + STAGES - 1) % STAGES)
                mbarrier.arrive(before, count=1, pred=steps > TAIL)
        for i in gl.static_range(TAIL):
            last = (slot + i) % STAGES
            right = _add(xs.index(last), ws.index(last), right, HALF, HALF, TRANSPOSED)
        left, right = warpgroup_mma_wait(TAIL, deps=[left, right])
"""
"""Both halves, but of the last steps the right one's products may still run."""

REST = """\
                right = warpgroup_mma_wait(0, deps=[right])
                for i in gl.static_range(TAIL):
                    mbarrier.arrive(empty.index((slot + i) % STAGES), count=1)"""
"""Within the epilogue of the left half: wait for them."""
