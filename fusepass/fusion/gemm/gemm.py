"""Products of matrices in an ATen graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from fusepass.fusion.aten_to_epilogue import FLOATS
from fusepass.fusion.kernel_ir.epilogue import is_constant
from fusepass.graph.ops.op_names import op_name, tensor_value

_GEMMS = {"mm": 2, "addmm": 2, "bmm": 3, "baddbmm": 3}  # and dimensions of their results


def is_gemm(node: fx.Node) -> bool:
    """Whether a node multiplies two matrices of half precision or TF32, with a bias or without."""
    value, dims = tensor_value(node), _GEMMS.get(op_name(node) or "")
    if node.op != "call_function" or value is None or dims is None:
        return False
    if not str(node.target).endswith(".default"):
        return False  # with a dtype of its own for the result
    numbers = all(is_constant(one) for one in scales_of(node))
    kinds = FLOATS if tf32_allowed() else FLOATS[1:]
    return value.dim() == dims and value.dtype in kinds and numbers


def tf32_allowed() -> bool:
    """Whether the user lets products in single precision be TF32."""
    return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")


def operands_of(gemm: fx.Node) -> tuple[fx.Node | None, fx.Node, fx.Node]:
    """Bias, x and weight of a GEMM, or of another product whose first arguments they are."""
    args: Any = gemm.args
    return args if len(args) == 3 else (None, *args[:2])


def scales_of(gemm: fx.Node) -> tuple[Any, Any]:
    """What a GEMM's product and its bias are multiplied by."""
    return gemm.kwargs.get("alpha", 1), gemm.kwargs.get("beta", 1)
