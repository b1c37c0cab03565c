"""The kernels of GEMM regions on random sizes, layouts and dtypes, with infinities and NaN."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from fusepass.fusion.kernel_ir.epilogue import Epilogue, parse
from fusepass.kernels.gemm import op as kernel
from fusepass.kernels.gemm.baseline import reduce_partial_results
from fusepass.kernels.gemm.tiles import Tile, tiles
from tests.kernels.gemm.test_op import EPILOGUES, exact_and_eager, within

pytestmark = pytest.mark.gpu
GROUPS, CASES = 8, 50
LIMIT = 227 << 10  # shared memory of a Hopper device


class Case:
    """One draw: an epilogue, a tile, sizes, and tensors as they lie in somebody's program."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        dtype = draw.choice(["bfloat16", "float16", "float32"])
        text = EPILOGUES[draw.choice(sorted(EPILOGUES))].text()
        self.epilogue: Epilogue = parse(text.replace("bfloat16", dtype))
        self.dtype = getattr(torch, dtype)
        every = tiles(self.epilogue, LIMIT)
        size = self.dtype.itemsize
        fitting = [tile for tile in every.values() if tile.itemsize == size]
        if self.epilogue.reduced:
            fitting = [tile for tile in fitting if not tile.few_rows and tile.cuda is None]
        self.tile: Tile = draw.choice(sorted(fitting, key=str))
        most = self.tile.m if self.tile.few_rows or self.tile.form == "rows" else 700
        self.m = draw.choice([0, 1, most, draw.randint(1, most), draw.randint(1, most)])
        self.n, self.k = (self.size(600), self.size(1200))
        if draw.random() < 0.05:
            self.k = 0
        alone = self.epilogue.reduced or self.tile.rounds_by_host  # whose batches do not round
        self.batches = 0 if alone else draw.choice([0, 0, 0, 1, 3])

    def size(self, most: int) -> int:
        """Mostly a multiple of 8, which the kernels want."""
        size = self.draw.randint(1, most)
        return size if self.draw.random() < 0.15 else -(-size // 8) * 8

    def noise(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        made = torch.randn(shape, device="cuda")
        return made > 0 if dtype is torch.bool else made.to(dtype or self.dtype)

    def x(self) -> Tensor:
        """Whole, a slice of wider rows, or every other row."""
        how = self.draw.choice(["whole", "slice", "rows"])
        if how == "slice":
            return self.noise(self.m, self.k + 16)[:, 8 : 8 + self.k]
        x = self.noise(self.m * 2, self.k)[::2] if how == "rows" else self.noise(self.m, self.k)
        if x.numel() and self.draw.random() < 0.2:
            x[0, -1] = self.draw.choice([float("inf"), float("-inf"), float("nan")])
        return x

    def weights(self) -> list[Tensor]:
        """Separate, in either order of addresses, parts of a packed one, or lying as (K, N)."""
        ways = ["apart", "packed", "alternating", "rows"]
        count, how = self.epilogue.products, self.draw.choice(ways)
        scale = max(self.k, 1) ** -0.5
        if how in ("packed", "alternating"):
            whole = (self.noise(count * self.n, self.k) * scale).t()
            if how == "alternating":
                return [whole[:, i::count] for i in range(count)]
            return [whole[:, i * self.n : (i + 1) * self.n] for i in range(count)]
        if how == "rows":
            return [self.noise(self.k, self.n) * scale for _ in range(count)]
        made = [(self.noise(self.n, self.k) * scale).t() for _ in range(count)]
        return sorted(made, key=Tensor.data_ptr, reverse=self.draw.random() < 0.5)

    def operands(self) -> list[Tensor]:
        shapes = {"row": (self.n,), "column": (self.m, 1), "full": (self.m, self.n), "scalar": ()}
        return [
            self.noise(*shapes[one.kind], dtype=getattr(torch, one.dtype))
            for one in self.epilogue.operands
        ]


@pytest.mark.parametrize("group", range(GROUPS))
def test_random_cases(group: int, tf32: None) -> None:
    torch.manual_seed(group)
    launched = 0
    for number in range(CASES):
        case = Case(random.Random(group * CASES + number))
        x, weights, operands = case.x(), case.weights(), case.operands()
        if case.batches:
            x = torch.stack([x, *(case.noise(case.m, case.k) for _ in range(1, case.batches))])
            weights = [w.expand(case.batches, *w.shape) for w in weights]
            operands = [
                torch.cat([one] * case.batches) if kind.kind in ("full", "column") else one
                for one, kind in zip(operands, case.epilogue.operands, strict=True)
            ]
        text = case.epilogue.text()
        refused = kernel.refuses(x, weights, operands, case.epilogue)
        takes = case.tile.takes(x.shape[-2], weights, case.epilogue)
        hosted = kernel.by_host((x, *weights, *operands), case.epilogue)
        if refused is None and takes and (hosted or not case.tile.rounds_by_host):
            got = kernel.launch(x, weights, operands, text, case.tile)
            launched += 1
        else:
            got = torch.ops.fusepass.gemm_region(x, weights, operands, text, case.tile.name)
        got = reduce_partial_results(case.epilogue, got)
        exact, eager = exact_and_eager(case.epilogue, x, weights, operands)
        facts = case.tile.name, case.dtype, (case.m, case.n, case.k), group * CASES + number
        assert within(got, exact, eager), facts
        assert all(out.is_contiguous() for out in got), facts
    assert launched >= CASES // 4
