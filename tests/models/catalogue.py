"""The list of models, and every class that could be on it."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterable
from pathlib import Path

from tests.models import others

LIST = Path(__file__).with_name("models.txt")


def listed(file: str = "") -> list[str]:
    """The names in the list, or in another file: ``library/class``, one a line."""
    lines = (Path(file) if file else LIST).read_text().splitlines()
    return [one.split()[0] for one in lines if one.strip() and not one.startswith("#")]


def load(libraries: Iterable[str]) -> None:
    """Import what all models need, once, in front of the processes that build them."""
    import torch._dynamo
    import torch._inductor.compile_fx  # noqa: F401

    import fusepass.backend  # noqa: F401
    from tests.models import torchvision_ops

    torchvision_ops.provide()
    for name in libraries:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
            if name == "transformers":
                importlib.import_module("transformers.modeling_utils")


def transformers_classes() -> list[str]:
    """Every class of the auto mappings of transformers, base models first."""
    from transformers.models.auto import modeling_auto

    found: dict[str, None] = {}
    for name, mapping in vars(modeling_auto).items():
        if name.endswith("_NAMES") and hasattr(mapping, "values"):
            for one in mapping.values():
                for cls in one if isinstance(one, (tuple, list)) else (one,):
                    if not cls.endswith("Config"):
                        found[f"transformers/{cls}"] = None
    return list(found)


def candidates() -> list[str]:
    """Everything that may be tried."""
    rest = [
        f"{one}/{name}"
        for one in ("timm", "torchvision", "diffusers")
        for name in others.candidates(one)
    ]
    return transformers_classes() + rest
