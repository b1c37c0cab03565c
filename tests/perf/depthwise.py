"""Depthwise convolutions alone: cuDNN's kernels against ours.

    python tests/perf/depthwise.py --json depthwise.json

fp16, batch 32, channels last, at the sizes of ConvNeXt-T, EfficientNet-B0 and MobileNetV3. Median
device microseconds, L2-cold, interleaved; of ours the patches that default mode times, by channels,
pixels across and pixels down. Results are held to fp32's.

Prediction, written before the first run, for 7x7 taps of 56x56 pixels and 96 channels: 22 us, at
the rate of fp32 multiplications with 70 % of the instructions being such.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fusepass.bench.hardware import heading
from fusepass.fusion.kernel_ir.epilogue import Epilogue, Output
from fusepass.kernels.conv import depthwise, depthwise_source
from fusepass.patterns.depthwise import TIMED
from fusepass.tune.timing import time_on_device

BATCH, SECONDS = 32, 0.05
SIZES = (  # channels, image, kernel, stride
    (96, 56, 7, 1),
    (384, 14, 7, 1),
    (768, 7, 7, 1),
    (32, 112, 3, 1),
    (480, 14, 3, 1),
    (96, 112, 3, 2),
    (144, 56, 5, 2),
    (240, 28, 5, 1),
    (480, 14, 5, 1),
    (672, 14, 5, 1),
    (1152, 7, 5, 1),
)


def compared(channels: int, side: int, size: int, stride: int) -> dict[str, Any]:
    """Times of one convolution, and the bytes that have to be moved for it."""
    x = torch.randn(BATCH, side, side, channels, device="cuda").half().permute(0, 3, 1, 2)
    weight = (torch.randn(channels, 1, size, size, device="cuda") / size).half()
    steps = [stride] * 2, [size // 2] * 2, [1, 1]
    shape = depthwise_source.shape_of(x.shape, weight.shape, x.dtype, *steps)
    text = Epilogue(1, (), (), (Output("%0", "float16"),)).text()
    library = partial(torch.conv2d, x, weight, None, *steps, groups=channels)
    (exact,) = depthwise.reference(x, weight, [], depthwise.ALONE, *steps)
    calls: dict[str, Callable[[], Any]] = {"cudnn": library}
    for patch in depthwise.choices(shape)[:TIMED]:
        calls[patch.name] = partial(depthwise.launch, x, weight, [], text, *steps, patch.name)
        (made,) = calls[patch.name]()
        torch.testing.assert_close(made.float(), exact, rtol=2e-3, atol=2e-3)
    times = {
        name: round(t, 1) for name, t in time_on_device(calls, x.device, SECONDS).medians().items()
    }
    row = {"channels": channels, "image": side, "kernel": size, "stride": stride}
    moved = 2 * (x.numel() + exact.numel())
    return {**row, "cudnn": times.pop("cudnn"), "ours": times, "bytes": moved}


def main() -> None:
    """Measure, print a line per convolution, write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = []
    for sizes in SIZES:
        rows.append(compared(*sizes))
        sys.stdout.write(f"{json.dumps(rows[-1])}\n")
    if given.json:
        written = {
            **heading(__doc__, "cuda"),
            "rows": rows,
        }
        given.json.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
