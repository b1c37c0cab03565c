"""What two runs of one program left behind, compared: everything that a caller can see."""

from __future__ import annotations

import dataclasses
import enum
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fusepass.torch_private.fx.graphs import storage_key
from fusepass.torch_private.fx.tensor_kinds import wrapped


class Difference(AssertionError):
    """Two runs differ.

    Attributes:
        kind: what differs: ``values``, ``dtype``, ``stride``, ``structure``, ...
        path: where, as ``result[0]``.
        bound: for values, the RMS error allowed.
        certain: whether rounding with bad luck cannot explain it.
    """

    def __init__(
        self, kind: str, path: str, text: str, bound: float = 0.0, certain: bool = True
    ) -> None:
        super().__init__(f"{path}: {text}" if path else text)
        self.kind, self.path, self.bound, self.certain = kind, path, bound, certain


def tensors(value: Any, inside: frozenset[int] = frozenset()) -> Iterator[Tensor]:
    """Every tensor inside nested containers, in order, repeats included.

    What is reached again from ``inside`` itself (by id), as a node from its child, is left out.
    """
    if isinstance(value, Tensor):
        yield value
    if id(value) in inside:
        return
    inside |= {id(value)}
    if isinstance(value, nn.Module):
        yield from value.parameters()
        yield from value.buffers()
    for item in _items(value):
        yield from tensors(item, inside)
    for name, item in attributes(value).items():
        if not isinstance(value, Mapping) or name not in value:  # no key that is also an attribute
            yield from tensors(item, inside)


def containers(value: Any, inside: frozenset[int] = frozenset()) -> Iterator[Any]:
    """Every list, dict, set and object inside nested ones, outermost first, repeats included."""
    if id(value) in inside:
        return
    inside |= {id(value)}
    held = attributes(value)
    if isinstance(value, (list, dict, set)) or held:
        yield value
    for item in (*_items(value), *held.values()):
        yield from containers(item, inside)


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    return value if isinstance(value, (tuple, list)) else ()


def attributes(value: Any) -> dict[str, Any]:
    """Attributes of an instance of a class of the program by name; none of anything else."""
    kind = type(value)
    foreign = kind.__module__.split(".")[0] in _NOT_THE_PROGRAMS  # a fuzzed class is one of ours
    if (foreign and not dataclasses.is_dataclass(value)) or isinstance(
        value, (type, Tensor, nn.Module, enum.Enum, types.FunctionType)
    ):
        return {}
    held = dict(getattr(value, "__dict__", {}))
    if dataclasses.is_dataclass(value):
        names = (item.name for item in dataclasses.fields(value))
        held |= {name: getattr(value, name) for name in names if hasattr(value, name)}
    return held


_NOT_THE_PROGRAMS = ("builtins", "collections", "fusepass", "logging", "torch")


def same_bits(left: Tensor, right: Tensor, *, zero_signs: bool = True) -> bool:
    """Equal values and, unless told otherwise, equal signs of zero; any NaN equals any NaN."""
    if left.device.type == "meta":
        return True
    left, right = (one.detach().as_subclass(Tensor) for one in (left, right))
    if left.is_complex():
        left, right = left.resolve_conj(), right.resolve_conj()  # may be conjugated lazily
        left, right = torch.view_as_real(left), torch.view_as_real(right)
    if not left.is_floating_point():
        return torch.equal(left, right)
    nan = left.isnan()
    if not torch.equal(nan, right.isnan()):
        return False
    equal = left == right
    if zero_signs:
        equal &= left.signbit() == right.signbit()
    return bool((equal | nan).all())


def facts(tensor: Tensor) -> dict[str, Any]:
    """What a program can ask of a tensor besides its values."""
    if tensor.is_nested:  # sizes of rows are other symbols for each tensor that is made
        return {"type": type(tensor), "requires_grad": tensor.requires_grad}
    strided = tensor.layout is torch.strided
    return {
        "type": type(tensor),
        "dtype": tensor.dtype,
        "shape": tuple(tensor.shape),
        "stride": tensor.stride() if strided else None,
        "device": tensor.device,
        "layout": tensor.layout,
        "requires_grad": tensor.requires_grad,
        "has grad_fn": tensor.grad_fn is not None,
        "inference": tensor.is_inference(),
    }


def facts_of_rules(tensor: Tensor) -> dict[str, Any]:
    """The facts that a rewrite must keep: strides count where a step along them is taken."""
    found = facts(tensor)
    found.pop("has grad_fn", None)
    if tensor.layout is torch.strided and not tensor.is_nested:
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        found["stride"] = tensor.numel() and tuple(s if size > 1 else 0 for size, s in steps)
    return found


Facts = Callable[[Tensor], dict[str, Any]]


def assert_same_facts(eager: Tensor, compiled: Tensor, path: str, facts: Facts = facts) -> None:
    """Raise Difference unless two tensors are alike in everything but their values."""
    found = facts(compiled)
    for name, fact in facts(eager).items():
        if fact != found.get(name):
            text = f"{name} is {fact} in eager, {found.get(name)} compiled"
            raise Difference(name, path, text)


def assert_same_bits(eager: Tensor, compiled: Tensor, path: str) -> None:
    """Raise Difference unless two tensors hold the same numbers."""
    if not same_bits(eager, compiled):
        raise Difference("values", path, f"values\neager    {eager}\ncompiled {compiled}")


Values = Callable[[Tensor, Tensor, str], None]


def assert_same(
    eager: Any, compiled: Any, path: str, values: Values = assert_same_bits, facts: Facts = facts
) -> None:
    """Raise Difference, naming the path, at the first difference.

    Args:
        eager: what is right by definition.
        compiled: the same of another run.
        path: its name.
        values: compares the numbers of two tensors.
        facts: what else of a tensor is compared.
    """

    def inner(eager: Any, compiled: Any, path: str) -> None:
        assert_same(eager, compiled, path, values, facts)

    if type(eager) is not type(compiled):
        kinds = f"eager gives a {type(eager).__name__}, compiled a {type(compiled).__name__}"
        raise Difference("structure", path, kinds)
    if isinstance(eager, Tensor):
        assert_same_facts(eager, compiled, path, facts)
        pairs = list(zip(_inside(eager), _inside(compiled), strict=True))
        for index, (one, other) in enumerate(pairs):
            inner(one, other, f"{path}.inside[{index}]")
        if not pairs:
            values(eager, compiled, path)
    elif isinstance(eager, Mapping):
        if list(eager) != list(compiled):
            raise Difference("structure", path, f"keys {list(eager)} vs {list(compiled)}")
        for key in eager:
            inner(eager[key], compiled[key], f"{path}[{key!r}]")
    elif isinstance(eager, (tuple, list)):
        if len(eager) != len(compiled):
            raise Difference("structure", path, f"length {len(eager)} vs {len(compiled)}")
        for index, (one, other) in enumerate(zip(eager, compiled, strict=True)):
            inner(one, other, f"{path}[{index}]")
    elif isinstance(eager, float):
        # repr tells -0.0 from 0.0 and finds nan equal to nan.
        if repr(eager) != repr(compiled):
            raise Difference("python value", path, f"{eager!r} vs {compiled!r}")
    elif not attributes(eager) and eager != compiled:
        raise Difference("python value", path, f"{eager!r} vs {compiled!r}")
    held, found = attributes(eager), attributes(compiled)
    if list(held) != list(found):
        raise Difference("structure", path, f"attributes {list(held)} vs {list(found)}")
    for name in held:
        inner(held[name], found[name], f"{path}.{name}")


def sharing(*values: Any) -> dict[str, list[int]]:
    """Who is who: for each tensor, storage and container, the first that is the same."""
    every = list(tensors(values))
    kinds = {
        "objects": [id(tensor) for tensor in every],
        "storages": [storage_key(_innermost(tensor)) for tensor in every],
        "containers": [id(container) for container in containers(values)],
    }
    return {name: [ids.index(one) for one in ids] for name, ids in kinds.items()}


def _inside(tensor: Tensor) -> list[Tensor]:
    """What a tensor is made of, as tensors; nothing where it holds its own numbers."""
    if tensor.is_nested and tensor.layout is torch.strided:
        return list(tensor.unbind())
    if tensor.is_quantized:
        return [tensor.int_repr()]
    if tensor.layout is torch.strided or tensor.layout is torch.jagged:
        return wrapped(tensor)
    return [tensor.to_dense()]


def _innermost(tensor: Tensor) -> Tensor:
    """The first tensor inside a subclass that has memory of its own."""
    inner = wrapped(tensor)
    return _innermost(inner[0]) if inner else tensor
