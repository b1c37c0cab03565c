"""Functions of a tensor and a number that torch has for two tensors, too."""

from __future__ import annotations

import math

import torch
from torch import fx

from fusepass.graph.number import Unfit
from fusepass.graph.number_pointwise import powers
from fusepass.graph.number_use import Use, common_dtype
from fusepass.report.decision import Reason


def of_two(use: Use) -> None:
    """``copysign``, ``xlogy`` and their like: eager itself makes a tensor of the number."""
    name = "input" if use.number("input") is not None else "other"
    number, x_name = use.number(name), "other" if name == "input" else "input"
    if number is None or any(node in use.held for node in use.others(name)):
        raise use.unfit()
    x, dtype = use.tensor(x_name), use.value.dtype
    use.settled(number, x.dtype)
    if "xlog" in use.name and name == "other" and use.value.requires_grad and number.range.nan:
        _logarithm(use, number.on(x.device, dtype))
        return
    use.put(**{name: number.on(x.device, dtype)})


def _logarithm(use: Use, other: fx.Node) -> None:
    """``xlogy`` and ``xlog1py`` in training: to a number that is NaN, zeros give no gradient.

    To a tensor that holds it they give NaN.
    """
    given, one_more = use.given["input"], use.name.rstrip("_").endswith("xlog1py")
    none = use.record(torch.eq, given, 0)
    none = use.record(torch.logical_and, none, use.record(torch.isnan, other))
    safe = use.record(torch.where, none, 0.0 if one_more else 1.0, other)
    made = use.record(torch.special.xlog1py if one_more else torch.xlogy, given, safe)
    use.narrowed(use.record(torch.where, none, math.nan, made))


def isin(use: Use) -> None:
    """``isin`` of a tensor's elements and one number: eager compares each with it."""
    number, invert = use.number("test_element"), use.given.get("invert", False)
    known = use.given.keys() <= {"elements", "test_element", "assume_unique", "invert"}
    if number is None or not known or not isinstance(invert, bool):
        raise use.unfit()
    x = use.tensor("elements")
    use.settled(number, x.dtype)
    tensor = number.on(x.device, common_dtype(x, number))
    call = torch.ne if invert else torch.eq
    use.become(use.record(call, use.given["elements"], tensor))


def float_power(use: Use) -> None:
    """``float_power``: a power of doubles."""
    held = [name for name in ("input", "exponent") if use.number(name) is not None]
    (name,) = held if len(held) == 1 else (None,)
    if name is None or any(node in use.held for node in use.others(name)):
        raise use.unfit()
    number, x_name = use.number(name), "exponent" if name == "input" else "input"
    assert number is not None
    x, given = use.tensor(x_name), use.given[x_name]
    use.settled(number, torch.float64)
    if use.value.requires_grad:
        raise Unfit(Reason.INEXACT, "the gradient of a power depends on its exponent otherwise")
    wide = given if x.dtype == torch.float64 else use.record("to", given, torch.float64)
    tensor = number.on(x.device, torch.float64)
    made = use.record(torch.pow, tensor, wide) if name == "input" else powers(use, wide, tensor)
    use.narrowed(made)
