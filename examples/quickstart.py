"""An unmodified Hugging Face BART under eager, Inductor and fusepass, and what fusepass did to it.

Every encoder layer of BART guards half precision against overflow::

    if hidden_states.dtype == torch.float16 and not torch.isfinite(hidden_states).all():
        hidden_states = torch.clamp(hidden_states, min=-clamp_value, max=clamp_value)

That is a branch on a tensor: torch.compile breaks the graph there, in every layer, and the host
waits for the device to learn the answer. fusepass keeps the branch in the graph.

The model is made from a config with random weights (nothing is downloaded), in float16 so that the
guards are active: a small one on CPU, bart-large on CUDA. Run it with
``python examples/quickstart.py [--small] [--layers N]``.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch

import fusepass
from fusepass.bench.compiled_code import regions_entered
from fusepass.bench.samples import rotation
from fusepass.bench.timing import time_calls
from fusepass.numerics import error_bound, half_ulp, passes, rms, rms_error

MODES = {"cpu": ("default",), "cuda": ("default", "reduce-overhead")}
TABLE = "{:<26}{:>8}{:>7}{:>7}  {:<24}{:>9}{:>8}{:>10}{:>10}"


def bart(
    device: str, small: bool, layers: int | None
) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """transformers' BartModel and one batch of token ids, on ``device``.

    Args:
        device: ``cpu`` or ``cuda``.
        small: 128 features instead of bart-large's 1024.
        layers: of the encoder and of the decoder; None for 4 in the small model, 12 in the large.
    """
    try:
        from transformers import BartConfig, BartModel
    except ImportError as error:
        raise SystemExit("quickstart: transformers is missing: pip install transformers") from error
    depth = layers or (4 if small else 12)
    config = BartConfig(encoder_layers=depth, decoder_layers=depth, use_cache=False)
    if small:
        config.update({"d_model": 128, "encoder_ffn_dim": 512, "decoder_ffn_dim": 512})
        config.update({"encoder_attention_heads": 4, "decoder_attention_heads": 4})
        config.update({"vocab_size": 1000, "max_position_embeddings": 128})
    torch.manual_seed(0)
    model = BartModel(config).eval().half().to(device)
    tokens = torch.randint(4, config.vocab_size, (1, 32 if small else 128))
    return model, {"input_ids": tokens.to(device)}


def run(
    device: str = "cpu",
    *,
    small: bool = True,
    layers: int | None = None,
    modes: Sequence[str] | None = None,
    rounds: int = 5,
) -> dict[str, Any]:
    """Compile, count, time and compare; see :func:`show` for what it means.

    Args:
        device: ``cpu`` or ``cuda``.
        small: a small model instead of bart-large.
        layers: as for :func:`bart`.
        modes: of torch.compile; None for those that do something on ``device``.
        rounds: timed turns of each variant, interleaved.

    Returns:
        ``device``, ``guarded_layers``, ``variants`` (one dict each: name, mode, operations,
        graph_breaks, regions_per_call, latency_ms, rms_error, error_bound, within_bound),
        ``report`` (fusepass's, as a dict) and ``explanation`` (as text).
    """
    model, inputs = bart(device, small, layers)
    calls: dict[tuple[str, str], Callable[..., Any]] = {("eager", ""): model}
    for mode in modes or MODES[device]:
        calls["Inductor", mode] = torch.compile(model, mode=mode)
        calls["fusepass", mode] = torch.compile(model, backend="fusepass", options={"mode": mode})
    with torch.inference_mode():
        exact = copy.deepcopy(model).double()(**inputs).last_hidden_state
        # torch's own account of its graphs; fusepass's comes with its report.
        plain = torch._dynamo.explain(model)(**inputs)
        variants = [_count_and_compare(*key, calls[key], inputs, exact) for key in calls]
        report: fusepass.Report | None = None
        for variant in variants:
            if variant["name"] == "Inductor":
                places = {str(why.user_stack[-1]) for why in plain.break_reasons if why.user_stack}
                variant["operations"] = [len(graph) for graph in plain.ops_per_graph]
                variant["graph_breaks"] = len(places)
            elif variant["name"] == "fusepass":
                report = fusepass.explain(calls["fusepass", variant["mode"]], **inputs)
                variant["operations"] = report.to_dict()["operations"]
                variant["graph_breaks"] = len(report.to_dict()["graph_breaks"])
        _judge(variants, exact)
        _time(variants, calls, inputs, rounds)
    assert report is not None
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else "CPU",
        "guarded_layers": model.config.encoder_layers,
        "variants": variants,
        "report": report.to_dict(),
        "explanation": str(report),
    }


def _count_and_compare(
    name: str, mode: str, call: Callable[..., Any], inputs: dict[str, Any], exact: torch.Tensor
) -> dict[str, Any]:
    """Compile one variant; its error against float64, and the compiled regions a call enters."""
    error = rms_error(call(**inputs).last_hidden_state, exact)
    call(**inputs)  # a second warm-up: CUDA graphs are recorded in it
    return {
        "name": name,
        "mode": mode,
        "operations": [],
        "graph_breaks": 0,
        "regions_per_call": regions_entered(lambda: call(**inputs))[0],
        "rms_error": error,
    }


def _judge(variants: list[dict[str, Any]], exact: torch.Tensor) -> None:
    """The error rule: at most 2 × eager's, 1.1 × Inductor's, or half a unit in the last place."""
    errors = {(one["name"], one["mode"]): one["rms_error"] for one in variants}
    floor = half_ulp(torch.float16, rms(exact))
    for one in variants:
        peer = errors.get(("Inductor", one["mode"])) if one["name"] == "fusepass" else None
        one["error_bound"] = error_bound(floor, errors["eager", ""], peer)
        one["within_bound"] = passes(one["rms_error"], one["error_bound"])


def _time(
    variants: list[dict[str, Any]],
    calls: dict[tuple[str, str], Callable[..., Any]],
    inputs: dict[str, Any],
    rounds: int,
) -> None:
    """Median wall time of a call, the variants taking turns so that drift hits all of them."""
    device = inputs["input_ids"].device.type
    times: dict[str, list[float]] = {f"{one['name']} {one['mode']}": [] for one in variants}
    by_label = {f"{name} {mode}": call for (name, mode), call in calls.items()}
    for order in rotation(list(times), rounds):
        for label in order:
            call = by_label[label]
            times[label].append(
                statistics.median(time_calls(lambda call=call: call(**inputs), 10, device)[0])
            )
    for one in variants:
        one["latency_ms"] = statistics.median(times[f"{one['name']} {one['mode']}"]) / 1000


def show(result: dict[str, Any]) -> str:
    """The result as a table with fusepass's explanation below it."""
    import transformers

    versions = f"transformers {transformers.__version__}, torch {torch.__version__}"
    lines = [
        f"BART in float16 on {result['device']}, {versions}.",
        f"{result['guarded_layers']} of its layers branch on a tensor.",
        "",
        TABLE.format("", "regions", "graph", "", "operations", "", "eager", "RMS", ""),
        TABLE.format(
            *("", "a call", "breaks", "graphs", "in each graph"),
            *("ms", "is 1", "error", "allowed"),
        ),
    ]
    eager = result["variants"][0]["latency_ms"]
    for one in result["variants"]:
        sizes = one["operations"]
        shown = ", ".join(map(str, sizes[:5])) + (", …" if len(sizes) > 5 else "")
        counts = (one["regions_per_call"], one["graph_breaks"], len(sizes), shown)
        lines.append(
            TABLE.format(
                f"{one['name']} {one['mode']}".strip(),
                *(counts if one["name"] != "eager" else ("-", "-", "-", "")),
                f"{one['latency_ms']:.2f}",
                f"{eager / one['latency_ms']:.2f}x",
                f"{one['rms_error']:.1e}",
                f"{one['error_bound']:.1e}",
            )
        )
    lines += [
        "",
        "A layer compiled once and entered many times counts as one graph and many regions.",
        "",
        result["explanation"],
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run on CUDA where there is one, else on CPU; 1 if an error is out of bounds."""
    parser = argparse.ArgumentParser(description="An unmodified BART, with and without fusepass.")
    parser.add_argument("--device", choices=sorted(MODES), help="default: cuda if there is one")
    parser.add_argument("--small", action="store_true", help="the small model on CUDA, too")
    parser.add_argument("--layers", type=int, help="encoder and decoder layers")
    parser.add_argument("--modes", nargs="+", metavar="MODE", help="torch.compile modes to run")
    given = parser.parse_args(argv)
    # The profiler, which counts the regions, otherwise logs its own start and stop to the terminal.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    device = given.device or ("cuda" if torch.cuda.is_available() else "cpu")
    small = given.small or device == "cpu"
    result = run(device, small=small, layers=given.layers, modes=given.modes)
    print(show(result))
    return 0 if all(one["within_bound"] for one in result["variants"]) else 1


if __name__ == "__main__":
    raise SystemExit(main())
