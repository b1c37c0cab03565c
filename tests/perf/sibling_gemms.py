"""Linear layers of one operand: fusepass, one launch for all, against Inductor, one for each.

    python tests/perf/sibling_gemms.py --json sibling-gemms.json

bf16. The projections of attention in models people have, and those that embed a time step in all
blocks of a diffusion model. Replays of CUDA graphs with cold L2, and by the wall around synchronised
calls; interleaved rounds, medians of microseconds. ``joined`` multiplies by one weight made of all
of them beforehand, whose result would still have to be split.

Prediction, written before the first run, from the kernel by itself: 2 with up to 256 rows of a
small model, 1.6 for one row of a large one, 4 for eight layers; 1.0 from 1024 rows on. For the
models, written before their run: 1.1 of what they took without the rule, in a CUDA graph.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import fusepass
from fusepass.numerics import rms, rms_error
from fusepass.tune.cuda_graph_call import record
from tests.perf.conv_regions import walls
from tests.perf.pooling import cold
from tests.perf.recorded import keeper, options
from tests.perf.suites import models

# K, widths, whether there are biases, rows.
CASES: dict[str, tuple[int, tuple[int, ...], bool, tuple[int, ...]]] = {
    "BERT base": (768, (768, 768, 768), True, (16, 128, 512, 1024, 2048)),
    "BERT large": (1024, (1024, 1024, 1024), True, (128, 512)),
    "T5 small": (512, (512, 512, 512), False, (16, 128, 512)),
    "Llama 8B": (4096, (4096, 1024, 1024), False, (1, 8, 64, 128, 256, 512)),
    "time steps": (1280, (320, 320, 640, 640, 1280, 1280, 1280, 1280), True, (2, 16)),
}

MODELS = ("bert", "llama", "t5-encoder")
RULE = "sibling_gemms"


class Layers(nn.Module):
    """Linear layers of one operand."""

    def __init__(self, k: int, widths: tuple[int, ...], bias: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(k, width, bias=bias) for width in widths)

    def forward(self, x: Tensor) -> list[Tensor]:
        """One result of each."""
        return [layer(x) for layer in self.layers]


def compared(module: Layers, x: Tensor) -> dict[str, Any]:
    """Times of one set of layers, and what fusepass chose."""
    calls: dict[str, Callable[[], Any]] = {}
    chosen: list[str] = []
    torch._dynamo.reset()
    want = module(x)
    for name in ("inductor", "fusepass"):
        compiled = torch.compile(module, backend=name)
        for got, eager in zip(compiled(x), want, strict=True):
            assert rms_error(got, eager.double()) < 6e-3 * rms(eager)
        calls[name] = functools.partial(compiled, x)
        if name == "fusepass":
            found = fusepass.last_report(compiled).decisions
            chosen = [one.reason for one in found if one.rule == RULE]
    wall = walls(calls)
    joined = torch.cat([layer.weight for layer in module.layers]).t()
    calls["joined"] = lambda: x @ joined
    replayed = cold({name: record(call).replay for name, call in calls.items()})
    return {"replay": replayed, "wall": wall, "why": chosen}


def in_model(name: str) -> dict[str, Any]:
    """Times of a model with one text of 128 tokens: Inductor, fusepass without the rule, and with.

    L2 as the model leaves it.
    """
    model, (tokens,) = models.text_model("cuda", name)
    ways: dict[str, dict[str, Any]] = {
        "inductor": {},
        "without": {"backend": "fusepass", "options": {"rules": {RULE: False}}},
        "fusepass": {"backend": "fusepass"},
    }
    torch._dynamo.reset()
    calls = {
        way: functools.partial(torch.compile(model, **given), tokens[:1])
        for way, given in ways.items()
    }
    for call in calls.values():
        call()
    wall = walls(calls)
    replays = {way: record(call).replay for way, call in calls.items()}
    return {"replay": walls(replays), "wall": wall}


def main() -> None:
    """Measure, print, write the record."""
    keep = keeper(__doc__, options(__doc__).parse_args().json)
    with torch.no_grad():
        for name, (k, widths, bias, every) in CASES.items():
            module = Layers(k, widths, bias).to("cuda", torch.bfloat16)
            for rows in every:
                x = torch.randn(rows, k, device="cuda").bfloat16()
                keep(f"{name}, {rows} rows", compared(module, x))
        for name in MODELS:
            keep(f"{name}, batch 1, 128 tokens", in_model(name))


if __name__ == "__main__":
    main()
