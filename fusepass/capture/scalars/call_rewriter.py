"""Rewrite one call that uses a Python number, so that it uses a 0-d tensor.

Running eager says first whether the call accepts a kind of number with some dtypes: ``x - True``
raises and ``x - torch.tensor(True)`` does not; ``lerp`` of integers names another kernel for a
tensor than for a number. What raises for the kind of a number, whatever its value, is given back,
so that eager's own error comes at its line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from fusepass.capture.scalars.scalar import MIXED, ScalarTensor, Unfit, kind_of
from fusepass.graph.dataflow.node_recorder import NodeRecorder, has_same_metadata
from fusepass.graph.ops.op_names import tensor_value
from fusepass.graph.safety.dtype_trial import is_there
from fusepass.report.decision import Reason
from fusepass.torch_private.fx.graphs import call_target
from fusepass.torch_private.inductor import lowering

_PLAIN = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
SUPPORTED = (*_PLAIN, torch.float16, torch.bfloat16, torch.float32, torch.float64)
_KINDS = {"bool": 0, "int": 1, "float": 2}
HALVES = (torch.float16, torch.bfloat16)


@dataclass
class Use:
    """One call that uses numbers.

    Attributes:
        node: the call.
        name: of the operation, without the underscore of an in-place spelling.
        in_place: whether it writes its first operand.
        given: arguments by name.
        held: numbers that are held, by node.
        value: the fake tensor it gives; of its first operand, if it gives none.
        recorder: of the graph.
    """

    node: fx.Node
    name: str
    in_place: bool
    given: dict[str, Any]
    held: dict[fx.Node, ScalarTensor]
    value: torch.Tensor
    recorder: NodeRecorder

    def number(self, name: str) -> ScalarTensor | None:
        """The held number given for an argument, if one is."""
        given = self.given.get(name)
        return self.held.get(given) if isinstance(given, fx.Node) else None

    def tensor(self, name: str) -> torch.Tensor:
        """The fake tensor given for an argument.

        Raises:
            Unfit: something else is given.
        """
        value = tensor_value(self.given.get(name))
        if value is None or value.dtype not in SUPPORTED:
            raise self.unfit()
        return value

    def unfit(self) -> Unfit:
        """The refusal of a call that has no form with a tensor for the number."""
        return Unfit(
            Reason.PYTHON_VALUE, f"no form of {self.name} that takes a tensor for it is known"
        )

    def checked(self, name: str, dtype: torch.dtype, *, lenient: bool = False) -> fx.Node:
        """A held number as a tensor of the dtype that eager converts it to, with a check.

        Args:
            name: of the argument.
            dtype: that it is converted to.
            lenient: on the CPU there is no check for float16 and bfloat16.

        Raises:
            Unfit: the check could fail.
        """
        number = self.number(name)
        assert number is not None
        if dtype not in SUPPORTED:
            raise self.unfit()
        self.settled(number, dtype)
        unchecked = lenient and dtype in HALVES and self.value.device.type == "cpu"
        if not unchecked and not number.range.fits(dtype):
            text = f"{self.name} raises for a number that {name_of(dtype)} does not hold"
            raise Unfit(Reason.OVERFLOW, text)
        return number.on(self.value.device, dtype)

    def settled(self, number: ScalarTensor, dtype: torch.dtype) -> None:
        """Refuse a number that may be an integer or a float, where it matters.

        Raises:
            Unfit: it does.
        """
        if number.mixed and not dtype.is_floating_point:
            raise Unfit(Reason.PYTHON_VALUE, MIXED)

    def put(self, **tensors: fx.Node) -> None:
        """Give the call these tensors in place of the numbers of these arguments."""
        places = {self.given[name]: tensor for name, tensor in tensors.items()}
        args, kwargs = self.node.args, self.node.kwargs
        swap: Callable[[fx.Node], fx.Node] = lambda n: places.get(n, n)  # noqa: E731
        self.node.args = fx.map_arg(args, swap)
        self.node.kwargs = fx.map_arg(kwargs, swap)
        try:
            fits = self.in_place or has_same_metadata(self.recorder.fake(self.node), self.value)
        except (RuntimeError, TypeError):  # it takes numbers that it does not take as tensors
            fits = False
        if not fits:
            self.node.args, self.node.kwargs = args, kwargs
            raise self.unfit()

    def become(self, made: fx.Node) -> None:
        """Have another node take the place of the call.

        Raises:
            Unfit: it is not of the same dtype, sizes and strides.
        """
        if not has_same_metadata(made.meta["example_value"], self.value):
            raise self.unfit()
        self.give_way(made)

    def finish(self, made: fx.Node) -> None:
        """The same for a call that may be in place, which hands on its first operand."""
        (self.give_way if self.in_place else self.become)(made)

    def give_way(self, made: fx.Node, *, described: bool = True) -> None:
        """Have another node take the place of the call, whatever it looks like."""
        if described:
            made.meta = dict(self.node.meta)
        self.node.replace_all_uses_with(made)
        self.node.graph.erase_node(self.node)

    def narrowed(self, made: fx.Node) -> None:
        """The same for a result that may have been computed in a wider dtype."""
        if self.in_place:
            self.finish(self.record("copy_", self.given["input"], made))
            return
        if tensor_value(made).dtype != self.value.dtype:  # type: ignore[union-attr]
            made = self.record("to", made, self.value.dtype)
        self.become(made)

    def sole(self, *names: str) -> tuple[str, ScalarTensor]:
        """Which argument of these is given a held number, and the number.

        Raises:
            Unfit: none is, or another argument is given one, too.
        """
        held = [v for v in self.given.values() if isinstance(v, fx.Node) and v in self.held]
        found = [(n, number) for n in names if (number := self.number(n)) is not None]
        if len(found) != 1 or len(held) != 1:
            raise self.unfit()
        return found[0]

    def record(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """One more call in front of it."""
        return self.recorder.before(self.node, target, *args, **kwargs)


def name_of(dtype: torch.dtype) -> str:
    """``float16`` for ``torch.float16``."""
    return str(dtype).removeprefix("torch.")


def category(dtype: torch.dtype) -> int:
    """0 for bool, 1 for integers, 2 for floating point."""
    return 2 if dtype.is_floating_point else int(dtype is not torch.bool)


def common_dtype(x: torch.Tensor, number: ScalarTensor) -> torch.dtype:
    """The dtype that a tensor and a Python number are promoted to."""
    if _KINDS[number.kind] <= category(x.dtype):
        return x.dtype
    return torch.get_default_dtype() if number.kind == "float" else torch.int64


def computed_in(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which eager computes on numbers of a dtype."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def takes(dtype: torch.dtype, number: Any) -> bool:
    """Whether a known number fits a dtype."""
    if not isinstance(number, (int, float)):
        return False
    if dtype.is_floating_point:
        return not abs(number) < float("inf") or abs(number) <= torch.finfo(dtype).max
    limits = torch.iinfo(dtype) if dtype is not torch.bool else None
    return isinstance(number, int) and limits is not None and limits.min <= number <= limits.max


def inside(tree: Any) -> list[fx.Node]:
    """The nodes in an argument."""
    found: list[fx.Node] = []
    fx.map_arg(tree, found.append)
    return found


_SAMPLES = {"bool": True, "int": 2, "float": 0.5}  # none that a division or a shift fails on
# Their other arguments depend on sizes, and eager takes numbers of every kind.
_OF_SIZES = ("setitem", "__setitem__", "full", "new_full", "tensor", "scalar_tensor", "as_tensor")
_POSITIONS = ("index",)  # arguments that hold positions


def refuse_kinds(use: Use) -> None:
    """Refuse a call that raises for numbers of the kinds it is given.

    The call is made on tensors of one element, on the device of the program if it is there.

    Raises:
        Unfit: it raises, or gives another dtype than the graph says.
    """
    if use.name in _OF_SIZES:
        return
    positions = {use.given.get(name) for name in _POSITIONS}

    def sample(node: fx.Node) -> Any:
        if node in use.held:
            return _SAMPLES[use.held[node].kind]
        value = tensor_value(node)
        if value is None:
            return _SAMPLES[kind_of(node) or "int"]
        make = torch.zeros if node in positions else torch.ones
        device = value.device if is_there(value.device) else "cpu"
        return make((1,) * value.dim(), dtype=value.dtype, device=device)

    node = use.node
    dtypes = [v.dtype for v in map(tensor_value, node.all_input_nodes) if v is not None]
    kinds = " and ".join({h.kind: None for h in _given(use)})
    what = f"{use.name} of {' and '.join(dict.fromkeys(map(name_of, dtypes)))} and a {kinds}"
    with lowering.real_tensors():
        try:
            made = call_target(node.target, *fx.map_arg((node.args, node.kwargs), sample))
        except Exception as error:  # noqa: BLE001  # whatever it is, eager raises it
            text = f"{what} raises in eager ({type(error).__name__})"
            raise Unfit(Reason.PARTIAL_OP, text) from None
    if isinstance(made, torch.Tensor) and made.dtype != use.value.dtype:
        raise Unfit(Reason.PARTIAL_OP, f"{what} gives {name_of(made.dtype)} in eager")


def _given(use: Use) -> list[ScalarTensor]:
    return [use.held[node] for node in use.node.all_input_nodes if node in use.held]
