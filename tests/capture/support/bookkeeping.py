"""Run an object that keeps Python state, in eager and compiled, and compare what each call leaves."""

from __future__ import annotations

import collections
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import fusepass

LOSSES = (1.0, 0.8, 0.9, 1.2, 0.5, 0.7, 0.4, 0.45)


@dataclass
class Kept:
    """What came of it: how many graphs were compiled, and the reasons of what is kept."""

    graphs: int
    reasons: list[str]

    def whole(self, most: int) -> None:
        """Assert that nothing is kept, in so many graphs at most."""
        assert self.reasons == []
        assert 0 < self.graphs <= most


def seen(value: Any) -> Any:
    """A value with its class, so that a number is not equal to a tensor, or an int to a float."""
    name = type(value).__name__
    if isinstance(value, torch.Tensor):
        return name, str(value.dtype), tuple(value.shape), repr(value.tolist())
    if isinstance(value, dict):
        return name, [(seen(key), seen(held)) for key, held in value.items()]
    if isinstance(value, (list, tuple, collections.deque)):
        return name, [seen(held) for held in value]
    if isinstance(value, (set, frozenset)):
        return name, sorted(map(repr, value))
    return name, repr(value)


def kept_in_step(
    make: Callable[[], tuple[Callable[..., Any], Callable[[], Any]]],
    losses: tuple[float, ...] = LOSSES,
) -> Kept:
    """Call what ``make`` builds with each loss, in eager and compiled, and compare each time.

    ``make`` gives the function and what reads its state.
    """
    torch._dynamo.reset()
    fusepass.reset()
    wanted, _ = _calls(make, losses, lambda function: function)
    options = {"codegen": "eager"}
    compile_ = lambda f: torch.compile(f, backend="fusepass", options=options)  # noqa: E731
    found, compiled = _calls(make, losses, compile_)
    for index, (one, other) in enumerate(zip(wanted, found, strict=True)):
        assert one == other, f"call {index}"
    report = fusepass.last_report(compiled).to_dict()
    kept = [d["reason"] for d in report["decisions"] if d["treatment"] == "keep"]
    return Kept(report["graphs"], kept)


def _calls(make: Any, losses: tuple[float, ...], wrap: Any) -> tuple[list[Any], Any]:
    torch.manual_seed(0)
    function, state = make()
    run = wrap(function)
    left = []
    for loss in losses:
        try:
            result = seen(run(torch.tensor(loss)))
        except (ValueError, RuntimeError) as error:
            result = type(error), str(error)
        left.append((result, seen(state())))
    return left, run


def of_class(kind: type) -> Callable[[], tuple[Callable[..., Any], Callable[[], Any]]]:
    """Builds an object of a class, which is called, and whose attributes are its state."""

    def make() -> tuple[Callable[..., Any], Callable[[], Any]]:
        made = kind()
        return (lambda loss: made(loss)), lambda: vars(made)

    return make
