"""One variant's process: builds programs, compiles them its way, and is timed on request.

Every variant has a process of its own, and they are timed in turn. In one process they would
disturb each other: when one backend makes Dynamo give a frame up (a break inside a loop), Dynamo
marks that code object, and no other backend is ever asked about it again; recompile limits,
in-memory caches and memory pools are shared as well.

A worker is a loop over commands; :data:`COMMANDS` lists them. Its state is one :class:`Session`.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from fusepass.bench import caches, facts, numerics, timing
from fusepass.bench.program import Built
from fusepass.bench.programs import Source, check_built, resolve
from fusepass.bench.records import GraphFacts
from fusepass.bench.session import (
    Session,
    batches_and_start,
    grad_mode_of,
    make_call,
    program_of,
    timed_call,
    trained,
)
from fusepass.bench.training import curves, exact_curves
from fusepass.bench.variants import Variant, apply
from fusepass.errors import BenchError
from fusepass.tune.cuda_graph_call import record

GRAD_MODES = ("no-grad", "inference", "grad")
_SEED = 2026
_SETTLING_CALLS = 6
_RECORDING_MODES = ("reduce-overhead", "max-autotune")


def serve(connection: Connection, variant: Variant, grad_mode: str) -> None:
    """Answer commands until the other side closes the connection or sends None.

    What a program prints goes nowhere: the terminal is the table's.
    """
    session = Session(variant, grad_mode)
    sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - for as long as the process lives
    while True:
        try:
            message = connection.recv()
        except EOFError:
            return
        if message is None:
            return
        connection.send(answer(session, *message))


def answer(session: Session, command: str, arguments: dict[str, Any]) -> tuple[str, Any]:
    """Carry out one command.

    Returns:
        ``("ok", value)``, ``("usage", text)`` for a mistake in what the user asked for, or
        ``("failed", text)``.
    """
    try:
        return "ok", COMMANDS[command](session, **arguments)
    except BenchError as error:
        return "usage", str(error)
    except Exception as error:  # noqa: BLE001 - reported as that variant's failure
        lines = "".join(traceback.format_exception(error)).strip().splitlines()
        return "failed", "\n".join([f"{type(error).__name__}: {error}"[:600], *lines[-12:]])


def prime(session: Session, *, device: str) -> None:
    """Compile something tiny once, so that no program's compile time holds one-off imports."""

    def tiny(x: torch.Tensor) -> torch.Tensor:
        return (x @ x).relu().sum(-1)

    with (
        grad_mode_of(session),
        tempfile.TemporaryDirectory() as folder,
        caches.cache_folder(folder),
    ):
        call = apply(session.variant, tiny)
        for _ in range(3):
            x = torch.randn(32, 32, device=device, requires_grad=session.grad_mode == "grad")
            result = call(x)
            if result.requires_grad:
                result.sum().backward()
        timing.synchronize(device)
    caches.forget_compiled_code()


def build(session: Session, *, source: Source) -> list[int]:
    """Build the program; returns a fingerprint of its weights and inputs, equal in every worker."""
    drop(session)
    program = resolve(source)
    make: Callable[[], Any] | None = program.build
    if session.variant.twin:
        make = program.twin
    elif session.variant.floor:
        make = program.floor
    if make is None:
        raise BenchError(f"fusepass bench: {program.name} has no twin or floor.")
    random.seed(_SEED)
    torch.manual_seed(_SEED)
    torch.set_float32_matmul_precision(program.matmul_precision)
    session.memory_before = torch.cuda.memory_allocated() if torch.cuda.is_initialized() else 0
    session.built = built = check_built(make(), program.name)
    tensors = list(numerics.tensors_in([built.args, built.kwargs]))
    if isinstance(built.model, torch.nn.Module):
        tensors = [*built.model.state_dict().values(), *tensors]
    session.training = program.training
    if isinstance(built.model, torch.nn.Module) and program.training is not None:
        session.start = {key: one.clone() for key, one in built.model.state_dict().items()}
    session.device = "cuda" if any(tensor.is_cuda for tensor in tensors) else "cpu"
    return [_fingerprint(tensor) for tensor in tensors]


def device_of(session: Session) -> str:
    """Where the program runs: "cuda" if any weight or input is there, else "cpu"."""
    return session.device


def compile_program(session: Session, *, folder: str | None) -> float:
    """Forget compiled code, then call the program once; returns that call's seconds.

    Args:
        session: of this worker.
        folder: where the compile caches are: an empty folder gives a cold compile, one used before
            a warm one, None the user's own.
    """
    built = program_of(session)
    session.call = session.forward = session.graph = None
    session.recordable = True
    caches.forget_compiled_code()
    session.forward = apply(session.variant, built.model)
    call = make_call(session, built, session.forward)
    with grad_mode_of(session), caches.cache_folder(folder):
        seconds = timing.timed(call, session.device)
    session.call = call
    return seconds


def settle(session: Session) -> tuple[float, int | None]:
    """Call until CUDA graphs are recorded and clocks are up.

    Returns:
        Seconds of the last call, and the peak of device memory during these calls in bytes, above
        what was allocated before the program was built (None on CPU).
    """
    call = timed_call(session)
    on_gpu = session.device == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    with grad_mode_of(session):
        for _ in range(_SETTLING_CALLS):
            seconds = timing.timed(call, session.device)
    gc.collect()
    peak = torch.cuda.max_memory_allocated() - session.memory_before if on_gpu else None
    return seconds, peak


def reference(session: Session, *, path: str) -> str | None:
    """Save eager's outputs and the float64 reference; returns why there is none, or None."""
    built = program_of(session)
    with grad_mode_of(session):
        eager = [tensor.detach().clone() for tensor in numerics.tensors_in(timed_call(session)())]
        exact, reason = _exact(built, eager)
    torch.save({"eager": eager, "exact": exact}, path)
    return reason


def errors(session: Session, *, path: str) -> list[numerics.TensorError]:
    """Compare this variant's outputs with what :func:`reference` saved."""
    saved = torch.load(path)
    eager = saved["eager"]
    exact = saved["exact"] or [None] * len(eager)
    with grad_mode_of(session):
        outputs = [tensor.detach().clone() for tensor in numerics.tensors_in(timed_call(session)())]
        if len(outputs) != len(eager):
            # The number of records tells the judge; there is nothing to pair them with.
            return [numerics.no_comparison() for _ in outputs]
        return [numerics.compare(*trio) for trio in zip(outputs, eager, exact, strict=True)]


def loss_curves(session: Session) -> list[list[float]]:
    """The losses of a few short trainings, from the weights the program was built with."""
    timed_call(session)
    assert session.forward is not None
    return curves(*trained(session), session.forward, *batches_and_start(session))


def exact_loss_curves(session: Session) -> list[list[float]]:
    """The same in float64, eagerly."""
    return exact_curves(*trained(session), *batches_and_start(session))


def graph_facts(session: Session) -> GraphFacts | None:
    """Facts about the compiled graphs; None for eager."""
    if session.variant.backend is None:
        return None
    with grad_mode_of(session):
        return facts.graph_facts(timed_call(session))


def time_calls(session: Session, *, calls: int) -> tuple[list[float], list[float] | None]:
    """One turn of a round: wall and device times of ``calls`` calls, in microseconds."""
    with grad_mode_of(session):
        return timing.time_calls(timed_call(session), calls, session.device)


def time_replays(session: Session, *, seconds: float) -> list[float] | None:
    """One turn of a round: device times of calls recorded in a CUDA graph, in microseconds.

    None on CPU, in modes that record CUDA graphs themselves, and for what cannot be recorded.
    """
    own = session.variant.mode in _RECORDING_MODES
    if session.device != "cuda" or own or not session.recordable:
        return None
    with grad_mode_of(session):
        try:
            session.graph = session.graph or record(timed_call(session), timing.RECORDED_CALLS)
        except RuntimeError:
            session.recordable = False
            return None
        return timing.time_replays(session.graph, seconds)


def drop(session: Session) -> None:
    """Free the program, its compiled code and its memory."""
    session.built = session.call = session.forward = session.graph = None
    session.training = session.start = None
    caches.forget_compiled_code()
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


COMMANDS: dict[str, Callable[..., Any]] = {
    "prime": prime,
    "build": build,
    "device": device_of,
    "compile": compile_program,
    "settle": settle,
    "reference": reference,
    "errors": errors,
    "curves": loss_curves,
    "exact_curves": exact_loss_curves,
    "facts": graph_facts,
    "time": time_calls,
    "replay": time_replays,
    "drop": drop,
}


def _exact(built: Built, eager: list[torch.Tensor]) -> tuple[list[torch.Tensor] | None, str | None]:
    try:
        exact = numerics.reference_outputs(built.model, built.args, built.kwargs)
    except Exception as error:  # noqa: BLE001 - any program may fail in float64; the reason is kept
        return None, f"float64 run failed: {type(error).__name__}: {str(error)[:300]}"
    if [tensor.shape for tensor in exact] != [tensor.shape for tensor in eager]:
        return None, "float64 run gives outputs of other shapes than eager"
    return exact, None


def _fingerprint(tensor: torch.Tensor) -> int:
    if tensor.numel() == 0:
        return 0
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return int(data.sum(dtype=torch.int64))
