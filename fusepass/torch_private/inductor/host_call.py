"""Lower an operator to the call of a Python function that fills its outputs.

A call of an operator costs the host a walk through the dispatcher, a check of each result's strides
and, for each operand that is a view, a tensor. Here the generated code calls the function itself,
with memory that Inductor plans and, in place of views, the tensors they begin with. Results that
only library calls read may instead be memory of the function's own, the same in each call, which
Inductor never uses for anything else. Run on 2.11 to 2.15.
"""

from __future__ import annotations

import operator as builtin
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch._inductor
from torch import fx

from fusepass.torch_private.inductor.lowering import expression


@dataclass(frozen=True)
class HostCall:
    """What to call.

    Attributes:
        module: where ``maker`` is found, by name.
        maker: name of a function; called once, before the first call of the generated code, it
            gives the function that is called with ``numbers``, the operator's tensors and the
            outputs that are not ``returned``; it gives those that are, in a list. A tensor that
            is a view from the beginning of another is passed as that other: only its address
            counts.
        arguments: of ``maker``; ``eval(repr(arguments))`` has to give them again.
        outputs: dtype, shape and strides of each.
        numbers: sizes that may vary from call to call.
        returned: positions of the outputs whose memory the function has.
        written: so many of the operator's first tensors are its outputs: they are written, and the
            operator returns nothing.
    """

    module: str
    maker: str
    arguments: tuple[Any, ...]
    outputs: Sequence[tuple[torch.dtype, Sequence[Any], Sequence[Any]]]
    numbers: Sequence[Any] = ()
    returned: Sequence[int] = ()
    written: int = 0


Plan = Callable[..., HostCall | None]


def lower_to_host_call(
    operator: Any, plan: Plan, stays: Callable[[fx.Node], bool] | None = None
) -> None:
    """Compile an operator to a call of a Python function.

    The operator returns a list of tensors, or nothing and writes some that it is given.

    Args:
        operator: an overload.
        plan: given its arguments, tensors as fake ones, says what to call, or None to leave the
            call to the operator. With ``stays`` it is given, as ``own``, the positions of those
            outputs that may be memory of the function's own.
        stays: of the node of an output, whether nothing but library calls of the graph reads it.
    """
    if "torch._inductor.lowering" not in sys.modules:
        return
    from torch._inductor import lowering
    from torch._inductor.virtualized import V

    if getattr(lowering.lowerings.get(operator), "fusepass_plan", None) is plan:
        return
    leave = lowering.fallback_handler(operator, add_to_fallback_set=False)

    def lower(*args: Any) -> Any:
        node = V.graph.current_node
        fakes = fx.map_arg(node.args, lambda one: one.meta["val"])
        more = {} if stays is None else {"own": _own(node, stays)}
        call = plan(*fakes, **more) if can_be_written() else None
        if call is None:
            return leave(*args)
        leaves = zip(_leaves(fakes), _leaves(args), strict=True)
        return written(
            call, [(fake, value) for fake, value in leaves if isinstance(fake, torch.Tensor)]
        )

    lowering.register_lowering(operator, type_promotion_kind=None)(lower)
    vars(lowering.lowerings[operator])["fusepass_plan"] = plan


def can_be_written() -> bool:
    """Whether the code that is generated now is Python."""
    from torch._inductor import config
    from torch._inductor.virtualized import V

    return not V.graph.cpp_wrapper and not getattr(config, "fx_wrapper", False)


def written(call: HostCall, pairs: Sequence[tuple[torch.Tensor, Any]]) -> list[Any] | None:
    """What stands for the outputs of a call in Inductor's graph; None of one that has none."""
    from torch._inductor import ir, lowering
    from torch._inductor.virtualized import V

    tensors = [
        ir.ExternKernel.require_exact_strides(value, [*map(expression, fake.stride())])
        for fake, value in pairs[call.written :]
    ]
    if call.written:
        _kernel_class()(call, tensors, [value for _, value in pairs[: call.written]])
        return None
    empty = lowering.lowerings[torch.ops.aten.empty_strided.default]
    device = pairs[0][0].device
    kinds = [
        (dtype, [*map(expression, shape)], [*map(expression, strides)])
        for dtype, shape, strides in call.outputs
    ]
    outputs = {
        i: empty(shape, strides, dtype=dtype, device=device)
        for i, (dtype, shape, strides) in enumerate(kinds)
        if i not in call.returned
    }
    made = _kernel_class()(call, tensors, list(outputs.values()))
    for place, i in enumerate(call.returned):
        dtype, shape, strides = kinds[i]
        layout = ir.FixedLayout(device, dtype, shape, strides)
        checked = {"skip_size_stride_alignment_checks": True}  # it is what was said of it
        one = ir.MultiOutput(layout, made, [(list, place)], **checked)
        V.graph.never_reuse_buffers.add(one.get_name())
        outputs[i] = ir.TensorBox.create(one)
    return [outputs[i] for i in range(len(kinds))]


def _own(node: fx.Node, stays: Callable[[fx.Node], bool]) -> frozenset[int]:
    """Positions of the outputs that may be memory of the function's own.

    None where CUDA graphs are made, which know of all memory that they write; and none where an
    operation of the user's could come in between, and in it another call of the same code.
    """
    from torch._inductor import config, utils

    parts = getattr(utils, "is_using_cudagraph_partition", lambda: False)
    if config.triton.cudagraphs or parts() or not all(map(_is_known, _nodes_around(node))):
        return frozenset()
    items: dict[Any, list[fx.Node]] = {}
    for user in node.users:
        at = user.args[1] if user.target is builtin.getitem else None
        items.setdefault(at, []).append(user)
    if None in items:
        return frozenset()
    return frozenset(at for at, nodes in items.items() if all(map(stays, nodes)))


def _nodes_around(node: fx.Node) -> Iterator[fx.Node]:
    """The calls of its graph, and of those inside it."""
    owner = node.graph.owning_module
    parts = [] if owner is None else owner.modules()
    graphs = [one.graph for one in parts if isinstance(one, fx.GraphModule)]
    for graph in graphs or [node.graph]:
        yield from (one for one in graph.nodes if one.op == "call_function")


_KNOWN = ("aten", "prims", "fusepass", "inductor", "_operator", "torch")
_CONTROL = "cond invoke_subgraph while_loop flex_attention".split()
_CONTROL += ["triton_kernel_wrapper_functional", "triton_kernel_wrapper_mutation"]


def _is_known(node: fx.Node) -> bool:
    """Whether a call runs nothing of the user's on the host."""
    target = node.target
    if isinstance(target, torch._ops.HigherOrderOperator):
        return target.name() in _CONTROL
    if isinstance(target, torch._ops.OpOverload):
        return target.namespace in _KNOWN
    return getattr(target, "__module__", None) in _KNOWN


def _leaves(args: Any) -> Iterator[Any]:
    for one in args:
        if isinstance(one, (list, tuple)):
            yield from _leaves(one)
        else:
            yield one


def _reference(value: Any) -> str:
    """A tensor that begins where an input does."""
    from torch._inductor import ir

    if isinstance(value, ir.ReinterpretView):
        base, layout = value.data, value.get_layout()
        if layout.offset == 0 and layout.dtype == base.get_dtype():
            return str(base.codegen_reference())
    return str(value.codegen_reference())


_CLASSES: list[type] = []


def _kernel_class() -> type:
    """The class of Inductor's nodes for such calls; made once Inductor is there."""
    if _CLASSES:
        return _CLASSES[0]
    from torch._inductor import ir
    from torch._inductor.virtualized import V
    from torch.utils._ordered_set import OrderedSet

    class FilledByHost(ir.ExternKernel):
        """A call that writes the last of its inputs."""

        def __init__(self, call: HostCall, tensors: Sequence[Any], outputs: Sequence[Any]) -> None:
            inputs = [
                self.unwrap_storage_for_input(self.realize_input(one))
                for one in (*tensors, *outputs)
            ]
            self.device = tensors[0].get_device()
            numbers = tuple(map(expression, call.numbers))
            of = ir.MultiOutputLayout if call.returned else ir.NoneLayout
            super().__init__(None, of(device=self.device), inputs, numbers)
            self.call = call
            if call.returned:
                self.name = V.graph.register_buffer(self)
            self.mutation_outputs = [
                ir.MutationOutput(ir.NoneLayout(device=self.device), one, self) for one in outputs
            ]
            V.graph.register_operation(self)

        def codegen(self, wrapper: Any) -> None:
            call = self.call
            arguments = ", ".join(map(repr, call.arguments))
            text = f"__import__('importlib').import_module({call.module!r}).{call.maker}"
            text = f"{text}({arguments})"
            name = None if call.returned else wrapper.src_to_kernel.get(text)
            if name is None:  # what has memory of its own is of one place in the code
                name = f"fusepass_{wrapper.next_kernel_suffix()}"
                wrapper.define_kernel(name, text, gpu=False)
                if not call.returned:
                    wrapper.src_to_kernel[text] = name
            given = [*self.codegen_const_args(), *map(_reference, self.inputs)]
            returned = f"{self.get_name()} = " if call.returned else ""
            wrapper.writeline(f"{returned}{name}({', '.join(given)})")

        def get_outputs(self) -> list[Any]:
            return [*([self] if self.call.returned else []), *self.mutation_outputs]

        def get_device(self) -> Any:
            return self.device

        def should_allocate(self) -> bool:
            return False

        def get_unbacked_symbol_defs(self) -> Any:
            return OrderedSet()

    _CLASSES.append(FilledByHost)
    return FilledByHost
