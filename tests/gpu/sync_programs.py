"""Programs whose host synchronisations are known or can be found out: three models and a sampler.

Weights are random, architectures real. Each ``make_…(device, small)`` gives a callable and its
arguments. In the sampler the lines that wait say so, with their kind.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Made = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def make_bart(device: str, small: bool) -> Made:
    """transformers' BartModel: bart-large in half precision, or two narrow layers."""
    from transformers import BartConfig, BartModel

    narrow = {
        "d_model": 64,
        "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "vocab_size": 100,
        "max_position_embeddings": 64,
    }
    config = BartConfig(**(narrow if small else {}), use_cache=False)
    with torch.device(device):
        model = BartModel(config).eval().half()
        tokens = torch.randint(4, config.vocab_size, (2, 24))
        mask = torch.ones_like(tokens)
    mask[1, 16:] = 0
    return model, (), {"input_ids": tokens, "attention_mask": mask}


def make_detr(device: str, small: bool) -> Made:
    """transformers' DetrForObjectDetection on a ResNet-50, or on a narrow one."""
    from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

    if small:
        backbone = ResNetConfig(
            embedding_size=16,
            hidden_sizes=[16, 16, 32, 32],
            depths=[1, 1, 1, 1],
            layer_type="basic",
            out_features=["stage4"],
        )
        sizes = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "num_queries": 10}
        sizes |= {"encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
        sizes |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    else:
        backbone, sizes = ResNetConfig(out_features=["stage4"]), {}
    config = DetrConfig(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=backbone,
        **sizes,
    )
    side = 64 if small else 320
    with torch.device(device):
        model = DetrForObjectDetection(config).eval()
        pixels = torch.randn(1, 3, side, side)
        mask = torch.ones(1, side, side, dtype=torch.long)
    return model, (), {"pixel_values": pixels, "pixel_mask": mask}


def make_mask_rcnn(device: str, small: bool) -> Made:
    """torchvision's Mask R-CNN on a ResNet-50 with FPN, on one picture."""
    from torchvision.models.detection import maskrcnn_resnet50_fpn

    sizes = (96, 128) if small else (240, 320)
    model = maskrcnn_resnet50_fpn(
        weights=None,
        weights_backbone=None,
        num_classes=5,
        min_size=sizes[0],
        max_size=sizes[1],
        rpn_post_nms_top_n_test=50,
        box_detections_per_img=4,
        box_score_thresh=0.0,
    )
    picture = torch.rand(3, 100, 130, generator=torch.Generator().manual_seed(0))
    return model.eval().to(device), ([picture.to(device)],), {}


class Denoiser(nn.Module):
    """Two convolutions that are told the noise level."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, width, 3, padding=1)
        self.level = nn.Linear(width, width)
        self.last = nn.Conv2d(width, 4, 3, padding=1)
        self.width = width

    def forward(self, sample: Tensor, timestep: Tensor) -> Tensor:
        half = self.width // 2
        exponents = torch.arange(half, device=sample.device) * (-math.log(10000.0) / half)
        angles = timestep.float()[:, None] * exponents.exp()[None]
        level = self.level(torch.cat([angles.sin(), angles.cos()], -1))
        return self.last(nn.functional.silu(self.first(sample) + level[..., None, None]))


class Scheduler:
    """A noise schedule as diffusers keeps them: made with NumPy, uploaded, looked up by timestep."""

    def set_timesteps(self, steps: int, device: torch.device) -> None:
        """Choose the noise levels of a run."""
        levels = np.linspace(10.0, 0.1, steps).astype(np.float32)
        self.sigmas = torch.from_numpy(levels).to(device)  # waits: copy_in
        self.timesteps = torch.from_numpy(levels * 99.0).to(device)  # waits: copy_in
        self.last = torch.zeros(1, device=device)

    def index_of(self, timestep: Tensor) -> int:
        """Position of a timestep in the schedule."""
        found = (self.timesteps == timestep).nonzero()  # waits: nonzero
        return found[0].item()  # waits: item

    def step(self, noise: Tensor, timestep: Tensor, sample: Tensor) -> Tensor:
        """One Euler step; noise is added again while the level is high."""
        index = self.index_of(timestep)
        sigma = self.sigmas[index]
        following = torch.cat([self.sigmas, self.last])[index + 1]
        sample = sample + noise * (following - sigma)
        if sigma > 5.0:  # waits: branch
            fresh = torch.randn(sample.shape, generator=torch.Generator().manual_seed(index))
            sample = sample + 0.01 * fresh.to(sample.device)  # waits: copy_in
        return sample

    def threshold(self, sample: Tensor) -> Tensor:
        """Dynamic thresholding: large values are clamped, some outliers cut away."""
        limit = torch.quantile(sample.abs().flatten(1), 0.95, dim=1).clamp(min=1.0)
        sample = sample.clamp(-limit[:, None, None, None], limit[:, None, None, None])
        sample[sample.isnan()] = 0.0
        outliers = sample.abs() > 50
        sample[outliers] = sample[outliers] * 0.5  # waits: nonzero
        return sample


def sample(model: nn.Module, scheduler: Scheduler, latents: Tensor, steps: int) -> Any:
    """Run the loop; the picture comes back as an array."""
    scheduler.set_timesteps(steps, latents.device)
    weights = torch.tensor([0.3, 0.6, 0.1, 0.2], device=latents.device)  # waits: copy_in
    for number, timestep in enumerate(scheduler.timesteps):
        doubled = torch.cat([latents, latents])
        noise = model(doubled, timestep.expand(2))
        uncond, cond = noise.chunk(2)
        latents = scheduler.step(uncond + 3.0 * (cond - uncond), timestep, latents)
        latents = scheduler.threshold(latents)
        if number % 2 == 0:
            print(f"step {number}: {latents.std():.2f}")  # noqa: T201  # waits: print
        assert latents.isfinite().all(), "diverged"  # waits: branch
    picture = (latents * weights[None, :, None, None]).sum(1)
    if latents.is_cuda:
        torch.cuda.synchronize()
    return picture.clamp(0, 1).cpu().numpy()  # waits: copy_out


def make_sampler(device: str, small: bool) -> Made:
    """The loop above, four steps."""
    side = 8 if small else 64
    torch.manual_seed(0)
    model = Denoiser(8 if small else 128).eval().to(device)
    latents = torch.randn(1, 4, side, side).to(device)
    return sample, (model, Scheduler(), latents, 4), {}


def tagged_lines() -> set[tuple[int, str]]:
    """Lines of the sampler that wait, with the kind."""
    lines = Path(__file__).read_text().splitlines()
    found = ((n, re.search(r"# waits: (\w+)$", line)) for n, line in enumerate(lines, 1))
    return {(number, match[1]) for number, match in found if match}


PROGRAMS = {
    "bart": make_bart,
    "detr": make_detr,
    "mask_rcnn": make_mask_rcnn,
    "sampler": make_sampler,
}
