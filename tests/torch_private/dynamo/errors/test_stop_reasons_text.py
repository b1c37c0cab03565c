"""Errors of Dynamo, taken apart; what a program would catch them by; where they arose."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._dynamo import exc

from fusepass.torch_private.dynamo.errors.stop_reasons import Said, place_of, python_error, said

TEXT = """\
Dynamic shape operator
  Explanation: Operator `aten.nonzero.default`'s output shape
    depends on input Tensor data.
  Hint: Do this.
  Hint: Or that.

  Developer debug context: aten.nonzero.default

 For more details about this graph break, please visit: https://example.org
"""


def test_parts() -> None:
    explanation = "Operator `aten.nonzero.default`'s output shape depends on input Tensor data."
    wanted = Said("Dynamic shape operator", explanation, "aten.nonzero.default")
    assert said(TEXT) == wanted
    assert said(f"Graph break in user code. Reason:\n\n{TEXT}") == wanted


def test_another_text_is_its_first_line() -> None:
    assert said("\n  one line\nanother") == Said("one line")
    assert said("") == Said("")


@pytest.mark.parametrize("kind", [KeyError, IndexError, AttributeError, ValueError, StopIteration])
def test_class_of_what_the_program_raises(kind: type[Exception]) -> None:
    observed = exc.get_dynamo_observed_exception(kind)
    assert python_error(observed.__new__(observed)) == kind.__name__


def test_class_of_others() -> None:
    assert python_error(KeyError("x")) == "KeyError"
    assert python_error(exc.InternalTorchDynamoError()) == "RuntimeError"

    class Own(ValueError):
        pass

    assert python_error(Own()) == "Own"


def test_place() -> None:
    found: list[tuple[str, int] | None] = []

    def breaks(x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return x

    try:
        torch.compile(breaks, backend="eager", fullgraph=True)(torch.ones(1))
    except exc.Unsupported as error:
        found = [place_of(error), place_of(error, breaks.__code__)]
    assert found == [(__file__, breaks.__code__.co_firstlineno + 1), None]
    assert place_of(ValueError()) is None
