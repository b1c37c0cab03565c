"""Restore what one call of a program changed, after the call was watched.

What can be reached from the callable and its arguments is noted before the call: tensors with
their gradients, attributes of modules and other objects and of their classes, lists, dicts, sets
and byte arrays, closure variables, and the globals that functions of the program name, also in code
nested in them. Followed is code of the program, not that of libraries. Files, printed text and
objects of the standard library are not put back.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from functools import partial
from types import CellType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import torch

from fusepass.report.user_code import (
    functions_of,
    globals_stored,
    is_users_class,
    is_users_function,
    is_users_module,
    names_in,
    slots_of,
)

_MOST_CODE = 5_000  # functions and classes looked into: a program, not all that it is built on


@contextlib.contextmanager
def everything_restored(*roots: Any) -> Iterator[None]:
    """Put back, on leaving, whatever can be reached from ``roots``, and the random generators."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    numpy = sys.modules.get("numpy")
    others = random.getstate(), numpy.random.get_state() if numpy is not None else None
    before = _Snapshot(roots)
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            before.restore()
            random.setstate(others[0])
            if numpy is not None:
                numpy.random.set_state(others[1])


class _Snapshot:
    """Copies of everything mutable below some roots, each object once."""

    def __init__(self, roots: Iterable[Any]) -> None:
        self.tensors: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]] = []
        self.dicts: list[tuple[dict[Any, Any], list[tuple[Any, Any]]]] = []
        self.sequences: list[tuple[Any, list[Any]]] = []
        self.bindings: list[tuple[dict[str, Any], dict[str, Any], set[str]]] = []
        self.attributes: list[tuple[Any, dict[str, Any]]] = []
        self.cells: list[tuple[CellType, Any]] = []
        self.names: set[str] = set()  # that code of the program reads by, so far
        self.modules: list[ModuleType] = []  # of the program
        self.done: set[tuple[ModuleType, str]] = set()
        self.code = 0
        todo = [*roots, *(r.forward for r in roots if isinstance(r, torch.nn.Module))]
        seen: dict[int, Any] = {}  # holds what it has seen, so that no id is used twice
        while todo:
            value = todo.pop()
            if id(value) not in seen:
                seen[id(value)] = value
                todo.extend(self._note(value))
            if not todo:
                todo += self._in_modules()

    def _note(self, value: Any) -> Iterable[Any]:
        """Copy one object; what hangs below it is returned."""
        if isinstance(value, torch.Tensor):
            grad = value.grad if value.is_leaf else None
            if value.device.type != "meta":
                self.tensors.append((value, value.detach().clone(), grad))
            below: list[Any] = [] if grad is None else [grad]
        elif isinstance(value, dict):
            self.dicts.append((value, list(value.items())))
            below = list(value.values())
        elif isinstance(value, (list, deque, set, bytearray)):
            self.sequences.append((value, list(value)))
            below = [] if isinstance(value, bytearray) else list(value)
        elif isinstance(value, (tuple, frozenset)):
            below = list(value)
        elif isinstance(value, FunctionType):
            return self._note_function(value)
        elif isinstance(value, MethodType):
            return [value.__self__, value.__func__]
        elif isinstance(value, partial):
            return [value.func, value.args, value.keywords]
        elif isinstance(value, type):
            return self._note_class(value)
        elif isinstance(value, ModuleType):
            if is_users_module(value):
                self.modules.append(value)
            return []
        else:
            below = [vars(value)] if _is_users(value) else []
            if slots := slots_of(value) if is_users_class(type(value)) else {}:
                self.attributes.append((value, slots))
            return [*below, *slots.values(), type(value)]
        if type(value).__module__ != "builtins" and hasattr(value, "__dict__"):
            below += [vars(value), type(value)]  # subclasses of tensor and container types
        return below

    def _note_function(self, function: FunctionType) -> list[Any]:
        below: list[Any] = [function.__defaults__, function.__kwdefaults__]
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # an empty cell
                self.cells.append((cell, cell.cell_contents))
                below.append(cell.cell_contents)
        users = is_users_function(function)
        if users:
            below.append(function.__dict__)
        else:  # a wrapper of a library, around what is the program's
            held = function.__dict__
            below += [held.get(name) for name in ("__wrapped__", "_torchdynamo_orig_callable")]
        self.code += 1
        if self.code > _MOST_CODE:
            return below
        scope, code = function.__globals__, function.__code__
        names = names_in(code)
        named = {n: scope[n] for n in names if n in scope}
        self.bindings.append((scope, named, globals_stored(code) - named.keys()))
        if users:
            self.names |= names
        # Helpers of the program are part of it, imported libraries are not.
        below += [v for v in named.values() if _belongs(v, scope)]
        return below

    def _note_class(self, kind: type) -> list[Any]:
        """What a class of the program holds, and those it is derived from."""
        if not is_users_class(kind) or self.code > _MOST_CODE:
            return []
        self.code += 1
        held = {n: v for n, v in vars(kind).items() if not (n[:2] == n[-2:] == "__")}
        self.attributes.append((kind, held))
        data = [v for v in held.values() if _belongs(v, None)]
        return [*kind.__bases__, type(kind), *functions_of(kind), *data]

    def _in_modules(self) -> list[Any]:
        """Note in the program's modules what its code may name there; what is new of it."""
        found: list[Any] = []
        for module in self.modules:
            scope = vars(module)
            named = {n: scope[n] for n in self.names & scope.keys() if (module, n) not in self.done}
            if named:
                self.done |= {(module, name) for name in named}
                self.bindings.append((scope, named, set()))
                found += [v for v in named.values() if _belongs(v, scope)]
        return found

    def restore(self) -> None:
        """Undo every change since the snapshot; what did not change is not touched."""
        for mapping, items in self.dicts:
            if not _same(mapping.items(), items):
                kind = OrderedDict if isinstance(mapping, OrderedDict) else dict
                kind.clear(mapping)
                kind.update(mapping, items)
        for sequence, items in self.sequences:
            if not _same(enumerate(sequence), enumerate(items)):
                sequence.clear()
                (sequence.update if isinstance(sequence, set) else sequence.extend)(items)
        for scope, named, absent in self.bindings:
            scope.update({n: v for n, v in named.items() if scope.get(n) is not v})
            for name in absent & scope.keys():
                del scope[name]
        for owner, held in self.attributes:
            _put_back(owner, held)
        for cell, content in self.cells:
            cell.cell_contents = content
        for tensor, copy, grad in self.tensors:
            with torch.inference_mode(tensor.is_inference()), torch.no_grad():
                if tensor.shape != copy.shape:  # unsqueeze_ and its like
                    tensor.data = copy
                elif not _same_bits(tensor, copy):
                    _once(tensor, tensor).copy_(_once(copy, tensor))
            if tensor.is_leaf and tensor.grad is not grad:
                tensor.grad = grad


def _belongs(value: Any, scope: dict[str, Any] | None) -> bool:
    """Whether to look into what a function of the program, with these globals, names."""
    if isinstance(value, FunctionType):
        return value.__globals__ is scope or is_users_function(value)
    return True


def _put_back(owner: Any, held: dict[str, Any]) -> None:
    """Attributes of a class or in slots, as they were; what cannot be set never changed."""
    if isinstance(owner, type):
        now = {n: v for n, v in vars(owner).items() if not (n[:2] == n[-2:] == "__")}
    else:
        now = slots_of(owner)
    with contextlib.suppress(AttributeError, TypeError):
        for name, value in held.items():
            if now.get(name) is not value or name not in now:
                setattr(owner, name, value)
        for name in now.keys() - held.keys():
            delattr(owner, name)


def _same(found: Iterable[tuple[Any, Any]], expected: Iterable[tuple[Any, Any]]) -> bool:
    """Whether two runs of pairs have equal keys and the very same values."""
    left, right = list(found), list(expected)
    pairs = zip(left, right, strict=False)
    return len(left) == len(right) and all(
        a[1] is b[1] and (a[0] is b[0] or a[0] == b[0]) for a, b in pairs
    )


def _once(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """``value`` without the dimensions along which ``like`` repeats one element (``expand``)."""
    if like.layout is torch.strided:
        for dim, stride in enumerate(like.stride()):
            if stride == 0 and like.shape[dim] > 1:
                value = value.select(dim, 0).unsqueeze(dim)
    return value


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.layout is not torch.strided or a.is_quantized:
        return torch.equal(a, b)
    plain = [_once(t, a).resolve_conj().resolve_neg() for t in (a, b)]
    dense = [t.reshape(-1).contiguous().view(torch.uint8) for t in plain]
    return torch.equal(*dense)  # NaN equals NaN


def _is_users(value: Any) -> bool:
    """Whether an object is one whose attributes a program may keep state in."""
    if isinstance(value, (torch.nn.Module, SimpleNamespace)):
        return True
    home = type(value).__module__.split(".")
    ours = home[0] in sys.stdlib_module_names or home[0] == "fusepass"
    inner = home[0] == "torch" and len(home) > 1 and home[1].startswith("_")
    return hasattr(value, "__dict__") and not (isinstance(value, type) or ours or inner)
