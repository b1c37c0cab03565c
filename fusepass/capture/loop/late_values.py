"""Carry a variable that begins as None, or as a number, and becomes a tensor in a round.

    prev = None                             prev is, in each round, one of two values:
    while True:                               a carried tensor if a carried flag holds,
        x = step(x)                           else None
        if prev is not None and …: break
        prev = x

What such a variable becomes is seen when a round is traced. The frame then starts again and carries
a tensor like that, zeros at first, and a flag.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from fusepass.capture.branch.known_outcomes import tested_now
from fusepass.capture.frame_state import Frame, Place
from fusepass.capture.loop.carried import Numbers
from fusepass.capture.nodes.predicate import held_predicate
from fusepass.capture.nodes.select_node import BRANCH, WRITTEN, Branch, select
from fusepass.capture.refusal import Refusal
from fusepass.capture.scalars.number_tensors import number_kind
from fusepass.capture.scalars.scalar import DTYPES
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo import stack
from fusepass.torch_private.dynamo.phi import is_phi, leaves_of, make_phi

IS = "fusepass_is_"  # prefix of the name of a carried flag: whether a variable is the tensor
BEGUN = "fusepass_begun"  # the flag of those that each round leaves as tensors


@dataclass(frozen=True)
class Spec:
    """A tensor that a variable becomes; of a number, the 0-d tensor that holds it.

    Attributes:
        shape, stride, dtype, device: of the tensor.
        number: ``bool``, ``int`` or ``float`` if the variable becomes a number.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    number: str | None = None


@dataclass
class Late:
    """What has been seen of such variables while the frame was traced before.

    Attributes:
        specs: what they become, by name; None while that has not been seen.
        alone: those that some round leaves as they were, so that each needs a flag of its own.
        wide: integers that may become smaller than they began.
    """

    specs: dict[str, Spec | None] = field(default_factory=dict)
    alone: set[str] = field(default_factory=set)
    wide: set[str] = field(default_factory=set)

    def copy(self) -> Late:
        """A copy that may grow by itself."""
        return Late(dict(self.specs), set(self.alone), set(self.wide))


def spec_of(value: Any, name: str, device: torch.device) -> Spec | None:
    """What a variable has become; None if it is neither a tensor nor a number.

    Raises:
        Refusal: it cannot be carried from its first value on.
    """
    if not stack.is_any_tensor(value):
        kind = number_kind(value)
        return None if kind is None else Spec((), (), DTYPES[kind], device, kind)
    held = value.as_proxy().node.meta["example_value"]
    sizes = *held.shape, *held.stride()
    if not all(type(size) is int for size in sizes):
        text = f"{name!r} begins as no tensor, and the size of what it becomes is not known"
        raise Refusal(Reason.SHAPE_MISMATCH, text)
    return Spec(tuple(held.shape), held.stride(), held.dtype, held.device)


class LateValues:
    """Makes and reads such variables in one round.

    Args:
        numbers: puts numbers into tensors.
        late: what is known of the variables.
        first: the tracked constants that they begin as, by name.
        place: of the loop.
        site: its number.
    """

    def __init__(
        self, numbers: Numbers, late: Late, first: dict[str, Any], place: Place, site: int
    ) -> None:
        self.numbers, self.frame, self.late = numbers, numbers.frame, late
        self.place, self.site = place, site
        self.first = first
        self.specs = {n: s for n, s in late.specs.items() if s is not None and n in first}
        self.given: dict[str, Any] = {}
        self.may_be_first: set[str] = set()  # behind the loop
        self.seen = late.copy()

    @property
    def flags(self) -> list[str]:
        """The names of the flags that are carried."""
        names = [IS + name for name in sorted(self.specs)]
        return [BEGUN, *names] if names else []

    def zeros(self, translator: Any, name: str) -> Any:
        """The tensor that stands for a variable before it is one."""
        spec = self.specs[name]
        given = {"dtype": spec.dtype, "device": spec.device}
        args = (spec.shape, spec.stride)
        made = stack.wrap_call(translator, "call_function", torch.empty_strided, args, given)
        return stack.wrap_call(translator, "call_method", "zero_", (made.as_proxy(),), {})

    def enter(self, translator: Any, name: str, inside: Callable[[str], Any]) -> Any:
        """The variable as a round is given it; ``inside`` gives what is carried by a name."""
        flag = inside(IS + name if name in self.late.alone else BEGUN)
        tensor = inside(name)
        if self.specs[name].number is not None:
            tensor = self.numbers.read(translator, tensor, name)
        self.given[name] = made = self._one_of(translator, name, flag, flag, tensor)
        return made

    def _one_of(self, translator: Any, name: str, tested: Any, held: Any, taken: Any) -> Any:
        text = f"{name!r} is what it is before the loop, or what a round makes of it"
        parts = tested, held, taken, self.first[name], self.site, text
        return make_phi(translator, *parts)

    def learns(self, name: str, value: Any) -> bool:
        """See what a variable becomes; say whether that is another kind of value."""
        if name not in self.first or name in self.specs:
            return False
        for one in map(stack.realized, leaves_of(value)):
            found = None
            if not same_constant(one, self.first[name]):
                found = spec_of(one, name, self.numbers.device)
            if found is not None:
                self.seen.specs[name] = found
                return True
        return False

    def leave(self, translator: Any, name: str, value: Any, inside: Any, goes_on: bool) -> Any:
        """What a round leaves of a variable: its tensor, and whether it is that.

        Raises:
            Refusal: it is neither that nor what it begins as.
        """
        made, is_tensor = self._parts(translator, name, value, inside)
        if goes_on and is_tensor is not True:
            self.seen.alone.add(name)
        if is_tensor is not True:
            self.may_be_first.add(name)
        if isinstance(is_tensor, bool):
            is_tensor = self.numbers.full(translator, is_tensor)
        return made, is_tensor

    def _parts(self, translator: Any, name: str, value: Any, inside: Any) -> tuple[Any, Any]:
        if value is self.given[name]:
            proxy = value.predicate.as_proxy()
            return inside, stack.wrap_call(translator, "call_method", "clone", (proxy,), {})
        if same_constant(value, self.first[name]):
            return inside, False
        if is_phi(value):
            tested = tested_now(self.frame, value)
            sides = [
                self._parts(translator, name, stack.realized(side), inside)
                for side in (value.taken, value.other)
            ]
            (one, first), (two, second) = sides
            made = one if one is two else _selected(translator, self, tested, one, two)
            if isinstance(first, bool) and first is second:
                return made, first
            first, second = (
                self.numbers.full(translator, f) if isinstance(f, bool) else f
                for f in (first, second)
            )
            args = tuple(one.as_proxy() for one in (tested, first, second))
            return made, stack.wrap_call(translator, "call_function", torch.where, args, {})
        spec = self.specs[name]
        if spec.number is not None:
            found = self.numbers.tensor_of(translator, value, spec.number)
            if found is not None:
                if spec.number == "int":
                    self.numbers.may_be(name, found[1])
                return found[0], True
        elif spec_of(value, name, self.numbers.device) == spec:
            return value, True
        text = f"{name!r} is of another kind in another round"
        raise Refusal(Reason.PYTHON_VALUE, text)

    def behind(self, translator: Any, name: str, tensor: Any, flag: Any, may_skip: bool) -> Any:
        """The variable behind the loop."""
        if self.specs[name].number is not None:
            tensor = self.numbers.read(translator, tensor, name)
        if not may_skip and name not in self.may_be_first:
            return tensor
        return self._one_of(translator, name, flag, held_predicate(translator, flag), tensor)


def same_constant(a: Any, b: Any) -> bool:
    """Whether two tracked values are one constant."""
    held = [stack.constant_of(one) for one in (a, b)]
    if not all(constant for constant, _ in held):
        return False
    one, two = (known for _, known in held)
    return type(one) is type(two) and repr(one) == repr(two)


def _selected(translator: Any, late: LateValues, tested: Any, taken: Any, other: Any) -> Any:
    """One of two tensors, so that it stays known which tensors it may be."""
    frame: Frame = late.frame
    fake = taken.as_proxy().node.meta["example_value"]
    facts = Branch(
        frame.new_branch(late.site),
        frame.arms[-1] if frame.arms else None,
        "where",
        False,
        late.place.file,
        late.place.line,
    )
    args = tested.as_proxy(), (taken.as_proxy(),), (other.as_proxy(),)
    with translator.fake_mode:
        held = (tested.as_proxy().node.meta["example_value"], fake)
        made = torch.where(*held, other.as_proxy().node.meta["example_value"])
    if made.stride() != fake.stride():
        raise Refusal(Reason.STRIDE_MISMATCH, "a tensor has strides that no selection gives")
    proxy = translator.output.create_proxy("call_function", select, args, {})
    proxy.node.meta |= {"example_value": (made,), BRANCH: facts, WRITTEN: 1}
    return stack.wrap_tensor(translator, proxy[0], made)
