"""Text that gives away how it was made: types, devices, histories, streams, other people's print."""

from __future__ import annotations

import contextlib
import io
import logging
import pprint
import sys
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from ..inputs import NAN, calls, floats, normal
from ..program import Family
from .prints import LOG, signs
from .prints_kept import HELD, held

FAMILY = Family("print_traps")


@FAMILY.program(floats(2, 4), grad=True)
class PrintsAParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0, 1, 4))

    def forward(self, x: Tensor) -> Tensor:
        print(self.weight)  # expect: print late after_graph; cuda: any
        print(self.weight.data, self.weight.sum().detach())  # expect: print late after_graph
        return x * self.weight


@FAMILY.program(floats(2, 3), grad=True)
def history_of_views(x: Tensor) -> Tensor:
    y = x * 2
    print(y.t(), y[0], y.sum())  # expect: print late after_graph
    y = y + 1
    print(y.view(-1), y.expand(1, 2, 3))  # expect: print late after_graph
    return y


@FAMILY.program(
    calls(
        lambda: [
            (normal(4) > 0,),
            (normal(3, dtype=torch.uint8),),
            (torch.complex(normal(2), normal(2, seed=1)),),
            (torch.tensor(2.5),),
            (torch.tensor([1e-9, 1.0, 1e9]),),
            (torch.tensor([NAN, 1.0, -float("inf")], dtype=torch.float16),),
            (normal(2, 2, 2, dtype=torch.bfloat16),),
        ]
    )
)
def every_dtype(x: Tensor) -> Tensor:
    print(x, x[..., None])  # expect: print late after_graph
    return x.clone()


@FAMILY.program(floats(3, 4), grad=True)
def facts_of_a_tensor(x: Tensor) -> Tensor:
    y = x * 2
    print(y.shape, y.stride(), y.dtype, y.requires_grad, type(y))  # expect: print late after_graph
    print(len(y), y.dim(), y.numel(), y.layout, y.is_leaf)  # expect: print late after_graph
    return y


@FAMILY.program(floats(3, 4))
def starred(x: Tensor) -> Tensor:
    print(*x[0], sep=", ")  # expect: print late after_graph
    print(*[row.sum() for row in x], **{"end": "!\n"})  # expect: print late after_graph
    return x * 2


@FAMILY.program(floats(3, 4))
def in_a_comprehension(x: Tensor) -> Tensor:
    said = [print(i, row.sum()) for i, row in enumerate(x)]  # expect: print late after_graph
    return x * len(said)


@FAMILY.program(floats(3, 4), state=held)
def redirected(x: Tensor) -> Tensor:
    text = io.StringIO()
    print("outside", x.sum())  # expect: print late after_graph
    with contextlib.redirect_stdout(text):
        print("inside", x.max())  # expect: any
    print("outside", x.min())  # expect: any
    HELD.append(text.getvalue())
    return x * 2


@FAMILY.program(floats(3, 4))
def stream_swapped_by_hand(x: Tensor) -> Tensor:
    before = sys.stdout
    print("one", x.sum())  # expect: print late after_graph
    sys.stdout = sys.stderr
    print("two", x.sum())  # expect: print keep side_effect
    sys.stdout = before
    print("three", x.sum())  # expect: print keep side_effect
    return x * 2


@FAMILY.program(floats(3, 4))
def text_returned(x: Tensor) -> Any:  # Dynamo formats the first after the graph
    text = f"sum {x.sum()}"  # expect: none
    return x * 2, text, repr(x.max())  # expect: print keep python_value


@FAMILY.program(floats(3, 4), state=held)
def text_held_and_printed(x: Tensor) -> Tensor:
    text = str(x[0])  # expect: print keep python_value
    print(text.upper(), len(text))  # expect: print late after_graph
    HELD.append(text)
    return x * 2


@FAMILY.program(floats(2, 2))
def pretty_printed(x: Tensor) -> Tensor:
    pprint.pprint({"x": x, "n": [1, 2]})  # expect: print late after_graph
    pprint.pp([x.sum(), list(x), "b" * 70], width=40)  # expect: print late after_graph
    return x * 2


@FAMILY.program(floats(3, 4))
def logs_with_a_traceback(x: Tensor) -> Tensor:
    LOG.warning("sum %s", x.sum(), exc_info=True)  # expect: print keep side_effect
    try:
        raise KeyError("held")
    except KeyError:
        LOG.error("max %s", x.max(), exc_info=True)  # expect: print keep side_effect
    return x * 2


class Adapter(logging.LoggerAdapter):  # type: ignore[type-arg]
    def process(self, msg: Any, kwargs: Any) -> tuple[str, Any]:
        return f"[{self.extra['of']}] {msg}", kwargs  # type: ignore[index]


ADAPTED = Adapter(LOG, {"of": "adapter"})


@FAMILY.program(floats(3, 4))
def logs_through_an_adapter(x: Tensor) -> Tensor:
    ADAPTED.info("sum %s", x.sum())  # expect: print late after_graph or print keep side_effect
    return x * 2


@FAMILY.program(floats(3, 4))
class LogsFromAnAttribute(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.log = logging.getLogger("table.attribute")
        self.log.setLevel(logging.INFO)

    def forward(self, x: Tensor) -> Tensor:
        self.log.info("sum %s", x.sum())  # expect: print late after_graph
        self.log.debug("unheard")  # expect: print late after_graph
        return x * 2


class Careful(UserWarning):
    """A category of the program's own."""


@FAMILY.program(floats(3, 4), warned="always")
def warns_with_an_instance(x: Tensor) -> Tensor:
    warnings.warn(Careful(f"sum {x.sum()}"))  # expect: print late after_graph
    warnings.warn("plain", Careful)  # expect: print late after_graph
    warnings.warn("deep", Careful, stacklevel=1)  # expect: print late after_graph
    return x * 2


@FAMILY.program(floats(3, 4), warned="error")
def warning_raises_behind_a_write(x: Tensor) -> Tensor:
    x.add_(1)
    warnings.warn("stop")  # expect: print keep raises
    x.add_(1)
    return x


@FAMILY.program(floats(3, 4))
def write_between_prints_of_an_argument(x: Tensor) -> Tensor:
    print("before", x)  # expect: print late after_graph
    x.mul_(2)
    print("between", x)  # expect: print late after_graph
    x[0] = 0
    print("after", x)  # expect: print late after_graph
    return x


@FAMILY.program(calls(lambda: [(normal(4), normal(4))]))
def swapped_names(x: Tensor, y: Tensor) -> Tensor:
    print(x, y)  # expect: print late after_graph
    x, y = y, x
    print(x, y)  # expect: print late after_graph
    x.add_(y)
    return x, y


@FAMILY.program(calls(lambda: [(x, x) for x in (normal(4), normal(4) * 2)]))
def one_tensor_under_two_names(x: Tensor, y: Tensor) -> Tensor:
    print(x)  # expect: print late after_graph
    y.add_(1)
    print(x)  # expect: print late after_graph
    return x * 2


@FAMILY.program(floats(3, 4))
def returns_nothing(x: Tensor) -> None:
    print("sum", (x * 2).sum())  # expect: print late after_graph


@FAMILY.program(calls(lambda: [(3,), (4,)]))
def without_tensors(n: int) -> int:
    print("n is", n)  # expect: print late after_graph
    return n + 1


@FAMILY.program(signs, grad=True, breaks=True)
def in_nested_arms(x: Tensor) -> Tensor:
    if x.sum() > 0:
        print("outer", x.detach().sum())  # expect: print late after_graph
        if x.max() > 2:
            print("inner", x.detach().max())  # expect: print late after_graph
            x = x * 2
        x = x + 1
    print("end", x.detach().min())  # expect: print late after_graph
    return x


@FAMILY.program(signs)
def before_an_early_return(x: Tensor) -> Tensor:
    for i in range(3):
        x = x * 0.5
        print("round", i, x.sum())  # expect: print late after_graph
        if x.sum() < 0:
            print("leaving", i)  # expect: print late after_graph
            return x
    print("through")  # expect: print late after_graph
    return x + 1


@FAMILY.program(signs)
def before_an_assertion(x: Tensor) -> Tensor:
    print("one", x.sum())  # expect: print late after_graph
    LOG.info("two %s", x.max())  # expect: print late after_graph
    assert x.sum() > 0, f"bad {x.sum()}"
    warnings.warn("three")  # expect: print late after_graph
    return x * 2


@FAMILY.program(floats(3, 4), grad=True, dynamo=True)
def number_printed_and_returned(x: Tensor) -> Any:
    a = x.sum().item()  # expect: item late after_graph
    print(f"{a:.3f}")  # expect: print late after_graph
    return x * 2, a


def held_text(*values: Any, **_: Any) -> None:
    HELD.append([str(value) for value in values])  # expect: any


@contextlib.contextmanager
def swapped_print() -> Any:
    import builtins

    before = builtins.print
    builtins.print = held_text
    try:
        yield
    finally:
        builtins.print = before


@FAMILY.program(floats(3, 4), state=held, helpers=(held_text,))
def rebound_print(x: Tensor) -> Tensor:
    print("one", x.sum())  # expect: print late after_graph
    with swapped_print():
        print("two", x.sum())  # expect: any
    print("three", x.sum())  # expect: any
    return x * 2
