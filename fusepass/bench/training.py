"""Training steps inside a worker: forward, backward and AdamW; and the losses of a short training.

The model's ``forward(x, target)`` returns the loss, and that is what is compiled. The optimizer is
``torch.optim.AdamW(fused=True)`` and runs eagerly in every variant, so that it costs all of them
the same. Autocast is around the forward only, as PyTorch advises.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Forward = Callable[..., torch.Tensor]
State = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Training:
    """How a program is trained.

    Args:
        steps: of one loss curve.
        curves: how many curves, each on batches of its own, all from the same weights: where a
            rounding error leads is partly chance, and one curve says little.
        lr: AdamW's learning rate.
        autocast: dtype of autocast around the forward, or None.
    """

    steps: int = 50
    curves: int = 4
    lr: float = 1e-3
    autocast: torch.dtype | None = None


def stepper(
    training: Training, model: nn.Module, forward: Forward, batches: tuple[torch.Tensor, ...]
) -> Callable[[], torch.Tensor]:
    """A function that does one training step on the next batch and returns its loss.

    Args:
        training: how to train.
        model: whose parameters are trained.
        forward: ``model``, or what torch.compile made of it.
        batches: inputs of ``forward``, each with all ``curves * steps`` batches along dimension 0.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=training.lr, fused=True)
    numbers = itertools.cycle(range(len(batches[0])))
    device = batches[0].device.type

    def step() -> torch.Tensor:
        number = next(numbers)
        optimizer.zero_grad(set_to_none=True)
        enabled = training.autocast is not None
        with torch.autocast(device, dtype=training.autocast, enabled=enabled):
            loss = forward(*(one[number] for one in batches))
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def curves(
    training: Training,
    model: nn.Module,
    forward: Forward,
    batches: tuple[torch.Tensor, ...],
    start: State,
) -> list[list[float]]:
    """The losses of ``training.curves`` trainings of ``training.steps`` steps from ``start``.

    The weights are set in place: compiled code stays valid.
    """
    found = []
    for number in range(training.curves):
        model.load_state_dict(start)
        here = slice(number * training.steps, (number + 1) * training.steps)
        step = stepper(training, model, forward, tuple(one[here] for one in batches))
        found.append([step().item() for _ in range(training.steps)])
    return found


def exact_curves(
    training: Training, model: nn.Module, batches: tuple[torch.Tensor, ...], start: State
) -> list[list[float]]:
    """The same in float64, eagerly and without autocast."""
    double = copy.deepcopy(model).double()
    weights: dict[str, Any] = {name: value.double() for name, value in start.items()}
    plain = Training(training.steps, training.curves, training.lr)
    return curves(plain, double, double, tuple(one.double() for one in batches), weights)
