"""Tuples, lists, dicts and equal constants left behind by the arms."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..support.inputs import B, signs
from ..support.program import FREE, WHERE, Family, keep

FAMILY = Family("containers")
ONE = signs((B, 4))
PAIR = signs((B, 4), (B, 4), flips=2)


@FAMILY.program(ONE, WHERE, grad=True, tags="contexts")
def tuple_of_two(x: Tensor) -> tuple[Tensor, Tensor]:
    if x.sum() > 0:
        pair = (x * 2, x.sum())
    else:
        pair = (x * 3, x.mean())
    return pair


@FAMILY.program(ONE, WHERE, grad=True)
def list_of_three(x: Tensor) -> list[Tensor]:
    if x.sum() > 0:
        out = [x + 1, x + 2, x + 3]
    else:
        out = [x - 1, x - 2, x - 3]
    return out


@FAMILY.program(ONE, WHERE, grad=True)
def dict_of_two(x: Tensor) -> dict[str, Tensor]:
    if x.sum() > 0:
        out = {"a": x * 2, "b": x.sum(0)}
    else:
        out = {"a": x * 3, "b": x.mean(0)}
    return out


@FAMILY.program(ONE, WHERE, grad=True)
def dict_with_integer_keys(x: Tensor) -> dict[int, Tensor]:
    return {0: x * 2, 7: x.sin()} if x.sum() > 0 else {0: x * 3, 7: x.cos()}


@FAMILY.program(ONE, WHERE, grad=True)
def nested_containers(x: Tensor) -> dict[str, Any]:
    if x.sum() > 0:
        out = {"layers": [(x * 2, x * 3), (x * 4, x * 5)], "last": x.sum()}
    else:
        out = {"layers": [(x / 2, x / 3), (x / 4, x / 5)], "last": x.mean()}
    return out


@FAMILY.program(ONE, WHERE, grad=True)
def container_consumed(x: Tensor) -> Tensor:
    if x.sum() > 0:
        parts = [x * 2, x * 3]
    else:
        parts = [x + 2, x + 3]
    return torch.cat(parts) + parts[0].sum()


@FAMILY.program(ONE, WHERE, grad=True)
def equal_constants(x: Tensor) -> tuple[Tensor, int, str, float, None, bool]:
    if x.sum() > 0:
        y, n, s, f, none, flag = x * 2, 3, "same", 0.5, None, True
    else:
        y, n, s, f, none, flag = x * 3, 3, "same", 0.5, None, True
    return y, n, s, f, none, flag


@FAMILY.program(ONE, WHERE, grad=True)
def equal_constant_used_later(x: Tensor) -> Tensor:
    if x.sum() > 0:
        y, dim = x * 2, 1
    else:
        y, dim = x * 3, 1
    return y.sum(dim)


@FAMILY.program(ONE, WHERE, grad=True)
def equal_shapes_and_dtypes(x: Tensor) -> tuple[Tensor, torch.Size, torch.dtype]:
    if x.sum() > 0:
        y = x * 2
        shape, dtype = y.shape, y.dtype
    else:
        y = x - 2
        shape, dtype = y.shape, y.dtype
    return y, shape, dtype


@FAMILY.program(ONE, WHERE, grad=True)
def tuple_with_constants(x: Tensor) -> tuple[Tensor, int, str]:
    return (x * 2, 1, "a") if x.sum() > 0 else (x * 3, 1, "a")


@FAMILY.program(ONE, WHERE, grad=True)
def empty_containers(x: Tensor) -> tuple[Tensor, list[Any], dict[str, Any], tuple[()]]:
    if x.sum() > 0:
        return x * 2, [], {}, ()
    return x * 3, [], {}, ()


@FAMILY.program(ONE, WHERE, grad=True)
def list_grown_inside_an_arm(x: Tensor) -> list[Tensor]:
    if x.sum() > 0:
        out = []
        out.append(x * 2)
        out.append(x * 3)
    else:
        out = [x / 2]
        out += [x / 3]
    return out


@FAMILY.program(ONE, WHERE, grad=True)
def dict_filled_inside_an_arm(x: Tensor) -> dict[str, Tensor]:
    if x.sum() > 0:
        out = {}
        out["a"] = x * 2
        out["b"] = out["a"] + 1
    else:
        out = dict(a=x * 3)
        out.update(b=x)
        out["b"] = out["b"] * 2
    return out


@FAMILY.program(ONE, WHERE, grad=True)
def new_list_from_old(x: Tensor) -> Tensor:
    parts = [x * 7]
    if x.sum() > 0:
        parts = [*parts, x * 2]
    else:
        parts = parts + [x * 3]
    return torch.stack(parts).sum(0)


@FAMILY.program(ONE, WHERE, grad=True)
def comprehension_inside_an_arm(x: Tensor) -> list[Tensor]:
    if x.sum() > 0:
        out = [x * i for i in range(1, 4)]
    else:
        out = [x / i for i in range(1, 4)]
    return out


@FAMILY.program(ONE, WHERE, grad=True)
def unchanged_input_in_both(x: Tensor) -> tuple[Tensor, Tensor]:
    # Whichever way it goes, the first is x itself.
    return (x, x * 2) if x.sum() > 0 else (x, x * 3)


@FAMILY.program(ONE, WHERE, grad=True)
def same_fresh_tensor_twice(x: Tensor) -> tuple[Tensor, Tensor]:
    if x.sum() > 0:
        a = b = x * 2
    else:
        a = b = x * 3
    return a, b


@FAMILY.program(ONE, WHERE, grad=True)
def same_tensor_twice_in_one_arm(x: Tensor) -> tuple[Tensor, Tensor]:
    if x.sum() > 0:
        a = b = x * 2
    else:
        a, b = x * 3, x * 4
    return a, b


@FAMILY.program(ONE, WHERE, grad=True)
def tuple_or_list(x: Tensor) -> Any:
    return (x * 2, x * 3) if x.sum() > 0 else [x * 2, x * 3]


@FAMILY.program(ONE, WHERE, grad=True)
def other_length(x: Tensor) -> list[Tensor]:
    return [x * 2] if x.sum() > 0 else [x * 2, x * 3]


@FAMILY.program(ONE, WHERE, grad=True)
def other_keys(x: Tensor) -> dict[str, Tensor]:
    return {"a": x * 2} if x.sum() > 0 else {"b": x * 3}


@FAMILY.program(ONE, WHERE, grad=True)
def other_order_of_keys(x: Tensor) -> dict[str, Tensor]:
    return {"a": x * 2, "b": x * 4} if x.sum() > 0 else {"b": x * 3, "a": x * 5}


@FAMILY.program(ONE, WHERE, grad=True)
def other_constant_inside(x: Tensor) -> tuple[Tensor, int]:
    return (x * 2, 1) if x.sum() > 0 else (x * 2, 2)


@FAMILY.program(ONE, WHERE, grad=True)
def tensor_or_none_inside(x: Tensor) -> dict[str, Tensor | None]:
    return {"a": x * 2, "b": None} if x.sum() > 0 else {"a": x * 3, "b": x}


@FAMILY.program(ONE, WHERE, grad=True)
def dtype_differs_inside(x: Tensor) -> list[Tensor]:
    return [x * 2, x.double()] if x.sum() > 0 else [x * 3, x * 4]


@FAMILY.program(ONE, FREE, grad=True)
def set_of_names(x: Tensor) -> tuple[Tensor, int]:
    if x.sum() > 0:
        names, y = {"a", "b"}, x * 2
    else:
        names, y = {"b", "a"}, x * 3
    return y, len(names)


@FAMILY.program(ONE, WHERE | keep("stride_mismatch"), grad=True)
def chunks_taken_in_the_arm(x: Tensor) -> Tensor:
    # Views with gaps, which a select would close; but only their sum leaves the function.
    a, b = x.chunk(2, 1) if x.sum() > 0 else (x * 2).chunk(2, 1)
    return a + b
