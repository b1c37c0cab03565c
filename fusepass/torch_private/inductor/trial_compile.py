"""Compile a graph only for a trial, and read Inductor's options. Run on 2.11 to 2.15."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


def is_inductor_option(name: str) -> bool:
    """Whether Inductor's config has such a key."""
    from torch._inductor import config

    return name in config.get_config_copy()


def is_default(name: str) -> bool:
    """Whether such a key is as it comes, not set in this process or by its environment variable."""
    from torch._inductor import config

    variable = f"TORCHINDUCTOR_{name.rpartition('.')[2].upper()}"
    entry = config._config[name]  # type: ignore[attr-defined]
    return variable not in os.environ and config.get_config_copy()[name] == entry.default


def compiled_on_trial(compiled: Callable[[], _T]) -> tuple[_T, bool]:
    """What a function compiles, inside Dynamo's compile, and whether that writes its inputs.

    AOTAutograd says so only where it works itself, so its cache (not Inductor's) is left aside.
    """
    from torch._functorch import config
    from torch._guards import TracingContext

    with config.patch(enable_autograd_cache=False):
        made = compiled()
    metadata = getattr(TracingContext.try_get(), "fw_metadata", None)
    if metadata is None:
        return made, True
    return made, any(one.mutates_data or one.mutates_metadata for one in metadata.input_info)
