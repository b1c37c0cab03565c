"""Tensors that are no ordinary ones, for tests of what capture does with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree
from torch.utils._python_dispatch import return_and_correct_aliasing

BASE = torch.linspace(-1.0, 2.0, 16).reshape(4, 4)


class Pair(Tensor):
    """Two tensors of one shape; each call is made with either. Numbers are those of the first."""

    @staticmethod
    def __new__(cls, a: Tensor, b: Tensor) -> Pair:
        return Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, a.size(), strides=a.stride(), dtype=a.dtype, requires_grad=a.requires_grad
        )

    def __init__(self, a: Tensor, b: Tensor) -> None:
        self.a, self.b = a, b

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["a", "b"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], *_: Any) -> Pair:
        return Pair(inner["a"], inner["b"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any, kwargs: Any = None) -> Any:
        def of(name: str) -> Any:
            return _pytree.tree_map_only(Pair, lambda v: getattr(v, name), (args, kwargs or {}))

        (one, named), (other, also) = of("a"), of("b")
        flat, spec = _pytree.tree_flatten(func(*one, **named))
        rest = _pytree.tree_leaves(func(*other, **also))
        both = [Pair(v, w) if isinstance(v, Tensor) else v for v, w in zip(flat, rest, strict=True)]
        made = _pytree.tree_unflatten(both, spec)
        return return_and_correct_aliasing(func, args, kwargs or {}, made)


class Quantized(Tensor):
    """Integers and a scale, as torchao has them: every call but a copy is made of the product."""

    @staticmethod
    def __new__(cls, q: Tensor, scale: Tensor) -> Quantized:
        return Tensor._make_wrapper_subclass(cls, q.size(), dtype=scale.dtype)  # type: ignore[attr-defined]

    def __init__(self, q: Tensor, scale: Tensor) -> None:
        self.q, self.scale = q, scale

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["q", "scale"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], *_: Any) -> Quantized:
        return Quantized(inner["q"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any, kwargs: Any = None) -> Any:
        def plain(value: Quantized) -> Tensor:
            return value.q.to(value.scale.dtype) * value.scale

        if func in (torch.ops.aten.detach.default, torch.ops.aten.clone.default):
            return Quantized(func(args[0].q), func(args[0].scale))
        return func(*_pytree.tree_map_only(Quantized, plain, args), **(kwargs or {}))


class Tagged(Tensor):
    """Every function goes through it."""

    def __deepcopy__(self, memo: Any) -> Tagged:
        return self.as_subclass(Tensor).clone().as_subclass(Tagged)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


class Weight(nn.Parameter):
    """A parameter of a class of the program."""


def _ragged(sign: float) -> Tensor:
    parts = [sign * BASE[:1], sign * BASE[:3]]
    return torch.nested.nested_tensor(parts, layout=torch.jagged)


NOT_COPIED = ["nested", "sparse", "csr", "mkldnn"]  # by copy.deepcopy
SPECIAL: dict[str, Callable[[float], Tensor]] = {
    "pair": lambda sign: Pair(sign * BASE, -2 * sign * BASE),
    "quantized": lambda sign: Quantized((40 * sign * BASE).to(torch.int8), torch.tensor(0.025)),
    "tagged": lambda sign: (sign * BASE).as_subclass(Tagged),
    "jagged": _ragged,
    "nested": lambda sign: torch.nested.nested_tensor([sign * BASE[:1], sign * BASE[:3]]),
    "sparse": lambda sign: (sign * BASE).relu().to_sparse(),
    "csr": lambda sign: (sign * BASE).to_sparse_csr(),
    "mkldnn": lambda sign: (sign * BASE).to_mkldnn(),
    "quint8": lambda sign: torch.quantize_per_tensor(sign * BASE, 0.1, 10, torch.quint8),
    "weight": lambda sign: Weight(sign * BASE, requires_grad=False),
}
