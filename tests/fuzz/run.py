"""A program as one of two sides to be compared: fresh state and fresh inputs, and its calls."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tests.fuzz.program import Loaded
from tests.harness import call as harness
from tests.harness.call import Scope, Seen
from tests.harness.precision import doubled, in_precision, moved

CONTEXTS = ("inference", "training")
_IN_FLOAT64 = functools.partial(in_precision, torch.float64, same_draws=True)


@dataclass
class Side:
    """One of the sides: its callable, its state, its input sets, and what it is called in."""

    target: Callable[..., Any]
    owner: Any
    sets: list[tuple[Any, ...]]
    around: Scope = contextlib.nullcontext


def side(program: Loaded, context: str, *, exact: bool = False, device: str = "cpu") -> Side:
    """A fresh callable and fresh inputs, equal for all sides; in float64 if exact."""
    target, owner = program.make()
    target, owner, sets = (moved(one, device) for one in (target, owner, program.inputs()))
    if exact:
        target, owner, sets = doubled(target), doubled(owner), doubled(sets)
    if isinstance(owner, nn.Module) and context != "training":
        owner.requires_grad_(False)
    for args in sets if context == "training" else ():
        for position in program.grads:
            args[position].requires_grad_()
    return Side(target, owner, sets, _IN_FLOAT64 if exact else contextlib.nullcontext)


def call(one: Side, index: int, context: str) -> Seen:
    """Call one side with one of its input sets, with backward in training."""
    how = "grad" if context == "training" else "plain"
    return harness.call(one.target, one.sets[index], one.owner, how, state_of, around=one.around)


def state_of(owner: Any) -> Any:
    """All that a program can have written to: parameters, buffers, attributes, nested objects."""
    if isinstance(owner, nn.Module):
        kept = {
            "parameters": dict(owner.named_parameters()),
            "buffers": dict(owner.named_buffers()),
        }
        inner = {name: state_of(module) for name, module in owner.named_children()}
        return {**kept, "inner": inner, **_attributes(owner)}
    return None if owner is None else _attributes(owner)


def _attributes(owner: Any) -> dict[str, Any]:
    """Public attributes; objects of a program's own classes as dicts of theirs."""
    return {
        name: _attributes(value) if type(value).__module__ == _OWN and _plain(value) else value
        for name, value in vars(owner).items()
        if not name.startswith("_") and name != "training"
    }


_OWN = "tests.fuzz.program"  # the __name__ that a program's text runs under


def _plain(value: Any) -> bool:
    return hasattr(value, "__dict__") and not isinstance(value, (tuple, nn.Module))
