"""Programs with our kernels in them as Inductor compiles them for a CUDA device that is not there.

As a script, ``generate 0`` writes a line of JSON for every other case, and ``generate 1`` for the
others: its name, its code, and how much code Triton makes of each kernel of ours in it. This is a
process of its own, because torch has to believe in a device. ``interpret`` reads these lines, under
``TRITON_INTERPRET=1``, and writes how far the results of each are from the reference's. ``launch``
writes the code alone, as it is where launches were tested on a device. ``call`` writes code that
calls a function of ours, and whether its rows vary. ``recipes``, ``reduce``, ``concatenate`` and
``cut`` write how many kernels programs take. With several of these words, one process does all, and
a line with the word alone comes before its lines.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._inductor import config

from fusepass.fusion.kernel_ir.epilogue import Epilogue, EpilogueOperand, EpilogueStep, Output
from fusepass.fusion.kernel_ir.norm import Norm
from fusepass.inductor.settings_search import CONFIGS, InductorConfig
from fusepass.kernels.codegen import inductor_source
from fusepass.kernels.conv import implicit_gemm
from fusepass.kernels.gemm import normed_gemms, op, sibling_gemms
from fusepass.numerics import rms, rms_error
from fusepass.options import Options
from fusepass.patterns import grouped_cat, whole_reductions
from fusepass.report.decision import Station
from fusepass.rewrite.apply.graph_rule_driver import rewrite
from fusepass.torch_private.cuda import nvrtc
from tests.kernels.pretended_device import believe_in_a_device, code_of, compiled_kernels, results

RULE = whole_reductions.RULE.name
HALF = torch.float16  # Triton's interpreter knows no bf16
NAMED = str(HALF).removeprefix("torch.")
ROW, FULL = EpilogueOperand("row", NAMED), EpilogueOperand("full", NAMED)
OUT = Output("%0", NAMED)
BIASED = Epilogue(
    1,
    (ROW, FULL),
    (
        EpilogueStep("add", ("%0", "%1")),
        EpilogueStep("relu", ("%3",)),
        EpilogueStep("mul", ("%4", "%2")),
    ),
    (Output("%5", NAMED), Output("%3", NAMED)),
)
PLAIN = Epilogue(1, (), (), (OUT,))
GATED = Epilogue(
    2,
    (),
    (EpilogueStep("sigmoid", ("%0",)), EpilogueStep("mul", ("%2", "%1"))),
    (Output("%3", NAMED),),
)
JOINT = "joint128x224x64w8s4"
TILES = ("128x128x64w8s4", "128x256x64w8s3h", "rows16x32x256w2s4", "row1x8x512w4s3")


def noise(*shape: int, dtype: torch.dtype = HALF) -> Tensor:
    return torch.randn(shape).mul(0.25).to(dtype)


def _products(tile: str) -> tuple[Callable[..., Any], list[Tensor]]:
    m = {"row1": 1, "rows": 16}.get(tile[:4], 512)

    def program(x: Tensor, w: Tensor, row: Tensor, full: Tensor) -> list[Tensor]:
        return op.OPERATOR(x, [w.t()], [row, full], BIASED.text(), tile)

    return program, [noise(m, 256), noise(384, 256), noise(384), noise(m, 384)]


def _convolution(x: Tensor, w: Tensor, row: Tensor) -> list[Tensor]:
    steps = [1, 1], [1, 1], [1, 1]
    shape = implicit_gemm.shape_of(x, w, *steps)
    name = implicit_gemm.tile_name(implicit_gemm.choices(shape)[0].name, *steps)
    epilogue = Epilogue(1, (ROW,), (EpilogueStep("add", ("%0", "%1")),), (Output("%2", NAMED),))
    return implicit_gemm.OPERATOR(x, [w], [row], epilogue.text(), name)


def _pair(x: Tensor, w: Tensor, v: Tensor) -> list[Tensor]:
    tile = op.tiles(GATED)
    name = next(name for name, one in tile.items() if one.form == "grid")
    return op.OPERATOR(x, [w.t(), v.t()], [], GATED.text(), name)


def _siblings(x: Tensor, w: Tensor, v: Tensor) -> list[Tensor]:
    text = sibling_gemms.text_of([PLAIN, PLAIN])
    name = sibling_gemms.choices(64)[0].name
    return sibling_gemms.OPERATOR(x, [w.t(), v.t()], [], text, name)


def _normed(x: Tensor, gain: Tensor, w: Tensor, v: Tensor) -> list[Tensor]:
    text = normed_gemms.text_of(Norm(1e-6), [PLAIN, PLAIN])
    name = normed_gemms.choices(Norm(1e-6), [PLAIN, PLAIN])[0].name
    return normed_gemms.OPERATOR(x, [w.t(), v.t()], [gain], text, name)


@dataclass(frozen=True)
class Case:
    """A program with calls of ours.

    Attributes:
        name: of the case.
        program: returns what a call gives.
        given: its inputs, on the CPU.
        varies: whether the first size of the first one is not known beforehand.
        interpreted: whether Triton can interpret the kernel.
    """

    name: str
    program: Callable[..., Any]
    given: list[Tensor]
    varies: bool = False
    interpreted: bool = True


def cases() -> Iterator[Case]:
    """Cases of each operator that becomes a launch in Triton, with each kind of kernel."""
    for tile in TILES:
        yield Case(f"gemm_region {tile}", *_products(tile))
    yield Case(f"gemm_region {TILES[0]} varies", *_products(TILES[0]), varies=True)
    pair = [noise(512, 256), noise(384, 256), noise(384, 256)]
    yield Case("gemm_region pair", _pair, pair, interpreted=False)  # it has inline assembly
    siblings = [noise(64, 256), noise(384, 256), noise(128, 256)]
    yield Case("sibling_gemms", _siblings, siblings)
    yield Case("normed_gemms", _normed, [noise(1, 256), noise(256), *siblings[1:]])
    images = noise(2, 32, 12, 10).to(memory_format=torch.channels_last)
    weight = noise(32, 32, 3, 3).to(memory_format=torch.channels_last)
    yield Case("conv_region", _convolution, [images, weight, noise(32)])


def generate() -> None:
    """Write name, code and machine code's lines of every other case."""
    for name, code in _codes(list(cases())[int(sys.argv[2]) :: 2]):
        sys.stdout.write(json.dumps([name, code, compiled_kernels(code)]) + "\n")


def launch() -> None:
    """Write name and code of each case as with the torch whose launchers were tested."""
    vars(inductor_source.kernel_call)["kernel_calls_tested"] = lambda: True
    for made in _codes(cases()):
        sys.stdout.write(json.dumps(made) + "\n")


def _codes(cases: Iterable[Case]) -> Iterator[tuple[str, str]]:
    believe_in_a_device()
    importlib.import_module("torch._inductor.lowering")  # else there is nothing to install in
    for module in (implicit_gemm, op, normed_gemms, sibling_gemms):
        module.install_lowering()
    for case in cases:
        yield case.name, code_of(case.program, case.given, varies=case.varies)


def call() -> None:
    """Write the code of a product by a kernel in CUDA C++, of known rows and of rows that vary."""
    believe_in_a_device()
    importlib.import_module("torch._inductor.lowering")
    op.install_lowering()
    for varies in (False, True):
        program, given = _products(JOINT)
        code = code_of(program, given, varies=varies)
        sys.stdout.write(json.dumps([varies, code]) + "\n")


def overlap() -> None:
    """Write the code of two products of one row, of a norm or not, of which the second overlaps."""
    believe_in_a_device()
    importlib.import_module("torch._inductor.lowering")
    vars(nvrtc)["begins_early"] = lambda: True
    for module in (op, normed_gemms):
        module.install_lowering()
    ring = next(name for name, tile in op.tiles(PLAIN).items() if tile.form == "ring")
    row = next(name for name, tile in op.tiles(GATED).items() if tile.form == "row")
    norm = Norm(1e-6)
    normed = normed_gemms.text_of(norm, [GATED])
    name = normed_gemms.choices(norm, [GATED])[0].name

    def second(hidden: Tensor, w: Tensor) -> list[Tensor]:
        return op.OPERATOR(hidden, [w.t()], [], PLAIN.text(), ring)

    def alone(x: Tensor, gain: Tensor, w: Tensor, v: Tensor, down: Tensor) -> list[Tensor]:
        (hidden,) = op.OPERATOR(x, [w.t(), v.t()], [], GATED.text(), row)
        return second(hidden, down)

    def behind_a_norm(x: Tensor, gain: Tensor, w: Tensor, v: Tensor, down: Tensor) -> list[Tensor]:
        (hidden,) = normed_gemms.OPERATOR(x, [w.t(), v.t()], [gain], normed, name)
        return second(hidden, down)

    def written(x: Tensor, gain: Tensor, w: Tensor, v: Tensor, down: Tensor) -> list[Tensor]:
        made = alone(x, gain, w, v, down)
        down.mul_(2)
        return made

    for program in (alone, behind_a_norm, written):
        given = [noise(1, 256), noise(256), noise(384, 256), noise(384, 256), noise(256, 384)]
        code = code_of(program, given)
        line = [program.__name__, code, compiled_kernels(code)]
        sys.stdout.write(json.dumps(line) + "\n")


def parted(x: Tensor) -> Tensor:
    return torch.softmax(x * 2, 0) + 1


def scaled(x: Tensor) -> Tensor:
    return (x - x.min()) / (x.max() - x.min())


def recipes() -> None:
    """Write how many kernels Inductor generates for reductions as asked, and with each recipe."""
    believe_in_a_device()
    for program, shape in ((parted, (512, 4096)), (scaled, (1024, 1024))):
        counts = {}
        for recipe in (InductorConfig("inductor", {}), *CONFIGS):
            if recipe.name == "inductor" or recipe.name.endswith("reductions"):
                with config.patch(dict(recipe.settings)):
                    counts[recipe.name] = code_of(program, [noise(*shape)]).count(".run(")
        sys.stdout.write(json.dumps([program.__name__, counts]) + "\n")


def _normed_rows(x: Tensor) -> Tensor:
    return x / (x.var(0) + 1)


# Program, sizes of its input, dtype, options; what the rule for few numbers makes of it is tested.
REDUCED: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...], torch.dtype, Options]] = {
    "softmax": (parted, (512, 4096), HALF, Options()),
    "softmax of more": (parted, (513, 4096), HALF, Options()),
    "softmax of many columns": (parted, (512, 20000), HALF, Options()),
    "softmax within rows": (lambda x: x.softmax(1), (512, 512), HALF, Options()),
    "one result": (scaled, (24 << 10,), HALF, Options()),
    "one result of two dimensions": (scaled, (128, 192), torch.float32, Options()),
    "one result, more": (scaled, ((24 << 10) + 1,), HALF, Options()),
    "one result, few": (scaled, (8 << 10,), HALF, Options()),
    "variance": (lambda x: x.var(0), (192, 256), HALF, Options()),
    "variance of more": (lambda x: x.var(0), (193, 256), HALF, Options()),
    "variance, many results": (lambda x: x.var(0), (512, 4096), HALF, Options()),
    "normed": (_normed_rows, (384, 256), HALF, Options()),
    "normed, more": (_normed_rows, (385, 256), HALF, Options()),
    "logsumexp": (lambda x: x.logsumexp(0), (512, 1024), HALF, Options()),
    "much to do": (lambda x: x.exp().sum(0), (192, 1024), HALF, Options()),
    "much to do for more": (lambda x: x.exp().sum(0), (193, 1024), HALF, Options()),
    "much to do for many": (lambda x: x.exp().sum(0), (192, 1025), HALF, Options()),
    "little to do": (lambda x: (x.relu() + 1).square().sum(0), (512, 1025), HALF, Options()),
    "two operands": (lambda x: torch.mul(*x.unbind()).sum(0), (2, 193, 256), HALF, Options()),
    "much to do for one result": (lambda x: x.exp().sum(), (12289,), HALF, Options()),
    "middle": (lambda x: x.sum(1), (4, 300, 64), HALF, Options()),
    "middle, kept": (lambda x: x - x.amax((0, 1), keepdim=True), (4, 100, 64), HALF, Options()),
    "by a negative number": (lambda x: x.mean(-2), (4, 300, 64), HALF, Options()),
    "transposed": (lambda x: x.t().sum(1), (300, 64), HALF, Options()),
    "rows of a transposed": (lambda x: x.t().sum(0), (300, 600), HALF, Options()),
    "whether any": (lambda x: x.isinf().any(), (100, 200), HALF, Options()),
    "in double precision": (lambda x: x.sum(0), (300, 64), torch.float64, Options()),
    "its rows first": (lambda x: x.softmax(1).square().sum(), (64, 256), HALF, Options()),
    "switched off": (parted, (512, 512), HALF, Options(rules={RULE: False})),
    "the user's": (parted, (512, 512), HALF, Options(inductor={"split_reductions": True})),
    "op by op": (parted, (512, 512), HALF, Options(codegen="eager-decomposed")),
}


def reduce() -> None:
    """Write how many kernels there are without and with the rule for reductions of few numbers."""
    believe_in_a_device()
    for name, (program, shape, dtype, options) in REDUCED.items():
        said: list[str] = []

        def ruled(
            gm: torch.fx.GraphModule, options: Options = options, said: list[str] = said
        ) -> None:
            made = rewrite(gm, (whole_reductions.RULE,), options, Station.AFTER)
            said.extend(one.reason_code for one in made)

        x = noise(*shape, dtype=dtype)
        counts = [code_of(program, [x], edit=edit).count(".run(") for edit in (None, ruled)]
        sys.stdout.write(json.dumps([name, *counts, sorted(set(said))]) + "\n")
    varied: list[str] = []

    def of_sizes(gm: torch.fx.GraphModule) -> None:
        made = rewrite(gm, (whole_reductions.RULE,), Options(), Station.AFTER)
        varied.extend(one.reason_code for one in made)

    code_of(parted, [noise(512, 512)], varies=True, edit=of_sizes)
    sys.stdout.write(json.dumps(["sizes vary", 0, 0, sorted(set(varied))]) + "\n")


def _joined(*tensors: Tensor) -> Tensor:
    return torch.cat([one * 2 + i for i, one in enumerate(tensors)], 1).relu()


def _encoded(x: Tensor) -> Tensor:
    """As positions are for a radiance field."""
    return torch.cat([f(x * 2.0**i) for i in range(6) for f in (torch.sin, torch.cos)], 1)


_aten = torch.ops.aten


def _laid(x: Tensor) -> Tensor:
    return torch.relu(_aten.clone(x.t(), memory_format=torch.contiguous_format)) + 1


def _written(x: Tensor) -> Tensor:
    """Some columns overwritten, others changed where they are."""
    y, columns = x * 2, (1, 200, 300)
    y = _aten.slice_scatter(y, _aten.slice(x, 1, 0, 100) + 1, 1, 0, 100)
    return torch.relu(_aten.slice_scatter(y, _aten.slice(y, *columns) * 2, *columns))


def _rotated(x: Tensor) -> Tensor:
    halves = [-_aten.slice(x, 1, 150, 300), _aten.slice(x, 1, 0, 150)]
    return x * 2 + torch.cat(halves, 1) * 3


# Pointwise work with a call in between that moves numbers, or writes them.
CUT: dict[str, Callable[[Tensor], Any]] = {
    "a layout": lambda x: _laid(x * 2),
    "two layouts": lambda x: [x * 2, _laid(x * 2)],
    "a view": lambda x: torch.relu((x * 2).view(-1, 60) + 1),
    "windows": lambda x: torch.relu((x * 2).unfold(1, 4, 4) + 1),
    "padding": lambda x: torch.relu(_aten.constant_pad_nd(x * 2, [1, 2, 3, 4], 0.0) + 1),
    "a flip": lambda x: x * 2 + (x * 2).flip(1),
    "a diagonal": lambda x: torch.relu((x * 2).diagonal() + 1),
    "a scan": lambda x: torch.relu((x * 2).cumsum(1) + 1),
    "slices that are written": _written,
    "rotated halves": _rotated,
    "a mutation": lambda x: [torch.relu(x * 2), _aten.copy_(x, x * 2)],
    "a product": lambda x: [torch.relu(x) * 2, torch.mm(x, x.t()), torch.sigmoid(x)],
}


def cut() -> None:
    """Write how many kernels Inductor generates where something stands between others."""
    believe_in_a_device()
    for name, program in CUT.items():
        count = code_of(program, [noise(512, 300)]).count(".run(")
        sys.stdout.write(json.dumps([name, count]) + "\n")


def concatenate() -> None:
    """Write how many kernels concatenations take, without and with the rule for them."""
    believe_in_a_device()

    def grouped(gm: torch.fx.GraphModule) -> None:
        forced = Options(candidate="reference")
        rewrite(gm, (grouped_cat.RULE,), forced, Station.AFTER)

    for count in (8, 9, 26, 64):
        given = [noise(512, 16) for _ in range(count)]
        counts = [code_of(_joined, given, edit=edit).count(".run(") for edit in (None, grouped)]
        sys.stdout.write(json.dumps([count, *counts]) + "\n")
    counts = [
        code_of(_encoded, [noise(512, 3)], edit=one).count(".run(") for one in (None, grouped)
    ]
    sys.stdout.write(json.dumps(["single", *counts]) + "\n")


def interpret() -> None:
    """Write each name that ``generate`` wrote, and how far its results are from the reference."""
    codes = {name: code for name, code, _ in map(json.loads, sys.stdin)}
    for case in cases():
        if case.name not in codes or not case.interpreted:
            continue
        sizes = [case.given[0].shape[0]] if case.varies else []
        made = results(codes[case.name], [*sizes, *case.given])
        pairs = zip(made, case.program(*case.given), strict=True)
        far = [rms_error(one, want.double()) / rms(want.double()) for one, want in pairs]
        sys.stdout.write(json.dumps([case.name, max(far)]) + "\n")


if __name__ == "__main__":
    ways = (generate, launch, interpret, call, overlap, recipes, reduce, concatenate, cut)
    chosen = [way for way in ways if way.__name__ in sys.argv[1:]]
    for way in chosen:
        if len(chosen) > 1:
            sys.stdout.write(json.dumps([way.__name__]) + "\n")
        way()
