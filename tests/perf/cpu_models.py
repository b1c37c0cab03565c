"""Inference on the CPU: Inductor and fusepass, each with frozen weights, too; a process for each.

    OMP_NUM_THREADS=2 python tests/perf/cpu_models.py --json cpu-models.json

ResNet-18 (torchvision) of one image, a 4-layer MLP of 32 rows, BERT-tiny (transformers) of 128
tokens, fp32, random weights. Processes take turns, so that a slow minute hits all; of each the
median of twenty calls, of the processes the median.

Prediction: ResNet-18 1.45 (weights are no longer copied in each call), frozen 2. The MLP 1.0, frozen
1.5 (its weights packed once). BERT-tiny 1.0, frozen 1.1. Frozen, fusepass computes ReLU behind oneDNN's
convolutions, whose own drops NaN: 0.98 of Inductor's frozen ResNet-18, 1.0 of the others.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._inductor import config

from fusepass.bench.hardware import heading

WAYS: dict[str, dict[str, Any]] = {
    "inductor": {"backend": "inductor"},
    "fusepass": {"backend": "fusepass"},
    "inductor_frozen": {"backend": "inductor"},
    "frozen": {"backend": "fusepass", "options": {"frozen": True}},
}
PROCESSES, CALLS, WARM = 3, 20, 5


def resnet18() -> tuple[nn.Module, torch.Tensor]:
    """One image."""
    import torchvision

    return torchvision.models.resnet18(), torch.randn(1, 3, 224, 224)


def mlp() -> tuple[nn.Module, torch.Tensor]:
    """Four layers of 1024."""
    layers = [layer for _ in range(4) for layer in (nn.Linear(1024, 1024), nn.ReLU())]
    return nn.Sequential(*layers), torch.randn(32, 1024)


def bert_tiny() -> tuple[nn.Module, torch.Tensor]:
    """Two layers of 128."""
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    model: nn.Module = BertModel(BertConfig(**sizes, intermediate_size=512))
    return model, torch.randint(0, 1000, (1, 128))


MODELS = {made.__name__: made for made in (resnet18, mlp, bert_tiny)}


def milliseconds(model: str, way: str) -> float:
    """Milliseconds of one call, in this process."""
    torch.manual_seed(0)
    config.freezing = way == "inductor_frozen"  # as an option of torch.compile it comes too late
    module, x = MODELS[model]()
    compiled = torch.compile(module.eval(), **WAYS[way])
    times = []
    with torch.no_grad():
        for _ in range(WARM + CALLS):
            began = time.perf_counter()
            compiled(x)
            times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times[WARM:])


def main() -> None:
    """Measure all in turns, print, write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "WAY"))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.one:
        sys.stdout.write(f"{milliseconds(*given.one)}\n")
        return
    rows = {}
    for model in MODELS:
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(PROCESSES):
            for way in WAYS:
                command = [sys.executable, __file__, "--one", model, way]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                times[way].append(float(done.stdout.split()[-1]))
        medians = {way: round(statistics.median(some), 3) for way, some in times.items()}
        ratios = {way: round(medians["inductor"] / took, 3) for way, took in medians.items()}
        rows[model] = {"milliseconds": medians, "ratio": ratios, "processes": times}
        sys.stdout.write(f"{model} {rows[model]}\n")
        sys.stdout.flush()
    record = {
        **heading(__doc__, "cpu"),
        "threads": torch.get_num_threads(),
        "models": rows,
    }
    if given.json:
        given.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
