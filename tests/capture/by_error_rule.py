"""One function in eager and compiled, where sums may be taken in another order.

Floating-point results and gradients are held to the error rule (fusepass/numerics.py), over all
calls together; everything else that a caller can see is compared as it is: exceptions, dtypes,
strides, which memory is written, integers to the last bit.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

import fusepass
import fusepass.backend
from fusepass.numerics import error_bound, half_ulp, is_float, passes, rms, rms_error, to_double
from fusepass.testing.compare import tensors

from .harness import Seen, call
from .side_by_side import Outcome

SLACK = 8  # half ulps for a few roundings where eager happens to have none
TINY = 1e-300


def by_error_rule(
    function: Callable[..., Any],
    *inputs: tuple[Any, ...],
    grad: bool = False,
    dynamic: bool | None = None,
    **options: Any,
) -> Outcome:
    """Call a function with each of the inputs, in eager, compiled and in float64; compare.

    Args:
        function: what to call.
        inputs: one tuple of arguments per call; each side gets copies.
        grad: floating-point arguments require grad, and gradients are compared.
        dynamic: as for torch.compile.
        options: of fusepass; code is run op by op unless ``codegen`` says otherwise.
    """
    seen: list[fx.GraphModule] = []

    def keep(gm: fx.GraphModule, example_inputs: Any) -> Any:
        result = fusepass.backend.fusepass(gm, example_inputs)
        seen.append(gm)
        return result

    keep.compiler_fn = fusepass.backend.fusepass  # type: ignore[attr-defined]
    fusepass.reset()
    context = "grad" if grad else "plain"
    runs: list[tuple[Seen, Seen, Seen]] = []
    with fusepass.options(**{"codegen": "eager", **options}), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = torch.compile(function, backend=keep, dynamic=dynamic)
        for args in inputs:
            eager = call(function, copies(args, grad), function, context)
            other = call(compiled, copies(args, grad), function, context)
            exact = call(function, copies(doubled(args), grad), function, context)
            same_kind(eager, other)
            runs.append((eager, other, exact))
        report = fusepass.last_report(compiled).to_dict()
    hold_to_rule(runs)
    captured = [d for d in report["decisions"] if d["station"] == "capture"]
    return Outcome(captured, seen, report["graph_breaks"])


def copies(args: tuple[Any, ...], grad: bool) -> tuple[Any, ...]:
    """Copies with the strides of the arguments that share memory as they do."""
    made = copy.deepcopy(args)
    for tensor in tensors(made) if grad else ():
        if tensor.is_floating_point() and tensor.is_leaf:
            tensor.requires_grad_()
    return made


def doubled(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments in float64, laid out as they are."""
    return tuple(to_double(arg) if isinstance(arg, Tensor) else arg for arg in args)


def visible(seen: Seen) -> list[Tensor | None]:
    """All tensors that a call left: results, arguments and gradients."""
    return [*tensors(seen.result), *tensors(seen.args), *seen.grads]


def same_kind(eager: Seen, compiled: Seen) -> None:
    """Compare all but the values of floating-point numbers."""
    assert eager.error == compiled.error
    assert eager.printed == compiled.printed
    assert torch.equal(eager.rng, compiled.rng)
    assert repr(type(eager.result)) == repr(type(compiled.result))
    if eager.backward_error is None:
        assert compiled.backward_error is None
    left, right = visible(eager), visible(compiled)
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        assert (a is None) == (b is None), (a, b)
        if a is None or b is None:
            continue
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        assert a.requires_grad == b.requires_grad
        if not is_float(a):
            assert torch.equal(a, b), (a, b)


def hold_to_rule(runs: list[tuple[Seen, Seen, Seen]]) -> None:
    """Hold the floating-point tensors of all calls against float64, each place by itself."""
    places = [[visible(seen) for seen in run] for run in runs if run[0].error is None]
    for index in range(max((len(place[0]) for place in places), default=0)):
        errors = {"eager": [], "compiled": [], "size": []}  # type: dict[str, list[float]]
        dtype = None
        for eager, other, exact in places:
            if index >= len(eager) or eager[index] is None or not is_float(eager[index]):
                continue
            want = exact[index]
            dtype = eager[index].dtype
            reference = torch.where(eager[index].isfinite(), want, eager[index].to(want.dtype))
            errors["eager"].append(rms_error(eager[index], reference))
            errors["compiled"].append(rms_error(other[index], reference))
            errors["size"].append(rms(reference[reference.isfinite()]))
        if dtype is None:
            continue
        bounds = [half_ulp(dtype, size) * SLACK + TINY for size in errors["size"]]
        worst = max(e / b for e, b in zip(errors["eager"], bounds, strict=True))
        for error, bound in zip(errors["compiled"], bounds, strict=True):
            assert passes(error, error_bound(bound, worst * bound, None)), (index, errors)
