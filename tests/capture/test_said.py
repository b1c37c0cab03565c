"""What the report says of branches and numbers that are kept: the cause, by the program's names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fusepass

SEEN: list[int] = []


@pytest.fixture(autouse=True)
def op_by_op() -> Iterator[None]:
    with fusepass.options(codegen="eager"):
        yield


def reasons(program: Callable[..., Any], *args: Any, rule: str = "branch") -> list[str]:
    report = fusepass.explain(program, *args)
    return [d.reason for d in report.decisions if d.rule == rule and d.treatment == "keep"]


def first_line(program: Callable[..., Any]) -> int:
    return program.__code__.co_firstlineno


class TestWrites:
    """What an arm writes, by name, kind and line."""

    def test_list(self) -> None:
        def program(x: Tensor) -> Tensor:
            if x.sum() > 0:
                SEEN.append(1)
            return x * len(SEEN)

        (said,) = reasons(program, torch.ones(2))
        line = first_line(program) + 3
        assert said == f"line {line} looks at the list `SEEN`, which one arm only changes"

    def test_list_of_a_module(self) -> None:
        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.log: list[int] = []

            def forward(self, x: Tensor) -> Tensor:
                if x.sum() > 0:
                    self.log.append(1)
                return x * len(self.log)

        (said,) = reasons(Net(), torch.ones(2))
        assert "the list `self.log`" in said

    def test_dictionary_and_set(self) -> None:
        def into(held: Any, x: Tensor) -> Tensor:
            if x.sum() > 0:
                held["a"] = 1
            return x * len(held)

        def adding(held: Any, x: Tensor) -> Tensor:
            if x.sum() > 0:
                held.add(1)
            return x * len(held)

        assert "the dictionary `held`" in reasons(into, {}, torch.ones(2))[0]
        assert "the set `held`" in reasons(adding, set(), torch.ones(2))[0]

    def test_variable_that_a_lambda_shares(self) -> None:
        def program(x: Tensor) -> Tensor:
            scale = 2
            if x.sum() > 0:
                scale = 3
            return (lambda y: y * scale)(x)

        (said,) = reasons(program, torch.ones(2))
        line = first_line(program) + 3
        assert said.startswith(f"an arm binds the variable `scale` (line {line})")
        assert "inner function or a comprehension" in said

    def test_what_the_arm_made_is_no_obstacle(self) -> None:
        def program(x: Tensor) -> Tensor:
            if x.sum() > 0:
                made = [part * 2 for part in (x, x + 1)]
                made.append(x)
                y = made[0] + made[1]
            else:
                y = x - 1
            return y

        assert not reasons(program, torch.ones(2))


class TestInner:
    """The reason of a branch in an arm is that of the one around it."""

    def test_met_at_once(self) -> None:
        def program(x: Tensor) -> Tensor:
            if x.sum() > 0:
                if x.max() > 1:
                    SEEN.append(1)
                x = x * len(SEEN)
            return x

        outer = next(said for said in reasons(program, torch.ones(2)) if "in an arm is" in said)
        line = first_line(program) + 2
        said = f"a branch in an arm is kept, test_said.py:{line}: line {line + 2} looks at"
        assert outer.startswith(said)

    def test_taken_back_before(self) -> None:
        def program(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
            y = x * 2
            if x.sum() > 0:
                y = (y * a if x.max() > 1 else y * b) + 1
            return y if y.requires_grad else -y

        leaves = [torch.ones(2, requires_grad=True) for _ in range(2)]
        said = reasons(program, torch.ones(2), *leaves)
        assert said
        assert all("allow_zero_grad permits it" in one for one in said)


class TestNumbers:
    """A number that is a size in the end is said to be one, whatever is done to it before."""

    @pytest.mark.parametrize("with_numbers", [lambda n: n + 1, lambda n: n, lambda n: 2 * n + 3])
    @pytest.mark.parametrize(
        "use", [lambda x, n: x.new_zeros(n), lambda x, n: x.expand(n, -1), lambda x, n: x[n - 1 :]]
    )
    def test_size(self, with_numbers: Callable[[int], int], use: Callable[..., Any]) -> None:
        def program(x: Tensor, index: Tensor) -> Tensor:
            return use(x, with_numbers(int(index.max()))) * 2  # type: ignore[no-any-return]

        report = fusepass.explain(program, torch.ones(2), torch.tensor([1, 0]))
        (kept,) = (d for d in report.decisions if d.rule == "item" and d.treatment == "keep")
        assert kept.reason_code == "size"
        assert "size, an index or a count" in kept.reason

    def test_arithmetic_that_no_size_comes_of(self) -> None:
        def program(x: Tensor, index: Tensor) -> Tensor:
            return x * (int(index.sum()) * int(index.max()) * 3)

        report = fusepass.explain(program, torch.ones(2), torch.tensor([1, 0]))
        kept = [d for d in report.decisions if d.rule == "item" and d.treatment == "keep"]
        assert {d.reason_code.value for d in kept} == {"overflow"}


def test_grad_in_one_arm_names_the_option() -> None:
    def program(x: Tensor) -> Tensor:
        y = x * 2 if x.sum() > 0 else x.detach() * 3
        return y if y.requires_grad else -y

    (said,) = reasons(program, torch.ones(2, requires_grad=True))
    assert "requires grad in one arm only" in said
    assert "allow_zero_grad permits it" in said
    fusepass.reset()
    with fusepass.options(allow_zero_grad=True):
        assert not any("in one arm only" in one for one in reasons(program, torch.ones(2)))


def test_leaves_have_the_names_of_the_program() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            y = self.layer(x) if x.sum() > 0 else x * 2
            return y, self.layer.weight[0], self.layer.bias[:1]

    net = Net()
    x = torch.ones(2, requires_grad=True)
    (said,) = reasons(net, x)
    assert "self.layer.bias, self.layer.weight" in said
    assert "it is returned, or a view of it is" in said


def test_what_python_raises_is_named_as_in_python() -> None:
    def program(x: Tensor) -> Tensor:
        n = x.max().item()
        try:
            scale = len(f"{n}")
        except TypeError:
            scale = 20
        return x * scale * n

    (said,) = reasons(program, torch.ones(2), rule="item")
    line = first_line(program) + 3
    raised = f"TypeError is raised behind it (test_said.py:{line})"
    assert said.startswith((raised, "Python needs its value"))  # up to torch 2.12


def test_what_is_not_about_a_number_keeps_none() -> None:
    class Options:
        def __getattr__(self, name: str) -> float:
            raise AttributeError(name)

    def program(x: Tensor, table: dict[str, float], options: Options) -> Tensor:
        n = x.max().item()
        try:
            scale = table["missing"]
        except KeyError:
            scale = 2.0
        scale += getattr(options, "more", 1.0) + len([one for one in (1, 2) if one])
        return x * scale * n

    assert reasons(program, torch.ones(2), {}, Options(), rule="item") == []


def test_messages_of_exceptions_raised_while_tracing() -> None:
    def program(x: Tensor, table: dict[str, float]) -> Tensor:
        return x * table["missing"]

    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    with pytest.raises(KeyError):
        compiled(torch.ones(2), {})
    (told,) = [d for d in fusepass.last_report(compiled).decisions if d.rule == "graph_break"]
    assert "while tracing, KeyError is raised there and not caught" in told.reason
    assert told.reason.endswith("; `program` runs in eager mode")


def test_functions_of_numpy_have_their_name() -> None:
    def program(x: Tensor, n: Any) -> Tensor:
        return x + torch.as_tensor(np.zeros(np.max(n)).sum())

    said = reasons(program, torch.ones(2), np.array([2, 3]), rule="graph_break")
    assert all("wrapped_" not in one for one in said)


def test_message_names_the_line_of_an_untraceable_arm() -> None:
    def program(x: Tensor, m: Tensor) -> Tensor:
        if x.sum() > 0:
            x = F.pad(x, (0, m.max()))  # type: ignore[arg-type]
        return x * 2

    (said,) = reasons(program, torch.ones(2), torch.tensor([1, 2]))
    line = first_line(program) + 2
    assert said.startswith(f"an arm cannot be traced (test_said.py:{line})")
