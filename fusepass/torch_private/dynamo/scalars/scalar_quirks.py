"""Give Python's answer, or break the graph, for numbers on which Dynamo fails.

Run on torch 2.11 to 2.15.

Plain Dynamo ends with an internal error where a NaN, or a bool beside an integer that varies, comes
into a frame that it compiled for any number.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import sympy
import torch
from torch import fx

from fusepass.torch_private.dynamo.stack import is_any_tensor, realized
from fusepass.torch_private.patches import Patches, Theirs

_SCALED = {"method_add_": "alpha", "method_addcdiv_": "value", "method_addcmul_": "value"}
_COMPARISONS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)


def is_nan(number: Any) -> bool:
    """Whether it is known of a float that it is not a number."""
    if isinstance(number, torch.SymFloat):
        return number.node.expr is sympy.nan
    return isinstance(number, float) and math.isnan(number)


def known_by_nan(node: fx.Node) -> Any:
    """What a known NaN among the operands of a call makes its result.

    Returns:
        A number, or the node of one; None if that is left to be computed.
    """
    if not any(map(is_nan, node.args)):
        return None
    if node.target in _COMPARISONS:
        return node.target is operator.ne
    if node.target in (torch.sym_max, torch.sym_min) and len(node.args) == 2:
        return node.args[0]  # of ``max`` and ``min`` the first, unless the second compares
    return None


def take_int_for_bool(node: fx.Node) -> bool:
    """Write ``1 + n`` for ``True + n`` with a symbol ``n``; says whether there was such a bool."""
    if getattr(node.target, "__module__", "") != operator.add.__module__:
        return False
    numbers = [n.meta.get("example_value") for n in node.all_input_nodes]
    symbols = any(isinstance(number, (torch.SymInt, torch.SymFloat)) for number in numbers)
    if not symbols or not any(isinstance(arg, bool) for arg in node.args):
        return False
    node.args = tuple(int(arg) if isinstance(arg, bool) else arg for arg in node.args)
    return True


def break_at_power(node: fx.Node) -> None:
    """Break the graph at a power of a float that varies and is negative or NaN this time.

    Symbolic floats refuse it, and Dynamo would end the program with an error of its own.

    Raises:
        Unsupported: of Dynamo, if ``node`` is such a power.
    """
    from torch._dynamo.exc import unimplemented

    if node.target not in (operator.pow, operator.ipow, pow) or len(node.args) < 2:
        return
    base = node.args[0]
    number = base.meta.get("example_value") if isinstance(base, fx.Node) else None
    hint = number.node.hint if isinstance(number, torch.SymFloat) else None
    if hint is not None and not hint >= 0:
        unimplemented(
            gb_type="Power of a symbolic float",
            context=str(node),
            explanation=f"{hint} is negative or NaN, of which symbolic floats have no power.",
            hints=["Multiply the number by itself, or take the power of a tensor."],
        )


def hook_int(patches: Patches, is_ours: Callable[[Any], bool]) -> None:
    """Break the graph at ``int()`` of a known NaN or infinity, which raises.

    From torch 2.13 on Dynamo itself raises, and ends the program with an error of its own.
    """
    from torch._dynamo.exc import unimplemented
    from torch._dynamo.variables import ConstantVariable

    def nb_int_impl(theirs: Theirs, self: Any, tx: Any) -> Any:
        if type(self.value) is float and not math.isfinite(self.value) and is_ours(tx):
            unimplemented(
                gb_type="Integer of a float that has none",
                context=str(self.value),
                explanation=f"int({self.value}) raises.",
                hints=[],
            )
        return theirs(self, tx)

    if "nb_int_impl" in vars(ConstantVariable):
        patches.put(ConstantVariable, "nb_int_impl", nb_int_impl)


def hook_scaled(patches: Patches, is_ours: Callable[[Any], bool]) -> None:
    """Record ``x.add_(y, alpha=2.5)`` and its like as they are.

    Dynamo makes a product and a sum of them, which rounds otherwise, and takes a number that eager
    finds too large for the dtype.

    Args:
        patches: take the hooks out again.
        is_ours: called with a translator; says whether capture has a part in its frame.
    """
    from torch._dynamo.variables import TensorVariable

    def scaled(name: str, theirs: Theirs, self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        number = kwargs.get(name)
        if number is None or is_any_tensor(realized(number)) or not is_ours(tx):
            return theirs(self, tx, *args, **kwargs)
        return None  # then it is a call like any other

    for method, name in _SCALED.items():
        patches.put(TensorVariable, method, functools.partial(scaled, name))
