"""The Gluon text of a tile's epilogue: what it fetches, computes and sends out."""

from __future__ import annotations

from collections.abc import Sequence

from fusepass.fusion.kernel_ir.epilogue import Epilogue
from fusepass.kernels.codegen.epilogue_source import epilogue_parts, reduction
from fusepass.kernels.gemm.hopper.gluon_compat import in_gluon
from fusepass.kernels.gemm.hopper.gluon_mma import REST
from fusepass.kernels.gemm.hopper.tma_plan import fetched_by_tma, prefetched

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


def prefetch_operands(epilogue: Epilogue, form: str) -> str:
    """The lines that ask for what an epilogue reads, before its products are computed."""
    reads = fetched_by_tma(epilogue)
    if not reads:
        return ""
    indent = " " * 8
    lines = [f"{indent}tma.store_wait(0)"]
    for part in range(prefetched(epilogue, form)):
        column = f"first + {part} * HALF" if part else "first"
        lines += _fetch_lines(reads, indent, part, column)
    return "\n".join(lines) + "\n"


def _fetch_lines(reads: Sequence[int], indent: str, part: int, column: str) -> list[str]:
    lines = [_EXPECT.format(indent=indent, part=part, count=len(reads))]
    for place, i in enumerate(reads):
        lines.append(_GET.format(indent=indent, i=i, column=column, spot=part + place))
    return lines


def store_outputs(epilogue: Epilogue, form: str, tail: bool) -> str:
    """The lines that compute one half of a tile, or all of a pair's, and send it out."""
    pair, reads = epilogue.products == 2, fetched_by_tma(epilogue)
    both = prefetched(epilogue, form) == 2
    indent = " " * (8 if pair else 12)
    # Unrolled where products run meanwhile: their registers must not be those of a loop.
    every = "gl.static_range(2)" if tail else "range(parts)"
    lines = [] if pair else [f"        for part in {every}:"]
    lines.append(f"{indent}columns = first + gl.arange(0, HALF, layout=gl.SliceLayout(0, half))")
    loads = {}
    if reads:
        part = "part" if both else "0"
        lines.append(f"{indent}mbarrier.wait(ready.index(WHICH * AHEAD + {part}), ready_phase)")
        for place, i in enumerate(reads):
            spot = f"staged.index(WHICH * STAGED + {part} + {place})"
            loads[i] = f"{spot}.load(half).to(gl.float32)"
    computed, values = epilogue_parts(epilogue, loads)
    lines += [f"{indent}v0 = left"] + [f"{indent}v1 = right"] * pair
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
        lines += _fetch_lines(reads, indent + "    ", 0, "first + HALF")
    if not pair:
        if tail:
            lines += [f"{indent}if part == 0:", REST]
        lines += [f"{indent}left = right", f"{indent}first += HALF"]
    if reads and (both or pair):
        lines.append("        ready_phase ^= 1")
    return "\n".join(lines)
