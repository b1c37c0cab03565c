"""The CUDA C++ text of a GEMM with an epilogue for Hopper, of any number of rows and columns.

One warp fills a ring of tiles by TMA; ``groups`` groups of four warps multiply 64 rows each from
there (``wgmma``, PTX ISA "Asynchronous Warpgroup Level Matrix Instructions") and have the
epilogue's results leave through shared memory. Gluon's tiles are powers of two; here rows are
multiples of 64 and columns of 16, so that tiles can be chosen that leave no multiprocessor idle.

Weights lie as (N, K). A gated pair is one tile whose halves are columns of two weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fusepass.fusion.kernel_ir.epilogue import Epilogue, EpilogueOperand
from fusepass.kernels.codegen.cuda_epilogue import (
    element_helpers,
    element_parameters,
    element_steps,
    number_type,
)
from fusepass.kernels.codegen.cuda_source import TYPES
from fusepass.kernels.gemm.hopper.tile_template import REGISTERS, SENT, TEXT, descriptors, filled

NAME = "fusepass_gemm_cuda"
_ROW = 128  # bytes of K in a tile, which TMA lays out without conflicts of banks
_HALF = ("float16", "bfloat16")
MEMORY = 227 << 10
"""Bytes of shared memory that a block may have on Hopper."""
_PLACES = 2  # pieces of results on their way out, of each group


@dataclass(frozen=True)
class TileKernel:
    """How the work is cut.

    Attributes:
        rows: of a tile, a multiple of 64.
        columns: of a tile; of a pair, of both weights together.
        stages: tiles of operands in flight.
        turns: whether two groups of four warps take every other tile, so that one's epilogue runs
            while the other multiplies; else there is a group for each 64 rows of a tile.
    """

    rows: int
    columns: int
    stages: int
    turns: bool = False

    @property
    def groups(self) -> int:
        """Groups of four warps that multiply."""
        return 2 if self.turns else self.rows // 64

    @property
    def own(self) -> int:
        """Rows of a tile that one group multiplies."""
        return self.rows if self.turns else 64

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 128 * self.groups + (128 if self.many else 32)

    @property
    def many(self) -> bool:
        """Whether a thread's products fill its registers: those who load give them theirs."""
        return self.own // 64 * self.columns > 144 or self.groups > 2

    def width(self, products: int) -> int:
        """Columns of the result in a tile."""
        return self.columns // products

    def boxes(self, products: int) -> tuple[int, int]:
        """Rows of x and of a weight that one copy brings."""
        return self.rows, self.width(products)

    def blocks(self, m: int, n: int, products: int, processors: int) -> int:
        """Blocks of a launch."""
        return min(-(-m // self.rows) * -(-n // self.width(products)), processors)

    @property
    def registers(self) -> tuple[int, int]:
        """Registers of a thread that loads, and of one that multiplies, where they are set."""
        if self.own // 64 * self.columns > 256:
            return 24, 240
        return {1: (40, 216), 2: (40, 232), 3: (32, 160)}[self.groups]

    def piece(self, epilogue: Epilogue) -> int:
        """Columns that leave together; fewer where more leave no room for the operands."""
        whole = self.width(epilogue.products)
        pieces = [one for one in (64, 32, 16) if whole % one == 0]
        fitting = (one for one in pieces if self._shared(epilogue, one) <= MEMORY)
        return next(fitting, pieces[-1])

    def shared(self, epilogue: Epilogue) -> int:
        """Bytes of shared memory that a block needs."""
        return self._shared(epilogue, self.piece(epilogue))

    def _shared(self, epilogue: Epilogue, piece: int) -> int:
        ring = self.stages * (self.rows + self.columns) * _ROW
        staged = self.groups * (_PLACES * 64 * piece * 2 + self.kept(epilogue))
        return 1024 + ring + staged + 16 * self.stages + 16

    def kept(self, epilogue: Epilogue) -> int:
        """Bytes of operands of kind ``row`` beside a tile, of each group."""
        return sum(_bytes(one) for one in _rows(epilogue)) * self.width(epilogue.products)


def hopper_cuda(epilogue: Epilogue, shape: TileKernel, dtype: str) -> str:
    """The source of ``fusepass_gemm_cuda``.

    Its parameters are descriptors of x, the weights and the outputs, then a structure of the
    operands' addresses, strides of those of kind ``full``, and M, N and K.

    Args:
        epilogue: of one or two products, with outputs of one half type and nothing reduced.
        shape: of its tiles.
        dtype: of x and the weights, ``float16`` or ``bfloat16``.
    """
    count = len(epilogue.outputs)
    half = TYPES[epilogue.outputs[0].dtype]
    width = shape.width(epilogue.products)
    maps = ["x_map", *(f"w{i}_map" for i in range(epilogue.products))]
    maps += [f"o{i}_map" for i in range(count)]
    fields = "".join(f"u64 p{i}, s{i}; " for i in range(len(epilogue.operands)))
    registers = shape.columns // 2
    replaced = {
        "$fields": fields,
        "$registers": ", ".join(f"%{i}" for i in range(registers)),
        "$outputs": ", ".join(f'"+f"(d[{i}])' for i in range(registers)),
        "$nonzero": f"%{registers + 2}",
        "$x, $w": f"%{registers}, %{registers + 1}",
        "$columns_read": _read_ahead(epilogue),
        "$asked": _request_operands(epilogue, width),
        "$kept": _keep_operands(epilogue, width),
        "$columns": str(shape.columns),
        "$kind": {"float16": "f16", "bfloat16": "bf16"}[dtype],
        **descriptors(maps),
        "$weights": "\n".join(_weight(i, width) for i in range(epilogue.products)),
        "$given": element_parameters(epilogue),
        "$steps": "\n".join(element_steps(epilogue)),
        "$sent": _compute_outputs(epilogue, width, half) + SENT,
        "$fewer": REGISTERS.format("dec", shape.registers[0]) * shape.many,
        "$more_registers": REGISTERS.format("inc", shape.registers[1]) * shape.many,
        "$helpers": element_helpers([epilogue]),
        "$name": NAME,
    }
    defined = {
        "ROWS": shape.rows,
        "COLUMNS": shape.columns,
        "WIDTH": width,
        "GROUPS": shape.groups,
        "STAGES": shape.stages,
        "TURNS": int(shape.turns),
        "BLOCKS": shape.own // 64,
        "THREADS": shape.threads,
        "PIECE": shape.piece(epilogue),
        "KEPT": shape.kept(epilogue),
        "PLACES": _PLACES,
        "OUTPUTS": count,
    }
    return filled(TEXT, replaced, defined)


def _weight(i: int, width: int) -> str:
    """The line that loads a weight's columns of a tile."""
    at = f"w + {i * width} * 128" if i else "w"
    return f"          load({at}, &w{i}_map, barrier, k * 64, n * WIDTH);"


def _rows(epilogue: Epilogue) -> list[EpilogueOperand]:
    return [one for one in epilogue.operands if one.kind == "row"]


def _bytes(operand: EpilogueOperand) -> int:
    return int(getattr(torch, operand.dtype).itemsize)


# What is the same for all rows: each thread asks for a column or two while the group multiplies,
# and the group exchanges them through shared memory. Read where they are needed, from L2, they made
# the epilogue wait: 7 to 19 % of 8192 x 768 -> 3072, also behind another group's products.
_ASKED = """\
      {kind} h{i}[{count}];
#pragma unroll
      for (int j = 0; j < {count}; ++j) {{
        const u32 inner = thread % 128 + j * 128, at = n * WIDTH + inner;
        const bool there = inner < WIDTH && at < t.N;
        h{i}[j] = there ? ((const {kind}*)t.p{i})[at] : {kind}{{}};
      }}"""
_KEPT = """\
#pragma unroll
      for (int j = 0; j < {count}; ++j)
        if (thread % 128 + j * 128 < WIDTH) k{i}[thread % 128 + j * 128] = h{i}[j];"""


def _request_operands(epilogue: Epilogue, width: int) -> str:
    """Lines that ask for a tile's columns of operands of kind ``row``."""
    lines, start = [], 0
    for i, one in enumerate(epilogue.operands):
        if one.kind != "row":
            continue
        kind = TYPES[one.dtype]
        lines.append(f"      {kind}* const k{i} = ({kind}*)(kept + {start});")
        lines.append(_ASKED.format(kind=kind, i=i, count=-(-width // 128)))
        start += _bytes(one) * width
    return "\n".join(lines)


def _keep_operands(epilogue: Epilogue, width: int) -> str:
    """Lines that give them to the other threads of the group."""
    each = [i for i, one in enumerate(epilogue.operands) if one.kind == "row"]
    lines = [_KEPT.format(i=i, count=-(-width // 128)) for i in each]
    return "\n".join([*lines, "      together(group);"] if lines else lines)


def _read_ahead(epilogue: Epilogue) -> str:
    """Lines that read what is the same for all columns, of a thread's two rows."""
    lines = []
    for i, one in enumerate(epilogue.operands):
        kind, number = TYPES[one.dtype], number_type(one)
        if one.kind == "scalar":
            lines.append(f"      const {number} a{i} = get(*(const {kind}*)t.p{i});")
        if one.kind == "column":
            lines.append(f"      {number} a{i}[2];")
            for part in range(2):
                at = f"row + {8 * part}"
                read = f"{at} < t.M ? get(((const {kind}*)t.p{i})[{at}]) : ({number})0"
                lines.append(f"      a{i}[{part}] = {read};")
    return "\n".join(lines)


# A thread has two neighbours out of each eight columns, in each of two rows.
_MADE = """\
        u32 made[OUTPUTS][PIECE / 4];
        const map_t* maps[] = {$addresses};
#pragma unroll
        for (int eight = 0; eight < PIECE / 8; ++eight) {
          const int j = piece * (PIECE / 8) + eight;
          const u32 at = column + j * 8;
$rows
#pragma unroll
          for (int part = 0; part < 2; ++part) {
            float r[OUTPUTS][2];
$full
#pragma unroll
            for (int one = 0; one < 2; ++one) element($values);
$packed
          }
        }
"""
_ROW_OPERAND = """\
          {number} a{i}[2];
          {read}"""
_FULL_OPERAND = """\
            {number} a{i}[2] = {{0, 0}};
            if (at < t.N && row + 8 * part < t.M) {{
              const {kind}* from = (const {kind}*)t.p{i} + (u64)(row + 8 * part) * t.s{i} + at;
              {read}
            }}"""


def _compute_outputs(epilogue: Epilogue, width: int, half: str) -> str:
    """Lines that compute a piece's results, two of a row in a word."""
    lines: dict[str, list[str]] = {"row": [], "full": []}
    values = ["d[0][j * 4 + part * 2 + one]"]
    values += [f"d[0][{width // 2} + j * 4 + part * 2 + one]"] * (epilogue.products - 1)
    for i, one in enumerate(epilogue.operands):
        named = {"i": i, "kind": TYPES[one.dtype], "number": number_type(one)}
        if one.kind == "row":
            spot = f"k{i} + lane % 4 * 2 + j * 8"
            apart = f"a{i}[0] = get(({spot})[0]);\n          a{i}[1] = get(({spot})[1]);"
            read = apart if one.dtype == "bool" else f"fetch<2>({spot}, true, a{i});"
            lines["row"].append(_ROW_OPERAND.format(**named, read=read))
        if one.kind == "full":  # rows of a half type start at multiples of 16 bytes
            apart = f"a{i}[0] = get(from[0]);\n              a{i}[1] = get(from[1]);"
            read = f"fetch<2>(from, true, a{i});" if one.dtype in _HALF else apart
            lines["full"].append(_FULL_OPERAND.format(**named, read=read))
        index = {"scalar": "", "column": "[part]"}.get(one.kind, "[one]")
        values.append(f"a{i}{index}")
    count = len(epilogue.outputs)
    values += [f"r[{i}][one]" for i in range(count)]
    packed = [
        f"            made[{i}][eight * 2 + part] = _packed(r[{i}][0], r[{i}][1], {half}());"
        for i in range(count)
    ]
    replaced = {
        "$addresses": ", ".join(f"&o{i}_map" for i in range(count)),
        "$rows": "\n".join(lines["row"]),
        "$full": "\n".join(lines["full"]),
        "$values": ", ".join(values),
        "$packed": "\n".join(packed),
    }
    text = _MADE
    for key, value in replaced.items():
        text = text.replace(key, value)
    return text
