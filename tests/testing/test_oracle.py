"""What counts as a difference, and what does not."""

from __future__ import annotations

import pytest
import torch

from fusepass.testing.observe import at_precision, observe
from fusepass.testing.oracle import Difference, compare, judge_values


def seen(program, *shapes, called="", **kwargs):
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(s, generator=generator).requires_grad_() for s in shapes or [(3, 4)]]
    return observe(program, inputs, called=called, **kwargs)


@pytest.mark.parametrize(
    ("eager", "compiled", "fact"),
    [
        (lambda x: x * 2, lambda x: (x * 2).double(), "dtype"),
        (lambda x: x * 2, lambda x: (x * 2)[:1], "shape"),
        (lambda x: x * 2, lambda x: (x.t() * 2).contiguous().t(), "stride"),
        (lambda x: x * 2, lambda x: x.detach() * 2, "requires_grad"),
        (lambda x: x * 2, lambda x: (x * 2, x), "their number"),
        (lambda x: x.view(-1), lambda x: x.reshape(-1).clone(), "shared memory"),
        (lambda x: x, lambda x: x.view_as(x), "identity"),
        (lambda x: (x * 2).argmax(), lambda x: (x * 2).argmin(), "its value"),
        (lambda x: x.sum().item(), lambda x: x.sum(), "type"),
        (lambda x: x * 2, lambda x: (_ for _ in ()).throw(ValueError("no")), "what it raises"),
        (lambda x: (x * 2, x.detach() + 1), lambda x: (x * 2, x + 1), "requires_grad"),
    ],
)
def test_differences(eager, compiled, fact):
    found = compare(seen(eager), seen(compiled))
    assert isinstance(found, Difference)
    assert found.fact == fact


def test_a_gradient_of_zero_is_not_none():
    eager = seen(lambda x, y: x * 2, (3,), (3,))
    compiled = seen(lambda x, y: x * 2 + 0 * y, (3,), (3,))
    found = compare(eager, compiled)
    assert str(found) == "gradients[1]: it is None in eager, a tensor compiled"


def test_written_inputs_are_compared():
    def writes(x):
        with torch.no_grad():
            x.add_(1)
        return x.detach() * 2

    (pair,) = compare(seen(writes), seen(lambda x: x.detach() * 2 + 2))[:1]
    assert pair.path in ("outputs[0]", "inputs[0]")


def test_strides_of_single_elements_say_nothing():
    eager = seen(lambda x: x[:1] * 2)
    compiled = seen(lambda x: torch.as_strided(x[:1] * 2, (1, 4), (7, 1)))
    assert compare(eager, compiled) == []


def test_equal_calls_have_no_pairs_to_judge():
    assert compare(seen(lambda x: x.exp()), seen(lambda x: x.exp())) == []


def judged(eager, compiled, exact=None):
    x = torch.randn(64, generator=torch.Generator().manual_seed(0))
    pairs = compare(observe(eager, [x]), observe(compiled, [x]))
    reference = at_precision(torch.float64, exact or eager, [x]).outputs[0]
    return judge_values([(pairs[0], reference, 0.0)])


def test_rounding_passes_and_a_flavour_does_not():
    gelu = torch.nn.functional.gelu
    assert judged(lambda x: x * x.sigmoid(), lambda x: torch.nn.functional.silu(x)) is None
    found = judged(lambda x: gelu(x), lambda x: gelu(x, approximate="tanh"))
    assert found is not None
    assert found.bound is not None
    assert "RMS error above" in str(found)


def test_finite_is_right_where_the_exact_value_is():
    hundred = 100.0

    def overflows(x):
        return torch.log(torch.exp(x.abs() + hundred))

    assert judged(overflows, lambda x: x.abs() + hundred) is None
    found = judged(lambda x: x.abs() + hundred, overflows)
    assert found is not None
    assert found.fact == "NaN or infinity"


def test_exact_means_exact_inside_the_program_too():
    def casts(x):
        return (x.half().float() * torch.zeros(3, dtype=torch.bfloat16).to(torch.float16)).dtype

    found = at_precision(torch.float64, casts, [torch.randn(3)])
    assert found.outputs == (torch.float64,)


def test_a_backward_that_eager_refuses_is_not_asked_for():
    def writes_what_is_saved(x):
        y = x.exp()
        y.mul_(2)
        return y

    assert seen(writes_what_is_saved).gradients is None
    assert seen(lambda x: x.exp(), called="no_grad").gradients is None
