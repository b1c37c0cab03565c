"""A norm of one row and the linear layers that read it, in one launch: against Inductor.

    python tests/perf/normed_gemms.py --json normed-gemms.json [--only LayerNorm] [--models]

bf16, one sequence, one new token: RMSNorm with the projections of attention, or with the first half
of a gated MLP; LayerNorm with the projections, or with the first half of an MLP with GELU, with
biases; and models that decode with a cache of 256 places, the first layers of each.
Replays of CUDA graphs (of norm and products with an L2 full of what others read; of models as they
leave it, four steps in a graph), and by the wall around synchronised calls; interleaved rounds,
medians of microseconds. ``without`` is fusepass without this rule.

One step alone in a graph does not show such a difference: on an H100 two layers of Llama 8B were
replayed with 0.25 us from kernel to kernel without the rule and 0.45 with it, Inductor's kernels
too. With four kernels more in the graph, or with two steps and more, it is 0.45 for both.

Predictions, written before the first run of what is committed, from chains of the kernels alone in
CUDA graphs. There RMSNorm took 1.4 us more than its arithmetic in the next kernel, LayerNorm 0.9.

    width                     768    1024   2048   4096
    RMSNorm, attention        -      1.27   1.24   1.04
    RMSNorm, MLP              -      1.11   1.05   1.015
    RMSNorm, whole model      -      1.05   1.05   -
    LayerNorm                 1.2    -      1.06   none
    LayerNorm, whole model    1.08   -      1.04   1.02
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fusepass
from fusepass.numerics import rms, rms_error
from fusepass.tune.cuda_graph_call import record
from tests.perf.conv_regions import walls
from tests.perf.pooling import cold
from tests.perf.recorded import keeper, options

RULE = "normed_gemms"
# Width, of the MLP, of the projections of attention.
CASES = {
    "Llama 8B": (4096, 14336, (4096, 1024, 1024)),
    "Llama 1B": (2048, 8192, (2048, 512, 512)),
    "Qwen3 0.6B": (1024, 3072, (2048, 1024, 1024)),
}
CENTRED = {
    "OPT 125M": (768, 3072, (768, 768, 768)),
    "Pythia 1B": (2048, 8192, (6144,)),
    "OPT 6.7B": (4096, 16384, (4096, 4096, 4096)),
    "StarCoder2 3B": (3072, 12288, (3072, 256, 256)),
}
KINDS = {
    "RMSNorm": (CASES, ("llama-1b", "qwen3-0.6b", "llama-8b", "gemma-2b")),
    "LayerNorm": (CENTRED, ("pythia-160m", "pythia-1b", "starcoder2-3b")),
}
WAYS: dict[str, dict[str, Any]] = {
    "inductor": {},
    "without": {"backend": "fusepass", "options": {"rules": {RULE: False}}},
    "fusepass": {"backend": "fusepass"},
}
PLACES, AT = 256, 128
STEPS = 4


class Half(nn.Module):
    """A norm with what reads it in a block: attention's projections, or half of an MLP.

    Two layers of an MLP are gated, one is followed by GELU.
    """

    def __init__(self, norm: nn.Module, width: int, widths: tuple[int, ...], *, mlp: bool) -> None:
        super().__init__()
        self.norm = norm
        biased = isinstance(norm, nn.LayerNorm)
        self.layers = nn.ModuleList(nn.Linear(width, n, bias=biased) for n in widths)
        self.mlp = mlp

    def forward(self, x: Tensor) -> list[Tensor]:
        """One result of each layer, or one of an MLP."""
        normed = self.norm(x)
        made = [layer(normed) for layer in self.layers]
        if not self.mlp:
            return made
        return [F.silu(made[0]) * made[1] if len(made) == 2 else F.gelu(made[0])]


def _models() -> dict[str, tuple[Any, Any, dict[str, Any]]]:
    """Configuration, class and sizes of each model."""
    import transformers

    heads = {"num_attention_heads": 32, "num_key_value_heads": 8}
    llama = transformers.LlamaConfig, transformers.LlamaForCausalLM
    neox = transformers.GPTNeoXConfig, transformers.GPTNeoXForCausalLM
    return {
        "llama-8b": (*llama, {"hidden_size": 4096, "intermediate_size": 14336, **heads}),
        "llama-1b": (*llama, {"hidden_size": 2048, "intermediate_size": 8192, **heads}),
        "qwen3-0.6b": (
            transformers.Qwen3Config,
            transformers.Qwen3ForCausalLM,
            {
                "hidden_size": 1024,
                "intermediate_size": 3072,
                "num_attention_heads": 16,
                "num_key_value_heads": 8,
                "head_dim": 128,
            },
        ),
        "gemma-2b": (
            transformers.GemmaConfig,
            transformers.GemmaForCausalLM,
            {
                "hidden_size": 2048,
                "intermediate_size": 16384,
                "num_attention_heads": 8,
                "num_key_value_heads": 1,
                "head_dim": 256,
            },
        ),
        "pythia-160m": (
            *neox,
            {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12},
        ),
        "pythia-1b": (
            *neox,
            {"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 8},
        ),
        "starcoder2-3b": (
            transformers.Starcoder2Config,
            transformers.Starcoder2ForCausalLM,
            {
                "hidden_size": 3072,
                "intermediate_size": 12288,
                "num_attention_heads": 24,
                "num_key_value_heads": 2,
            },
        ),
    }


def model_of(name: str, device: str, layers: int | None = None) -> nn.Module:
    """The first layers of a model people decode with, of random weights.

    Args:
        name: "llama-8b", "llama-1b", "qwen3-0.6b", "gemma-2b", and with LayerNorm
            "pythia-160m", "pythia-1b" or "starcoder2-3b".
        device: where it is to be.
        layers: how many; by default so many that its weights do not fit into L2.
    """
    config, kind, sizes = _models()[name]
    count = layers or {"llama-8b": 2, "pythia-160m": 12}.get(name, 6)
    made = config(**sizes, num_hidden_layers=count, vocab_size=8192)
    with torch.device(device):
        model: nn.Module = kind(made).to(torch.bfloat16).eval()
    return model


def decoding(model: Any, device: str) -> Callable[..., Tensor]:
    """A step of decoding: given the token's number and its place, scores of the next one.

    The cache counts its tokens; every step here is at the same place.
    """
    import transformers

    cache = transformers.StaticCache(config=model.config, max_cache_len=PLACES)

    def step(token: Tensor, place: Tensor) -> Tensor:
        for layer in cache.layers:
            if layer.is_initialized:
                layer.cumulative_length.fill_(AT)
        given = {"past_key_values": cache, "cache_position": place, "use_cache": True}
        scores: Tensor = model(token, position_ids=place[None], **given).logits
        return scores

    with torch.no_grad():
        step(torch.zeros(1, 1, dtype=torch.long, device=device), place_of(device))  # makes it
    return step


def place_of(device: str) -> Tensor:
    """Where in the cache the new token goes."""
    return torch.tensor([AT], device=device)


def in_model(name: str) -> dict[str, Any]:
    """Times of one step of decoding, three ways."""
    model = model_of(name, "cuda")
    token, place = torch.full((1, 1), 7, device="cuda"), place_of("cuda")
    calls, taken = {}, 0
    for way, given in WAYS.items():
        torch._dynamo.reset()
        compiled = torch.compile(decoding(model, "cuda"), **given)
        calls[way] = functools.partial(compiled, token, place)
        calls[way]()
        if way == "fusepass":
            found = fusepass.last_report(compiled).decisions
            taken = sum(one.rule == RULE and one.outcome.name == "APPLIED" for one in found)
    wall = walls(calls)
    replays = {way: record(call, STEPS).replay for way, call in calls.items()}
    replayed = {way: round(one / STEPS, 1) for way, one in walls(replays).items()}
    return {"replay": replayed, "wall": wall, "taken": taken}


def alone(module: Half, x: Tensor) -> dict[str, Any]:
    """Times of one norm and its layers, and what fusepass chose."""
    calls: dict[str, Callable[[], Any]] = {}
    chosen: list[Any] = []
    want = module.double()(x.double())
    module.bfloat16()
    for way, given in WAYS.items():
        torch._dynamo.reset()
        compiled = torch.compile(module, **given)
        for got, exact in zip(compiled(x), want, strict=True):
            assert rms_error(got, exact) < 1e-2 * rms(exact)
        calls[way] = functools.partial(compiled, x)
        if way == "fusepass":
            found = [d for d in fusepass.last_report(compiled).decisions if d.rule == RULE]
            chosen = [one.reason for one in found]
    wall = walls(calls)
    replays = {name: record(call).replay for name, call in calls.items()}
    replayed = cold(replays, after_reads=True)
    return {"replay": replayed, "wall": wall, "why": chosen}


def main() -> None:
    """Measure, print, write the record."""
    parser = options(__doc__)
    parser.add_argument("--only", choices=("RMSNorm", "LayerNorm"))
    parser.add_argument("--models", action="store_true", help="no norms by themselves")
    given = parser.parse_args()
    keep = keeper(__doc__, given.json)
    with torch.no_grad():
        for norm, (cases, models) in KINDS.items():
            if given.only not in (None, norm):
                continue
            for name, (width, inner, projections) in [] if given.models else cases.items():
                x = torch.randn(1, width, device="cuda").bfloat16()
                mlp = (inner, inner) if norm == "RMSNorm" else (inner,)
                for kind, widths in (("attention", projections), ("MLP", mlp)):
                    made = getattr(nn, norm)(width, eps=1e-6)
                    module = Half(made, width, widths, mlp=kind == "MLP")
                    keep(f"{name}, {kind}", alone(module.to("cuda", torch.bfloat16), x))
            for name in models:
                keep(f"{name}, one step of decoding", in_model(name))


if __name__ == "__main__":
    main()
