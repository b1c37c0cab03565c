"""What a program modelled on a public report is: a callable, inputs for both outcomes, the URL."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

InputSets = list[tuple[Any, ...]]
Make = Callable[[], Callable[..., Any]]


@dataclass(frozen=True, kw_only=True)
class Report:
    """One program.

    Attributes:
        name: of the function or class.
        url: where somebody reported the like, or a repository that has such code.
        make: builds the callable, with the same weights every time.
        inputs: argument tuples in the order of the calls, built anew each time.
        grad: whether it is also trained.
        state: what else to compare after each call, taken from the callable.
    """

    name: str
    url: str
    make: Make
    inputs: Callable[[], InputSets]
    grad: bool = False
    state: Callable[[Any], Any] | None = None


class Reports(list[Report]):
    """The programs of one file."""

    def of(
        self,
        url: str,
        inputs: Callable[[], InputSets],
        *,
        grad: bool = False,
        state: Callable[[Any], Any] | None = None,
    ) -> Callable[[Any], Any]:
        """Decorate a function or a module class."""

        def collect(target: Any) -> Any:
            make = _seeded(target) if inspect.isclass(target) else lambda: target
            name = target.__name__
            self.append(
                Report(name=name, url=url, make=make, inputs=inputs, grad=grad, state=state)
            )
            return target

        return collect


def _seeded(build: Callable[[], Any]) -> Make:
    def make() -> Callable[..., Any]:
        torch.manual_seed(20)
        return build()  # type: ignore[no-any-return]

    return make


def attributes(*names: str) -> Callable[[nn.Module], dict[str, Any]]:
    """Take attributes of a module for comparison."""
    return lambda module: {name: getattr(module, name) for name in names}


def drawn(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    """Random values that are the same each time."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator) * scale
