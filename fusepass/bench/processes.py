"""Talking to the workers: one process per variant, asked one at a time or all at once."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from fusepass.bench import worker
from fusepass.bench.variants import Variant
from fusepass.errors import BenchError


class WorkerFailed(Exception):
    """A command failed in a worker, or the worker died or did not answer in time."""


def value_of(kind: str, value: Any) -> Any:
    """The value of an answer, or the error it stands for."""
    if kind == "usage":
        raise BenchError(value)
    if kind == "failed":
        raise WorkerFailed(value)
    return value


@dataclass
class Worker:
    """One variant's process. ``failed`` says why it is out for the current program."""

    variant: Variant
    grad_mode: str
    process: SpawnProcess = field(init=False)
    connection: Connection = field(init=False)
    failed: str | None = None
    primed: bool = False

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Start the process; it is ready when it answers its first command."""
        self.failed, self.primed = None, False
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        # Not a daemon: Inductor's compile workers are children of this process.
        self.process = context.Process(
            target=worker.serve,
            args=(theirs, self.variant, self.grad_mode),
            name=f"fusepass-bench-{self.variant.label}",
        )
        self.process.start()
        theirs.close()

    def send(self, command: str, **arguments: Any) -> None:
        """Send a command without waiting for the answer."""
        try:
            self.connection.send((command, arguments))
        except OSError as error:
            raise WorkerFailed(self._obituary()) from error

    def receive(self, timeout: float | None = None) -> Any:
        """The answer to the last command.

        Raises WorkerFailed if it failed, the process died, or ``timeout`` seconds went by (the
        process is then ended); BenchError if the user asked for something that does not exist.
        """
        try:
            if not self.connection.poll(timeout):
                self.stop(patience=0.0)
                raise WorkerFailed(f"no answer within {timeout:.0f} s")
            return value_of(*self.connection.recv())
        except (EOFError, OSError) as error:
            raise WorkerFailed(self._obituary()) from error

    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process.is_alive()

    def ask_to_stop(self) -> None:
        """Let the process end once it has answered what it was asked."""
        with contextlib.suppress(OSError):
            self.connection.send(None)

    def stop(self, patience: float = 10.0) -> None:
        """End the process, by waiting for ``patience`` seconds and then by signal."""
        if patience:
            self.ask_to_stop()
            self.process.join(patience)
        for end in (self.process.terminate, self.process.kill):
            if self.process.is_alive():
                end()
                self.process.join(5.0)
        self.connection.close()

    def _obituary(self) -> str:
        self.process.join(2.0)
        return f"the process of {self.variant.label} ended with exit code {self.process.exitcode}"


def start_workers(variants: Iterable[Variant], grad_mode: str) -> list[Worker]:
    """One worker per variant, starting side by side."""
    return [Worker(variant, grad_mode) for variant in variants]


def stop_workers(workers: Sequence[Worker]) -> None:
    """End all processes, side by side."""
    for one in workers:
        one.ask_to_stop()
    for one in workers:
        one.stop()


def ask(
    workers: Sequence[Worker],
    command: str,
    *,
    each: Mapping[str, Mapping[str, Any]] | None = None,
    together: bool = False,
    timeout: float | None = None,
    **arguments: Any,
) -> dict[str, Any]:
    """Send one command to every worker that has not failed; a failure takes a worker out.

    Args:
        workers: whom to ask, until the next program.
        command: a method of :class:`fusepass.bench.worker.Session`.
        each: further keyword arguments by variant label; the others are not asked.
        together: let them work at the same time; otherwise each waits for the one before it.
        timeout: seconds to wait for each answer, or None.
        **arguments: keyword arguments of the command.

    Returns:
        Answers by variant label.
    """
    answers: dict[str, Any] = {}

    def send(one: Worker) -> None:
        more = {} if each is None else each[one.variant.label]
        one.send(command, **arguments, **more)

    def receive(one: Worker) -> None:
        answers[one.variant.label] = one.receive(timeout)

    asked = [one for one in workers if each is None or one.variant.label in each]
    steps = [(one, step) for one in asked for step in (send, receive)]
    if together:
        steps = [(one, step) for step in (send, receive) for one in asked]
    for one, step in steps:
        if one.failed is None:
            try:
                step(one)
            except WorkerFailed as error:
                one.failed = f"{command}: {error}"
    return answers
