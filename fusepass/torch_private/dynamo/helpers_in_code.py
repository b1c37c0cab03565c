"""Run functions of ours where code that is traced calls them. Run on torch 2.11 to 2.15."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import fx
from torch._dynamo.variables import ConstantVariable, TupleVariable, UserFunctionVariable
from torch._dynamo.variables.base import VariableTracker

from fusepass.torch_private.dynamo.stack import is_any_tensor, number_node, realized


class Helper(VariableTracker):
    """A tracked function that acts while code is traced: given tracked values, it gives one."""

    def __init__(self, act: Callable[..., Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.act = act

    def call_function(self, tx: Any, args: Any, kwargs: Any) -> Any:
        """Act."""
        return self.act(tx, *args)


def trace_code(translator: Any, code: CodeType, args: list[Any]) -> Any:
    """Trace code as a function that is called where the translator stands; gives what it returns.

    Its global names are those of the code that is being traced.
    """
    function = FunctionType(code, translator.f_globals, code.co_name)
    return translator.inline_user_function_return(UserFunctionVariable(function), args, {})


def tracked_tuple(items: list[Any]) -> Any:
    """A tracked tuple, new in the program."""
    return TupleVariable(items)


def tuple_items(value: Any) -> list[Any] | None:
    """The tracked items of a plain tuple; None for anything else."""
    return list(value.items) if type(value) is TupleVariable else None


def range_of_iterator(value: Any) -> tuple[int, int, int] | None:
    """What is left of an iterator over ``range``: first, count, step; None for anything else."""
    if type(value).__name__ != "RangeIteratorVariable":
        return None
    parts = value.start, value.len, value.step
    return parts if all(type(part) is int for part in parts) else None


def key_parts(key: Any) -> list[tuple[Any, Any]] | None:
    """The parts of the key of a tensor: (tracked value, None), or (None, what Python has there).

    None if some part is neither a tensor nor a number nor known.
    """
    parts = list(key.items) if type(key) is TupleVariable else [key]
    found: list[tuple[Any, Any]] = []
    for part in map(realized, parts):
        if is_any_tensor(part) or number_node(part) is not None:
            found.append((part, None))
        elif (
            type(part).__name__ == "SliceVariable"
            or type(part) is ConstantVariable
            or (part.is_python_constant())
        ):
            try:
                found.append((None, part.as_python_constant()))
            except NotImplementedError:
                return None
        else:
            return None
    return found


def put_graph(translator: Any, name: str, gm: fx.GraphModule) -> fx.Proxy:
    """Put a graph into the one that is traced, as a part that calls can take as argument."""
    output = translator.output
    held = output.install_subgraph(name, gm)
    return output.create_proxy("get_attr", held, (), {})  # type: ignore[no-any-return]


def like_strided(translator: Any, fake: torch.Tensor) -> torch.Tensor:
    """A fake tensor of the same metadata, with memory of its own."""
    with translator.fake_mode, torch.no_grad():
        return torch.empty_strided(fake.size(), fake.stride(), dtype=fake.dtype, device=fake.device)
