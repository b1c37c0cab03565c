"""Torch functions, watched in eager mode on a machine without a device.

They say what the dispatcher cannot: that text is made of a tensor, that a list is, where a tensor
is asked to be, and that it is copied there. On this machine such a copy is none; a copy is made
all the same, because a tensor moved to a device and back is another one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fusepass.report.host_syncs import residence
from fusepass.report.host_syncs.kinds import Kind
from fusepass.torch_private.fx.graphs import tree_flatten

_TEXT = ("__repr__", "__str__", "__format__")
_FROM_DATA = ("tensor", "as_tensor", "asarray", "new_tensor")
_CHECKED_ON_CPU_ONLY = ("one_hot", "quantile", "nanquantile")


class Functions(TorchFunctionMode):
    """Watches torch functions for a :class:`fusepass.report.host_syncs.observe.Watch`."""

    def __init__(self, watch: Any, as_if: residence.AsIf) -> None:
        super().__init__()
        self.watch, self.as_if = watch, as_if

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.device:
            named = args[0] if args else kwargs.get("device", kwargs.get("type"))
            device = torch.device(*args, **kwargs)
            return self.as_if.note_device(device, self.as_if.names_device(named))
        name = getattr(func, "__name__", "")
        if name == "__get__":
            return self._attribute(func, args)
        if name in ("to", "cpu", "cuda", "type_as"):
            return self._moved(func, name, args, kwargs)
        if name in residence.MAKERS or name.startswith("new_") or name.endswith("_like"):
            return self._made(func, name, args, kwargs)
        read = self._read(name, args, kwargs)
        if read is not None:
            kind, times = read
            if times and self.as_if(args[0]):
                self.watch.add(kind, f"Tensor.{name}", times, hidden=True, via=name)
            with self.watch.muted():
                return func(*args, **kwargs)
        return self._run(func, name, args, kwargs)

    def _read(self, name: str, args: Any, kwargs: Any) -> tuple[Kind, int] | None:
        """Kind of a function that reads a tensor as a whole, None of any other."""
        if not args or not isinstance(args[0], Tensor):
            return None
        if name in _TEXT:
            return Kind.PRINT, 1
        if name == "tolist":
            return Kind.ITEM, 1
        if name in ("numpy", "__array__"):
            return Kind.COPY_OUT, 1
        if name in _CHECKED_ON_CPU_ONLY:
            classes = args[1] if len(args) > 1 else kwargs.get("num_classes", -1)
            return Kind.SIZE, int(name == "one_hot" and isinstance(classes, int) and classes < 0)
        return None

    def _run(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Any other function: what it makes of nothing is where its operands are."""
        operands = _tensors((args, kwargs))
        outer = self.watch.via, self.as_if.default
        self.watch.via, self.as_if.default = name, any(map(self.as_if, operands))
        try:
            out = func(*args, **kwargs)
        finally:
            self.watch.via, self.as_if.default = outer
        if operands and not any(map(self.as_if, operands)):
            self.as_if.computed(operands, _tensors(out))
        return out

    def _attribute(self, func: Any, args: Any) -> Any:
        out = func(*args)
        if isinstance(out, torch.device):
            return self.as_if.note_device(out, self.as_if(args[0]))
        if isinstance(out, Tensor):
            self.as_if.computed(args, [out])
        return out

    def _moved(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """``.to``, ``.cpu``, ``.cuda``."""
        source = args[0]
        target = {"cpu": False, "cuda": True}.get(name)
        if target is None:
            target = self._target(args[1:], kwargs)
        if target is None or not isinstance(source, Tensor) or target == self.as_if(source):
            return self._run(func, name, args, kwargs)
        with self.watch.muted():
            out = source.clone() if name == "cuda" else func(*args, **kwargs)
            out = out.clone() if out is source else out
        self.as_if.put([out], target)
        waits = not kwargs.get("non_blocking", any(value is True for value in args[1:]))
        if waits and source.numel():
            kind = Kind.COPY_IN if target else Kind.COPY_OUT
            self.watch.add(kind, f"Tensor.{name}", hidden=True)
        return out

    def _target(self, args: Any, kwargs: Any) -> bool | None:
        """Whether ``.to(...)`` asks for the device (True) or the host (False), None for neither."""
        named = kwargs.get("device", kwargs.get("other"))
        if named is None and args and not isinstance(args[0], torch.dtype):
            named = args[0]
        if isinstance(named, Tensor):
            return self.as_if(named)
        return None if named is None else self.as_if.names_device(named)

    def _made(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """A function that makes a tensor where its ``device`` says, or where its operand is."""
        like = args[0] if args and isinstance(args[0], Tensor) else None
        beside = name.startswith("new_") or name.endswith("_like")
        data = args[1] if name == "new_tensor" and len(args) > 1 else (args[0] if args else None)
        named = kwargs.get("device")
        source = data if name in _FROM_DATA and isinstance(data, Tensor) else None
        if named is None and like is not None and (beside or source is not None):
            target = self.as_if(like)
        else:
            target = self.as_if.names_device(named)
        before = source is not None and self.as_if(source)
        outer, self.as_if.default = self.as_if.default, target
        try:
            out = func(*args, **kwargs)
        finally:
            self.as_if.default = outer
        if not isinstance(out, Tensor):
            return out
        if out is source and before != target:
            with self.watch.muted():
                out = out.clone()
        if out is not source:
            self.as_if.put([out], target)
        if name in _FROM_DATA:
            self._uploaded(f"torch.{name}", data, source, before, target, out)
        return out

    def _uploaded(
        self, name: str, data: Any, source: Tensor | None, before: bool, target: bool, out: Tensor
    ) -> None:
        """Data of Python's goes up in one copy; tensors among it are read one by one."""
        if source is not None:
            if before != target and out.numel():
                self.watch.add(Kind.COPY_IN if target else Kind.COPY_OUT, name, hidden=True)
            return
        read = sum(map(self.as_if, _tensors(data)))
        if read:
            self.watch.add(Kind.ITEM, name, read, hidden=True)
        if target and out.numel():
            self.watch.add(Kind.COPY_IN, name, hidden=True)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, Tensor)]
