"""Prints of compiled code, compared with eager's: text, order, time, and which stay breaks."""

# ruff: noqa: T201, UP031 - the programs write in every way there is

from __future__ import annotations

import logging
import sys
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fusepass
from tests.harness.call import call

from ..support.written import assert_kept, assert_late, assert_same_text, treatments

logger = logging.getLogger("fusepass_tests.speech")
ENDINGS: dict[str, Any] = {"sep": " | ", "end": " ~\n"}


def inputs() -> tuple[Tensor]:
    return (torch.linspace(-1.5, 4, 15).reshape(3, 5),)


def graded() -> tuple[Tensor]:
    return (inputs()[0].requires_grad_(),)


def strided() -> tuple[Tensor]:
    return (torch.linspace(-3, 4, 30, dtype=torch.float64).reshape(5, 6).t()[::2, 1:],)


def empty() -> tuple[Tensor]:
    return (torch.zeros(0, 5),)


def special() -> tuple[Tensor]:
    return (torch.tensor([[float("nan"), float("inf")], [-0.0, 1e-30]]),)


ALL = (inputs, graded, strided, special)


def tensors_as_they_are(x: Tensor) -> Tensor:
    y = x * 2
    print("y", y, y.sum(), [y, (1, y.T)], {"y": y[0], 3: None})
    return y.exp()


def numbers(x: Tensor) -> Tensor:
    loss = (x * 2).sum()
    print(loss.item(), loss.item() * 100, -loss.item() + 1, loss.item() / 3, end="!\n")
    return loss * 2


def formats(x: Tensor) -> Tensor:
    loss = x.sum()
    print(f"loss {loss:.4f} {loss.item():>12.3e} {loss!r} {loss!s} {x}", f"{loss:.2f} {x}")
    print("%s and %.3f and %5d" % (x, loss, 3), "%s" % loss)
    print(str(x) + repr(loss), str(loss).upper(), ", ".join([str(loss), f"{loss:.1f}"]))
    return loss * 2


def facts(x: Tensor) -> Tensor:
    print(
        x.shape, x.dtype, x.device, len(x), x.dim(), x.size(0), x.requires_grad, None, True, 3, "a"
    )
    print()
    print(x.shape[0] * 2, tuple(x.shape), f"{x.shape} {x.stride()} {x.numel():,}")
    return x + 1


def lists(x: Tensor) -> Tensor:
    y = x.flatten()[:2] * 3
    print(y.tolist(), y.sum().tolist(), [f"{v:.2f}" for v in y.tolist()], len(y.tolist()))
    print(*[y, 2], *y.tolist(), x[1:, :2].tolist(), sep="; ")
    return x * y.sum()


class Pair(NamedTuple):
    left: Any
    right: Any


def containers(x: Tensor) -> Tensor:
    y = x * 2
    print(
        Pair(y[0], 2), x.max(-1), [{"a": (y.sum(), [1.5])}], (y[0, 0],), [], (), {}, "".join("ab")
    )
    print(" ".join(f"{k}={v:.3f}" for k, v in {"min": y.min(), "max": y.max().item()}.items()))
    print(f"{y.mean()=} {y.shape=}", "%(a)s %(b).2f" % {"a": y[0], "b": y.mean().item()})
    return y


def asks_about_values(x: Tensor) -> Tensor:
    print(
        x.shape == (3, 5), (x.sum() > 3).item(), not x.isnan().any(), bool(x.max() > 1), x is None
    )
    return x - 1


def streams(x: Tensor) -> Tensor:
    print("to stderr", x.sum(), file=sys.stderr)
    print("to stdout", x.mean(), file=sys.stdout, flush=True, **ENDINGS)
    print("to nobody in particular", file=None)
    return x + 1


def only_constants(x: Tensor) -> Tensor:
    print("layer", 1, ("a", [2.5]), sep="-")
    return x + 1


def returns_what_it_prints(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = x * 2
    z = y[0]
    print(x, y, z)
    return y, z, x


def prints_alone(x: Tensor) -> Tensor:
    print("x", x)
    return x


@pytest.mark.parametrize(
    "program",
    [
        tensors_as_they_are,
        numbers,
        formats,
        facts,
        lists,
        containers,
        asks_about_values,
        streams,
        only_constants,
        returns_what_it_prints,
        prints_alone,
    ],
    ids=lambda program: program.__name__,
)
def test_text_of_print(program: Any) -> None:
    for make in ALL:
        torch.compiler.reset()
        compiled = assert_same_text(program, make)
        assert_late(compiled)


def test_empty_tensors_are_printed_late() -> None:
    assert_late(assert_same_text(facts, empty))
    torch.compiler.reset()
    assert_late(assert_same_text(tensors_as_they_are, lambda: (torch.zeros(1, 0),)))


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.int8, torch.bool, torch.complex64]
)
def test_dtypes(dtype: torch.dtype) -> None:
    def program(x: Tensor) -> Tensor:
        y = x.clone()
        print(y, y[0, 0].item(), y[1, 1], f"{y[0, 1]}")
        return y

    assert_late(assert_same_text(program, lambda: (inputs()[0].to(dtype),)))


class Layers(nn.Module):
    def __init__(self, count: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(5, 5) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = layer(x).relu()
            print(f"layer {i}: mean {x.mean().item():.6f}", x.std(), layer.bias)
        return x


def test_loop_over_layers_is_one_graph() -> None:
    compiled = assert_same_text(Layers(), inputs, graded)
    report = fusepass.last_report(compiled)
    assert not report.graph_breaks
    assert set(treatments(compiled)) == {("late", "after_graph")}


def test_values_are_those_of_the_call() -> None:
    def program(x: Tensor, seen: list[Any]) -> Tensor:
        y = x * 2
        first = y[0]
        print("before", x, y, first, y.sum().item(), seen)
        y.add_(1)
        x.mul_(3)
        print("between", x, y, first)
        first.zero_()
        seen.append(2)
        print("after", x, y, first, seen)
        return y

    assert_late(assert_same_text(program, lambda: (*inputs(), [1])))


def test_a_number_read_before_a_write() -> None:
    def program(x: Tensor) -> Tensor:
        total = x.sum()
        number = total.item()
        total.add_(1)
        print(number, total)
        return total

    assert_same_text(program, inputs)


def test_a_text_begun_before_a_write() -> None:
    def program(x: Tensor) -> Tensor:
        y = x * 2
        text = f"{y} {y.sum():.3f}"
        y.add_(1)
        print(text)
        return y

    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    call(compiled, inputs())  # Dynamo itself puts the text together at the break
    assert_kept(compiled, "side_effect")


def test_numbers_in_locals() -> None:
    def program(x: Tensor) -> Tensor:
        low, high = x.min().item(), x.max().item()
        print("range", low, high, high - low, f"{high:.3f}")
        return x * 2

    compiled = assert_same_text(program, inputs, graded)
    assert_late(compiled, graphs=2)


GRADED: dict[str, Any] = {
    "mul": lambda x: x * 2,
    "linear": lambda x: F.linear(x, torch.ones(2, 5)),
    "linear_3d": lambda x: F.linear(x[None], torch.ones(2, 5), torch.ones(2)),
    "matmul": lambda x: x @ x.T,
    "bmm": lambda x: torch.stack([x, x]) @ torch.stack([x.T, x.T]),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.tensor([0, 1, 2])),
    "mse": lambda x: F.mse_loss(x, torch.zeros(3, 5)),
    "bce": lambda x: F.binary_cross_entropy_with_logits(x, torch.ones(3, 5)),
    "softmax": lambda x: x.softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x, (5,)),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "view": lambda x: x.view(5, 3),
    "slice": lambda x: x[1:, 2],
    "index": lambda x: x[torch.tensor([0, 2])],
    "chunk": lambda x: x.chunk(2)[1],
    "lookup": lambda x: (x * 2)[1],
    "row": lambda x: list(x * 2)[1],
    "unpacked": lambda x: (lambda a, b, c: b)(*(x * 2)),
    "row_of_a_loop": lambda x: [row for row in x * 2 if row.dim()][2],
    "of_a_row": lambda x: next(zip(x * 2, range(3), strict=True))[0] * 3,
    "max": lambda x: x.max(-1).values,
    "clone": lambda x: x.clone(),
    "in_place": lambda x: (x * 1).mul_(3),
    "relu_in_place": lambda x: F.relu(x * 1, inplace=True),
    "detached": lambda x: (x * 2).detach(),
    "leaf": lambda x: (x * 2).detach().requires_grad_(),
    "double": lambda x: x.double(),
    "cat": lambda x: torch.cat([x, x]),
    "where": lambda x: torch.where(x > 0, x, x * 2),
    "identity": lambda x: F.dropout(x, training=False),
    "dropout": lambda x: F.dropout(x, 0.3),
    "no_grad": torch.no_grad()(lambda x: x * 2),
}


@pytest.mark.parametrize("name", GRADED)
def test_gradient_functions(name: str) -> None:
    def program(x: Tensor) -> Tensor:
        y = GRADED[name](x)
        print(y, y.sum())
        return x * 2

    compiled = assert_same_text(program, graded)
    if name not in ("identity", "leaf"):  # left out, or a break of its own, in some versions
        assert_late(compiled)


def test_a_view_written_later() -> None:
    def program(x: Tensor) -> Tensor:
        y = x * 1
        y[0].mul_(2)
        row = y[1]
        row.add_(1)
        print(y, row)
        return y

    assert_same_text(program, graded)


def test_a_parameter() -> None:
    module = nn.Linear(5, 5)

    def program(x: Tensor) -> Tensor:
        print(module.weight, module.bias.sum(), [module.bias])
        return module(x)

    assert_late(assert_same_text(program, inputs))


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * x

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * 2


def test_a_function_of_the_program_is_kept() -> None:
    def program(x: Tensor) -> Tensor:
        y = Squared.apply(x)
        print(y)
        return y

    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    call(compiled, graded())  # the break shows the name of Dynamo's own function
    assert_kept(compiled, "untraceable")


def test_prints_do_not_recompile_for_sizes_and_steps() -> None:
    def program(x: Tensor, step: int) -> Tensor:
        print(f"step {step}: {x.shape} {x.shape[0] * 2} {x.sum():.3f}", step + 1, x.size(0))
        return x * 2

    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    for step, size in enumerate((5, 7, 11, 13, 17), 2):
        x = torch.arange(float(size))
        assert call(compiled, (x, step)).said == call(program, (x, step)).said
    assert len(fusepass.last_report(compiled).operations) == 2  # as it is, and for any size


def test_fullgraph() -> None:
    assert_late(assert_same_text(formats, inputs, fullgraph=True))


@pytest.mark.parametrize("codegen", ["eager", "eager-decomposed", "inductor"])
def test_every_code_generator(codegen: str) -> None:
    compiled = torch.compile(Layers(2), backend="fusepass", options={"codegen": codegen})
    for make in (inputs, graded):
        ((ours,), (eager,)) = (call(one, make()).said for one in (compiled, Layers(2)))
        if codegen == "eager":
            assert ours == eager
        lines = [[line.split()[:3] for line in one.text.split("\n")] for one in (ours, eager)]
        assert lines[0] == lines[1]
    assert_late(compiled, graphs=2)
