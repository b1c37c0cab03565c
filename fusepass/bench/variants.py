"""The variants of a program: eager, and every backend in every mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fusepass.errors import BenchError, did_you_mean
from fusepass.options import MODES

EAGER = "eager"


@dataclass(frozen=True)
class Variant:
    """One way to run a program; ``backend`` None is eager.

    ``builds`` is the attribute of the program that makes it: it may be its ``twin`` or its
    ``floor``. ``keep`` is fusepass with capture switched off.
    """

    label: str
    backend: str | None = None
    mode: str | None = None
    builds: str = "build"
    keep: bool = False


def variants_for(
    backend: str, modes: Sequence[str], floor: bool = False, twin: bool = False
) -> list[Variant]:
    """Eager, Inductor in each mode, then ``backend`` in each mode; floor and twin in each mode.

    ``backend="inductor"`` gives Inductor twice: how far apart two equal variants come out is the
    noise of the machine. Raises BenchError for a mode or backend that torch.compile lacks.
    """
    check_modes(modes)
    check_backend(backend)
    ours = "inductor-again" if backend == "inductor" else backend
    return [
        Variant(EAGER),
        *(Variant(f"inductor/{mode}", "inductor", mode) for mode in modes),
        *(Variant(f"{ours}/{mode}", backend, mode) for mode in modes),
        *(Variant(f"floor/{mode}", "inductor", mode, "floor") for mode in modes if floor),
        *(Variant(f"hand/{mode}", "inductor", mode, "twin") for mode in modes if twin),
    ]


def inductor(
    variant: Variant, variants: Sequence[Variant], builds: str = "build"
) -> Variant | None:
    """Inductor in the variant's mode on the program as it is, its twin or its floor.

    Eager is held against the default mode.
    """
    mode = variant.mode or "default"
    return next(
        (v for v in variants if (v.backend, v.mode, v.builds) == ("inductor", mode, builds)), None
    )


def baseline(variant: Variant, variants: Sequence[Variant]) -> Variant | None:
    """Inductor in the variant's mode; None for eager and for Inductor itself."""
    found = inductor(variant, variants)
    return None if variant.backend is None or found == variant else found


def check_modes(modes: Sequence[str]) -> None:
    """Raise BenchError for a mode of torch.compile that does not exist, or none at all."""
    if not modes:
        raise BenchError(f"fusepass bench: no mode given; choose from {', '.join(MODES)}.")
    for mode in modes:
        if mode not in MODES:
            hint = did_you_mean(mode, MODES)
            raise BenchError(f"fusepass bench: no mode {mode!r}.{hint} Modes: {', '.join(MODES)}.")


def check_backend(backend: str) -> None:
    """Raise BenchError for a backend that torch.compile does not know."""
    known = torch.compiler.list_backends(exclude_tags=())
    if backend not in known:
        hint = " Install the package first: pip install -e ." if backend == "fusepass" else ""
        raise BenchError(
            f"fusepass bench: torch.compile has no backend {backend!r}.{hint} "
            f"Backends: {', '.join(known)}."
        )


def apply(variant: Variant, model: Callable[..., Any]) -> Callable[..., Any]:
    """The model as this variant runs it. Nothing is compiled before the first call."""
    if variant.backend is None:
        return model
    mode = None if variant.mode == "default" else variant.mode
    if variant.keep:  # torch.compile takes a mode or options, not both
        options: dict[str, Any] = {"mode": variant.mode or "default", "treatment": "keep"}
        return torch.compile(model, backend=variant.backend, options=options)
    return torch.compile(model, backend=variant.backend, mode=mode)
