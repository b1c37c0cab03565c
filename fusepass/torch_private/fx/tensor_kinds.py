"""Tell ordinary tensors from subclasses, special layouts and tensors in a transform.

Run on torch 2.11 to 2.15.
"""

from __future__ import annotations

from typing import Any

import torch


def own_rules(fake: torch.Tensor) -> str | None:
    """In what way calls with a tensor are not those of ordinary tensors, or None if they are.

    The program's own code may run in any of them (``__torch_dispatch__``), the memory is that of
    other tensors, and few calls have a form for it.

    Returns:
        A phrase for behind "the tensor": "is a nested tensor".
    """
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(fake):
        fake = functorch.get_unwrapped(fake)
    if fake.is_nested:
        return "is a nested tensor"
    if is_wrapper(fake):
        return _is_a(type(fake))
    if fake.layout is not torch.strided:
        return f"has the layout {fake.layout}"
    if fake.is_quantized:
        return f"is quantized ({fake.dtype})"
    return None


def rules_not_torchs(fake: torch.Tensor) -> str | None:
    """The same, or None where the rules are those of a subclass of torch's own."""
    torchs = type(fake).__module__.partition(".")[0] == "torch"
    return None if torchs and is_wrapper(fake) else own_rules(fake)


def kind_of_fake(fake: torch.Tensor) -> str | None:
    """In what way a fake tensor stands for no ordinary tensor, as :func:`own_rules`, or None."""
    own = own_rules(fake)
    return own if own is not None else _transformed(fake) or _other_type(fake)


def is_plain_fake(fake: torch.Tensor) -> bool:
    """Whether a fake tensor stands for an ordinary strided tensor."""
    return kind_of_fake(fake) is None


def is_transformed(fake: torch.Tensor) -> bool:
    """Whether a tensor is that of each row inside ``torch.vmap``, or inside ``functionalize``.

    It is what it is in the transform only: behind that nothing can be computed of it.
    """
    functorch = torch._C._functorch
    while functorch.is_gradtrackingtensor(fake):  # by itself it is as good as what it wraps
        fake = functorch.get_unwrapped(fake)
    return bool(functorch.is_batchedtensor(fake) or functorch.is_functionaltensor(fake))


def why_not_plain(value: Any) -> str | None:
    """Say in what way a tracked tensor is no ordinary one; None if it is one."""
    return own_rules_of(value) or kind_of_fake(value.proxy.node.meta["example_value"])


def own_rules_of(value: Any) -> str | None:
    """The same but for transforms of torch.func."""
    from torch._dynamo.variables import NumpyNdarrayVariable, TensorVariable
    from torch._dynamo.variables.torch_function import TensorWithTFOverrideVariable

    if isinstance(value, NumpyNdarrayVariable):
        return "is a NumPy array"
    if isinstance(value, TensorWithTFOverrideVariable):
        return _is_a(value.python_type())
    fake = value.proxy.node.meta.get("example_value")
    if type(value) is not TensorVariable or not isinstance(fake, torch.Tensor):
        return "is a number or an object that torch holds in a tensor"
    return own_rules(fake)


def is_wrapper(value: Any) -> bool:
    """Whether a value is of a subclass that wraps tensors, and is no tensor by itself."""
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    return bool(is_traceable_wrapper_subclass(value))


def wrapped(value: torch.Tensor) -> list[torch.Tensor]:
    """The tensors that a subclass wraps; none where a tensor holds its own numbers."""
    if not is_wrapper(value):
        return []
    given: Any = value
    names, _ = given.__tensor_flatten__()
    held = (getattr(value, name) for name in names)
    return [one for one in held if isinstance(one, torch.Tensor)]  # a DTensor holds its mesh, too


def held_inside(value: torch.Tensor) -> list[torch.Tensor]:
    """The tensors that a subclass wraps, and those that these wrap: its memory is theirs."""
    held = wrapped(value)
    return held + [inner for one in held for inner in held_inside(one)]


def _transformed(fake: torch.Tensor) -> str | None:
    functorch = torch._C._functorch
    if functorch.is_batchedtensor(fake):
        return "is that of each row inside torch.vmap"
    if functorch.is_functionaltensor(fake):
        return "is inside torch.func.functionalize"
    if functorch.is_functorch_wrapped_tensor(fake):
        return "is inside torch.func.grad, vjp or jvp"
    return None


def _other_type(fake: torch.Tensor) -> str | None:
    from torch._subclasses.fake_tensor import FakeTensor

    plain = issubclass(type(fake), (FakeTensor, torch.nn.Parameter))
    return None if plain else _is_a(type(fake))


def _is_a(kind: type) -> str:
    return f"is a {kind.__name__}, a subclass of torch.Tensor"
