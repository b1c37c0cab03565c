"""What a hook in front of loads must not do: look into values that nobody has looked into yet."""

from __future__ import annotations

import types

import torch
from torch._dynamo.source import LocalSource
from torch._dynamo.variables import LazyVariableTracker
from torch._dynamo.variables.lazy import LazyCache

from fusepass.torch_private.dynamo.print_calls import speaker_on_top


def test_values_are_not_looked_into() -> None:
    """Looking is guarding, for every backend, and makes an input of the graph."""
    caches = [LazyCache(torch.ones(2), LocalSource(name)) for name in ("x", "w")]
    loaded = [LazyVariableTracker(cache, source=cache.source) for cache in caches]
    assert speaker_on_top(types.SimpleNamespace(stack=loaded)) is None
    assert not any(one.is_realized() for one in loaded)
