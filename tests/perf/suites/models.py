"""Suite ``models``: fifty models of transformers, timm and torchvision as they are.

Inference with random weights. On CUDA half precision, batches of 16 images of 224 pixels (channels
last) or texts of 128 tokens; on the CPU fp32, one small image or text, and models of two layers. A
package that is not installed leaves its models out.
"""

from __future__ import annotations

import importlib.util
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fusepass.bench.program import Program
from tests.perf.suites.conv import as_if_trained

Made = tuple[nn.Module, tuple[Tensor, ...]]
TIMM = (
    "coatnet_0_rw_224",
    "convnext_tiny",
    "convnextv2_nano",
    "densenet121",
    "edgenext_small",
    "efficientnet_b0",
    "ghostnet_100",
    "maxvit_tiny_tf_224",
    "mixer_b16_224",
    "mobilenetv3_large_100",
    "nfnet_l0",
    "regnety_016",
    "res2net50_26w_4s",
    "resnest50d",
    "resnext50_32x4d",
    "rexnet_100",
    "swin_tiny_patch4_window7_224",
    "tf_efficientnet_lite0",
    "vit_small_patch16_224",
)
TORCHVISION = (
    "alexnet",
    "googlenet",
    "mnasnet1_0",
    "mobilenet_v2",
    "resnet18",
    "resnet50",
    "shufflenet_v2_x1_0",
    "squeezenet1_1",
    "vgg16",
)
_WIDE = {"hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 6}
_LLAMA = {**_WIDE, "intermediate_size": 2048, "num_key_value_heads": 4, "vocab_size": 8192}
TRANSFORMERS: dict[str, tuple[str, dict[str, Any]]] = {
    "albert": ("AlbertModel", {**_WIDE, "intermediate_size": 3072}),
    "bert": ("BertModel", _WIDE),
    "bloom": ("BloomModel", {"hidden_size": 768, "n_head": 12, "n_layer": 6, "vocab_size": 8192}),
    "cohere": ("CohereModel", _LLAMA),
    "deberta-v2": ("DebertaV2Model", {**_WIDE, "intermediate_size": 3072}),
    "distilbert": ("DistilBertModel", {"n_layers": 6}),
    "electra": ("ElectraModel", _WIDE),
    "falcon": ("FalconModel", {**_WIDE, "vocab_size": 8192}),
    "gemma": ("GemmaModel", {**_LLAMA, "head_dim": 64}),
    "gpt-neox": ("GPTNeoXModel", {**_WIDE, "intermediate_size": 3072, "vocab_size": 8192}),
    "gpt2": ("GPT2Model", {"n_layer": 6}),
    "gptj": ("GPTJModel", {"n_embd": 768, "n_head": 12, "n_layer": 6, "rotary_dim": 16}),
    "llama": ("LlamaModel", _LLAMA),
    "mistral": ("MistralModel", _LLAMA),
    "modernbert": ("ModernBertModel", {**_WIDE, "intermediate_size": 1152}),
    "mpnet": ("MPNetModel", {**_WIDE, "intermediate_size": 3072}),
    "olmo2": ("Olmo2Model", _LLAMA),
    "opt": ("OPTModel", {"hidden_size": 768, "num_hidden_layers": 6, "ffn_dim": 3072}),
    "phi": ("PhiModel", {**_WIDE, "intermediate_size": 3072, "vocab_size": 8192}),
    "phi3": ("Phi3Model", {**_LLAMA, "pad_token_id": 0}),
    "qwen2": ("Qwen2Model", _LLAMA),
    "qwen3": ("Qwen3Model", {**_LLAMA, "head_dim": 64}),
    "roberta": ("RobertaModel", _WIDE),
    "stablelm": ("StableLmModel", _LLAMA),
    "t5-encoder": ("T5EncoderModel", {"num_layers": 6}),
}
_LAYERS = ("num_hidden_layers", "n_layers", "n_layer", "num_layers")
BATCH = {"cuda": 16, "cpu": 1}
SIDE = {"cuda": 224, "cpu": 96}
TOKENS = {"cuda": 128, "cpu": 16}
_FIXED = {name for name in TIMM if name.endswith("_224")}


class Result(nn.Module):
    """A model of transformers that gives its first result, without a cache."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) -> (B, T, width)."""
        made: Tensor = self.model(tokens)[0]
        return made


def text_model(device: str, name: str) -> Made:
    """One of :data:`TRANSFORMERS`, and tokens; bf16 on CUDA."""
    import transformers

    kind, sizes = TRANSFORMERS[name]
    if device == "cpu":
        sizes = {key: 2 if key in _LAYERS else value for key, value in sizes.items()}
    of = getattr(transformers, kind)
    model = Result(of(of.config_class(**sizes))).eval()
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    tokens = torch.randint(0, 1000, (BATCH[device], TOKENS[device]), device=device)
    return model.to(device, dtype), (tokens,)


def image_model(device: str, name: str) -> Made:
    """One of :data:`TIMM` or :data:`TORCHVISION`, and images, channels last; fp16 on CUDA."""
    if name in TIMM:
        import timm

        model: nn.Module = timm.create_model(name)
    else:
        import torchvision

        how = {"aux_logits": False, "init_weights": False} if name == "googlenet" else {}
        model = getattr(torchvision.models, name)(**how)
    dtype = torch.float16 if device == "cuda" else torch.float32
    last: Any = torch.channels_last
    side = 224 if name in _FIXED else SIDE[device]
    x = torch.randn(BATCH[device], 3, side, side, device=device, dtype=dtype)
    model = as_if_trained(model).eval().to(device, dtype)
    return model.to(memory_format=last), (x.to(memory_format=last),)  # type: ignore[call-overload]


def programs(device: str) -> tuple[Program, ...]:
    """The suite, sized for ``device``, as far as its packages are installed."""
    found = []
    kinds = {"timm": TIMM, "torchvision": TORCHVISION, "transformers": tuple(TRANSFORMERS)}
    for package, names in kinds.items():
        if importlib.util.find_spec(package) is None:
            continue
        for name in names:
            text = package == "transformers"
            build = partial(text_model if text else image_model, device, name)
            size = {"tokens": TOKENS[device]} if text else {"side": SIDE[device]}
            sizes = {"batch": BATCH[device], "from": package, **size}
            found.append(Program(name, build, sizes, branches=False))
    return tuple(found)
