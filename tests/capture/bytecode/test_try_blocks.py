"""Calls that may fail where the program handles the error: in eager, inside the ``try``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fusepass

from ..support.tried import SEEN, Quiet, deeper, ends, lookup, places


class Swallows(Quiet):
    def __exit__(self, *_: object) -> bool:  # type: ignore[override]
        return True


class Notes(Quiet):
    def __exit__(self, kind: Any, *_: object) -> None:
        SEEN.append(str(kind))


@contextlib.contextmanager
def noting() -> Iterator[None]:
    try:
        yield
    finally:
        SEEN.append("left")


@contextlib.contextmanager
def turning() -> Iterator[None]:
    try:
        yield
    except IndexError as error:
        raise LookupError("turned") from error


def caught(x: Tensor, i: Tensor) -> Tensor:
    y = x * 2
    try:
        y = y[i] + 1
    except IndexError:
        y = y.new_zeros(2)
    return y * 3


def caught_by_name(x: Tensor, i: Tensor) -> Any:
    try:
        return x[i].sum()
    except (KeyError, IndexError) as error:
        return str(error)


def caught_by_base(x: Tensor, i: Tensor) -> Tensor:
    try:
        y = x[i]
    except LookupError:
        y = x[:2]
    return y


def caught_bare(x: Tensor, i: Tensor) -> Tensor:
    try:
        y = x[i]
    except:  # noqa: E722
        y = x[:2]
    return y


def caught_by_base_exception(x: Tensor, i: Tensor) -> Tensor:
    try:
        y = x[i]
    except BaseException:  # noqa: BLE001
        y = x[:2]
    return y


def caught_by_second(x: Tensor, i: Tensor) -> Tensor:
    try:
        y = x[i]
    except RuntimeError:
        y = x[2:]
    except Exception:  # noqa: BLE001
        y = x[:2]
    return y


def caught_outside(x: Tensor, i: Tensor) -> Tensor:
    try:
        try:
            y = x[i]
        except RuntimeError:
            y = x[2:]
    except IndexError:
        y = x[:2]
    return y


ERRORS = (KeyError, IndexError)


def caught_by_tuple(x: Tensor, i: Tensor) -> Tensor:
    try:
        y = x[i]
    except ERRORS:
        y = x[:2]
    return y


def turned(x: Tensor, i: Tensor) -> Tensor:
    try:
        return x[i]
    except IndexError as error:
        raise ValueError("no such row") from error


def in_helper(x: Tensor, i: Tensor) -> Tensor:
    x = x + 1
    try:
        y = lookup(x, i)
    except IndexError:
        y = x[:2]
    return y.sin()


def deep_in_helpers(x: Tensor, i: Tensor) -> Tensor:
    try:
        y = deeper(x.cos(), i).sin()
    except IndexError:
        y = x[:2]
    return y + 1


def helper_with_try(x: Tensor, i: Tensor) -> Tensor:
    y = x.sin()
    return y.sum() + caught(y, i) * y[:2].cos()


def stored(x: Tensor, i: Tensor) -> Tensor:
    y = x.clone()
    try:
        y[i] = 0.0
    except IndexError:
        y = y - 1
    return y


def suppressed(x: Tensor, i: Tensor) -> Tensor:
    y = x
    with contextlib.suppress(IndexError):
        y = x[i]
    return y + 1


def swallowed(x: Tensor, i: Tensor) -> Tensor:
    y = x
    with Swallows():
        y = x[i]
    return y + 1


def noted(x: Tensor, i: Tensor) -> Tensor:
    with Notes():
        y = x[i]
    return y + 1


def turned_by_generator(x: Tensor, i: Tensor) -> Tensor:
    with turning():
        y = x[i]
    return y + 1


def with_in_try(x: Tensor, i: Tensor) -> Tensor:
    try:
        with torch.no_grad():
            y = x[i]
    except IndexError:
        y = x[:2]
    return y + 1


def try_in_with(x: Tensor, i: Tensor) -> Tensor:
    with torch.no_grad():
        y = x.sin()
        try:
            y = x[i] + y[:2]
        except IndexError:
            y = x[:2]
        y = y.cos()
    return y * x[:2]


def in_comprehension(x: Tensor, i: Tensor) -> Tensor:
    try:
        rows = [x[i] * n for n in range(3)]
    except IndexError:
        rows = [x]
    return rows[-1]


def in_generator(x: Tensor, i: Tensor) -> Tensor:
    try:
        return sum(x[i] * n for n in range(3))  # type: ignore[return-value]
    except IndexError:
        return x


def in_loop(x: Tensor, i: Tensor) -> Tensor:
    found = 0
    for n in range(3):
        y = lookup(x, torch.zeros_like(i))
        try:
            y = lookup(x + n, i)
            found += 1
        except IndexError:
            continue
    return y * found


def in_arm(x: Tensor, i: Tensor) -> Tensor:
    try:
        if x.sum() > 0:
            x = x[i]
        else:
            x = x * 2
    except IndexError:
        x = x - 1
    return x


def try_in_arm(x: Tensor, i: Tensor) -> Tensor:
    if x.sum() > 0:
        x = caught(x, i)
    else:
        x = x[:2]
    return x + 1


def table(x: Tensor, i: Tensor) -> Tensor:
    try:
        return F.embedding(i, x[:, None]).sum()
    except Exception:  # noqa: BLE001
        return x.sum() - 1


def gathered(x: Tensor, i: Tensor) -> Tensor:
    try:
        return x.gather(0, i)
    except RuntimeError:
        return x - 1


def selected(x: Tensor, i: Tensor) -> Tensor:
    try:
        return x.index_select(0, i)
    except (IndexError, RuntimeError):
        return x - 1


def divided(x: Tensor, i: Tensor) -> Tensor:
    try:
        return 7 // i
    except RuntimeError:
        return x - 1


def before_and_behind(x: Tensor, i: Tensor) -> Tensor:
    y = x.sin() * 2
    try:
        z = y[i]
    except IndexError:
        z = y[:2]
    return lookup(z.cos() + 1, z.argmax().reshape(1))


ENDING = [
    caught,
    caught_by_name,
    caught_by_base,
    caught_bare,
    caught_by_base_exception,
    caught_by_second,
    caught_outside,
    caught_by_tuple,
    turned,
    in_helper,
    deep_in_helpers,
    helper_with_try,
    stored,
    suppressed,
    swallowed,
    noted,
    turned_by_generator,
    with_in_try,
    try_in_with,
    in_comprehension,
    in_generator,
    in_loop,
    try_in_arm,
    table,
    gathered,
    selected,
    divided,
    before_and_behind,
]


@pytest.mark.parametrize("program", ENDING, ids=lambda p: p.__name__)
def test_a_call_whose_error_is_handled_runs_in_eager(program: Callable[..., Any]) -> None:
    SEEN.clear()
    outcome = places(program)
    assert len(ends(outcome)) >= 1, outcome.decisions
    assert SEEN[::2] == SEEN[1::2]  # eager's and ours
    assert outcome.breaks


@pytest.mark.parametrize("program", [in_helper, in_loop, table, stored], ids=lambda p: p.__name__)
def test_try_blocks_end_graphs_with_inductor_too(program: Callable[..., Any]) -> None:
    assert ends(places(program, codegen="inductor"))


def test_in_an_arm_the_branch_is_kept() -> None:
    places(in_arm).only("keep", "partial_op")


def finally_writes(x: Tensor, i: Tensor) -> Tensor:
    try:
        return x[i] * 2
    finally:
        SEEN.append("left")


def noted_by_generator(x: Tensor, i: Tensor) -> Tensor:
    with noting():
        y = x[i]
    return y + 1


@pytest.mark.parametrize("program", [finally_writes, noted_by_generator])
def test_finally_and_with_blocks_end_no_graph(program: Callable[[Tensor, Tensor], Tensor]) -> None:
    """A ``finally`` catches nothing: whole models stand in one."""
    torch._dynamo.reset()
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    x = torch.arange(5.0)
    assert torch.equal(compiled(x, torch.tensor(2)), program(x, torch.tensor(2)))
    assert [d for d in fusepass.last_report(compiled).decisions if d.rule == "try"] == []
    with pytest.raises(IndexError):
        compiled(x, torch.tensor(9))
