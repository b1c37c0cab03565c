"""Whether eager accepts operands of some dtypes: tried, because tracing accepts more.

Many kernels turn a dtype down only when they run (``topk`` of bool, ``<`` of complex numbers, ``&``
of floats), and what a trace asks says nothing of it. So the call is made on zeros of the dtypes
given. When that fails while the same call on other dtypes succeeds, it is the dtypes that fail.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from fusepass.graph.dataflow.effects import is_random
from fusepass.graph.dataflow.memory import elements, size, tensors_of
from fusepass.graph.dataflow.node_recorder import autocasts_at
from fusepass.graph.ops.op_names import tensor_value
from fusepass.torch_private.fx.graphs import call_target, size_hint
from fusepass.torch_private.inductor import lowering

# Views and plain copies take every dtype, and so does asking for another.
_ANY_DTYPE = frozenset(
    """
    H T alias as_strided bfloat16 bool broadcast_tensors broadcast_to byte char chunk clone
    contiguous copy detach diag diagonal dim double empty empty_like expand expand_as flatten float
    getattr getitem half int is_floating_point item long mT movedim narrow ndimension new_empty
    numel permute repeat requires_grad reshape reshape_as select short size split split_with_sizes
    squeeze stride t tensor_split tile to transpose type type_as unbind unflatten unsqueeze view
    view_as view_dtype zero
    """.split()
)
_OF_INTEGERS = ("__and__", "__or__", "__xor__", "__invert__", "bitwise_", "one_hot")
_FACTORIES = frozenset("arange eye full linspace new_full new_ones new_zeros ones zeros".split())
_REAL = (torch.float32, torch.float64)  # which every kernel takes but those of integers
_FLOATING = (*_REAL, torch.float16, torch.bfloat16)
_OTHER_DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64)
_FEW, _MANY = 2**12, 2**22  # elements of all operands
_SMALL = 16  # a size up to which it stays what it is
_KEPT = 4096
RAISES = "raises in eager"

_outcomes: dict[Any, bool | None] = {}


@dataclass(frozen=True)
class _FakeOperand:
    dtype: torch.dtype
    sizes: tuple[int, ...]
    device: torch.device

    def zeros(self) -> torch.Tensor:
        return torch.zeros(self.sizes, dtype=self.dtype, device=self.device)


def dtype_reason(node: fx.Node, name: str) -> str | None:
    """Why a call raises for its operands' dtypes and kinds of numbers; None if it runs."""
    if name.strip("_") in _ANY_DTYPE or is_random(node):
        return None
    values = [value for operand in node.all_input_nodes for value in tensors_of(operand)]
    dtypes = list(dict.fromkeys(value.dtype for value in values))
    kinds = _kinds_to_check(node)
    if len(dtypes) == 1 and dtypes[0] in _REAL and not kinds and not name.startswith(_OF_INTEGERS):
        return None
    if not values and not (kinds and name in _FACTORIES):
        return None
    if name in _FACTORIES and not _is_small(node):
        return None
    if any(value.layout is not torch.strided or value.is_quantized for value in values):
        return None
    runs = _runs(node)
    floating = {*map(str, dtypes), *kinds} <= set(map(str, _FLOATING))
    if runs or (runs is None and floating):
        return None
    shown = [str(kind).removeprefix("torch.") for kind in (*dtypes, *kinds)]
    what = f"{name} of {' and '.join(dict.fromkeys(shown))}"
    return f"{what} {RAISES}" if runs is False else f"{what} could not be tried"


def _kinds_to_check(node: fx.Node) -> list[str]:
    """Numbers and dtypes among the arguments that an operation may not take for what they are."""
    found: list[str] = []

    def look(given: Any) -> Any:
        if isinstance(given, (torch.dtype, complex)):
            found.append(str(given) if isinstance(given, torch.dtype) else "a complex number")
        return given

    fx.node.map_aggregate((node.args, dict(node.kwargs)), look)
    # Elsewhere a truth value is a flag: of what is to be kept, for example.
    numbers = [*node.args[:2], node.kwargs.get("other"), node.kwargs.get("alpha")]
    return found + ["a truth value" for number in numbers if isinstance(number, bool)]


def _is_small(node: fx.Node) -> bool:
    made = tensor_value(node)
    return made is not None and elements(made) <= _MANY


def _runs(node: fx.Node) -> bool | None:
    """Whether the call runs; None when it does on no dtype, so that nothing can be said."""
    sampled = _samples(node)
    operands = _operands(sampled)
    total = sum(math.prod(operand.sizes) for operand in operands)
    few = _shrink_sizes(sampled, operands)
    runs = _memoized_outcome(node, few)
    if runs is None and few != sampled and total <= _MANY:
        runs = _memoized_outcome(node, sampled)
    return runs


def _memoized_outcome(node: fx.Node, args: Any) -> bool | None:
    kinds = sorted({operand.device.type for operand in _operands(args)} or {"cpu"})
    regions = _autocast_around(node)
    cast = [
        regions.get(k, (torch.get_autocast_dtype(k), torch.is_autocast_enabled(k))) for k in kinds
    ]
    settings = torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()
    key = (node.op, node.target, repr(args), repr(cast), settings)
    try:
        return _outcomes[key]
    except KeyError:
        pass
    try:
        runs = _try_call(node, args)
    except torch.OutOfMemoryError:  # says nothing of dtypes, and may be gone next time
        return None
    if len(_outcomes) >= _KEPT:
        _outcomes.clear()
    _outcomes[key] = runs
    return runs


def _try_call(node: fx.Node, args: Any) -> bool | None:
    if _succeeds(node, args):
        return True
    others = [_with_dtype(args, dtype) for dtype in _OTHER_DTYPES]
    others += [_with_plain_numbers(other) for other in (args, *others)]
    return False if any(_succeeds(node, other) for other in others) else None


def _succeeds(node: fx.Node, args: Any) -> bool:
    """Make the call on zeros: in range where they are indices, and nothing is divided by them."""

    def materialize(one: Any) -> Any:
        return one.zeros() if isinstance(one, _FakeOperand) else one

    with lowering.real_tensors(), _without_warnings(), contextlib.ExitStack() as regions:
        try:
            for kind, (dtype, enabled) in _autocast_around(node).items():
                regions.enter_context(
                    torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=False)
                )
            args, kwargs = fx.node.map_aggregate(args, materialize)
            call_target(node.target, args, kwargs)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # noqa: BLE001  # whatever it is, eager raises it
            return False
    return True


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Warnings would name the sizes and values of a trial; those torch gives once stay due."""
    always = torch.is_warn_always_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.set_warn_always(True)
        try:
            yield
        finally:
            torch.set_warn_always(always)


def _samples(node: fx.Node) -> Any:
    def sample(value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return [sample(part) for part in value]
        if isinstance(value, torch.Tensor):
            device = value.device if is_there(value.device) else torch.device("cpu")
            return _FakeOperand(value.dtype, tuple(map(size, value.shape)), device)
        if isinstance(value, torch.SymInt):
            hint = size_hint(value)
            return 1 if hint is None else hint
        if isinstance(value, torch.SymFloat):
            return 0.5
        return True if isinstance(value, torch.SymBool) else value

    def of_node(operand: fx.Node) -> Any:
        return sample(operand.meta.get("example_value", operand.meta.get("val")))

    return fx.map_arg((node.args, dict(node.kwargs)), of_node)


def _operands(args: Any) -> list[_FakeOperand]:
    found: list[_FakeOperand] = []

    def look(one: Any) -> Any:
        if isinstance(one, _FakeOperand):
            found.append(one)
        return one

    fx.node.map_aggregate(args, look)
    return found


def _shrink_sizes(args: Any, operands: list[_FakeOperand]) -> Any:
    """The same call on fewer elements, and with sizes among its arguments that fit them."""
    now = {n: n for operand in operands for n in operand.sizes}

    def total() -> int:
        return sum(math.prod(now[n] for n in operand.sizes) for operand in operands)

    while total() > _FEW and max(now.values(), default=1) > 1:
        largest = max(now.values())
        now = {n: (largest // 2 if to == largest else to) for n, to in now.items()}

    def smaller(one: Any) -> Any:
        if isinstance(one, _FakeOperand):
            return replace(one, sizes=tuple(now[n] for n in one.sizes))
        return now.get(one, one) if type(one) is int and one > _SMALL else one

    return fx.node.map_aggregate(args, smaller)


def _with_dtype(args: Any, dtype: torch.dtype) -> Any:
    def convert(one: Any) -> Any:
        if isinstance(one, _FakeOperand):
            return replace(one, dtype=dtype)
        return dtype if isinstance(one, torch.dtype) else one

    return fx.node.map_aggregate(args, convert)


def _with_plain_numbers(args: Any) -> Any:
    def plain(one: Any) -> Any:
        return 1 if isinstance(one, (bool, complex)) else one

    return fx.node.map_aggregate(args, plain)


def _autocast_around(node: fx.Node) -> dict[str, tuple[Any, bool]]:
    """Dtype and whether it is on, of the innermost region that the graph has open, by device."""
    return {str(kind): (dtype, bool(on)) for kind, dtype, on, _ in autocasts_at(node)}


def is_there(device: torch.device) -> bool:
    """Whether calls can be tried on a device itself; else they are on the CPU."""
    return device.type == "cuda" and torch.cuda.is_available()
