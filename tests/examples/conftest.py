"""The examples as modules."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="session")
def example() -> Callable[[str], ModuleType]:
    """A function from the name of an example to its module, loaded once.

    They define operators, and Dynamo looks modules up by name.
    """
    loaded: dict[str, ModuleType] = {}

    def load(name: str) -> ModuleType:
        if name not in loaded:
            spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
            assert spec is not None
            assert spec.loader is not None
            loaded[name] = sys.modules[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(loaded[name])
        return loaded[name]

    return load
