"""Give no gradient, rather than a zero, to leaves that only the arm not taken uses.

And detach results that in eager would not require grad.

Around a compiled graph, the leaves concerned go in through an autograd function and the results may
come out through another one. The backward of the first returns None for leaves that no result in
use depends on. The graph hands out, per call, for which outcomes of its branches that is so: the
copy to the host starts when the graph has run, and the backward waits for it.

What the compiled graph itself says in its backward does not tell: AOTAutograd sends zeros to every
input, also where the loss uses one result of several.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fusepass.torch_private.autograd import (
    backward_number,
    hooks_of,
    in_transform,
    when_backward_ends,
)

_REMEMBERED = 8  # backwards of one call that may be under way at once

Flag = bool | tuple[int, int]  # known when compiled; or a handed-out tensor, and where in it


@dataclass(frozen=True)
class LeafGroup:
    """Leaves that the same results depend on for the same outcomes.

    Attributes:
        inputs: their positions among the inputs of the graph.
        reached: whether a result depends on them, one for each result that is watched; or a single
            one that holds for every result.
    """

    inputs: tuple[int, ...]
    reached: tuple[Flag, ...]


@dataclass(frozen=True)
class NoneGradients:
    """What is around a graph whose branches decide which leaves have gradients.

    Attributes:
        count: how many outputs the graph had before flags were handed out behind them.
        groups: the leaves concerned.
        watched: positions of results of which it matters whether a backward begins there.
        may_change: positions of inputs that are leaves now and could be results in a later call.
        graded: positions of results that require grad only where a flag holds.
    """

    count: int
    groups: tuple[LeafGroup, ...]
    watched: tuple[int, ...]
    may_change: frozenset[int]
    graded: tuple[tuple[int, Flag], ...] = ()

    def around(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """``compiled``, with its leaves' gradients None where eager's are, and its own outputs."""

        @functools.wraps(compiled)
        def call(*args: Any) -> Any:
            boxed = len(args) == 1 and isinstance(args[0], list)
            inputs: list[Any] = args[0] if boxed else list(args)
            if in_transform():
                return compiled(*args)[: self.count]
            state = _CallState()
            with torch.enable_grad():
                for group in self.groups:
                    self._pass_in(inputs, group, state)
            outputs = compiled(inputs) if boxed else compiled(*inputs)
            state.read([*outputs[self.count :]])
            outputs = list(outputs[: self.count])
            for position, flag in self.graded:
                if not state.holds(flag):
                    outputs[position] = outputs[position].detach()
            return self._watch(outputs, state)

        return call

    def _pass_in(self, inputs: list[Any], group: LeafGroup, state: _CallState) -> None:
        places = [
            i
            for i in group.inputs
            if inputs[i].requires_grad and (i not in self.may_change or inputs[i].is_leaf)
        ]
        passed = _Leaves.apply(state, group, *[inputs[i] for i in places]) if places else ()
        for i, tensor in zip(places, passed, strict=True):
            inputs[i] = tensor

    def _watch(self, outputs: list[Any], state: _CallState) -> list[Any]:
        places = [i for i in self.watched if outputs[i].requires_grad]
        if places:
            numbers = tuple(self.watched.index(i) for i in places)
            with torch.enable_grad():
                seen = _Results.apply(state, numbers, *[outputs[i] for i in places])
            for i, tensor in zip(places, seen, strict=True):
                outputs[i] = tensor
        return outputs


class _CallState:
    """What the backwards of one call need to know.

    Attributes:
        used: results in which a backward began, by the number of the backward.
        always: results whose backward was recorded itself. A second derivative may come back from
            there and meet none of the results.
    """

    def __init__(self) -> None:
        self.used: dict[int, set[int]] = {}
        self.always: set[int] = set()
        self._flags: list[Any] = []
        self._copied: list[torch.cuda.Event] = []

    def read(self, flags: Sequence[torch.Tensor]) -> None:
        """Start to copy what the graph hands out. It may be written later, so it is not held."""
        for flag in flags:
            if flag.device.type == "cuda":
                self._flags.append(flag.to("cpu", non_blocking=True))
                event = torch.cuda.Event()
                event.record(torch.cuda.current_stream(flag.device))
                self._copied.append(event)
            else:
                self._flags.append(flag.tolist())

    def use(self, numbers: Sequence[int], recorded: bool) -> None:
        """Note that a backward, perhaps recorded itself, begins in some of the results."""
        while len(self.used) > _REMEMBERED:
            del self.used[next(iter(self.used))]
        self.used.setdefault(backward_number(), set()).update(numbers)
        if recorded:
            self.always.update(numbers)

    def reaches(self, group: LeafGroup) -> bool:
        """Whether a result that is used depends on the leaves of a group."""
        used = self.always | self.used.get(backward_number(), set())
        numbers = used if used and len(group.reached) > 1 else range(len(group.reached))
        return any(self.holds(group.reached[number]) for number in numbers)

    def holds(self, flag: Flag) -> bool:
        """What a flag is; the host waits for the copy if need be."""
        if isinstance(flag, bool):
            return flag
        for event in self._copied:
            event.synchronize()
        if self._copied:
            self._copied = []
            self._flags = [flags.tolist() for flags in self._flags]
        flags = self._flags[flag[0]]
        return bool(flags[flag[1]] if isinstance(flags, list) else flags)


class _Leaves(torch.autograd.Function):
    """Leaves on their way into a graph; on the way back, None where nothing depends on them."""

    @staticmethod
    def forward(ctx: Any, state: _CallState, group: LeafGroup, *leaves: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)
        ctx.state, ctx.group = state, group
        return tuple([leaf.detach() for leaf in leaves])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if ctx.state.reaches(ctx.group):
            return (None, None, *gradients)
        for node, _ in ctx.next_functions:
            if node is not None:
                _keep_hooks_from_none(node.variable)
        return (None,) * (2 + len(gradients))


class _Results(torch.autograd.Function):
    """Results on their way out of a graph; on the way back it is noted which of them are used."""

    @staticmethod
    def forward(
        ctx: Any, state: _CallState, numbers: tuple[int, ...], *results: torch.Tensor
    ) -> Any:
        ctx.set_materialize_grads(False)
        ctx.state, ctx.numbers = state, numbers
        return tuple([result.detach() for result in results])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        pairs = zip(ctx.numbers, gradients, strict=True)
        used = [number for number, gradient in pairs if gradient is not None]
        ctx.state.use(used, torch.is_grad_enabled())
        return (None, None, *gradients)


# --- Hooks of leaves ------------------------------------------------------------------------------
# Where eager does not reach a leaf, it calls none of its hooks. Behind an autograd function that
# returns None torch calls all of them: those for the gradient with None, and those for the leaf.


class _SkippingHook:
    """A hook of a leaf for its gradient, not called with None."""

    def __init__(self, hook: Callable[..., Any]) -> None:
        self.hook = hook

    def __call__(self, gradient: Any) -> Any:
        return None if gradient is None else self.hook(gradient)


class _SkippingLeafHook:
    """A hook for a leaf that has got its gradient, not called where it got none."""

    def __init__(self, hook: Callable[..., Any], got: list[bool]) -> None:
        self.hook, self.got = hook, got

    def __call__(self, leaf: torch.Tensor) -> Any:
        return self.hook(leaf) if self.got[-1] else None


def _keep_hooks_from_none(leaf: torch.Tensor) -> None:
    """Until the backward ends, do not call the hooks of a leaf if it gets no gradient after all.

    It may get one from elsewhere in the same backward.
    """
    hooks, leaf_hooks = hooks_of(leaf)
    if not hooks and not leaf_hooks:
        return
    got = [True]

    def note(gradient: Any) -> None:
        got.append(gradient is not None)

    for held in (hooks or {}, leaf_hooks or {}):
        for key, hook in held.items():
            if isinstance(hook, (_SkippingHook, _SkippingLeafHook)):
                return  # so does another call whose leaf it is
            held[key] = _SkippingHook(hook) if held is hooks else _SkippingLeafHook(hook, got)
    handle = leaf.register_hook(note) if leaf_hooks else None

    def restore() -> None:
        if handle is not None:
            handle.remove()
        for held in (hooks or {}, leaf_hooks or {}):
            for key, hook in held.items():
                if isinstance(hook, (_SkippingHook, _SkippingLeafHook)):
                    held[key] = hook.hook

    when_backward_ends(restore)
