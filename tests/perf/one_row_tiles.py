"""All tiles there could be for one row, on this card: which ones default mode should time.

    for i in $(seq 0 14); do python tests/perf/one_row_tiles.py --compile $i 15 & done; wait
    python tests/perf/one_row_tiles.py --json one-row-tiles.json     # a minute, once they are kept

Microseconds of a launch in CUDA graphs of at least four, over as many copies of the weights as L2
does not hold; medians of 13 interleaved rounds; bf16. Single products, SwiGLU pairs, products of
one operand, and both behind an RMSNorm or a LayerNorm. ``--regret A.json B.json`` says of records
of several cards how far the tiles that default mode times are behind the best, per cent.

Predicted before the first run on an H200, of tiles chosen on an H100: within 5 %. Found: up to
14 % (single products by plain loads or a ring of 1,024), 13 % (pairs), 8 % (LayerNorm). Predicted
then: a norm in the ring takes as long as the ring alone. Rings with a kernel for the norm in front
took 57.4 us (4096 -> 2 * 14336). They took 22.8 us with 3072 -> 12288.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from few_rows_mlp import on_device
from torch import Tensor

from fusepass.bench.hardware import heading
from fusepass.fusion.kernel_ir.epilogue import Epilogue, parse
from fusepass.fusion.kernel_ir.norm import Norm
from fusepass.kernels.gemm import normed_gemms, op, sibling_gemms
from fusepass.kernels.gemm.tile_heuristic import heuristic_tiles
from fusepass.kernels.gemm.tiles import Tile, ring_of, tiles

L2, ROUNDS = 220_000_000, 13  # bytes, more than it holds
PLAIN = parse(
    '{"products":1,"operands":[],"steps":[],"outputs":[{"value":"%0","dtype":"bfloat16"}]}'
)
SWIGLU = parse(
    '{"products":2,"operands":[],"steps":[{"op":"sigmoid","args":["%0"]},'
    '{"op":"mul","args":["%0","%2"]},{"op":"mul","args":["%3","%1"]}],'
    '"outputs":[{"value":"%4","dtype":"bfloat16"}]}'
)
RMS, LAYER = Norm(1e-5), Norm(1e-5, 0.0, True, True)
_ROWS = """1x512w2 1x1024w2 1x1024w4 1x2048w2 1x2048w4 1x2048w8 1x4096w8 2x256w2 2x512w2 2x512w4
2x1024w2 2x1024w4 2x1024w8 2x2048w4 2x2048w8 4x256w2 4x256w4 4x512w2 4x512w4 4x512w8 4x1024w4
4x1024w8 8x256w4 8x256w8 8x512w4 8x512w8 8x1024w8 16x256w4"""
_RINGS = {
    1: "1x1024w8s8 1x2048w8s4 1x2048w12s3 1x4096w8s2 1x1024w16s4",
    2: "2x1024w8s3 2x2048w8s2 2x4096w8s1 2x1024w8s5",
}
_ONE = """4096x4096 4096x6144 14336x4096 2048x2048 8192x2048 3072x1024 1024x4096 4096x1024 768x3072
3072x768 4096x16384 2048x8192 2048x128256 2048x512"""
_PAIRS = "4096x14336 2048x8192 1024x3072 3072x8192 5120x17408 2048x16384"
_SIBLINGS = """4096x4096x1024x1024 2048x2048x512x512 1024x2048x1024x1024 768x768x768x768
4096x4096x4096x4096"""
_CENTRED = "768x768x768x768 768x3072 2048x6144 3072x3072x256x256 4096x4096x4096x4096"


@dataclass(frozen=True)
class Layer:
    """Products of one row, and the kernels that compute them.

    Attributes:
        kind: of the products, as the record names it.
        k: what is summed over.
        widths: of the weights.
        epilogue: of a product, or of the pair.
        norm: in front of them.
    """

    kind: str
    k: int
    widths: tuple[int, ...]
    epilogue: Epilogue = PLAIN
    norm: Norm | None = None

    @property
    def name(self) -> str:
        return f"{self.kind} {'x'.join(map(str, (self.k, *self.widths[: self._named])))}"

    @property
    def _named(self) -> int:
        return 1 if self.epilogue.products == 2 else len(self.widths)

    @property
    def bytes(self) -> int:
        return 2 * self.k * sum(self.widths)

    def launch(self, x: Tensor, weights: list[Tensor], vectors: list[Tensor], tile: Tile) -> Any:
        """Its kernel with one tile."""
        text = self.epilogue.text()
        if self.norm is not None:
            each = [self.epilogue] * (len(weights) // self.epilogue.products)
            given = vectors[: self.norm.vectors]
            text = normed_gemms.text_of(self.norm, each)
            return normed_gemms.launch(x, weights, given, text, tile)
        if self.kind == "siblings":
            return sibling_gemms.launch(x, weights, [], " ".join([text] * len(weights)), tile)
        return op.launch(x, weights, [], text, tile)

    def every_tile(self) -> list[Tile]:
        """Those that are tried."""
        rows = [_tile(f"{name}s{stages}", "row") for name in _ROWS.split() for stages in (1, 3)]
        if self.norm is not None:
            return [*rows, self._ring()]
        if self.kind == "siblings":
            return rows
        products = self.epilogue.products
        streams = (t for t in tiles(self.epilogue).values() if t.form == "stream" and t.m == 8)
        return [*rows, *(_tile(one, "ring") for one in _RINGS[products].split()), *streams]

    def timed(self) -> list[str]:
        """Those that default mode times on Hopper."""
        if self.norm is not None:
            each = [self.epilogue] * (len(self.widths) // self.epilogue.products)
            return [tile.name for tile in (*normed_gemms.choices(self.norm, each), self._ring())]
        if self.kind == "siblings":
            return [tile.name for tile in sibling_gemms.choices(1)[: sibling_gemms.TIMED]]
        named = {
            name: tile
            for name, tile in tiles(self.epilogue, 227 << 10).items()
            if tile.form in ("row", "ring", "stream") and tile.itemsize == 2
        }
        return heuristic_tiles(named, self.epilogue.products, 1, self.widths[0], self.k)

    def _ring(self) -> Tile:
        """The tile of the kernel in CUDA C++ that computes a norm, too."""
        found = ring_of(self.epilogue)
        assert found is not None
        return found


def _tile(name: str, form: str) -> Tile:
    """The tile of a name as in the lists above."""
    sizes, _, rest = name.partition("w")
    (n, k), (warps, stages) = sizes.split("x"), rest.split("s")
    return Tile(1, int(n), int(k), int(warps), int(stages), form=form)


def layers() -> list[Layer]:
    """The layers of models that people decode with, and a few at the edges."""

    def sized(sizes: str) -> list[tuple[int, ...]]:
        return [tuple(map(int, one.split("x"))) for one in sizes.split()]

    return [
        *(Layer("one", k, tuple(n)) for k, *n in sized(_ONE)),
        *(Layer("pair", k, (n, n), SWIGLU) for k, n in sized(_PAIRS)),
        *(Layer("siblings", k, tuple(n)) for k, *n in sized(_SIBLINGS)),
        *(Layer("rms pair", k, (n, n), SWIGLU, RMS) for k, n in sized(_PAIRS)[:4]),
        *(Layer("rms", k, tuple(n), norm=RMS) for k, *n in sized(_SIBLINGS)[:3]),
        *(Layer("layer norm", k, tuple(n), norm=LAYER) for k, *n in sized(_CENTRED)),
    ]


def compile_some(index: int, count: int) -> None:
    """Compile every ``count``-th kernel, from ``index`` on: each in a process of its own."""
    seen: dict[tuple[Any, ...], tuple[Layer, Tile]] = {}
    for layer in layers():
        whole = normed_gemms.whole_row(torch.empty(1, layer.k), layer.norm) if layer.norm else 0
        for tile in layer.every_tile():
            seen.setdefault((layer.kind, len(layer.widths), whole, tile), (layer, tile))
    for layer, tile in [*seen.values()][index::count]:
        try:
            layer.launch(*_inputs(layer)[0], tile)
        except (RuntimeError, ValueError) as error:  # a tile that asks for too much: not measured
            sys.stdout.write(f"{layer.name} {tile.name}: {str(error)[:100]}\n")


def _inputs(layer: Layer) -> list[tuple[Tensor, list[Tensor], list[Tensor]]]:
    """x, weights and a norm's vectors, as many times as L2 does not hold."""
    given: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    x = torch.randn(1, layer.k, **given)
    vectors = [torch.randn(layer.k, **given) for _ in range(2)]
    copies = min(max(-(-L2 // layer.bytes), 4), 40)
    return [
        (x, [torch.randn(n, layer.k, **given).t() / 32 for n in layer.widths], vectors)
        for _ in range(copies)
    ]


def measured(layer: Layer) -> dict[str, float]:
    """Microseconds by tile, the fastest first; the tiles agree with each other to 2 %.

    Raises:
        AssertionError: one computes something else.
    """
    given, wanted = _inputs(layer), None
    graphs: dict[str, torch.cuda.CUDAGraph] = {}
    for tile in layer.every_tile():
        try:
            got = layer.launch(*given[0], tile)
        except (RuntimeError, ValueError):
            continue
        wanted = wanted or got
        for mine, theirs in zip(got, wanted, strict=True):
            worst = (mine.float() - theirs.float()).abs().max() / theirs.float().abs().max()
            assert worst < 0.02, (layer.name, tile.name, worst)
        torch.cuda.synchronize()
        graphs[tile.name] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[tile.name]):
            for one in given:
                layer.launch(*one, tile)
    found: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(ROUNDS):
        for name, graph in graphs.items():
            found[name].append(on_device(graph.replay) / len(given))
    medians = {name: round(statistics.median(times), 2) for name, times in found.items()}
    return dict(sorted(medians.items(), key=lambda one: one[1]))


def regret(records: list[Path]) -> None:
    """Print how far the best tile that default mode times is behind the best, by kind."""
    for kind in dict.fromkeys(layer.kind for layer in layers()):
        behind: list[tuple[float, str]] = []
        for path in records:
            record = json.loads(path.read_text())
            for layer in (one for one in layers() if one.kind == kind):
                times = record["microseconds"][layer.name]
                best = min(times.get(name, float("inf")) for name in layer.timed())
                lost = 100 * (best / min(times.values()) - 1)
                behind.append((round(lost, 1), f"{layer.name}, {path.name}"))
        mean = sum(lost for lost, _ in behind) / len(behind)
        sys.stdout.write(f"{kind}: {mean:.1f} % on average, most {max(behind)}\n")


def main() -> int:
    """Compile, measure or compare, as asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--compile", type=int, nargs=2, metavar=("INDEX", "COUNT"))
    parser.add_argument("--regret", type=Path, nargs="+", metavar="JSON")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.regret:
        regret(given.regret)
        return 0
    torch.manual_seed(0)
    if given.compile:
        compile_some(*given.compile)
        return 0
    record: dict[str, Any] = {**heading(__doc__, "cuda"), "microseconds": {}}
    for layer in layers():
        times = record["microseconds"][layer.name] = measured(layer)
        few = ", ".join(f"{name} {time}" for name, time in [*times.items()][:6])
        sys.stdout.write(f"{layer.name}: {few}\n")
        if given.json:
            given.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
