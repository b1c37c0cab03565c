"""Suite ``conv``: residual networks of convolutions in inference, images channels last and not.

The network is ResNet-50 (He et al., Deep Residual Learning for Image Recognition, 2016; the stride
in the 3 x 3 convolution), written here so that the suite needs no other package. Norms have
statistics and weights as if they had been trained. fp16 on CUDA; on the CPU ResNet-18's blocks in
fp32, one image.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fusepass.bench.program import Program

DTYPE = {"cuda": torch.float16, "cpu": torch.float32}
BATCHES = {"cuda": (1, 32, 128), "cpu": (1,)}
SIDE = {"cuda": 224, "cpu": 64}
LAYERS = {"cuda": (3, 4, 6, 3), "cpu": (2, 2, 2, 2)}
_WIDENED = 4  # how many times as many channels leave a block of three convolutions


class Block(nn.Module):
    """A residual block: two 3×3 convolutions, or one between two 1×1 convolutions."""

    def __init__(self, inputs: int, width: int, stride: int, *, deep: bool) -> None:
        super().__init__()
        outputs = _WIDENED * width if deep else width
        kinds = [(3, width, stride), (3, width, 1)]
        if deep:
            kinds = [(1, width, 1), (3, width, stride), (1, outputs, 1)]
        layers, channels = [], inputs
        for size, made, step in kinds:
            layers.append(normed(channels, made, size, step))
            channels = made
        self.layers = nn.ModuleList(layers)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else normed(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) -> (B, outputs, H / stride, W / stride)."""
        y = x
        *inner, last = self.layers
        for layer in inner:
            y = F.relu(layer(y))
        return F.relu(last(y) + self.shortcut(x))


def normed(inputs: int, outputs: int, size: int, stride: int) -> nn.Module:
    """A convolution without bias and a batch norm that is not the identity."""
    conv = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    return as_if_trained(nn.Sequential(conv, nn.BatchNorm2d(outputs)))


def as_if_trained(model: nn.Module) -> nn.Module:
    """The same model, of whose batch norms none is the identity, and no weight all zeros, any more.

    timm begins the classes of some models with zeros: their results would say nothing.
    """
    for part in model.modules():
        if isinstance(part, nn.Linear | nn.Conv2d) and not part.weight.any():
            nn.init.normal_(part.weight, 0.0, 0.02)
        if not isinstance(part, nn.BatchNorm2d):
            continue
        if part.running_mean is not None and part.running_var is not None:
            nn.init.normal_(part.running_mean, 0.0, 0.1)
            nn.init.uniform_(part.running_var, 0.5, 2.0)
        if part.affine:
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.normal_(part.bias, 0.0, 0.1)
    return model


class ResNet(nn.Module):
    """Stem, four groups of blocks, average, classes."""

    def __init__(self, layers: tuple[int, ...], *, deep: bool) -> None:
        super().__init__()
        self.stem, channels, blocks = normed(3, 64, 7, 2), 64, []
        for group, count in enumerate(layers):
            width = 64 << group
            for number in range(count):
                stride = 2 if group and not number else 1
                blocks.append(Block(channels, width, stride, deep=deep))
                channels = _WIDENED * width if deep else width
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(channels, 1000)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, 1000)."""
        x = F.max_pool2d(F.relu(self.stem(x)), 3, 2, 1)
        made: Tensor = self.head(self.blocks(x).mean((2, 3)))
        return made


def resnet(device: str, batch: int, contiguous: bool) -> tuple[nn.Module, tuple[Tensor]]:
    """The network and a batch of images."""
    with torch.device(device):
        model = ResNet(LAYERS[device], deep=device == "cuda").eval().to(DTYPE[device])
        x = torch.randn(batch, 3, SIDE[device], SIDE[device], dtype=DTYPE[device])
    if contiguous:
        return model, (x,)
    last: Any = torch.channels_last
    return model.to(memory_format=last), (x.to(memory_format=last),)  # type: ignore[call-overload]


def programs(device: str) -> tuple[Program, ...]:
    """The suite, sized for ``device``."""
    found = []
    for batch in BATCHES[device]:
        for contiguous in (False, True):
            order = "contiguous" if contiguous else "channels-last"
            build = partial(resnet, device, batch, contiguous)
            dtype = str(DTYPE[device]).removeprefix("torch.")
            sizes = {"batch": batch, "side": SIDE[device], "dtype": dtype, "images": order}
            name = f"resnet-{batch}-{order}"
            found.append(Program(name, build, sizes, branches=False))
    return tuple(found)
