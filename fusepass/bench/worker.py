"""One variant's process: builds programs, compiles them its way, and is timed on request.

Every variant has a process of its own, and they are timed in turn. In one process they would
disturb each other: when one backend makes Dynamo give a frame up (a break inside a loop), Dynamo
marks that code object, and no other backend is ever asked about it again; recompile limits,
in-memory caches and memory pools are shared as well.

A worker is a loop over commands: the methods of its :class:`Session`.
"""

from __future__ import annotations

import contextlib
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

from fusepass.bench import error_rule, timing
from fusepass.bench.compiled_code import cache_folder, forget_compiled_code, graph_facts
from fusepass.bench.program import Built, Source, check_built, resolve
from fusepass.bench.records import GraphFacts
from fusepass.bench.variants import Variant, apply
from fusepass.errors import BenchError
from fusepass.testing.compare import tensors
from fusepass.tune.cuda_graph_call import record

GRAD_MODES: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "no-grad": torch.no_grad,
    "inference": torch.inference_mode,
    "grad": contextlib.nullcontext,
}
_SEED = 2026
_SETTLING_CALLS = 6
_RECORDING_MODES = ("reduce-overhead", "max-autotune")


def serve(connection: Connection, variant: Variant, grad_mode: str) -> None:
    """Answer commands until the other side closes the connection or sends None.

    What a program prints goes nowhere: the terminal is the table's.
    """
    session = Session(variant, grad_mode)
    sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - for as long as the process lives
    with contextlib.suppress(EOFError):
        while (message := connection.recv()) is not None:
            connection.send(answer(session, *message))


def answer(session: Session, command: str, arguments: dict[str, Any]) -> tuple[str, Any]:
    """Carry out one command.

    Returns ``("ok", value)``, ``("usage", text)`` for a mistake in what the user asked for, or
    ``("failed", text)``.
    """
    try:
        return "ok", getattr(session, command)(**arguments)
    except BenchError as error:
        return "usage", str(error)
    except Exception as error:  # noqa: BLE001 - reported as that variant's failure
        lines = "".join(traceback.format_exception(error)).strip().splitlines()
        return "failed", "\n".join([f"{type(error).__name__}: {error}"[:600], *lines[-12:]])


class Session:
    """The program that a worker was given, and how it is called."""

    built: Built
    training: Any = None
    start: dict[str, torch.Tensor] | None = None
    forward: Callable[..., Any] | None = None
    call: Callable[[], Any] | None = None
    graph: torch.cuda.CUDAGraph | None = None
    recordable = True
    device = "cpu"
    memory_before = 0

    def __init__(self, variant: Variant, grad_mode: str) -> None:
        self.variant, self.grad_mode = variant, grad_mode

    def grads(self) -> contextlib.AbstractContextManager[Any]:
        """The grad mode that calls run in."""
        return torch.enable_grad() if self.training else GRAD_MODES[self.grad_mode]()

    def prime(self, *, device: str) -> None:
        """Compile something tiny once, so that no program's compile time holds one-off imports."""

        def tiny(x: torch.Tensor) -> torch.Tensor:
            return (x @ x).relu().sum(-1)

        with self.grads(), tempfile.TemporaryDirectory() as folder, cache_folder(folder):
            call = apply(self.variant, tiny)
            for _ in range(3):
                x = torch.randn(32, 32, device=device, requires_grad=self.grad_mode == "grad")
                result = call(x)
                if result.requires_grad:
                    result.sum().backward()
            timing.synchronize(device)
        forget_compiled_code()

    def build(self, *, source: Source) -> tuple[str, list[int]]:
        """Build the program; returns where it runs, and a fingerprint of weights and inputs.

        It runs on "cuda" if any of these is there. Fingerprints are equal in every worker.
        """
        self.drop()
        program = resolve(source)
        make: Callable[[], Any] | None = getattr(program, self.variant.builds)
        if make is None:
            raise BenchError(f"fusepass bench: {program.name} has no twin or floor.")
        random.seed(_SEED)
        torch.manual_seed(_SEED)
        torch.set_float32_matmul_precision(program.matmul_precision)
        self.memory_before = torch.cuda.memory_allocated() if torch.cuda.is_initialized() else 0
        self.built = built = check_built(make(), program.name)
        held = list(tensors([built.args, built.kwargs]))
        if isinstance(built.model, torch.nn.Module):
            held = [*built.model.state_dict().values(), *held]
        self.training = program.training
        if self.training:
            self.start = {key: one.clone() for key, one in built.model.state_dict().items()}  # type: ignore[attr-defined]
        self.device = "cuda" if any(tensor.is_cuda for tensor in held) else "cpu"
        return self.device, [_fingerprint(tensor) for tensor in held]

    def compile(self, *, folder: str | None) -> float:
        """Forget compiled code, then call the program once; returns that call's seconds.

        An empty ``folder`` for the caches gives a cold compile, one used before a warm one, None
        the user's own.
        """
        self.call = self.forward = self.graph = None
        self.recordable = True
        forget_compiled_code()
        call = self._calling(apply(self.variant, self.built.model))
        with self.grads(), cache_folder(folder):
            seconds = timing.timed(call, self.device)
        self.call = call
        return seconds

    def _calling(self, forward: Callable[..., Any]) -> Callable[[], Any]:
        """One call of the program, or one training step."""
        self.forward, built = forward, self.built
        if self.training:
            step: Callable[[], Any] = self.training.stepper(built.model, forward, built.args)
            return step
        return lambda: forward(*built.args, **built.kwargs)

    def timed_call(self) -> Callable[[], Any]:
        """One call of the program, compiled if the variant is."""
        if self.call is None:
            assert self.variant.backend is None, "the program was not compiled"
            self.call = self._calling(self.built.model)
        return self.call

    def settle(self) -> tuple[float, int | None]:
        """Call until CUDA graphs are recorded and clocks are up.

        Returns the last call's seconds, and the peak of device memory during these calls in bytes,
        above what was allocated before the program was built (None on CPU).
        """
        call = self.timed_call()
        on_gpu = self.device == "cuda"
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        with self.grads():
            for _ in range(_SETTLING_CALLS):
                seconds = timing.timed(call, self.device)
        gc.collect()
        return seconds, torch.cuda.max_memory_allocated() - self.memory_before if on_gpu else None

    def outputs(self) -> list[torch.Tensor]:
        """The tensors that one call returns."""
        with self.grads():
            found = tensors(self.timed_call()())
            return [tensor.detach().clone() for tensor in found]

    def reference(self, *, path: str) -> str | None:
        """Save eager's outputs and the float64 reference; returns why there is none, or None."""
        eager, reason = self.outputs(), None
        exact: list[torch.Tensor] | None = None
        try:
            with self.grads():
                exact = error_rule.reference_outputs(*self.built)
        except Exception as error:  # noqa: BLE001 - any program may fail in float64
            reason = f"float64 run failed: {type(error).__name__}: {str(error)[:300]}"
        if exact is not None and [one.shape for one in exact] != [one.shape for one in eager]:
            exact, reason = None, "float64 run gives outputs of other shapes than eager"
        torch.save({"eager": eager, "exact": exact}, path)
        return reason

    def errors(self, *, path: str) -> list[error_rule.TensorError]:
        """Compare this variant's outputs with what :meth:`reference` saved."""
        saved = torch.load(path)
        eager = saved["eager"]
        exact = saved["exact"] or [None] * len(eager)
        outputs = self.outputs()
        if len(outputs) != len(eager):
            # The number of records tells the judge; there is nothing to pair them with.
            return [error_rule.TensorError() for _ in outputs]
        return [error_rule.compare(*trio) for trio in zip(outputs, eager, exact, strict=True)]

    def curves(self) -> list[list[float]]:
        """The losses of a few short trainings, from the weights the program was built with."""
        self.timed_call()
        found: list[list[float]] = self.training.curves(
            self.built.model, self.forward, self.built.args, self.start
        )
        return found

    def exact_curves(self) -> list[list[float]]:
        """The same in float64, eagerly."""
        found: list[list[float]] = self.training.exact_curves(
            self.built.model, self.built.args, self.start
        )
        return found

    def facts(self) -> GraphFacts | None:
        """Facts about the compiled graphs; None for eager."""
        if self.variant.backend is None:
            return None
        with self.grads():
            return graph_facts(self.timed_call())

    def time(self, *, calls: int) -> tuple[list[float], list[float] | None]:
        """One turn of a round: wall and device times of ``calls`` calls, in microseconds."""
        with self.grads():
            return timing.time_calls(self.timed_call(), calls, self.device)

    def replay(self, *, seconds: float) -> list[float] | None:
        """One turn of a round: device times of calls recorded in a CUDA graph, in microseconds.

        None on CPU, in modes that record CUDA graphs themselves, and for what cannot be recorded.
        """
        own = self.variant.mode in _RECORDING_MODES
        if self.device != "cuda" or own or not self.recordable:
            return None
        with self.grads():
            try:
                self.graph = self.graph or record(self.timed_call(), timing.RECORDED_CALLS)
            except RuntimeError:
                self.recordable = False
                return None
            return timing.time_replays(self.graph, seconds)

    def drop(self) -> None:
        """Free the program, its compiled code and its memory."""
        for name in ("built", "training", "start", "forward", "call", "graph"):
            vars(self).pop(name, None)
        forget_compiled_code()
        gc.collect()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()


def _fingerprint(tensor: torch.Tensor) -> int:
    if tensor.numel() == 0:
        return 0
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return int(data.sum(dtype=torch.int64))
