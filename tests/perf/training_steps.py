"""Training steps inside a benchmark: forward, backward and AdamW; and the losses of a short training.

The model's ``forward(x, target)`` returns the loss, and that is what is compiled. The optimizer is
``torch.optim.AdamW(fused=True)`` and runs eagerly in every variant, so that it costs all of them
the same. Autocast is around the forward only, as PyTorch advises.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from fusepass.bench.records import CurveRecord, Distance
from fusepass.numerics import half_ulp

Forward = Callable[..., torch.Tensor]
State = dict[str, torch.Tensor]
Batches = tuple[torch.Tensor, ...]
Curves = Sequence[Sequence[float]]
MOST = 2.0


@dataclass(frozen=True)
class Training:
    """How a program is trained.

    Args:
        steps: of one loss curve.
        curve_count: how many curves, each on batches of its own, all from the same weights: where a
            rounding error leads is partly chance, and one curve says little.
        lr: AdamW's learning rate.
        autocast: dtype of autocast around the forward, or None.
    """

    steps: int = 50
    curve_count: int = 4
    lr: float = 1e-3
    autocast: torch.dtype | None = None

    def stepper(
        self, model: nn.Module, forward: Forward, batches: Batches
    ) -> Callable[[], torch.Tensor]:
        """A function that does one training step on the next batch and returns its loss.

        Args:
            model: whose parameters are trained.
            forward: ``model``, or what torch.compile made of it.
            batches: inputs of ``forward``, each with all batches of all curves along dimension 0.
        """
        optimizer = torch.optim.AdamW(model.parameters(), lr=self.lr, fused=True)
        numbers = itertools.cycle(range(len(batches[0])))
        device, cast = batches[0].device.type, self.autocast

        def step() -> torch.Tensor:
            number = next(numbers)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device, dtype=cast, enabled=cast is not None):
                loss = forward(*(one[number] for one in batches))
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    def curves(
        self, model: nn.Module, forward: Forward, batches: Batches, start: State
    ) -> list[list[float]]:
        """The losses of trainings from ``start``.

        The weights are set in place: compiled code stays valid.
        """
        found = []
        for number in range(self.curve_count):
            model.load_state_dict(start)
            here = slice(number * self.steps, (number + 1) * self.steps)
            step = self.stepper(model, forward, tuple(one[here] for one in batches))
            found.append([step().item() for _ in range(self.steps)])
        return found

    def exact_curves(self, model: nn.Module, batches: Batches, start: State) -> list[list[float]]:
        """The same in float64, eagerly and without autocast."""
        double = copy.deepcopy(model).double()
        weights = {name: value.double() for name, value in start.items()}
        plain, given = replace(self, autocast=None), tuple(one.double() for one in batches)
        return plain.curves(double, double, given, weights)

    @staticmethod
    def judge(losses: Curves, eager: Curves, exact: Curves) -> CurveRecord:
        """Hold a variant's curves against the float64 ones.

        Both distances may be at most :data:`MOST` times eager's, where eager's counts as at least what
        rounding the losses to float32 makes of it.
        """
        ours, theirs = distance(losses, exact), distance(eager, exact)
        largest = max(abs(loss) for curve in exact for loss in curve)
        ulp, count = half_ulp(torch.float32, largest), sum(len(curve) for curve in exact)
        ratios = Distance(
            max_abs=ours["max_abs"] / max(theirs["max_abs"], ulp),
            l2=ours["l2"] / max(theirs["l2"], ulp * math.sqrt(count)),
        )
        return CurveRecord(
            passed=max(ratios["max_abs"], ratios["l2"]) <= MOST,
            distance=ours,
            eager_distance=theirs,
            over_eager=ratios,
            losses=[list(curve) for curve in losses],
        )


def distance(losses: Curves, exact: Curves) -> Distance:
    """Largest difference of all steps of all curves, and the root of the sum of their squares."""
    differences = [
        abs(one - other)
        for curve, truth in zip(losses, exact, strict=True)
        for one, other in zip(curve, truth, strict=True)
    ]
    finite = all(math.isfinite(one) for one in differences)
    return Distance(
        max_abs=max(differences) if finite else math.inf,
        l2=math.sqrt(math.fsum(one * one for one in differences)) if finite else math.inf,
    )
