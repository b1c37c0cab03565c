"""Run each model in a process of its own, with limits, and write what comes of it to a file."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import resource
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch

from tests.models.build import NotBuilt
from tests.models.measure import WAYS, measured

MEMORY = 8 << 30
SECONDS = 150


def _child(name: str, mode: str, ways: Sequence[str], pipe: Any) -> None:
    with contextlib.suppress(OSError, ValueError):  # not every sandbox has this limit
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    null = os.open(os.devnull, os.O_WRONLY)
    if not os.environ.get("FUSEPASS_MODELS_VERBOSE"):
        os.dup2(null, 1)
        os.dup2(null, 2)
    torch.set_num_threads(1)
    _quicken()
    try:
        for record in measured(name, mode, ways):
            pipe.send(record)
    except NotBuilt as error:
        pipe.send({"name": name, "mode": mode, "state": "not built", "error": str(error)[:400]})
    except BaseException as error:  # noqa: BLE001 - the pool goes on
        at = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error}"[:400]
        if os.environ.get("FUSEPASS_MODELS_VERBOSE"):
            traceback.print_exc()
        pipe.send(
            {
                "name": name,
                "mode": mode,
                "state": "not built",
                "error": f"{text} ({at.name}:{at.lineno})",
            }
        )
    finally:
        pipe.close()
        os._exit(0)


def _quicken() -> None:
    """Switch off what Dynamo does for its logs in each compile: a fifth of the time."""
    from torch._dynamo import guards, utils

    guards.profile_guard_manager = lambda *given: 0.0  # type: ignore[attr-defined]
    for name in _SETTINGS_AS_TEXT:
        if hasattr(utils, name):
            setattr(utils, name, lambda: None)


_SETTINGS_AS_TEXT = (
    "_compiler_config_for_logging",
    "_functorch_config_for_logging",
    "_get_dynamo_config_for_logging",
    "_scrubbed_inductor_config_for_logging",
)


def results(
    work: Sequence[tuple[str, str]],
    jobs: int,
    ways: Sequence[str] = WAYS,
    seconds: float = SECONDS,
    within: float = float("inf"),
) -> Iterator[dict[str, Any]]:
    """What comes of each model and mode, in the order they end."""
    context = multiprocessing.get_context("fork")
    waiting, running = list(reversed(work)), {}
    end = time.monotonic() + within
    while waiting or running:
        if time.monotonic() > end:  # the rest is for another run
            for process, _, _ in running.values():
                process.kill()
            return
        while waiting and len(running) < jobs:
            name, mode = waiting.pop()
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_child, args=(name, mode, ways, theirs), daemon=True)
            process.start()
            theirs.close()
            running[ours] = (
                process,
                time.monotonic(),
                {"name": name, "mode": mode, "state": "started", "error": "the process died"},
            )
        ready = wait(list(running), timeout=1)
        for pipe, (process, started, last) in list(running.items()):
            over = time.monotonic() - started > seconds
            if pipe in ready:
                with contextlib.suppress(EOFError):
                    while pipe.poll():
                        last = pipe.recv()
                        running[pipe] = (process, started, last)
                process.join(0.01)
            if process.is_alive() and not over and not (pipe in ready and _closed(pipe)):
                continue
            if over and process.is_alive():
                process.kill()
            process.join()
            with contextlib.suppress(EOFError):
                while pipe.poll():
                    last = pipe.recv()
            del running[pipe]
            pipe.close()
            yield last | {"wall": round(time.monotonic() - started, 1), "killed": over}


def _closed(pipe: Any) -> bool:
    try:
        return pipe.poll() and False
    except (EOFError, OSError):
        return True


def write(
    out: str,
    work: Sequence[tuple[str, str]],
    jobs: int,
    told: Callable[[dict[str, Any]], None],
    ways: Sequence[str] = WAYS,
    seconds: float = SECONDS,
    within: float = float("inf"),
) -> None:
    """Append results to a file of JSON lines; what is in it already is not run again.

    Models that are not done ``within`` so many seconds are left to the next run.
    """
    done = {(one["name"], one["mode"]) for one in read(out)}
    with Path(out).open("a") as file:
        for record in results(
            [one for one in work if one not in done], jobs, ways, seconds, within
        ):
            file.write(json.dumps(record) + "\n")
            file.flush()
            told(record)


def read(out: str) -> list[dict[str, Any]]:
    """The records of a file, the last of each model and mode."""
    if not Path(out).exists():
        return []
    found = [json.loads(line) for line in Path(out).read_text().splitlines()]
    return list({(one["name"], one["mode"]): one for one in found}.values())
