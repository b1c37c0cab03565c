"""Make the text of a tensor that holds one number without torch's dozen tensor operations.

Torch decides how to show a number with tensor operations, about 90 µs of them. For the plain case,
default print options and a real number, the same decisions are made here on a Python number; in
every other case torch is asked. Run on torch 2.11 to 2.15.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import _tensor_str
from torch.autograd import forward_ad

_FLOATS = frozenset([torch.float16, torch.bfloat16, torch.float32, torch.float64])
_WHOLE = frozenset([torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
_UNNAMED = (torch.int64, torch.bool)  # dtypes that no text says, as the default dtype
_WIDTH = 80  # a longer text has several lines
_LEAST = 1e-37  # below, a processor may have been told to take numbers for zero
_REPR, _STR, _INTERN = torch.Tensor.__repr__, _tensor_str._str, _tensor_str._str_intern
_TORCHS_OWN = all(f.__module__.startswith("torch._tensor") for f in (_REPR, _STR, _INTERN))


def without_overrides() -> AbstractContextManager[Any]:
    """Inside, no subclass's ``__torch_function__`` is looked up."""
    return torch._C.DisableTorchFunctionSubclass()


def text_of_number(
    tensor: torch.Tensor, device: torch.device, grad_fn: str | None, requires_grad: bool
) -> str | None:
    """What ``str`` gives for a 0-d tensor, or None if torch has to be asked.

    Args:
        tensor: holds the number, on any device.
        device: where the text says that it is.
        grad_fn: name of the class of the ``grad_fn`` in the text, or None.
        requires_grad: whether the text says so where it shows no ``grad_fn``.
    """
    dtype = tensor.dtype
    if tensor.dim() or type(tensor) is not torch.Tensor or not _is_plain_printing():
        return None
    if dtype in _FLOATS:
        number = _float(tensor.item())
        if number is None:
            return None
    elif dtype in _WHOLE:
        number = str(tensor.item())
    else:
        return None
    text = f"tensor({number}"
    kind, default = device.type, torch._C._get_default_device()
    if kind not in ("cpu", "cuda"):
        return None
    if kind != default or (kind == "cuda" and torch.cuda.current_device() != device.index):
        text += f", device='{device}'"
    if dtype not in _UNNAMED and dtype is not torch.get_default_dtype():
        text += f", dtype={dtype}"
    if grad_fn is not None:
        text += f", grad_fn=<{grad_fn}>"
    elif requires_grad:
        text += ", requires_grad=True"
    return text + ")" if len(text) + 2 <= _WIDTH else None


def _is_plain_printing() -> bool:
    """Whether nobody has changed how torch prints, and nothing looks on while it does."""
    options = _tensor_str.PRINT_OPTS
    defaults = options.precision == 4 and options.linewidth == _WIDTH and options.sci_mode is None
    return (
        defaults
        and options.edgeitems != 0
        and _TORCHS_OWN
        and torch.Tensor.__repr__ is _REPR
        and torch.Tensor.__str__ is object.__str__
        and _tensor_str._str is _STR
        and _tensor_str._str_intern is _INTERN
        and not torch._C._len_torch_function_stack()
        and forward_ad._current_level < 0
        and torch._C._functorch.peek_interpreter_stack() is None
    )


def _float(value: float) -> str | None:
    """A number as ``torch._tensor_str._Formatter`` writes it when it is the only one."""
    size = abs(value)
    if not math.isfinite(value):
        return f"{value:.0f}"
    if 0 < size < _LEAST:
        return None
    if size == 0:
        return f"{value:.0f}."
    if size > 1.0e8 or size < 1.0e-4:
        return f"{value:.4e}"
    return f"{value:.0f}." if value.is_integer() else f"{value:.4f}"
