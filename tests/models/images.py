"""Arguments of models of timm, torchvision and diffusers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from tests.models.inputs import Inputs

_CALLS = 6
_SIDES = (64, 64, 96, 80, 64, 112)


def images(self: Inputs) -> Any:
    """One batch of images, or a list of them for a detector."""
    return [self.normal(3, *shape).sigmoid() for shape in _detected(self)]


def _detected(self: Inputs) -> list[tuple[int, int]]:
    side = _SIDES[self.call]
    return [(side, 64), (64, side)]


def targets(self: Inputs) -> list[dict[str, Tensor]]:
    """Boxes, labels, masks and key points of the images; another number of them in each call."""
    found = []
    for height, width in _detected(self):
        count = 1 + int(self.integers(4, 1))
        low = self.integers(24, count, 2).float()
        boxes = torch.cat([low, low + 8 + self.integers(24, count, 2).float()], 1)
        masks = self.integers(2, count, height, width).to(torch.uint8)
        points = torch.cat([self.integers(60, count, 17, 2).float(), torch.ones(count, 17, 1)], 2)
        found.append(
            {
                "boxes": boxes,
                "labels": self.integers(4, count, low=1),
                "masks": masks,
                "keypoints": points,
            }
        )
    return found


def x(self: Inputs) -> Tensor:
    """A batch of images, or of videos."""
    config = (
        getattr(self.model, "default_cfg", None)
        or getattr(self.model, "pretrained_cfg", None)
        or {}
    )
    channels, height, width = config.get("input_size", (3, 64, 64))
    fixed = config.get("fixed_input_size", False) or not self.layout.sizes_vary
    choice = self.layout.choice.get("x", 0)
    if not config:
        height = width = (64, 224, 128, 299)[choice] if choice < 4 else 64
    elif not fixed:
        height = width = min(height, 96)
    if not fixed and choice == 0:
        height, width = _SIDES[self.call], _SIDES[self.call]
    shape = (2, channels, 8, height, width) if choice == 4 else (2, channels, height, width)
    return self.normal(*shape)


def image_of_flow(self: Inputs) -> Tensor:
    return self.normal(1, 3, 128, 128).sigmoid() * 2 - 1


def _width(self: Inputs, *names: str, default: int = 64) -> int:
    return self.number(*names, default=default)


def sample(self: Inputs) -> Tensor:
    """What is denoised: images, a video or a row of tokens."""
    channels = _width(self, "in_channels", "num_channels_latents", default=4)
    side = _width(self, "sample_size", default=8)
    side = min(side, 16)
    more = (1, 1, 2, 1, 1, 2)[self.call] if self.layout.sizes_vary else 1
    frames = _width(self, "sample_frames", "num_frames", default=2)
    shapes: tuple[tuple[int, ...], ...] = (
        (2, channels, side * more, side),
        (2, channels, frames, side, side * more),
        (2, frames, channels, side, side),
        (2, 16 * more, channels),
        (2, channels, 64),
        (2, channels),
    )
    name = (
        "sample"
        if "sample" in self.arguments()
        else "hidden_states"
        if "hidden_states" in self.arguments()
        else "x"
    )
    return self.normal(*shapes[self.layout.choice.get(name, 0)])


def text_states(self: Inputs) -> Tensor:
    names = (
        "cross_attention_dim",
        "joint_attention_dim",
        "text_embed_dim",
        "text_dim",
        "caption_channels",
        "encoder_hid_dim",
        "caption_projection_dim",
        "text_hidden_dim",
        "cap_feat_dim",
        "text_feat_dim",
        "caption_dim",
        "context_in_dim",
    )
    return self.normal(2, self.length, _width(self, *names))


def ids(count: int) -> Callable[[Inputs], Tensor]:
    """Positions of tokens, three numbers each."""

    def made(self: Inputs) -> Tensor:
        data = self.made.get("hidden_states" if count else "encoder_hidden_states")
        length = data.shape[1] if data is not None else 16
        return torch.stack(
            [torch.zeros(length), torch.arange(length) // 4, torch.arange(length) % 4], 1
        )

    return made


def timestep(self: Inputs) -> Tensor:
    return self.integers(900, 2)
