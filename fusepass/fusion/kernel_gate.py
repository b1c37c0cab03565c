"""What rules for our kernels share: where one can run, whether it compiles, what was chosen."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import fx

from fusepass.errors import CandidateFailed
from fusepass.options import Options
from fusepass.report.decision import Reason
from fusepass.rewrite.rule import Accept, Reject
from fusepass.torch_private.inductor.kernel_call import kernel_calls_possible
from fusepass.tune import INDUCTOR, REFERENCE, Choice


def gate_reason(device: torch.device, options: Options, node: fx.Node) -> Reject | None:
    """Why no kernel of ours can stand in a graph; None if one can, or the reference is forced."""
    if options.candidate == REFERENCE:
        return None
    if device.type != "cuda":
        return Reject(Reason.COST, "no kernel of ours is faster there than Inductor's", node)
    if not kernel_calls_possible():
        return Reject(Reason.UNSUPPORTED_VERSION, "never tried with this version of torch", node)
    if options.inductor_value("cpp_wrapper") or options.inductor_value("fx_wrapper"):
        return Reject(Reason.UNSUPPORTED_VERSION, "our kernels need Inductor's Python code", node)
    return None


def verdict(choice: Choice, node: fx.Node) -> Accept | Reject:
    """What a rule says where it was asked which candidate computes a node."""
    if choice.candidate == INDUCTOR:
        code = Reason.SLOWER if choice.microseconds else Reason.NO_RULE
        return Reject(code, f"left to Inductor: {choice.why}", node, choice.microseconds)
    code = {"forced": Reason.FORCED, "model": Reason.COST}.get(choice.source, Reason.MEASURED)
    return Accept(code, f"{choice.candidate}: {choice.why}", choice.microseconds)


def compile_check(rule: str, prepare: Callable[[], None], node: fx.Node) -> Reject | None:
    """Why a kernel cannot be compiled; None if it can. A table of choices does not tell."""
    try:
        prepare()
    except Exception as error:  # noqa: BLE001 - whatever stops it must not stop the program
        problem = f"{type(error).__name__}: {error}"
        warnings.warn(CandidateFailed(rule, problem), stacklevel=2)
        return Reject(Reason.INTERNAL, f"its kernel cannot be made: {problem}", node)
    return None
