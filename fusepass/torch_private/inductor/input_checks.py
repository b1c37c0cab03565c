"""Check all inputs of generated code at once, not one by one in each call.

Up to torch 2.13 the code asserts size and strides of one input after the other: 0.9 µs each on a
host of two cores. (It has to ask: Dynamo's guards of 2.11 do not notice a parameter whose strides
change.) Here all those with constant sizes are compared, in one call, with what passed the
assertions before, on that host in 0.13 µs each; whatever is different, be it a type or a layout,
goes through the assertions again. Before 2.13 the addresses of inputs outside of modules are looked
at likewise; here one look at all of them tells that none needs a copy.

Run on 2.11 to 2.15; 2.14.1 and 2.15 ask for all at once by themselves, and nothing is changed.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
import torch._inductor
from torch import Tensor

from fusepass.torch_private.inductor.passes import under_our_passes
from fusepass.torch_private.patches import Patches, Theirs, once
from fusepass.torch_private.versions import torch_version

_FEWEST = 2  # inputs that are worth a check of their own
_MOST_KINDS = 8  # of inputs that code learns; of others it asks one by one in each call


class KnownInputs:
    """What the tensors of calls were that generated code was content with.

    Attributes:
        same: given the tensors of a call, whether type, dtype, device, size and strides of each
            are as those of a call that was learnt, and no two of them are one.
    """

    def __init__(self) -> None:
        self.same: Callable[..., bool] = _never
        self._kinds: list[Callable[..., bool]] = []

    def learn(self, *tensors: Tensor) -> None:
        """Take these for what may be expected, unless too many kinds of them are expected by now.

        Code may be called with inputs of several kinds in turn: what Inductor generates for two
        graphs of Dynamo's is one module if it is the same text.
        """
        if len(self._kinds) >= _MOST_KINDS or len({*map(id, tensors)}) < len(tensors):
            return
        guards: Any = torch._C._dynamo.guards
        try:
            with torch._C.DisableTorchFunction():  # nobody's code runs for a check
                check = guards.TensorGuards(
                    *tensors,
                    dynamic_dims_sizes=[[*one.shape] for one in tensors],
                    dynamic_dims_strides=[[*one.stride()] for one in tensors],
                ).check
        except Exception:  # noqa: BLE001 - the assertions have passed: nothing is wrong with inputs
            check = _never
        kinds = self._kinds = [check, *self._kinds]
        self.same = check if len(kinds) == 1 else functools.partial(_one_of, kinds)


def _one_of(kinds: Sequence[Callable[..., bool]], *tensors: Tensor) -> bool:
    return any(check(*tensors) for check in kinds)


def _never(*tensors: Tensor) -> bool:
    return False


def asks_at_once() -> bool:
    """Whether this torch's Inductor asks for all inputs in one call itself."""
    return hasattr(torch._C._dynamo.guards, "assert_size_stride_grouped")


@once  # twice, a check would hide the next one
def install() -> None:
    """Have the code that is generated under passes of ours check its inputs so.

    The class that writes Python code is changed, and what aligns the inputs of such code.
    """
    if asks_at_once():
        return
    from torch._inductor import output_code
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen

    def codegen_input_size_asserts(theirs: Theirs, self: Any) -> None:
        theirs(self)
        if type(self) is PythonWrapperCodegen and under_our_passes():
            _ask_at_once(self)

    def align_inputs_from_check_idxs(
        theirs: Theirs,
        model: Callable[[list[Any]], Any],
        checked: Sequence[int],
        mutated: Collection[int],
    ) -> Callable[[list[Any]], Any]:
        run: Callable[[list[Any]], Any] = theirs(model, checked, mutated)
        if len(checked) < _FEWEST or not under_our_passes():
            return run
        return aligned_at_once(model, run, checked)

    patches = Patches()
    patches.put(PythonWrapperCodegen, "codegen_input_size_asserts", codegen_input_size_asserts)
    if torch_version() < (2, 13):
        patches.put(output_code, "align_inputs_from_check_idxs", align_inputs_from_check_idxs)


def _ask_at_once(wrapper: Any) -> None:
    """Put the assertions that were written, or are to be, under a check of all inputs."""
    asserted = dict(_assertions(wrapper, {*_of_constant_size(wrapper)}))
    if len(asserted) < _FEWEST:
        for line in asserted.values():
            wrapper.prefix.writeline(line)
        return
    names, known = ", ".join(asserted), "fusepass_inputs"
    made = f"__import__('importlib').import_module({__name__!r}).{KnownInputs.__name__}()"
    wrapper.header.writeline(f"{known} = {made}")
    wrapper.prefix.writeline(f"if not {known}.same({names}):")
    with wrapper.prefix.indent():
        for line in asserted.values():
            wrapper.prefix.writeline(line)
        wrapper.prefix.writeline(f"{known}.learn({names})")


def _of_constant_size(wrapper: Any) -> Iterator[str]:
    from torch._inductor import ir

    for name, value in wrapper.get_graph_inputs().items():
        if isinstance(value, ir.TensorBox):
            numbers = (*value.get_size(), *value.get_stride())
            if not any(getattr(number, "free_symbols", ()) for number in numbers):
                yield name


def _assertions(wrapper: Any, wanted: Collection[str]) -> Iterator[tuple[str, str]]:
    """By name of an input the line that would be its assertion; taken from where it is kept."""
    pending = getattr(wrapper, "_pending_input_asserts", None)
    if pending is not None:  # from 2.13 on, written in front of an input's first use
        for name in [*pending]:
            if name in wanted:
                size, stride = pending.pop(name)
                yield name, f"assert_size_stride({name}, {size}, {stride})"
        return
    begin, lines = "assert_size_stride(", wrapper.prefix._lines
    for line in [*lines]:
        text = line if isinstance(line, str) else getattr(line, "line", "")
        name = text.strip().removeprefix(begin).partition(",")[0]
        if text.strip().startswith(begin) and name in wanted:
            lines.remove(line)
            yield name, text.strip()


def aligned_at_once(
    model: Callable[[list[Any]], Any],
    one_by_one: Callable[[list[Any]], Any],
    checked: Sequence[int],
) -> Callable[[list[Any]], Any]:
    """What calls ``model`` where all inputs are aligned, and ``one_by_one`` where one is not.

    ``model`` wants its inputs at multiples of 16 bytes; ``one_by_one`` copies those that are not.
    """
    from torch._inductor.utils import ALIGNMENT

    picked = operator.itemgetter(*checked)

    def run(inputs: list[Any]) -> Any:
        addresses = functools.reduce(operator.or_, map(Tensor.data_ptr, picked(inputs)))
        return one_by_one(inputs) if addresses % ALIGNMENT else model(inputs)

    return run
