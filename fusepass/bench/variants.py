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

    ``twin`` builds the program's twin in its place, ``floor`` its floor; ``keep`` is fusepass with
    capture switched off.
    """

    label: str
    backend: str | None = None
    mode: str | None = None
    twin: bool = False
    floor: bool = False
    keep: bool = False


def variants_for(
    backend: str, modes: Sequence[str], floor: bool = False, twin: bool = False
) -> list[Variant]:
    """Eager, Inductor in each mode, then ``backend`` in each mode; floor and twin in each mode.

    ``backend="inductor"`` gives Inductor twice: how far apart two equal variants come out is the
    noise of the machine.

    Raises:
        BenchError: a mode or a backend that torch.compile does not have.
    """
    check_modes(modes)
    check_backend(backend)
    ours = "inductor-again" if backend == "inductor" else backend
    return [
        Variant(EAGER),
        *(Variant(f"inductor/{mode}", "inductor", mode) for mode in modes),
        *(Variant(f"{ours}/{mode}", backend, mode) for mode in modes),
        *(Variant(f"floor/{mode}", "inductor", mode, floor=True) for mode in modes if floor),
        *(Variant(f"hand/{mode}", "inductor", mode, twin=True) for mode in modes if twin),
    ]


def takes_part(variant: Variant, floor: bool, twin: bool) -> bool:
    """Whether a variant can run a program that has a floor or a twin, or has none."""
    return (floor or not variant.floor) and (twin or not variant.twin)


def baseline(variant: Variant, variants: Sequence[Variant]) -> Variant | None:
    """Inductor in the variant's mode; None for eager and for Inductor itself."""
    for other in variants:
        as_it_is = not (other.twin or other.floor)
        if other.backend == "inductor" and other.mode == variant.mode and as_it_is:
            return None if other == variant else other
    return None


def floor_of(variant: Variant, variants: Sequence[Variant]) -> Variant | None:
    """The floor in the variant's mode; eager is held against the default mode's."""
    mode = variant.mode or "default"
    return next((other for other in variants if other.floor and other.mode == mode), None)


def hand_of(variant: Variant, variants: Sequence[Variant]) -> Variant | None:
    """Inductor on the twin in the variant's mode; None for eager, for the twin and the floor."""
    if variant.backend is None or variant.twin or variant.floor:
        return None
    return next((other for other in variants if other.twin and other.mode == variant.mode), None)


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
