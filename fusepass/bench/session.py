"""What a worker process holds: the program it was given, and how it is called."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from fusepass.bench.program import Built
from fusepass.bench.training import State, Training, stepper
from fusepass.bench.variants import Variant


@dataclass
class Session:
    """What a worker holds between two commands."""

    variant: Variant
    grad_mode: str
    built: Built | None = None
    training: Training | None = None
    start: State | None = None
    forward: Callable[..., Any] | None = None
    call: Callable[[], Any] | None = None
    graph: torch.cuda.CUDAGraph | None = None
    recordable: bool = True
    device: str = "cpu"
    memory_before: int = 0


@contextlib.contextmanager
def grad_mode_of(session: Session) -> Iterator[None]:
    """The grad mode the session runs in."""
    if session.training is not None:
        with torch.enable_grad():
            yield
    elif session.grad_mode == "grad":
        yield
    elif session.grad_mode == "inference":
        with torch.inference_mode():
            yield
    else:
        with torch.no_grad():
            yield


def trained(session: Session) -> tuple[Training, torch.nn.Module]:
    """The training a session is about, and its model."""
    model = program_of(session).model
    assert session.training is not None
    assert isinstance(model, torch.nn.Module)
    return session.training, model


def batches_and_start(session: Session) -> tuple[tuple[torch.Tensor, ...], State]:
    """The batches of a training, and the state it starts from."""
    assert session.start is not None
    return program_of(session).args, session.start


def program_of(session: Session) -> Built:
    """The program of a session."""
    assert session.built is not None, "no program was built"
    return session.built


def timed_call(session: Session) -> Callable[[], Any]:
    """One call of the program, compiled if the variant is."""
    if session.call is None:
        assert session.variant.backend is None, "the program was not compiled"
        built = program_of(session)
        session.forward = built.model
        session.call = make_call(session, built, built.model)
    return session.call


def make_call(session: Session, built: Built, forward: Callable[..., Any]) -> Callable[[], Any]:
    """One call of the program, or one training step."""
    if session.training is None:
        return lambda: forward(*built.args, **built.kwargs)
    assert isinstance(built.model, torch.nn.Module)
    return stepper(session.training, built.model, forward, built.args)
