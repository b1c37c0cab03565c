"""Two dozen models of timm, torchvision and transformers, in inference: never slower than Inductor.

    python tests/perf/zoo.py --json zoo.json            # goes on where the file ends
    python tests/perf/zoo.py --json zoo.json --only bert gpt2 --mode reduce-overhead

Random weights, half precision, images channels last. Each model is compiled by Inductor and by
fusepass in one mode and called in interleaved rounds: by the wall around synchronised calls, and as
a replay of one CUDA graph where the call can be recorded. Results are held to eager's in fp64.
Bars: no model below 0.98 of Inductor's speed; the geometric mean is stated.

Prediction, written before the first run: convolution networks 1.05 to 1.4, transformers with GELU
or SwiGLU 1.02 to 1.1, the rest 1.00 ± 0.01.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import fusepass
from fusepass.bench.hardware import hardware, versions
from fusepass.bench.timing import record
from fusepass.error_rule import rms_error

Made = tuple[nn.Module, tuple[Tensor, ...]]
ROUNDS, CALLS, LAST = 9, 4, torch.channels_last
TIMM = (
    "convnext_tiny densenet121 efficientnet_b0 mixer_b16_224 mobilenetv3_large_100 regnety_016 "
    "swin_tiny_patch4_window7_224 vit_small_patch16_224"
).split()
TORCHVISION = (
    "alexnet googlenet mnasnet1_0 mobilenet_v2 resnet18 resnet50 shufflenet_v2_x1_0 squeezenet1_1 "
    "vgg16"
).split()
_WIDE = {"hidden_size": 768, "num_hidden_layers": 6, "num_attention_heads": 12}
_LLAMA = {**_WIDE, "intermediate_size": 2048, "num_key_value_heads": 4, "vocab_size": 8192}
TRANSFORMERS: dict[str, tuple[str, dict[str, Any]]] = {
    "albert": ("AlbertModel", {**_WIDE, "intermediate_size": 3072}),
    "bert": ("BertModel", _WIDE),
    "distilbert": ("DistilBertModel", {"n_layers": 6}),
    "electra": ("ElectraModel", _WIDE),
    "gemma": ("GemmaModel", {**_LLAMA, "head_dim": 64}),
    "gpt2": ("GPT2Model", {"n_layer": 6}),
    "llama": ("LlamaModel", _LLAMA),
    "opt": ("OPTModel", {"hidden_size": 768, "num_hidden_layers": 6, "ffn_dim": 3072}),
    "qwen2": ("Qwen2Model", _LLAMA),
    "roberta": ("RobertaModel", _WIDE),
    "t5 encoder": ("T5EncoderModel", {"num_layers": 6}),
}
NAMES = (*TIMM, *TORCHVISION, *TRANSFORMERS)


def made(name: str, device: str, batch: int, size: int) -> Made:
    """A model in half precision and its inputs.

    Args:
        name: one of :data:`NAMES`.
        device: for both.
        batch: images or texts.
        size: pixels of an image's side, or tokens of a text.
    """
    torch.manual_seed(0)
    if name in TRANSFORMERS:
        import transformers

        kind, sizes = TRANSFORMERS[name]
        of = getattr(transformers, kind)
        text: nn.Module = of(of.config_class(**sizes)).eval().to(device, torch.bfloat16)
        return text, (torch.randint(0, 1000, (batch, size), device=device),)
    if name in TIMM:
        import timm

        model: nn.Module = timm.create_model(name)
    else:
        import torchvision

        how = {"aux_logits": False, "init_weights": False} if name == "googlenet" else {}
        model = getattr(torchvision.models, name)(**how)
    for norm in model.modules():  # as if they had been trained
        if isinstance(norm, nn.BatchNorm2d):
            nn.init.uniform_(norm.running_var, 0.5, 2.0)  # type: ignore[arg-type]
            nn.init.normal_(norm.bias, 0.0, 0.1)
    model = model.eval().to(device, torch.float16).to(memory_format=LAST)  # type: ignore[call-overload]
    x = torch.randn(batch, 3, size, size, device=device).half().to(memory_format=LAST)
    return model, (x,)


def first(result: Any) -> Tensor:
    """The tensor that matters of what a model returns."""
    return result if isinstance(result, Tensor) else result[0]


def in_turns(
    calls: Mapping[str, Callable[[], Any]], timed: Callable[[Callable[[], Any]], float]
) -> dict[str, list[float]]:
    """Microseconds of a call, round by round, neighbours in time."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(ROUNDS):
        for name in list(calls)[:: 1 if turn % 2 else -1]:
            times[name].append(timed(calls[name]))
    return times


def wall(call: Callable[[], Any]) -> float:
    """Microseconds around synchronised calls."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(CALLS):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) * 1e6 / CALLS


def figures(times: Mapping[str, list[float]]) -> dict[str, Any]:
    """Medians, and Inductor's time over ours, round by round."""
    pairs = zip(times["inductor"], times["fusepass"], strict=True)
    found: dict[str, Any] = {name: round(statistics.median(t), 1) for name, t in times.items()}
    return {**found, "ratio": round(statistics.median(a / b for a, b in pairs), 3)}


def compared(name: str, mode: str, batch: int) -> dict[str, Any]:
    """Times, ratios, errors and decisions of one model."""
    model, inputs = made(name, "cuda", batch, 128 if name in TRANSFORMERS else 224)
    torch._dynamo.reset()
    calls: dict[str, Callable[[], Any]] = {}
    seconds: dict[str, float] = {}
    how: dict[str, dict[str, Any]] = {
        "inductor": {} if mode == "default" else {"mode": mode},
        "fusepass": {"backend": "fusepass", "options": {"mode": mode}},
    }
    with torch.no_grad():
        for way, given in how.items():
            compiled = torch.compile(model, **given)
            began = time.perf_counter()
            compiled(*inputs)
            seconds[way] = round(time.perf_counter() - began, 1)
            calls[way] = lambda call=compiled: call(*inputs)  # type: ignore[misc]
            for _ in range(3):
                calls[way]()
        decisions = fusepass.last_report(compiled).decisions
        row: dict[str, Any] = {"model": name, "mode": mode, "batch": batch}
        row["wall"] = figures(in_turns(calls, wall))
        results = {way: first(call()).clone() for way, call in calls.items()}
        results["eager"] = first(model(*inputs))
        try:
            graphs = {way: record(call, 1).replay for way, call in calls.items()}
            row["replay"] = figures(in_turns(graphs, wall))
        except RuntimeError as error:
            row["replay"] = str(error)[:80]
        wide = [one.double() if one.is_floating_point() else one for one in inputs]
        exact = first(model.double()(*wide))
    row["error"] = {way: f"{rms_error(one, exact):.2e}" for way, one in results.items()}
    row["compile_seconds"] = seconds
    applied = Counter(one.rule for one in decisions if one.outcome == "applied")
    return {**row, "applied": dict(applied)}


def main() -> None:
    """Measure, print a line per model, write the record after each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, metavar="MODEL")
    parser.add_argument("--mode", default="default")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--json", type=Path, required=True)
    given = parser.parse_args()
    kept: dict[str, Any] = {
        "what": __doc__,
        "date": datetime.now(UTC).date().isoformat(),
        "hardware": hardware("cuda"),
        "versions": versions(),
        "rows": [],
    }
    if given.json.exists():
        kept = json.loads(given.json.read_text())
    have = {(row["model"], row["mode"], row["batch"]) for row in kept["rows"]}
    for name in given.only:
        if (name, given.mode, given.batch) in have:
            continue
        row = compared(name, given.mode, given.batch)
        kept["rows"].append(row)
        sys.stdout.write(f"{json.dumps(row)}\n")
        sys.stdout.flush()
        given.json.write_text(json.dumps(kept, indent=1) + "\n")
    ratios = [row["wall"]["ratio"] for row in kept["rows"] if row["mode"] == given.mode]
    mean = statistics.geometric_mean(ratios)
    sys.stdout.write(f"{len(ratios)} models: smallest {min(ratios)}, geomean {mean:.3f}\n")


if __name__ == "__main__":
    main()
