"""Text, log records and warnings about tensors: written after the graph, as eager would have."""

from __future__ import annotations

import logging
import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..inputs import calls, every_float, floats, layouts, normal
from ..program import Calls, Family

FAMILY = Family("prints")
LOG = logging.getLogger("table.prints")
LOG.setLevel(logging.INFO)


def signs() -> Calls:
    """Positive, negative, and each again."""
    x = normal(3, 4).abs() + 0.25
    return [(x,), (-x,), (x * 2,), (-x,)]


@FAMILY.program(
    {**every_float(3, 4), "i64": calls(lambda: [(normal(3, 4, dtype=torch.int64),)])},
    grad=True,
    tags="inductor contexts",
)
def prints_a_tensor(x: Tensor) -> Tensor:
    y = x * 2
    print("y is", y)  # expect: print late after_graph
    return y + 1


@FAMILY.program(floats(3, 4), grad=True, tags="inductor")
def prints_a_loss(x: Tensor) -> Tensor:
    loss = F.mse_loss(x, torch.ones_like(x))
    print(loss)  # expect: print late after_graph
    return loss


@FAMILY.program(floats(3, 4))
def prints_nothing_of_a_tensor(x: Tensor) -> Tensor:
    y = x * 2
    print("step", 3, x.shape, x.dtype, x.device)  # expect: print late after_graph
    print()  # expect: print late after_graph
    return y + 1


@FAMILY.program(floats(3, 4), grad=True)
def prints_in_order(x: Tensor) -> Tensor:
    print("first", x)  # expect: print late after_graph
    x = x * 2
    print("second", x)  # expect: print late after_graph
    x = x.relu()
    print("third", x, sep="|", end=";\n\n")  # expect: print late after_graph
    return x


@FAMILY.program(floats(3, 4), tags="inductor")
def written_after_the_print(x: Tensor) -> Tensor:
    y = x * 2
    print(y)  # expect: print late after_graph
    y.add_(100)
    print(y)  # expect: print late after_graph
    return y


@FAMILY.program(floats(3, 4))
def argument_written_after_the_print(x: Tensor) -> Tensor:
    print(x)  # expect: print late after_graph
    x.mul_(0)
    return x + 1


@FAMILY.program(floats(3, 4))
def alias_written_after_the_print(x: Tensor) -> Tensor:
    y = x.clone()
    row = y[0]
    print(row, y.t())  # expect: print late after_graph
    y[:, 1] = 7.0
    return y + row


@FAMILY.program(layouts())
def base_written_after_the_print(x: Tensor) -> Tensor:
    y = x.clone()
    view = y[:, 1:]
    print(view.sum(), view[:1])  # expect: print late after_graph
    y.zero_()
    print(view)  # expect: print late after_graph
    return y


@FAMILY.program(floats(3, 4), grad=True)
class WritesABuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        print("at step", self.steps)  # expect: print late after_graph
        self.steps += 1
        x = self.linear(x)
        print("at step", self.steps, x.shape)  # expect: print late after_graph
        return x


@FAMILY.program(floats(2, 2), grad=True)
def with_a_grad_fn(x: Tensor) -> Tensor:
    y = (x * 2).relu()
    print(y)  # expect: print late after_graph
    print(x)  # expect: print late after_graph
    print(y.detach(), y.requires_grad, y.is_leaf)  # expect: print late after_graph
    return y.sum()


@FAMILY.program(floats(3, 4), grad=True)
def f_string(x: Tensor) -> Tensor:
    y = x * 2
    print(f"y = {y.detach()} of {y.shape[0]} rows")  # expect: print late after_graph
    return y


@FAMILY.program(floats(3, 4))
def f_string_with_a_format(x: Tensor) -> Tensor:
    print(f"sum {x.sum():.3f}, max {x.max():>10.2e}")  # expect: print late after_graph
    return x * 2


@FAMILY.program(floats(3, 4))
def percent_and_format(x: Tensor) -> Tensor:
    print("sum %s" % x.sum())  # expect: print late after_graph
    print("sum {} and {}".format(x.sum(), x.dtype))  # expect: print late after_graph
    return x * 2


@FAMILY.program(floats(3, 4), grad=True)
def number_of_a_tensor(x: Tensor) -> Tensor:
    print("sum", x.sum().item(), float(x.max()))  # expect: print late after_graph
    return x * 2


@FAMILY.program(floats(3, 4), dynamo=True)
def formatted_number(x: Tensor) -> Tensor:
    print(f"{x.sum().item():.4f} {int((x > 0).sum()):>5d}")  # expect: print late after_graph
    return x * 2


@FAMILY.program(floats(3, 4))
def number_used_and_printed(x: Tensor) -> Tensor:
    a = x.abs().max().item()  # expect: item device on_device
    print("scale", a)  # expect: print late after_graph
    return x / (a + 1)


@FAMILY.program(floats(3, 4))
def list_of_numbers(x: Tensor) -> Tensor:
    print(x[0].tolist())  # expect: print late after_graph
    return x * 2


@FAMILY.program(floats(2, 2))
def containers_of_tensors(x: Tensor) -> Tensor:
    y = x * 2
    print([x, y], (y,), {"y": y, "n": 3}, None, True, 1.5)  # expect: print late after_graph
    return y


@FAMILY.program(floats(2, 2))
def list_changed_after_the_print(x: Tensor) -> Tensor:
    parts = [x * 2]
    print(parts, len(parts))  # expect: print late after_graph
    parts.append(x * 3)
    print(parts)  # expect: print late after_graph
    return torch.stack(parts)


@FAMILY.program(floats(3, 4), grad=True, tags="inductor")
def in_a_loop(x: Tensor) -> Tensor:
    for i in range(3):
        x = x * 0.5
        print(i, x.sum().detach())  # expect: print late after_graph
    return x


def report(name: str, value: Tensor) -> None:
    print(f"[{name}]", value.mean())  # expect: print late after_graph


@FAMILY.program(floats(3, 4), helpers=(report,))
def in_a_helper(x: Tensor) -> Tensor:
    report("in", x)
    y = x.relu()
    report("out", y)
    return y


class Inner(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        print("inner", x.shape, x.sum())  # expect: print late after_graph
        return x * 2


@FAMILY.program(floats(3, 4), helpers=(Inner,))
class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x)
        print("outer", x.sum())  # expect: print late after_graph
        return self.inner(x)


@FAMILY.program(floats(3, 4), tags="contexts")
def logs_a_tensor(x: Tensor) -> Tensor:
    y = x * 2
    LOG.info("y %s of %d", y, 3)  # expect: print late after_graph
    LOG.warning("sum %.3f", y.sum())  # expect: print late after_graph
    return y + 1


@FAMILY.program(floats(3, 4))
def logs_below_the_level(x: Tensor) -> Tensor:
    LOG.debug("unseen %s", x)  # expect: print late after_graph
    return x + 1


@FAMILY.program(floats(3, 4))
def logs_from_the_root(x: Tensor) -> Tensor:
    logging.warning("mean %s", x.mean())  # expect: print late after_graph
    logging.getLogger("table.prints").error("max %s", x.max())  # expect: print late after_graph
    return x + 1


@FAMILY.program(floats(3, 4))
def logs_and_prints_in_turn(x: Tensor) -> Tensor:
    print("one", x.sum())  # expect: print late after_graph
    LOG.info("two %s", x.max())  # expect: print late after_graph
    warnings.warn(f"three {x.min()}")  # expect: print late after_graph
    print("four")  # expect: print late after_graph
    return x.relu()


@FAMILY.program(floats(3, 4), tags="contexts")
def warns_of_a_tensor(x: Tensor) -> Tensor:
    y = x * 2
    warnings.warn(f"sum {y.sum()}", RuntimeWarning, stacklevel=1)  # expect: print late after_graph
    return y + 1


def checked(x: Tensor) -> Tensor:
    warnings.warn(f"check {x.max():.3f}", stacklevel=2)  # expect: print late after_graph
    return x + 1


@FAMILY.program(floats(3, 4), helpers=(checked,))
def warns_at_its_caller(x: Tensor) -> Tensor:
    x = checked(x)
    return checked(x) * 2


@FAMILY.program(floats(3, 4), warned="default")
def warns_once_for_a_line(x: Tensor) -> Tensor:
    for _ in range(3):
        warnings.warn("the same each time")  # expect: print late after_graph
        x = x * 2
    return x


@FAMILY.program(floats(3, 4), warned="once")
def warns_once_for_a_text(x: Tensor) -> Tensor:
    warnings.warn("the same each time")  # expect: print late after_graph
    x = x * 2
    warnings.warn("the same each time")  # expect: print late after_graph
    return x


@FAMILY.program(floats(3, 4), warned="ignore")
def warns_and_is_ignored(x: Tensor) -> Tensor:
    warnings.warn(f"unseen {x.sum()}")  # expect: print late after_graph
    return x * 2


@FAMILY.program(signs, grad=True)
def in_both_arms(x: Tensor) -> Tensor:
    if x.sum() > 0:
        print("positive", x.sum().detach())  # expect: print late after_graph
        x = x * 2
    else:
        print("negative", x.sum().detach())  # expect: print late after_graph
    return x + 1


@FAMILY.program(signs)
def beside_a_branch(x: Tensor) -> Tensor:
    print("before", x.sum())  # expect: print late after_graph
    if x.sum() > 0:
        x = x * 2
    print("after", x.sum())  # expect: print late after_graph
    return x + 1


@FAMILY.program(signs)
def before_a_raise(x: Tensor) -> Tensor:
    print("before", x.sum())  # expect: print late after_graph
    if x.sum() < 0:
        raise ValueError(f"negative {x.sum()}")
    print("after", x.sum())  # expect: print late after_graph
    return x + 1


@FAMILY.program(
    calls(lambda: [(normal(3, 4), torch.tensor([i])) for i in (0, 2, 9, -1)]), device="cpu"
)
def before_an_index_error(x: Tensor, i: Tensor) -> Tensor:
    print("looking up", i)  # expect: print late after_graph
    y = x.index_select(0, i)
    print("found", y)  # expect: print late after_graph
    return y


@FAMILY.program(
    calls(lambda: [(torch.tensor(7), torch.tensor(n)) for n in (2, 0, 3)]), device="cpu"
)
def before_a_division(a: Tensor, n: Tensor) -> Tensor:
    print("dividing by", n)  # expect: print late after_graph
    y = a // n
    print("gives", y)  # expect: print late after_graph
    return y * 2


@FAMILY.program(floats(3, 4), grad=True)
def under_no_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = x * 2
        print(y, torch.is_grad_enabled())  # expect: print late after_graph
    print(torch.is_grad_enabled())  # expect: print late after_graph
    return x * y


@FAMILY.program(calls(lambda: [(normal(3, 4),), (normal(3, 4),)]))
def random_numbers_around(x: Tensor) -> Tensor:
    a = torch.rand(2, device=x.device)
    print("noise", a)  # expect: print late after_graph
    b = torch.rand(2, device=x.device)
    print("noise", b)  # expect: print late after_graph
    return x * torch.cat([a, b])


@FAMILY.program(floats(3, 4))
def returns_what_it_printed(x: Tensor) -> Tensor:
    y = x * 2
    print(y)  # expect: print late after_graph
    return y


@FAMILY.program(floats(3, 4))
def flushes(x: Tensor) -> Tensor:
    print("now", x.sum(), flush=True)  # expect: print late after_graph
    return x * 2


@FAMILY.program(calls(lambda: [(normal(0, 3),), (normal(1200),), (normal(2, 3) * 1e6,)]))
def long_and_empty(x: Tensor) -> Tensor:
    print(x)  # expect: print late after_graph
    return x * 2


@FAMILY.program(calls(lambda: [(normal(n),) for n in (3, 4, 5)]), dynamic=True)
def under_dynamic_shapes(x: Tensor) -> Tensor:
    print("length", x.shape[0], x.sum())  # expect: print late after_graph
    return x * 2


@FAMILY.program(floats(3, 4), grad=True)
def result_of_the_print(x: Tensor) -> Tensor:
    y = print("x", x.detach())  # expect: print late after_graph
    return x * 2 if y is None else x
