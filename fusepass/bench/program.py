"""One program of a benchmark: a name, a function that builds it, and what it is held against."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fusepass.bench.training import Training


class Built(NamedTuple):
    """A program ready to be called as ``model(*args, **kwargs)``."""

    model: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class Program:
    """One program of a benchmark.

    Args:
        name: what tables and ``--only`` call it.
        build: returns ``(model_or_function, inputs)``; called in every worker after the same seed,
            so it must be deterministic.
        parameters: sizes and dtype, for the record.
        twin: builds the same program with its branches on tensors written by hand as
            ``torch.where``, with the same weights and inputs: what capture is held against, in time
            per call and in compile time.
        floor: builds the part of the program that no fusion can take away, with weights and inputs
            of the same sizes in all; timed beside the others, compiled by Inductor, and judged by
            nobody.
        branches: whether the program branches on tensors. One that does not is compiled with and
            without capture, to see what capture costs where there is nothing to capture.
        matmul_precision: value for ``torch.set_float32_matmul_precision`` ("high" allows TF32).
        training: how it is trained, if a call is to be a training step: see ``bench.training``.
        family, layers: programs of one family that differ in the number of layers show how compile
            time grows.
    """

    name: str
    build: Callable[[], Any]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    twin: Callable[[], Any] | None = None
    floor: Callable[[], Any] | None = None
    branches: bool = True
    matmul_precision: str = "highest"
    training: Training | None = None
    family: str | None = None
    layers: int | None = None
