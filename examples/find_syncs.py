"""Where a training step makes the host wait for the device, and what to do about each place.

The step below does what many do: it guards against overflow, scales by a norm, picks tokens with a
mask, prints its loss, and makes a mask of positions on the CPU. ``fusepass.syncs`` lists each line
that waits; the second version follows the advice, and ``assert_no_syncs`` keeps it that way.

Runs on a CPU (which stands in for a GPU) and on a GPU, where it also measures:
``python examples/find_syncs.py``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

import fusepass
from fusepass.testing import assert_no_syncs


class Model(nn.Module):
    """A few feed-forward layers over embedded tokens."""

    def __init__(self, width: int = 64, layers: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.head = nn.Linear(width, 100)
        self.register_buffer("position", torch.arange(16))

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of (batch, 16) tokens, (batch, 16, 100)."""
        h = self.embed(tokens)
        for layer in self.layers:
            h = h + torch.relu(layer(h))
            if torch.isinf(h).any():
                h = torch.nan_to_num(h)
        return self.head(h)


def step(model: Model, tokens: Tensor, labels: Tensor) -> Tensor:
    """As it is often written."""
    logits = model(tokens)
    logits = logits / logits.norm().item()
    late = (torch.arange(16) > 3).to(tokens.device)
    wanted = (labels >= 0) & late
    loss = nn.functional.cross_entropy(logits[wanted], labels[wanted])
    print(f"loss {loss:.3f}")
    return loss


def better(model: Model, tokens: Tensor, labels: Tensor) -> Tensor:
    """The same loss, without a wait once it is compiled with fusepass."""
    logits = model(tokens)
    logits = logits / logits.norm()
    wanted = (labels >= 0) & (model.position > 3)
    labels = torch.where(wanted, labels, -100)  # cross_entropy leaves these out
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def batch(device: str) -> tuple[Model, Tensor, Tensor]:
    """A model and one batch of tokens and labels, some of them missing."""
    torch.manual_seed(0)
    model = Model().to(device)
    tokens = torch.randint(0, 100, (4, 16))
    labels = torch.where(torch.rand(4, 16) < 0.2, -1, tokens)
    return model, tokens.to(device), labels.to(device)


def run(device: str, codegen: str = "inductor") -> dict[str, Any]:
    """List both versions.

    Args:
        device: ``cpu`` or ``cuda``.
        codegen: how fusepass runs what it compiles.

    Returns:
        ``step`` and ``better``: the lists; ``losses``: of both.
    """
    given = batch(device)
    with fusepass.options(codegen=codegen):
        found = {"step": fusepass.syncs(step, *given), "better": fusepass.syncs(better, *given)}
        assert_no_syncs(torch.compile(better, backend="fusepass"), *given)
    return {**found, "losses": (step(*given).item(), better(*given).item())}


def main(argv: Sequence[str] | None = None) -> int:
    """Print both lists."""
    parser = argparse.ArgumentParser(description="Where a training step makes the host wait.")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda if there is one")
    given = parser.parse_args(argv)
    result = run(given.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    print(f"\n{result['step']}\n\n{result['better']}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
