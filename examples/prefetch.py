"""A training loop over images, plain and with ``fusepass.prefetch``: the same losses, sooner.

The loader decompresses its images, which takes the processor as long as a step takes the GPU. In
the plain loop the two take turns; with ``prefetch`` they work at the same time. On a CPU there is
nothing to copy and both loops are the same. Run it with ``python examples/prefetch.py``.
"""

from __future__ import annotations

import argparse
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

import fusepass

SIZE = 64  # pixels, each way
Batch = dict[str, Tensor]


class Images:
    """Batches of compressed images, decompressed one after the other; the same in every loop.

    Args:
        batches: how many there are.
        size: images in each.
    """

    def __init__(self, batches: int, size: int) -> None:
        draw = np.random.default_rng(0)
        self.batches, self.size = batches, size
        self.files = [
            zlib.compress(draw.integers(0, 64, (3, SIZE, SIZE), np.uint8).tobytes(), 9)
            for _ in range(size)
        ]

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[Batch]:
        for number in range(self.batches):
            images = np.stack([self.image(file) for file in self.files])
            labels = (torch.arange(self.size) + number) % 10
            yield {"images": torch.from_numpy(images), "labels": labels}

    def image(self, file: bytes) -> np.ndarray:
        """One image, float32 (3, SIZE, SIZE), about 0 and 1 in mean and deviation."""
        pixels = np.frombuffer(zlib.decompress(file), np.uint8).reshape(3, SIZE, SIZE)
        return (pixels.astype(np.float32) - 32) / 18


def train(batches: Iterable[Batch], device: torch.device) -> list[float]:
    """One epoch of a small network on ``device``; the loss of each step."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 5, stride=2),
        nn.GELU(),
        nn.Conv2d(32, 64, 5, stride=2),
        nn.GELU(),
        nn.Flatten(),
        nn.LazyLinear(10),
    ).to(device)
    model(torch.zeros(1, 3, SIZE, SIZE, device=device))  # makes the last layer
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    losses = []
    for batch in batches:
        # The plain loop moves them here; what prefetch yields is on the device, and stays.
        images, labels = batch["images"].to(device), batch["labels"].to(device)
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main(argv: Sequence[str] | None = None) -> int:
    """Train both ways; 1 if the losses differ by more than rounding."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--size", type=int, default=32, help="images in a batch")
    given = parser.parse_args(argv)
    device, loader = torch.device(given.device), Images(given.batches, given.size)
    train(Images(2, given.size), device)  # what is made once
    losses, seconds = {}, {}
    for name, batches in {
        "plain": loader,
        "prefetch": fusepass.prefetch(loader, device),
    }.items():
        start = time.perf_counter()
        losses[name] = train(batches, device)
        seconds[name] = time.perf_counter() - start
        steps = f"{1e3 * seconds[name] / given.batches:8.2f} ms a step"
        print(f"{name:<10}{steps}, loss {losses[name][0]:.4f} to {losses[name][-1]:.4f}")
    same = np.allclose(losses["plain"], losses["prefetch"], rtol=1e-4)
    return 0 if same else 1


if __name__ == "__main__":
    raise SystemExit(main())
