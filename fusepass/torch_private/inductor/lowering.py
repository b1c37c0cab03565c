"""Lower fusepass's operators, read sizes as Inductor writes them, compile regions to time them.

Run on torch 2.11 to 2.15.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch._dynamo
import torch._inductor
from torch import fx


def addmm_activation(
    bias: torch.Tensor, x: torch.Tensor, weight_t: torch.Tensor, use_gelu: bool
) -> torch.Tensor:
    """``activation(x @ weight_t + bias)`` in one library call; see ``aten::_addmm_activation``."""
    return torch._addmm_activation(bias, x, weight_t, use_gelu=use_gelu)


def lower_to_addmm_activation(operator: Any, plan: Callable[..., bool | None]) -> None:
    """Compile ``operator(x, weight_t, bias, activation)`` to ``torch._addmm_activation(out=…)``.

    The call stands in the generated code as those of ``addmm`` do: Inductor plans the memory of
    its output, and it costs the host what ``addmm`` costs. Generated code names nothing of ours, so
    it runs from a cache in a process that never came here.

    Args:
        operator: an overload of that signature; ``bias`` may be None.
        plan: given fake tensors and the activation, returns ``use_gelu``, or None to leave the
            call to the operator.
    """
    if "torch._inductor.lowering" not in sys.modules:
        return
    from torch._inductor import ir, lowering
    from torch._inductor.graph import SubgraphLowering
    from torch._inductor.kernel.mm_common import mm_args
    from torch._inductor.virtualized import V

    if getattr(lowering.lowerings.get(operator), "fusepass_plan", None) is plan:
        return
    leave = lowering.fallback_handler(operator, add_to_fallback_set=False)

    def lower(x: Any, weight_t: Any, bias: Any, activation: str) -> Any:
        node = V.graph.current_node
        fakes = [value.meta["val"] if isinstance(value, fx.Node) else value for value in node.args]
        use_gelu = plan(*fakes)
        if use_gelu is None or node.meta.get("fusepass_candidate") == "reference":
            return leave(x, weight_t, bias, activation)
        *_, layout, x, weight_t = mm_args(x, weight_t)
        if bias is None:
            bias = zeros(layout)
        if V.graph.cpp_wrapper:  # has a shim for the overload that allocates its output only
            call = lowering.lowerings[torch.ops.aten._addmm_activation.default]
            return call(bias, x, weight_t, use_gelu=use_gelu)
        bias = ir.ExternKernel.require_contiguous(ir.ExternKernel.realize_input(bias))
        return ir.TensorBox.create(
            ir.ExternKernelOut(
                layout=layout,
                inputs=[bias, x, weight_t],
                kwargs={"use_gelu": use_gelu},
                python_kernel_name="torch._addmm_activation",
                op_overload=torch.ops.aten._addmm_activation.out,
            )
        )

    def zeros(layout: Any) -> Any:
        """A constant of the compiled code; with a symbolic size, or in C++, made by each call.

        Also inside a ``cond``: the code of its arms does not see constants.
        """
        size, kind = layout.size[1], {"dtype": layout.dtype, "device": layout.device}
        known = isinstance(size, int) or size.is_Integer
        if V.graph.cpp_wrapper or not known or isinstance(V.graph, SubgraphLowering):
            return lowering.lowerings[torch.ops.aten.full]([size], 0, **kind)
        with real_tensors():
            return V.graph.add_tensor_constant(torch.zeros(int(size), **kind))

    lowering.register_lowering(operator, type_promotion_kind=None)(lower)
    vars(lowering.lowerings[operator])["fusepass_plan"] = plan


def lowered_node() -> fx.Node | None:
    """The node of a graph that Inductor makes code of at the moment; None outside of that."""
    if "torch._inductor.lowering" not in sys.modules:
        return None
    from torch._inductor.virtualized import V

    node = getattr(V.graph, "current_node", None)
    return node if isinstance(node, fx.Node) else None


def others_overlap() -> bool:
    """Whether Inductor's own kernels may begin before those in front of them end."""
    from torch._inductor import config

    return bool(getattr(config.triton, "enable_pdl", False))


@contextlib.contextmanager
def real_tensors() -> Iterator[None]:
    """Compute for real inside a compile: no fake tensors, no tracing, no autograd."""
    from torch._dispatch.python import no_python_dispatcher
    from torch._guards import tracing
    from torch.utils._python_dispatch import _disable_current_modes as no_modes

    with no_modes(), no_python_dispatcher(), tracing(None), torch.no_grad():
        yield


def keep_device_busy(cycles: int) -> None:
    """Queue a kernel on the current CUDA stream that does nothing for so many clock cycles."""
    torch.cuda._sleep(cycles)


def compile_region(
    function: Callable[..., Any], inputs: Sequence[Any], patches: Mapping[str, Any]
) -> Callable[[], Any]:
    """Compile a small function with Inductor alone, also from inside another compile.

    Dynamo and AOTAutograd stay out of it: they hold locks and contexts of the compile that is under
    way. Call it, and what it returns, under :func:`real_tensors`.

    Args:
        function: of the tensors in ``inputs``; returns one tensor, or a list of some.
        inputs: real tensors.
        patches: Inductor config values; custom passes and CUDA graphs are off in any case.

    Returns:
        A function of no arguments that runs the compiled code on ``inputs``.
    """
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    hooks = (
        "post_grad_custom_pre_pass",
        "post_grad_custom_post_pass",
        "joint_custom_pre_pass",
        "joint_custom_post_pass",
        "pre_grad_custom_pass",
    )
    plain = {hook: None for hook in hooks if hasattr(config, hook)}
    with config.patch({**patches, **plain, "triton.cudagraphs": False}):

        def returned(*args: Any) -> tuple[Any, ...]:
            made = function(*args)
            return tuple(made) if isinstance(made, list) else (made,)

        traced = make_fx(returned, select_decomp_table())
        gm = traced(*inputs)
        code = compile_fx_inner(gm, list(inputs))
    return lambda: code(list(inputs))


def expression(size: Any) -> Any:
    """A symbolic size as an expression; anything else as it is."""
    return size.node.expr if isinstance(size, torch.SymInt) else size
