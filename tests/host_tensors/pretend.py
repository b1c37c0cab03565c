"""Programs for a device that is not there: traced with fake tensors of it, run on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode

import fusepass.backend
from fusepass.rewrite import on_device

# Builds of torch without CUDA make fake tensors of it, but do not compute with them.
THERE = "cuda:0" if torch.version.cuda else "meta"


class OnCpu(TorchFunctionMode):
    """Calls for the pretended device run on the CPU; what would be copied there is copied."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        moved = _moved(args) or _moved(tuple(kwargs.values()))
        args = tuple(map(_here, args))
        kwargs = {name: _here(value) for name, value in kwargs.items()}
        if func is Tensor.to and moved:
            kwargs["copy"] = True
        return func(*args, **kwargs)


def _moved(values: tuple[Any, ...]) -> bool:
    return any(_here(value) is not value for value in values)


def _here(value: Any) -> Any:
    away = isinstance(value, (str, torch.device)) and str(value).startswith(THERE.split(":")[0])
    return "cpu" if away else value


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> list[fx.GraphModule]:
    """Graphs as they would be compiled, in order; each runs op by op on the CPU."""
    graphs: list[fx.GraphModule] = []

    def keep(gm: fx.GraphModule, *rest: Any) -> Callable[..., Any]:
        graphs.append(gm)

        def run(*inputs: Any) -> Any:
            with OnCpu():
                return gm.forward(*inputs)

        return run

    monkeypatch.setattr(fusepass.backend, "hand_off", keep)
    monkeypatch.setattr(on_device, "upload", lambda value, device: value.clone())
    return graphs


def in_eager(program: Callable[..., Any], *inputs: Any) -> Any:
    """What a program gives, run on the CPU for the pretended device."""
    with OnCpu():
        return program(*inputs)
