"""Finding the program that a benchmark is to run: by a suite's name, a module or a file."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from fusepass.bench.program import Built, Program
from fusepass.bench.suites import suite_programs
from fusepass.errors import BenchError

HOW_TO_NAME_A_TARGET = (
    "A target is module:function or path/to/file.py:function, and the function takes no argument "
    "and returns (model_or_function, inputs); inputs is a tuple of arguments or (args, kwargs)."
)


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
    """The program behind a source.

    Raises:
        BenchError: no such target, suite or program.
    """
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

    Raises:
        BenchError: it is not ``(model_or_function, inputs)``.
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
    """``(module or path, function)``.

    Raises:
        BenchError: there is no function name in it, or the file or module does not exist.
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

    Raises:
        BenchError: the target cannot be imported, lacks the function, or it is not callable, or
            not without arguments.
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
    _check_takes_nothing(function, target)
    return function  # type: ignore[no-any-return]


def _check_takes_nothing(function: Callable[..., Any], target: str) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # some builtins have none; the call will tell
    try:
        signature.bind()
    except TypeError as error:
        raise BenchError(f"fusepass bench: {target}: {error}. {HOW_TO_NAME_A_TARGET}") from error


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
