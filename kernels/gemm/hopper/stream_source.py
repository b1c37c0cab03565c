"""The CUDA C++ text of a GEMM of few rows with an epilogue for Hopper: the weights as a stream.

Its time is that of reading the weights once. One warp has them come by TMA, as many tiles ahead as
shared memory holds, and tells L2 that nobody reads them again; four multiply (``wgmma``, whose rows
are the weights'). Where a product has fewer tiles than there are multiprocessors the blocks of a
cluster share K, and what they add up goes from block to block through distributed shared memory
(PTX ISA, ``st.async``), always in the same order.

A launch may begin before the kernel in front of it ends (``programmatic_launch.py``): the first
weights come meanwhile, and all else is read behind ``griddepcontrol.wait``.

Weights lie as (N, K).
"""

from __future__ import annotations

from dataclasses import dataclass

from fusepass.fusion.kernel_ir.epilogue import Epilogue
from fusepass.kernels.codegen.cuda_epilogue import (
    element_helpers,
    element_parameters,
    element_steps,
)
from fusepass.kernels.codegen.cuda_source import TYPES
from fusepass.kernels.gemm.hopper.stream_template import TEXT
from fusepass.kernels.gemm.hopper.tile_template import AWAITS, LEADS, descriptors, filled

NAME = "fusepass_gemm_stream"
_ROW = 128  # bytes of K in a tile, which TMA lays out without conflicts of banks


@dataclass(frozen=True)
class StreamKernel:
    """How the work is cut.

    Attributes:
        rows: of x, at most: a multiple of 8.
        columns: of a tile, of a pair of each weight: a multiple of 8, at most 64.
        depth: multiples of 64 of K in a tile.
        stages: tiles in flight.
        split: blocks that share K: 1, 2 or 4.
        early: whether a launch may begin before the kernel in front of it ends.
        leads: whether it lets such a launch behind it begin.
    """

    rows: int
    columns: int
    depth: int
    stages: int
    split: int = 1
    early: bool = False
    leads: bool = False

    threads = 160
    """Threads of a block: four warps that multiply, and the one that loads."""

    def boxes(self, products: int) -> tuple[int, int]:
        """Rows of x and of a weight that one copy brings."""
        return self.rows, self.columns

    def blocks(self, m: int, n: int, products: int, processors: int) -> int:
        """Blocks of a launch, each of whose tiles has all rows."""
        return min(-(-n // self.columns) * self.split, self.most(processors))

    def most(self, processors: int) -> int:
        """Blocks that run at once: of an H200's 132 multiprocessors fours find 30 places."""
        reached = processors if self.split <= 2 else processors * 10 // 11
        return max(reached // self.split, 1) * self.split

    def shared(self, epilogue: Epilogue) -> int:
        """Bytes of shared memory that a block needs."""
        products = epilogue.products
        step = self.depth * _ROW
        ring = self.stages * (products * self.columns + self.rows) * step
        received = (self.split - 1) * products * 64 * self.rows * 4 // self.split
        return 1024 + ring + received + 16 * self.stages + 64


def hopper_stream(epilogue: Epilogue, shape: StreamKernel, dtype: str) -> str:
    """The source of ``fusepass_gemm_stream``.

    Its parameters are descriptors of x and the weights, then a structure of the operands'
    addresses, strides of those of kind ``full``, the outputs' addresses, and M, N and K.

    Args:
        epilogue: of one or two products, with nothing reduced.
        shape: of its tiles.
        dtype: of x and the weights, ``float16`` or ``bfloat16``.
    """
    outputs = list(enumerate(epilogue.outputs))
    operands = list(enumerate(epilogue.operands))
    maps = ["x_map", *(f"w{i}_map" for i in range(epilogue.products))]
    registers = shape.rows // 2
    replaced = {
        "$fields": "".join(f"u64 p{i}, s{i}; " for i, _ in operands)
        + "".join(f"u64 o{i}; " for i, _ in outputs),
        "$registers": ", ".join(f"%{i}" for i in range(registers)),
        "$outputs": ", ".join(f'"+f"(d[{i}])' for i in range(registers)),
        "$w, $x": f"%{registers}, %{registers + 1}",
        "$rows": str(shape.rows),
        "$kind": {"float16": "f16", "bfloat16": "bf16"}[dtype],
        "$cluster": f"__cluster_dims__({shape.split}, 1, 1) " * (shape.split > 1),
        **descriptors(maps),
        "$weights": "\n".join(map(_weight, range(epilogue.products))),
        "$given": element_parameters(epilogue),
        "$steps": "\n".join(element_steps(epilogue)),
        "$read": "\n".join(
            _READ[one.kind].format(i=i, kind=TYPES[one.dtype]) for i, one in operands
        ),
        "$values": ", ".join(
            [
                *(f"d[{i}][at]" for i in range(epilogue.products)),
                *(f"get(a{i}{_INDEX[one.kind]})" for i, one in operands),
                *(f"r[{i}]" for i, _ in outputs),
            ]
        ),
        "$stored": "\n".join(
            f"            put(({TYPES[one.dtype]}*)t.o{i} + (u64)m * t.N + n, r[{i}]);"
            for i, one in outputs
        ),
        "$leads": LEADS * shape.leads,
        "$awaits": AWAITS * shape.early,
        "$helpers": element_helpers([epilogue]),
        "$name": NAME,
    }
    defined = {
        "ROWS": shape.rows,
        "WIDTH": shape.columns,
        "DEPTH": shape.depth,
        "STAGES": shape.stages,
        "SPLIT": shape.split,
        "EARLY": int(shape.early),
        "THREADS": shape.threads,
        "PRODUCTS": epilogue.products,
        "OUTPUTS": len(outputs),
    }
    return filled(TEXT, replaced, defined)


def _weight(i: int) -> str:
    """The line that loads a weight's columns of a tile."""
    at = f"w + ({i} * DEPTH + i) * WIDTH * 128"
    return f"            load_once({at}, &w{i}_map, barrier, at, tile * WIDTH, policy);"


# How a thread reads an operand's numbers for its results: of each eight rows two neighbours, one of
# the first and one of the last eight of its warp's sixteen columns.
_READ = {
    "scalar": "      const {kind} a{i} = *(const {kind}*)t.p{i};",
    "row": """\
      {kind} a{i}[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {{
        const u32 n = top + i * 8;
        a{i}[i] = owned && n < t.N ? ((const {kind}*)t.p{i})[n] : {kind}();
      }}""",
    "column": """\
      {kind} a{i}[ROWS / 4];
#pragma unroll
      for (int i = 0; i < ROWS / 4; ++i) {{
        const u32 m = left + i / 2 * 8 + i % 2;
        a{i}[i] = owned && m < t.M ? ((const {kind}*)t.p{i})[m] : {kind}();
      }}""",
    "full": """\
      {kind} a{i}[ROWS / 2];
#pragma unroll
      for (int i = 0; i < ROWS / 2; ++i) {{
        const u32 m = left + i / 4 * 8 + i % 2, n = top + i / 2 % 2 * 8;
        const {kind}* from = (const {kind}*)t.p{i} + (u64)m * t.s{i} + n;
        a{i}[i] = owned && m < t.M && n < t.N ? *from : {kind}();
      }}""",
}
_INDEX = {"scalar": "", "row": "[part]", "column": "[i]", "full": "[at]"}
