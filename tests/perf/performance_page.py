"""Write docs/performance.md and its plots from the records of tests/perf/results.

    python -m tests.perf.performance_page            # writes docs/performance.md, docs/speed*.svg
    python -m tests.perf.performance_page --check    # exit status 1 if one of them is out of date

A topic is a value: its records, its columns and how a record becomes rows. No number of the page is
typed by hand, and every row of a record is shown, those that lost as well.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from tests.perf.ratio_plot import Bar, ratio_plot

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "tests" / "perf" / "results"
RECORDS = "https://github.com/fusepass/fusepass/blob/main/tests/perf/results"

Row = tuple[str, Mapping[str, float | None]]  # a label, and microseconds by column


@dataclass(frozen=True)
class Topic:
    """One table of the page.

    Attributes:
        title: heading.
        text: what was run, in a sentence or two.
        record: name of the file in tests/perf/results, without ``.json``.
        rows: makes rows of the record.
        columns: in order; those after ``baseline`` show how many times as fast as it they are.
        baseline: the column that ratios are taken against.
        unit: of all numbers.
        split: makes a row's label a row and a column of a grid, whose cells hold all columns.
    """

    title: str
    text: str
    record: str
    rows: Callable[[Mapping[str, Any]], Iterable[Row]]
    columns: tuple[str, ...] = ("Inductor", "fusepass")
    baseline: str = "Inductor"
    unit: str = "µs"
    split: Callable[[str], tuple[str, str]] | None = None


NAMES = {
    "clamp-encoder-short": "clamp encoder, 24 layers, 16 tokens",
    "clamp-encoder-middle": "clamp encoder, 256 tokens",
    "clamp-encoder-long": "clamp encoder, 4096 tokens",
    "bart-short": "BART-large, batch 1 × 128",
    "bart-long": "BART-large, batch 8 × 512",
    "longt5-short": "LongT5-base encoder, batch 1 × 128",
    "longt5-long": "LongT5-base encoder, batch 8 × 512",
    "branch-on-sum": "branch on a sum, 1024×8192 @ 8192×2048, TF32",
    "step-small-fp32": "training step with a guard in each layer, fp32",
    "step-small-bf16": "training step with a guard in each layer, bf16 autocast",
    "both": "24 layers, `x / x.norm().item()` and masks made on the CPU, 16 tokens",
    "print-loss": "training step that prints its loss",
    "resnet50": "ResNet-50",
    "convnext_tiny": "ConvNeXt-T",
}

MODES = (
    ("eager", "eager"),
    ("inductor/default", "Inductor"),
    ("fusepass/default", "fusepass"),
    ("inductor/reduce-overhead", "Inductor, CUDA graphs"),
    ("fusepass/reduce-overhead", "fusepass, CUDA graphs"),
    ("hand/default", "by hand"),
    ("hand/reduce-overhead", "by hand, CUDA graphs"),
)
CALLED = tuple(column for _, column in MODES[:5])
BY_HAND = (*CALLED, "by hand", "by hand, CUDA graphs")
KERNELS = (("floor/default", "GEMM alone"), *MODES[1:3])


def suite(
    measure: str = "wall_us", variants: tuple[tuple[str, str], ...] = MODES
) -> Callable[[Mapping[str, Any]], Iterable[Row]]:
    """Rows of a record that ``python -m fusepass bench`` wrote."""

    def rows(record: Mapping[str, Any]) -> Iterable[Row]:
        for program in record["programs"]:
            found = {v["variant"]: (v[measure] or {}).get("median") for v in program["variants"]}
            if any(found.values()):
                name = program["program"]
                yield NAMES.get(name, name), {label: found.get(key) for key, label in variants}

    return rows


def paired(
    measure: str | None = "replay", keep: Callable[[str], bool] = lambda name: True
) -> Callable[[Mapping[str, Any]], Iterable[Row]]:
    """Rows of a record with ``inductor`` and ``fusepass`` beside each other under each name."""

    def rows(record: Mapping[str, Any]) -> Iterable[Row]:
        found = record["rows"]
        named = found.items() if isinstance(found, Mapping) else ((r["model"], r) for r in found)
        for name, row in named:
            times = row if measure is None else row[measure]
            if keep(name):
                yield (
                    NAMES.get(name, name),
                    {
                        "Inductor": times["inductor"],
                        "fusepass": times["fusepass"],
                        "a copy of as many bytes": times.get("copy"),
                    },
                )

    return rows


def both_ways(record: Mapping[str, Any]) -> Iterable[Row]:
    """Rows of a record of models: replayed as one CUDA graph, and called."""
    found = record["rows"]
    named = found.items() if isinstance(found, Mapping) else ((r["model"], r) for r in found)
    for name, row in named:
        replay, wall = row.get("replay") or {}, row["wall"]
        yield (
            name,
            {
                "Inductor": replay.get("inductor"),
                "fusepass": replay.get("fusepass"),
                "Inductor, called": wall["inductor"],
                "fusepass, called": wall["fusepass"],
            },
        )


def best_modes(record: Mapping[str, Any]) -> Iterable[Row]:
    """Rows of linear layers against Inductor's default and its best mode."""
    for name, row in record["rows"].items():
        times = row["microseconds"]
        yield (
            name,
            {
                "GEMM alone": times["floor"],
                "Inductor": times["default"],
                "Inductor, max-autotune": times["max-autotune"],
                "fusepass": times["fusepass"],
            },
        )


def networks(record: Mapping[str, Any]) -> Iterable[Row]:
    """Rows of convolution networks, with and without frozen weights."""
    for row in record["rows"]:
        times = row["microseconds"]
        label = f"{NAMES.get(row['network'], row['network'])}, batch {row['batch']}"
        if row["images"] != "channels last":
            label += ", NCHW"
        yield (
            label,
            {
                "Inductor": times["inductor"],
                "fusepass": times["fusepass"],
                "Inductor, frozen": times.get("inductor frozen"),
                "fusepass, frozen": times.get("fusepass frozen"),
            },
        )


def updates(record: Mapping[str, Any]) -> Iterable[Row]:
    """Rows of 400 small updates, called and in a CUDA graph."""
    for name in ("in place", "new tensors"):
        for key, how in (("wall", "called"), ("graph", "CUDA graph")):
            times = record[name][key]
            yield f"{name}, {how}", {"Inductor": times["inductor"], "fusepass": times["fusepass"]}


def geglu(record: Mapping[str, Any]) -> Iterable[Row]:
    """Rows of one MLP against another library's kernel."""
    for name in ("forward", "forward and backward"):
        times = record[name]["microseconds"]
        yield (
            name,
            {
                "Inductor": times["inductor"],
                "fusepass": times["fusepass"],
                "Inductor, max-autotune": times["max-autotune"],
                "Liger": times["liger"],
            },
        )


def few_rows(record: Mapping[str, Any]) -> Iterable[Row]:
    """Rows of an MLP with few tokens, one for each run and number of tokens."""
    runs = record["again, the code as it is, three processes"]["runs"]
    for run, sizes in enumerate(runs, 1):
        for tokens, times in sizes.items():
            graph = times["graph"]
            yield (
                f"{tokens} tokens, run {run}",
                {
                    "reading the weights": graph["limit"],
                    "Inductor": graph["inductor"],
                    "Inductor, max-autotune": graph["max-autotune"],
                    "fusepass": graph["fusepass"],
                },
            )


def frozen_on_cpu(record: Mapping[str, Any]) -> Iterable[Row]:
    """Rows of models on a CPU, in milliseconds."""
    for name, row in record["models"].items():
        times = row["milliseconds"]
        yield (
            name,
            {
                "Inductor": times["inductor"],
                "fusepass": times["fusepass"],
                "Inductor, frozen": times["inductor_frozen"],
                "fusepass, frozen": times["frozen"],
            },
        )


IMAGES = {
    "seed, one": "1×64×256×256",
    "seed, batch": "64×64×112×112",
    "odd": "64×64×113×111",
    "small": "32×480×14×14",
}


def pooled(label: str) -> tuple[str, str]:
    """Images and dtype, and what is done with them."""
    image, dtype, program = label.rsplit(", ", 2)
    return f"{IMAGES[image]}, {dtype}", program


def reduced(label: str) -> tuple[str, str]:
    """A program, and the shape and dtype of its input."""
    program, shape, dtype = label.rsplit(", ", 2)
    return program, f"{shape.replace('x', '×')}, {dtype}"


def of_images(label: str) -> bool:
    """Whether a reduction's input has four dimensions."""
    return label.rsplit(", ", 2)[1].count("x") == 3


MODELS = ("Inductor", "fusepass", "Inductor, called", "fusepass, called")
FROZEN = ("Inductor", "fusepass", "Inductor, frozen", "fusepass, frozen")

TOPICS = (
    Topic(
        "Branches on a tensor",
        "Unmodified models with random weights, fp16, inference. The clamp encoder tests for infinity and NaN "
        "in each layer.",
        "sync-h200-torch2.11",
        suite(),
        CALLED,
    ),
    Topic(
        "Branches, against torch.where by hand",
        "“By hand” is the model with each branch rewritten as `torch.where`, compiled by Inductor.",
        "hand-again-h200-torch2.11",
        suite(),
        BY_HAND,
    ),
    Topic(
        "The same on a slower host",
        "An earlier run of the table above, with more programs.",
        "hand-h200-torch2.11",
        suite(),
        BY_HAND,
    ),
    Topic(
        "Training with branches",
        "One step: forward, backward and AdamW.",
        "training-h200-torch2.11",
        suite(),
        CALLED,
    ),
    Topic(
        "Training with branches, bf16",
        "The same under autocast.",
        "training-bf16-h200-torch2.11",
        suite(),
        CALLED,
    ),
    Topic(
        "Numbers and tensors from the host",
        "fp32. Other work disturbed the host. “By hand” is the program rewritten for the device, compiled by "
        "Inductor.",
        "host-h200-torch2.11",
        suite(),
        BY_HAND,
    ),
    Topic(
        "A printed loss",
        "“By hand” reads the loss once and prints nothing; Inductor compiles it.",
        "host-print-h200-torch2.11",
        suite(),
        BY_HAND,
    ),
    Topic(
        "Linear and activation",
        "bf16 with bias, kernels alone, L2-cold. A name is activation, rows × inner size × columns. “GEMM alone” "
        "is the layer without its activation.",
        "linear-modes-h200-torch2.11",
        best_modes,
        ("GEMM alone", "Inductor", "Inductor, max-autotune", "fusepass"),
    ),
    Topic(
        "Gated MLP",
        "bf16, kernels alone, L2-cold. “GEMM alone” is one cuBLAS GEMM with both weights side by side. In "
        "“packed” programs they are one parameter.",
        "gated-suite-h200-torch2.11",
        suite("replay_us", KERNELS),
        ("GEMM alone", "Inductor", "fusepass"),
    ),
    Topic(
        "SwiGLU MLP with few tokens",
        "4096 → 14336 → 4096, bf16, CUDA graphs. No kernel can be faster than reading the weights.",
        "few-rows-mlp-h200-torch2.11",
        few_rows,
        ("reading the weights", "Inductor", "Inductor, max-autotune", "fusepass"),
    ),
    Topic(
        "GeGLU MLP against a kernel library",
        "8192 tokens, 768 → 3072, CUDA graphs.",
        "geglu-mlp-h200-torch2.11",
        geglu,
        ("Inductor", "fusepass", "Inductor, max-autotune", "Liger"),
    ),
    Topic(
        "One step of decoding",
        "One sequence, one token, bf16, a KV cache of 256 tokens, CUDA graphs.",
        "normed-gemms-h100-torch2.11",
        paired(),
    ),
    Topic(
        "Several linear layers of one operand",
        "bf16, CUDA graphs, L2-cold: query, key and value of attention, and eight layers that embed the time step "
        "of a diffusion model; then whole models.",
        "sibling-gemms-h200-torch2.11",
        paired(),
    ),
    Topic(
        "Convolution networks",
        "fp16, NHWC, inference, CUDA graphs. “Frozen” means that weights are constants.",
        "convolutions-h200-torch2.11",
        networks,
        FROZEN,
    ),
    Topic(
        "Convolution and activation",
        "fp16, NHWC, CUDA graphs. A name is the input, output channels, stride, activation.",
        "conv-regions-h200-torch2.11",
        paired(),
    ),
    Topic(
        "Pooling",
        "CUDA graphs, L2-cold, NCHW. A cell has the µs of a copy of as many bytes → Inductor → fusepass. "
        "“max 3/2” is max-pooling with a window of 3 × 3 and stride 2; with one number, both are equal.",
        "pooling-h200-torch2.11",
        paired(None),
        ("a copy of as many bytes", "Inductor", "fusepass"),
        split=pooled,
    ),
    Topic(
        "Reductions",
        "CUDA graphs, L2-cold. A cell has the µs of Inductor → fusepass.",
        "reductions-h200-torch2.11",
        paired("microseconds", lambda label: not of_images(label)),
        split=reduced,
    ),
    Topic(
        "Reductions of images",
        "CUDA graphs, L2-cold.",
        "reductions-h200-torch2.11",
        paired("microseconds", of_images),
    ),
    Topic(
        "Many small updates",
        "400 independent updates of 64 to 4096 elements, fp32.",
        "small-updates-h200-torch2.11",
        updates,
    ),
    Topic(
        "Concatenation of computed tensors",
        "CUDA graphs, L2-cold. A name is the number of tensors and their shape.",
        "grouped-cats-h200-torch2.11",
        paired(),
    ),
    Topic(
        "Whole models",
        "transformers: six layers, bf16, 16 × 128 tokens. timm and torchvision: fp16, 16 images, NHWC. The first two "
        "columns are kernels alone, recorded in one CUDA graph; “called” includes the host.",
        "zoo-h200-torch2.11",
        both_ways,
        MODELS,
    ),
    Topic(
        "More models",
        "Batch 8, four layers. Measured once; times of the host vary.",
        "more-models-h100-torch2.11",
        both_ways,
        MODELS,
    ),
    Topic(
        "Whole models in training",
        "Forward and backward of a loss without dropout.",
        "zoo-training-h100-torch2.11",
        both_ways,
        MODELS,
    ),
    Topic(
        "On a CPU",
        "Two cores, fp32, one image or 128 tokens.",
        "cpu-models-torch2.14",
        frozen_on_cpu,
        FROZEN,
        unit="ms",
    ),
)

HEAD = """# Measured speed

`python -m tests.perf.performance_page` makes this page from the records in `tests/perf/results`.
All rows of each record are here. The number in brackets is Inductor's time divided by fusepass's in the same mode: below 1.00×, fusepass is slower.
Times are medians of interleaved rounds. “CUDA graphs” is mode `reduce-overhead`; the [glossary](glossary.md) explains L2-cold and other terms. [Benchmark suites](design/benchmark_suites.md) says how to repeat the measurements, [hardware](hardware.md) where fusepass runs.

| topic | record | rows | mean (geometric) | lowest | highest |
|---|---|---|---|---|---|
"""


def read(record: str) -> Mapping[str, Any]:
    """The record of that name."""
    found: Mapping[str, Any] = json.loads((RESULTS / f"{record}.json").read_text())
    return found


def ratio(times: Mapping[str, float | None], column: str, baseline: str) -> float | None:
    """How many times as fast as its own baseline a column is.

    A column ``fusepass, called`` is compared with ``Inductor, called`` where there is such a one.
    """
    suffix = column.partition(", ")[2]
    against = f"{baseline}, {suffix}" if suffix and f"{baseline}, {suffix}" in times else baseline
    mine, theirs = times.get(column), times.get(against)
    return theirs / mine if mine and theirs and against != column else None


def number(value: float) -> str:
    """Three digits that count, thousands apart."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def table(topic: Topic) -> tuple[str, list[float]]:
    """The table of one topic, and the ratios of fusepass in its first mode."""
    shown = {
        label: [cell(times, column, topic.baseline) for column in topic.columns]
        for label, times in topic.rows(read(topic.record))
    }
    found = (
        ratio(times, "fusepass", topic.baseline) for _, times in topic.rows(read(topic.record))
    )
    ratios = [times_as_fast for times_as_fast in found if times_as_fast]
    if topic.split is not None:
        return grid(topic.split, shown), ratios
    return lines(f"program, {topic.unit}", topic.columns, shown), ratios


def cell(times: Mapping[str, float | None], column: str, baseline: str) -> str:
    """A time, and how many times as fast as the baseline it is."""
    value, times_as_fast = times.get(column), ratio(times, column, baseline)
    mark = f" ({times_as_fast:.2f}×)" if times_as_fast and column.startswith("fusepass") else ""
    return f"{number(value)}{mark}" if value else ""


def grid(split: Callable[[str], tuple[str, str]], shown: Mapping[str, list[str]]) -> str:
    """A table with a row for each program and a column for each size."""
    places = {split(label): " → ".join(cells) for label, cells in shown.items()}
    columns = tuple(dict.fromkeys(column for _, column in places))
    rows = {row: [places.get((row, column), "") for column in columns] for row, _ in places}
    return lines("program", columns, rows)


def lines(corner: str, columns: tuple[str, ...], rows: Mapping[str, list[str]]) -> str:
    """A table in Markdown."""
    head = f"| {corner} | " + " | ".join(columns) + " |\n" + "|---" * (len(columns) + 1) + "|\n"
    return head + "".join("| " + " | ".join([row, *cells]) + " |\n" for row, cells in rows.items())


def device(record: Mapping[str, Any]) -> str:
    """What a record was measured on."""
    versions, hardware = record["versions"], record["hardware"]
    name = (hardware.get("gpu") or {}).get("name") or f"CPU, {record.get('threads', 2)} threads"
    return f"{name}, torch {versions['torch'].partition('+')[0]}"


def anchor(title: str) -> str:
    """The fragment that a heading gets."""
    return "".join(c for c in title.lower().replace(" ", "-") if c.isalnum() or c == "-")


def page() -> str:
    """docs/performance.md."""
    contents, sections = [], []
    for topic in TOPICS:
        text, ratios = table(topic)
        figures = f"{geometric_mean(ratios):.2f}× | {min(ratios):.2f}× | {max(ratios):.2f}×"
        contents.append(
            f"| [{topic.title}](#{anchor(topic.title)}) "
            f"| [{topic.record}]({RECORDS}/{topic.record}.json) | {len(ratios)} | {figures} |"
        )
        sections.append(f"## {topic.title}\n\n{device(read(topic.record))}. {topic.text}\n\n{text}")
    return HEAD + "\n".join(contents) + "\n\n" + "\n".join(sections)


# The plot of the README: programs that people know, from the best to the one that loses.
PLOTTED = (
    ("sync-h200-torch2.11", suite(), "fusepass, CUDA graphs", "Inductor, CUDA graphs"),
    ("training-h200-torch2.11", suite(), "fusepass, CUDA graphs", "Inductor, CUDA graphs"),
    ("normed-gemms-h100-torch2.11", paired(), "fusepass", "Inductor"),
    ("convolutions-h200-torch2.11", networks, "fusepass", "Inductor"),
    ("zoo-h200-torch2.11", both_ways, "fusepass", "Inductor"),
    ("more-models-h100-torch2.11", both_ways, "fusepass", "Inductor"),
)
SHOWN = {
    "clamp encoder, 24 layers, 16 tokens": "encoder with guards",
    "training step with a guard in each layer, fp32": "training step with guards",
    "LongT5-base encoder, batch 1 × 128": "LongT5-base, batch 1",
    "BART-large, batch 8 × 512": "BART-large, batch 8",
    "BART-large, batch 1 × 128": "BART-large, batch 1",
    "qwen3-0.6b, one step of decoding": "Qwen3 0.6B, one token",
    "llama-1b, one step of decoding": "Llama 1B, one token",
    "bert": "BERT, no branch",
    "ResNet-50, batch 32": "ResNet-50, batch 32",
    "llama": "Llama, 16 × 128 tokens",
    "vit_small_patch16_224": "ViT-S/16",
    "nfnet_l0": "NFNet-L0",
}


def bars() -> list[Bar]:
    """What the plot shows, fastest first."""
    found = []
    for record, rows, ours, theirs in PLOTTED:
        for label, times in rows(read(record)):
            mine, other = times.get(ours), times.get(theirs)
            if label in SHOWN and mine and other:
                found.append(Bar(SHOWN[label], other / mine))
    return sorted(found, key=lambda bar: -bar.ratio)


def outputs() -> dict[Path, str]:
    """What is generated, by its path."""
    docs = ROOT / "docs"
    return {
        docs / "performance.md": page(),
        docs / "speed.svg": ratio_plot(bars(), dark=False),
        docs / "speed-dark.svg": ratio_plot(bars(), dark=True),
    }


def main() -> int:
    """Write the files, or compare them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if a file differs")
    check = parser.parse_args().check
    stale = [
        path for path, text in outputs().items() if not path.exists() or path.read_text() != text
    ]
    for path in stale:
        if not check:
            path.write_text(outputs()[path])
        sys.stdout.write(f"{'out of date' if check else 'written'}: {path.relative_to(ROOT)}\n")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
