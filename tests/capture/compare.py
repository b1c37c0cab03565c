"""Everything a caller can see of a result, compared bit for bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn


def tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor inside nested containers, in order, repeats included."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors(item)
    elif isinstance(value, nn.Module):
        yield from value.parameters()
        yield from value.buffers()
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for item in dataclasses.fields(value):
            yield from tensors(getattr(value, item.name))


def containers(value: Any) -> Iterator[Any]:
    """Every list, dict and set inside nested containers, outermost first, repeats included."""
    if isinstance(value, (list, dict, set)):
        yield value
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from containers(item)


def same_bits(left: Tensor, right: Tensor, *, zero_signs: bool = True) -> bool:
    """Equal values and, unless told otherwise, equal signs of zero; any NaN equals any NaN."""
    if left.device.type == "meta":
        return True
    left, right = left.detach(), right.detach()
    if left.is_complex():
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
    return {
        "type": type(tensor),
        "dtype": tensor.dtype,
        "shape": tuple(tensor.shape),
        "stride": tensor.stride(),
        "device": tensor.device,
        "layout": tensor.layout,
        "requires_grad": tensor.requires_grad,
        "has grad_fn": tensor.grad_fn is not None,
        "inference": tensor.is_inference(),
    }


def assert_same(eager: Any, compiled: Any, path: str) -> None:
    """Raise AssertionError, naming the path, at the first difference."""
    assert type(eager) is type(compiled), (
        f"{path}: eager gives a {type(eager).__name__}, compiled a {type(compiled).__name__}"
    )
    if isinstance(eager, Tensor):
        for name, fact in facts(eager).items():
            found = facts(compiled)[name]
            assert fact == found, f"{path}: {name} is {fact} in eager, {found} compiled"
        assert same_bits(eager, compiled), f"{path}: values\neager    {eager}\ncompiled {compiled}"
    elif isinstance(eager, Mapping):
        assert list(eager) == list(compiled), f"{path}: keys {list(eager)} vs {list(compiled)}"
        for key in eager:
            assert_same(eager[key], compiled[key], f"{path}[{key!r}]")
    elif isinstance(eager, (tuple, list)):
        assert len(eager) == len(compiled), f"{path}: length {len(eager)} vs {len(compiled)}"
        for index, (one, other) in enumerate(zip(eager, compiled, strict=True)):
            assert_same(one, other, f"{path}[{index}]")
    elif dataclasses.is_dataclass(eager) and not isinstance(eager, type):
        for item in dataclasses.fields(eager):
            one, other = getattr(eager, item.name), getattr(compiled, item.name)
            assert_same(one, other, f"{path}.{item.name}")
    elif isinstance(eager, float):
        # repr tells -0.0 from 0.0 and finds nan equal to nan.
        assert repr(eager) == repr(compiled), f"{path}: {eager!r} vs {compiled!r}"
    else:
        assert eager == compiled, f"{path}: {eager!r} vs {compiled!r}"


def sharing(*values: Any) -> dict[str, list[int]]:
    """Who is who: for each tensor, storage and container, the index of the first that is the same."""
    every = list(tensors(values))
    kinds = {
        "objects": [id(tensor) for tensor in every],
        "storages": [tensor.untyped_storage()._cdata for tensor in every],
        "containers": [id(container) for container in containers(values)],
    }
    return {name: [ids.index(one) for one in ids] for name, ids in kinds.items()}
