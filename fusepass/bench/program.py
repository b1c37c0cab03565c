"""Programs of a benchmark, and how they are found: a suite's, a module's or a file's.

Suites are named lists of programs that a checkout brings in ``tests/perf/suites``. They are no part
of the wheel: who installs fusepass times targets.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from fusepass.errors import BenchError, did_you_mean

_CATALOGUE = "tests.perf.suites.catalogue"
HOW_TO_NAME_A_TARGET = (
    "A target is module:function or path/to/file.py:function, and the function takes no argument "
    "and returns (model_or_function, inputs); inputs is a tuple of arguments or (args, kwargs)."
)


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
        training: how it is trained, if a call is to be a training step: as
            ``tests.perf.training_steps.Training`` is.
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
    training: Any = None
    family: str | None = None
    layers: int | None = None


@dataclass(frozen=True)
class Source:
    """Where a worker finds a program: a target (and its twin), or a suite, a device and a name."""

    target: str | None = None
    twin: str | None = None
    suite: str | None = None
    device: str = "cpu"
    name: str = ""
    compile_only: bool = False


def resolve(source: Source) -> Program:
    """The program behind a source; raises BenchError if there is none."""
    if source.target is not None:
        twin = None if source.twin is None else load_function(source.twin)
        return Program(name=source.target, build=load_function(source.target), twin=twin)
    programs = suite_programs(source.suite or "", source.device, compile_only=source.compile_only)
    for program in programs:
        if program.name == source.name:
            return program
    raise BenchError(f"fusepass bench: suite {source.suite!r} has no program {source.name!r}.")


def check_built(value: Any, target: str) -> Built:
    """Sort what a target returned into model, args and kwargs.

    Raises BenchError unless it is ``(model_or_function, inputs)``.
    """
    if not isinstance(value, tuple) or len(value) != 2 or not callable(value[0]):
        got = f"a tuple of {len(value)}" if isinstance(value, tuple) else type(value).__name__
        raise BenchError(f"fusepass bench: {target} returned {got}. {HOW_TO_NAME_A_TARGET}")
    model, inputs = value
    if isinstance(inputs, list):
        inputs = tuple(inputs)
    if not isinstance(inputs, tuple):
        raise BenchError(
            f"fusepass bench: the inputs from {target} are {type(inputs).__name__}, not a tuple; "
            f"one argument is written (x,). {HOW_TO_NAME_A_TARGET}"
        )
    if len(inputs) == 2 and isinstance(inputs[0], tuple | list) and isinstance(inputs[1], dict):
        return Built(model, tuple(inputs[0]), dict(inputs[1]))
    return Built(model, inputs, {})


def split_target(target: str) -> tuple[str, str]:
    """``(module or path, function)`` of a target.

    Raises BenchError if it names no function, or the file or module does not exist.
    """
    where, colon, function = target.rpartition(":")
    if not colon or not where or not function.isidentifier():
        raise BenchError(f"fusepass bench: {target!r} names no function. {HOW_TO_NAME_A_TARGET}")
    if where.endswith(".py"):
        if not Path(where).is_file():
            raise BenchError(f"fusepass bench: no file {where!r} (from {Path.cwd()}).")
        return where, function
    try:
        found = importlib.util.find_spec(where)
    except (ImportError, ValueError) as error:
        raise BenchError(f"fusepass bench: cannot find module {where!r}: {error}.") from error
    if found is None:
        raise BenchError(
            f"fusepass bench: no module named {where!r}. Run from the folder it is in, or give the "
            f"file: path/to/{where.rpartition('.')[2]}.py:{function}."
        )
    return where, function


def load_function(target: str) -> Callable[[], Any]:
    """Import the function a target names.

    Raises BenchError if that fails, or the function is not there or takes arguments.
    """
    where, name = split_target(target)
    try:
        module = (
            _load_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
        )
    except Exception as error:
        raise BenchError(
            f"fusepass bench: importing {where} failed: {type(error).__name__}: {error}."
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        names = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        problem = "has no function" if function is None else "has something not callable named"
        raise BenchError(
            f"fusepass bench: {where} {problem} {name!r}; it has: {', '.join(names) or 'none'}."
        )
    signature = None
    with contextlib.suppress(TypeError, ValueError):  # some builtins have none; the call will tell
        signature = inspect.signature(function)
    try:
        if signature is not None:
            signature.bind()
    except TypeError as error:
        raise BenchError(f"fusepass bench: {target}: {error}. {HOW_TO_NAME_A_TARGET}") from error
    return function  # type: ignore[no-any-return]


def _load_file(path: Path) -> ModuleType:
    name = f"fusepass_bench_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None  # a .py file always has one
    module = importlib.util.module_from_spec(spec)
    # Dynamo and dataclasses look a function's module up by name.
    sys.modules[name] = module
    # As when the file is run: what lies beside it can be imported.
    sys.path.insert(0, str(path.parent.resolve()))
    spec.loader.exec_module(module)
    return module


def _catalogue() -> Any:
    """The module that lists the suites; raises BenchError outside a checkout."""
    here = str(Path.cwd())
    if here not in sys.path:  # python -P, and processes that were given another path
        sys.path.append(here)
    try:
        return importlib.import_module(_CATALOGUE)
    except ModuleNotFoundError as error:
        if not _CATALOGUE.startswith(error.name or " "):
            raise
        raise BenchError(
            "fusepass bench: suites are part of the repository. Run the command in a checkout, or "
            "give a target: module:function or path/to/file.py:function."
        ) from error


def suite_programs(suite: str, device: str, *, compile_only: bool = False) -> tuple[Program, ...]:
    """Every program of a suite, or those for the compile-time table, sized for a device.

    Raises BenchError for no such suite, or outside a checkout.
    """
    listed = _catalogue()
    suites: Mapping[str, Callable[[str], tuple[Program, ...]]] = (
        listed.COMPILE_SUITES if compile_only else listed.SUITES
    )
    if suite not in suites:
        raise BenchError(f"fusepass bench: no suite {suite!r}{_near(suite, list(suites))}")
    return suites[suite](device)


def select(programs: Sequence[Program], only: Sequence[str]) -> list[Program]:
    """Programs whose name is in ``only``, begins with one of its entries, or matches one as a glob.

    Raises BenchError for an entry that selects nothing.
    """
    if not only:
        return list(programs)
    names = [program.name for program in programs]
    for entry in only:
        if not any(_selects(entry, name) for name in names):
            raise BenchError(f"fusepass bench: no program {entry!r}{_near(entry, names)}")
    return [program for program in programs if any(_selects(one, program.name) for one in only)]


def _selects(entry: str, name: str) -> bool:
    return name.startswith(entry) or fnmatchcase(name, entry)


def _near(name: str, known: list[str]) -> str:
    return f".{did_you_mean(name, known)} There are: {', '.join(known)}."
