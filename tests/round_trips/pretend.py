"""Programs for a device that is not there: traced with fake tensors of it, run on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode

import fusepass.backend
from fusepass.host_tensors import rewrite

# Builds of torch without CUDA make fake tensors of it, but do not compute with them.
THERE = "cuda:0" if torch.version.cuda else "meta"


class OnCpu(TorchFunctionMode):
    """Runs calls for the pretended device on the CPU; a tensor knows on which of the two it is."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func == Tensor.device.__get__:  # type: ignore[attr-defined]
            return torch.device(THERE if _is_there(args[0]) else "cpu")
        if func is torch.device:
            return func(*args, **kwargs)
        given = [*args, *kwargs.values()]
        source = next((value for value in given if isinstance(value, Tensor)), None)
        there = any(map(_is_there, given))
        named = [value for value in given if _is_device(value)]
        if named:
            there = str(named[0]) in (THERE, THERE.split(":")[0])
        elif func in (Tensor.type_as, Tensor.to) and isinstance(given[1], Tensor):
            there = _is_there(given[1])
        elif func is Tensor.cpu:
            there = False
        elif func.__name__.endswith("_as"):
            there = _is_there(given[0])
        moves = func in (Tensor.to, Tensor.cpu, Tensor.type_as) and there != _is_there(source)
        args = tuple("cpu" if _is_device(value) else value for value in args)
        kwargs = {k: "cpu" if _is_device(value) else value for k, value in kwargs.items()}
        found = func(*args, **kwargs)
        if moves and found is source:
            found = found.clone()
        for part in found if isinstance(found, (tuple, list)) else (found,):
            if isinstance(part, Tensor):
                part.is_there = there  # type: ignore[attr-defined]
        return found


def _is_there(value: Any) -> bool:
    return getattr(value, "is_there", False) is True


def _is_device(value: Any) -> bool:
    names = ("cpu", THERE, THERE.split(":")[0])
    return isinstance(value, torch.device) or (isinstance(value, str) and value in names)


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
    monkeypatch.setattr(rewrite, "upload", lambda value, device: value.clone())
    return graphs


def in_eager(program: Callable[..., Any], *inputs: Any) -> Any:
    """What a program gives, run on the CPU for the pretended device."""
    with OnCpu():
        return program(*inputs)
