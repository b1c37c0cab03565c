"""Find out by running eager whether a call accepts a kind of number with some dtypes.

``x - True`` raises and ``x - torch.tensor(True)`` does not; ``lerp`` of integers names another
kernel for a tensor than for a number. What raises for the kind of a number, whatever its value, is
given back, so that eager's own error comes at its line.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from fusepass.capture.scalars.call_rewriter import Use, name_of
from fusepass.capture.scalars.scalar import ScalarTensor, Unfit, kind_of
from fusepass.graph.ops.op_names import tensor_value
from fusepass.report.decision import Reason
from fusepass.torch_private.fx.graphs import call_target
from fusepass.torch_private.inductor import lowering

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


def is_there(device: torch.device) -> bool:
    """Whether calls can be tried on a device itself; else they are on the CPU."""
    return device.type == "cuda" and torch.cuda.is_available()
