"""One function or module, in eager and compiled: what each call leaves in Python objects."""

from __future__ import annotations

import contextlib
import copy
import io
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import fusepass


def picture(value: Any, seen: dict[int, int] | None = None) -> Any:
    """Values, types and which objects are one object, of anything a program may hold."""
    seen = {} if seen is None else seen
    if isinstance(value, (int, float, str, bool, type(None), torch.dtype)):
        return type(value).__name__, repr(value)
    if id(value) in seen:
        return "again", seen[id(value)]
    seen[id(value)] = len(seen)
    if isinstance(value, Tensor):
        return "tensor", value.dtype, value.requires_grad, value.tolist()
    if isinstance(value, dict):
        return type(value).__name__, [(k, picture(v, seen)) for k, v in value.items()]
    if isinstance(value, (list, tuple, deque)):
        return type(value).__name__, [picture(v, seen) for v in value]
    if isinstance(value, (set, frozenset)):
        return type(value).__name__, sorted(map(repr, value))
    own = getattr(value, "__dict__", {})
    return type(value).__name__, [(k, picture(v, seen)) for k, v in own.items()]


def same_state(
    make: Callable[[], Any],
    *inputs: Tensor,
    breaks: int | None = 0,
    grad: bool = False,
    **options: Any,
) -> Any:
    """Call what ``make`` makes with each input, twice made; compare all that is left each time.

    Args:
        make: gives a module or an object that is called.
        inputs: one per call.
        breaks: graph breaks that there are to be; -1 for at least one, None for any number.
        grad: the sum of what is returned goes backward, and gradients of parameters are compared.
        options: of fusepass.

    Returns:
        The report.
    """
    fusepass.reset()
    with torch.random.fork_rng():
        eager, mine = (torch.manual_seed(0) and make() for _ in range(2))
    with fusepass.options(**{"codegen": "eager", **options}):
        compiled = torch.compile(mine, backend="fusepass")
        held = [(copy.copy(vars(one)) if hasattr(one, "__dict__") else {}) for one in (eager, mine)]
        for index, x in enumerate(inputs):
            sides = [
                _call(run, x.clone(), one, grad) for run, one in ((eager, eager), (compiled, mine))
            ]
            assert sides[0] == sides[1], f"call {index}:\n{sides[0]}\n{sides[1]}"
            kept = [
                [name for name, old in was.items() if vars(one).get(name) is old and _changes(old)]
                for was, one in zip(held, (eager, mine), strict=True)
            ]
            assert kept[0] == kept[1], f"call {index}: containers that are the same object"
        report = fusepass.last_report(compiled).to_dict()
    if breaks is None:
        return report
    found = report["graph_breaks"]
    assert (len(found) > 0) if breaks < 0 else (len(found) == breaks), report["decisions"]
    return report


def _changes(value: Any) -> bool:
    return isinstance(value, (list, dict, set, deque))


def _call(run: Callable[[Tensor], Any], x: Tensor, holder: Any, grad: bool) -> Any:
    text = io.StringIO()
    error: Any = None
    result: Any = None
    with contextlib.redirect_stdout(text):
        try:
            result = run(x)
        except (ValueError, RuntimeError, IndexError, KeyError) as raised:
            error = type(raised).__name__, str(raised)
    grads: Any = None
    if grad and error is None and isinstance(holder, nn.Module):
        first = result[0] if isinstance(result, tuple) else result
        first.sum().backward()
        grads = [None if p.grad is None else p.grad.tolist() for p in holder.parameters()]
        holder.zero_grad()
    return picture((result, _own(holder))), grads, error, text.getvalue()


def _own(holder: Any) -> Any:
    if not isinstance(holder, nn.Module):
        return getattr(holder, "__dict__", None)
    plain = vars(nn.Module())
    own = {
        k: v
        for k, v in vars(holder).items()
        if k not in plain and k not in ("training", "_is_torch_compile")
    }
    return own, list(holder._buffers.items()), {n: _own(m) for n, m in holder._modules.items()}
