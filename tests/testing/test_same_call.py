"""Check what counts as a difference of a rewritten program, and what does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fusepass.testing.call import Seen, at_precision, observed
from fusepass.testing.compare import Difference
from fusepass.testing.rounding import check_rounding
from fusepass.testing.same_call import exact_values, rounded_values


def seen(program: Callable[..., Any], *shapes: tuple[int, ...], context: str = "grad") -> Seen:
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(s, generator=generator).requires_grad_() for s in shapes or [(3, 4)]]
    return observed(program, tuple(inputs), None, context)


@pytest.mark.parametrize(
    ("eager", "compiled", "kind"),
    [
        (lambda x: x * 2, lambda x: (x * 2).double(), "dtype"),
        (lambda x: x * 2, lambda x: (x * 2)[:1], "shape"),
        (lambda x: x * 2, lambda x: (x.t() * 2).contiguous().t(), "stride"),
        (lambda x: x * 2, lambda x: x.detach() * 2, "requires_grad"),
        (lambda x: (x * 2,), lambda x: (x * 2, x), "structure"),
        (lambda x: x.view(-1), lambda x: x.reshape(-1).clone(), "aliasing"),
        (lambda x: x, lambda x: x.view_as(x), "aliasing"),
        (lambda x: (x * 2).argmax(), lambda x: (x * 2).argmin(), "values"),
        (lambda x: x.sum().item(), lambda x: x.sum(), "structure"),
        (lambda x: x * 2, lambda x: (_ for _ in ()).throw(ValueError("no")), "exception"),
        (lambda x: (x * 2, x.detach() + 1), lambda x: (x * 2, x + 1), "requires_grad"),
    ],
)
def test_differences(eager: Any, compiled: Any, kind: str) -> None:
    with pytest.raises(Difference) as found:
        rounded_values(seen(eager), seen(compiled))
    assert found.value.kind == kind


def test_a_gradient_of_zero_is_not_none() -> None:
    eager = seen(lambda x, y: x * 2, (3,), (3,))
    compiled = seen(lambda x, y: x * 2 + 0 * y, (3,), (3,))
    with pytest.raises(Difference, match=r"gradients\[1\]: None in eager"):
        rounded_values(eager, compiled)


def test_written_inputs_are_compared() -> None:
    def writes(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x.add_(1)
        return x.detach() * 2

    pairs = rounded_values(seen(writes), seen(lambda x: x.detach() * 2 + 2))
    assert "args[0]" in [pair.path for pair in pairs]


def test_strides_of_single_elements_say_nothing() -> None:
    eager = seen(lambda x: x[:1] * 2)
    compiled = seen(lambda x: torch.as_strided(x[:1] * 2, (1, 4), (7, 1)))
    assert rounded_values(eager, compiled) == []


def test_equal_calls_have_no_pairs_to_judge() -> None:
    assert rounded_values(seen(lambda x: x.exp()), seen(lambda x: x.exp())) == []


def judged(eager: Any, compiled: Any) -> Difference | None:
    x = torch.randn(64, generator=torch.Generator().manual_seed(0))
    calls = [observed(program, (x,)) for program in (eager, compiled)]
    exact = exact_values(calls[0], at_precision(torch.float64, eager, [x]))
    (pair,) = rounded_values(*calls)
    assert exact[id(pair.eager)].dtype == torch.float64
    return check_rounding([(pair, exact[id(pair.eager)], 0.0)])


def test_rounding_passes_and_a_variant_does_not() -> None:
    gelu = torch.nn.functional.gelu
    assert judged(lambda x: x * x.sigmoid(), lambda x: torch.nn.functional.silu(x)) is None
    found = judged(lambda x: gelu(x), lambda x: gelu(x, approximate="tanh"))
    assert found is not None
    assert found.bound > 0
    assert "RMS error above" in str(found)


def test_finite_is_right_where_the_exact_value_is() -> None:
    hundred = 100.0

    def overflows(x: torch.Tensor) -> torch.Tensor:
        return torch.log(torch.exp(x.abs() + hundred))

    assert judged(overflows, lambda x: x.abs() + hundred) is None
    found = judged(lambda x: x.abs() + hundred, overflows)
    assert found is not None
    assert found.kind == "NaN or infinity"


def test_exact_means_exact_inside_the_program_too() -> None:
    def casts(x: torch.Tensor) -> torch.dtype:
        return (x.half().float() * torch.zeros(3, dtype=torch.bfloat16).to(torch.float16)).dtype

    assert at_precision(torch.float64, casts, [torch.randn(3)]).result == torch.float64


def test_a_cast_that_copies_in_16_bits_copies_in_the_exact_run() -> None:
    def program(x: Tensor) -> Tensor:
        x = x.clone()
        wide, again = x.float(), x.to(torch.float32)
        made = wide * wide + again * again
        x.mul_(2)
        return made

    inputs = [torch.randn(3, dtype=torch.bfloat16).requires_grad_()]
    assert at_precision(torch.float64, program, inputs).grads[0] is not None


def test_a_backward_that_eager_refuses_is_not_asked_for() -> None:
    def writes_what_is_saved(x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        y.mul_(2)
        return y

    assert rounded_values(seen(writes_what_is_saved), seen(lambda x: x.exp() * 2)) == []
    assert seen(lambda x: x.exp(), context="no_grad").grads == []
