"""Values that the program has not used stay unbuilt when capture looks at them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._dynamo.source import LocalSource
from torch._dynamo.variables.lazy import LazyCache, LazyVariableTracker

from fusepass.torch_private.dynamo.frame_end import tracked, tracked_local
from fusepass.torch_private.dynamo.stack import (
    code_of_local,
    is_unused,
    local_value,
    node_of,
    tensor_on_top,
    unused_object,
)


def unused(value: Any) -> Any:
    source = LocalSource("held")
    return LazyVariableTracker(LazyCache(value, source), source=source)


@pytest.mark.parametrize(
    "value", [torch.ones(2), [1, 2], unused], ids=["tensor", "list", "function"]
)
def test_nothing_builds_an_unused_value(value: Any) -> None:
    held = unused(value)
    translator = SimpleNamespace(symbolic_locals={"held": held})
    assert local_value(translator, "held") is held
    assert code_of_local(translator, "held") is None
    assert tracked_local(translator, "held").real is value
    assert tracked(held).nodes == ()
    assert node_of(held) is None
    assert unused_object(held) is value
    assert is_unused(held)


def test_only_a_tensor_on_top_is_built() -> None:
    held = unused([1, 2])
    assert tensor_on_top(SimpleNamespace(stack=[held])) is None
    assert is_unused(held)


def test_an_unbound_name() -> None:
    assert local_value(SimpleNamespace(symbolic_locals={}), "held") is None
    assert code_of_local(SimpleNamespace(symbolic_locals={}), "held") is None
