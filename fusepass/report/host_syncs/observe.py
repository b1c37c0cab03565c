"""Watches one call of a program, operation by operation, for what makes the host wait.

Operations are seen as they reach torch's dispatcher. Text and lists made of tensors, and tensors
made of lists, do not pass there, and on a machine without a device neither do copies to one: for
those torch's functions are watched as well, in eager mode.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch

from fusepass.report.host_syncs import functions, operations, residence
from fusepass.report.host_syncs.kinds import Kind
from fusepass.report.host_syncs.place import ProgramPlace, here
from fusepass.report.host_syncs.value_use import use_of
from fusepass.torch_private.fx.dispatch_watch import Watching, operation_name, qualified_name
from fusepass.torch_private.fx.graphs import tree_flatten


@dataclass(frozen=True)
class Wait:
    """One time the host waits.

    Attributes:
        kind: why.
        operation: what of torch's waits (``aten.nonzero``, ``Tensor.tolist``).
        place: where in the program.
        times: how often the host waits in it.
        hidden: whether a watch without torch functions cannot see it on this machine.
        wait_us: microseconds the host waited, None where not measured.
        idle_us: microseconds the device then stood idle, None where not measured.
    """

    kind: Kind
    operation: str
    place: ProgramPlace
    times: int = 1
    hidden: bool = False
    wait_us: float | None = None
    idle_us: float | None = None


class Watch:
    """What is seen while a program runs inside :meth:`call`.

    Args:
        entered: codes of functions that run a compiled graph, as for :func:`here`.
        as_if: on a machine without a device: where tensors would be.
    """

    def __init__(
        self,
        entered: tuple[CodeType, ...] = (),
        as_if: residence.AsIf | None = None,
    ) -> None:
        self.waits: list[Wait] = []
        self.as_if = as_if
        self.on_device: operations.OnDevice = as_if or residence.really
        self.via = ""  # the torch function running, where functions are watched
        self._entered = entered
        self._thread = threading.get_ident()
        self._bottom: CodeType = called.__code__
        self._muted = False

    def call(self, fn: Callable[..., Any], args: Any, kwargs: Any, *, eager: bool) -> Any:
        """Call a program and watch it.

        Where it is ``eager``, nothing in it may be compiled; without a device torch's functions are
        watched then.
        """
        with ExitStack() as modes:
            if eager:
                modes.enter_context(torch.compiler.set_stance("force_eager"))
                if self.as_if is not None:
                    modes.enter_context(functions.Functions(self, self.as_if))
            modes.enter_context(Watching(self._operation))
            return called(fn, args, kwargs)

    def place(self) -> ProgramPlace:
        """Where in the program this is called."""
        return here(self._bottom, self._thread, self._entered)

    def add(
        self, kind: Kind, operation: str, times: int = 1, *, hidden: bool = False, via: str = ""
    ) -> None:
        """Put a wait of the operation running now on record."""
        place = self.place()
        if kind is Kind.ITEM:
            kind = use_of(place, via or self.via)
        if self.as_if is not None and "/torch/optim/" in place.library.replace("\\", "/"):
            return  # optimizers keep their step counts on the host
        self.waits.append(Wait(kind, operation, place, times, hidden))

    @contextmanager
    def muted(self) -> Any:
        """What runs inside is part of something already on record."""
        before, self._muted = self._muted, True
        try:
            yield
        finally:
            self._muted = before

    def _operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One operation at the dispatcher."""
        out = func(*args, **kwargs)
        if self._muted:
            return out
        name = operation_name(func)
        if self.as_if is not None:
            self._settle(self.as_if, name, args, kwargs, out)
        for kind, times in operations.waits_of(name, args, kwargs, out, self.on_device):
            copies = kind in (Kind.COPY_IN, Kind.COPY_OUT)
            hidden = self.as_if is not None and copies
            self.add(kind, qualified_name(func), times, hidden=hidden)
        return out

    def _settle(self, as_if: residence.AsIf, name: str, args: Any, kwargs: Any, out: Any) -> None:
        """Where the results of an operation are."""
        outputs = out if isinstance(out, (tuple, list)) else (out,)
        if name in ("lift_fresh", "lift_fresh_copy"):  # made from Python numbers
            as_if.put(outputs, as_if.unknown)
        elif not isinstance(out, (bool, int, float, complex)):
            as_if.computed(tree_flatten((args, kwargs))[0], outputs)


def called(fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a program. Its outermost frame stands on this one."""
    return fn(*args, **kwargs)
