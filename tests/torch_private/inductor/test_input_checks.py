"""What generated code asks of its inputs, at once: as strict as the assertions in its place."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._inductor.utils import run_and_get_code

from fusepass.torch_private.inductor import input_checks
from fusepass.torch_private.inductor.input_checks import KnownInputs, aligned_at_once
from fusepass.torch_private.inductor.passes import graph_pass
from fusepass.torch_private.versions import torch_version

grouped_by_inductor = pytest.mark.skipif(
    input_checks.asks_at_once(), reason="this torch's Inductor asks for all at once itself"
)


def summed(xs: list[Tensor]) -> Tensor:
    total = xs[0].sin()
    for x in xs[1:]:
        total = total + x.t()
    return total


@pytest.fixture
def asserted(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The tensors that generated code asserts something of."""
    found: list[Tensor] = []
    guards = torch._C._dynamo.guards  # type: ignore[attr-defined]
    theirs = guards.assert_size_stride

    def counted(tensor: Tensor, *given: Any) -> Any:
        found.append(tensor)
        return theirs(tensor, *given)

    monkeypatch.setattr(guards, "assert_size_stride", counted)
    torch.compiler.reset()
    return found


@grouped_by_inductor
def test_one_call_for_all(asserted: list[Tensor]) -> None:
    compiled = torch.compile(summed, backend="fusepass")
    xs = [torch.randn(4, 4) for _ in range(6)]
    with torch.no_grad():
        result, (code,) = run_and_get_code(compiled, xs)
        torch.testing.assert_close(result, summed(xs))
        (names,) = re.findall(r"if not fusepass_inputs\.same\((.*)\):", code)
        assert len(names.split(", ")) == 6
        first = len(asserted)
        assert 6 <= first <= 12  # where the output is asserted, too, twice seven
        for _ in range(3):
            torch.testing.assert_close(compiled(xs), summed(xs))
        assert len(asserted) - first <= 3
        compiled([nn.Parameter(x) for x in xs])
        compiled(xs)


@grouped_by_inductor
def test_installed_twice(asserted: list[Tensor]) -> None:
    """A check around a check would learn before anything is asserted."""
    for _ in range(2):
        input_checks.install()
    xs = [torch.randn(4, 4) for _ in range(6)]
    with torch.no_grad():
        _, (code,) = run_and_get_code(torch.compile(summed, backend="fusepass"), xs)
    begin, end = code.index("fusepass_inputs.same("), code.index("fusepass_inputs.learn(")
    assert code.count("fusepass_inputs.same(") == 1
    assert code[begin:end].count("assert_size_stride(arg") == 6


def ours() -> Any:
    return graph_pass(lambda graph: None, lambda: "")


@pytest.mark.skipif(torch_version() >= (2, 13), reason="generated code of this torch aligns inputs")
@pytest.mark.parametrize("hook", [None, ours])
def test_where_alignment_is_looked_at(
    hook: Callable[[], Any] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Inductor itself asks for it, under passes of ours and under others."""
    from torch._inductor import config, output_code, utils

    input_checks.install()
    looked: list[int] = []
    theirs = utils.copy_misaligned_inputs

    def counted(*given: Any) -> Any:
        looked.append(1)
        return theirs(*given)

    monkeypatch.setattr(utils, "copy_misaligned_inputs", counted)
    kept: list[Any] = []
    with config.patch(post_grad_custom_post_pass=hook and hook()):
        run = vars(output_code)["align_inputs_from_check_idxs"](kept.extend, [0, 2], [])
    aligned, shifted = torch.zeros(8), torch.arange(8.0)[1:]
    run([aligned, shifted, aligned])
    assert len(looked) == (hook is None)
    run([shifted, shifted, aligned])
    assert len(looked) == 1 + (hook is None)
    assert torch.equal(kept[3], shifted)
    assert kept[3] is not shifted
    assert kept[4] is shifted


@grouped_by_inductor
def test_inductor_itself_is_left_as_it_is(asserted: list[Tensor]) -> None:
    xs = [torch.randn(4, 4) for _ in range(6)]
    with torch.no_grad():
        torch.compile(summed, backend="fusepass")(xs)
        torch.compiler.reset()
        asserted.clear()
        compiled = torch.compile(summed)
        _, (code,) = run_and_get_code(compiled, xs)
        compiled(xs)
    assert "fusepass" not in code
    assert len(asserted) >= 12


def transposed(layer: nn.Linear) -> None:
    layer.weight.data = layer.weight.data.t().contiguous().t()


def set_to(layer: nn.Linear) -> None:
    with torch.no_grad():
        layer.weight.set_(torch.randn(64).as_strided((8, 8), (1, 8)))


@pytest.mark.parametrize("change", [transposed, set_to])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_a_parameter_whose_strides_change(
    change: Callable[[nn.Linear], None], mode: Callable[[], Any]
) -> None:
    """Guards of 2.11 do not see it: an error, or what eager computes, but no wrong number."""
    torch.compiler.reset()
    module = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.BatchNorm1d(8)).eval()
    compiled = torch.compile(module, backend="fusepass")
    x = torch.randn(4, 8)
    with mode():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), module(x))
        change(module[0])  # type: ignore[arg-type]
        for _ in range(2):
            if torch_version() < (2, 12):
                with pytest.raises(AssertionError, match="stride"):
                    compiled(x)
            else:
                torch.testing.assert_close(compiled(x), module(x))


def test_sizes_that_vary(asserted: list[Tensor]) -> None:
    """What has no constant size is asserted by itself; the rest at once."""
    torch.compiler.reset()
    weights = [torch.randn(7, 7) for _ in range(3)]

    def program(x: Tensor) -> Tensor:
        return torch.stack([(x * w.sum(1)).relu() for w in weights])

    compiled = torch.compile(program, backend="fusepass")
    with torch.no_grad():
        for rows in (3, 5, 4, 6):
            asserted.clear()
            x = torch.randn(rows, 7)
            torch._dynamo.mark_dynamic(x, 0)
            torch.testing.assert_close(compiled(x), program(x))
    if not input_checks.asks_at_once():
        assert any(one is x for one in asserted)
        assert not any(one is weight for one in asserted for weight in weights)


def test_what_is_known() -> None:
    known, xs = KnownInputs(), [torch.randn(3, 4), torch.randn(5)]
    assert not known.same(*xs)
    known.learn(*xs)
    assert known.same(*xs)
    assert known.same(torch.zeros(3, 4), torch.zeros(5))
    for other in (
        [xs[0].t(), xs[1]],
        [xs[0], xs[1][:4]],
        [xs[0].double(), xs[1]],
        [xs[0], torch.randn(10)[::2]],
        [xs[0], xs[1].reshape(5, 1)],
        [xs[0], nn.Parameter(xs[1])],
        [xs[0], xs[1].to("meta")],
    ):
        assert not known.same(*other)


def test_what_changes_all_the_time_is_not_learnt_for_ever() -> None:
    known = KnownInputs()
    for size in range(1, input_checks._MOST_KINDS + 1):
        known.learn(torch.zeros(size), torch.ones(1))
        assert known.same(torch.zeros(size), torch.ones(1))
    known.learn(torch.zeros(50), torch.ones(1))
    assert not known.same(torch.zeros(50), torch.ones(1))
    for size in range(1, input_checks._MOST_KINDS + 1):  # in turn, too
        assert known.same(torch.zeros(size), torch.ones(1))
    assert not known.same(torch.zeros(3), torch.ones(2))


def test_a_tensor_given_twice_is_asserted_each_time() -> None:
    known, x = KnownInputs(), torch.randn(3)
    known.learn(x, x)
    assert not known.same(x, x)
    known.learn(x, x.clone())
    assert known.same(x, x.clone())
    assert not known.same(x, x)


def test_nobody_else_hears_of_it() -> None:
    heard: list[Any] = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            heard.append(func)
            return func(*args, **(kwargs or {}))

    known, x, y = KnownInputs(), torch.randn(3), torch.randn(4)
    with Mode():
        known.learn(x, y)
        assert known.same(x, y)
    assert heard == []


def test_what_cannot_be_learnt_is_asserted(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: Any, **sizes: Any) -> Any:
        raise RuntimeError("another torch")

    monkeypatch.setattr(torch._C._dynamo.guards, "TensorGuards", fails)  # type: ignore[attr-defined]
    known, x, y = KnownInputs(), torch.randn(3), torch.randn(4)
    known.learn(x, y)
    assert not known.same(x, y)


def test_nothing_is_kept_alive() -> None:
    import weakref

    known, x = KnownInputs(), torch.randn(3)
    known.learn(x, torch.ones(1))
    gone = weakref.ref(x)
    del x
    assert gone() is None


def test_alignment_of_all_at_once() -> None:
    seen: list[str] = []
    run = aligned_at_once(
        lambda inputs: seen.append("all aligned"), lambda inputs: seen.append("one by one"), [0, 2]
    )
    aligned, shifted = torch.zeros(8), torch.zeros(8)[1:]
    assert aligned.data_ptr() % 16 == 0
    run([aligned, shifted, aligned])
    run([aligned, 7, shifted])
    run([shifted, aligned, aligned])
    run([aligned, None, torch.zeros(0)])
    assert seen == ["all aligned", "one by one", "one by one", "all aligned"]


@pytest.mark.gpu
def test_inputs_that_are_not_aligned() -> None:
    """They are copied for the code, as Inductor does, and written back."""
    torch.compiler.reset()

    def program(xs: list[Tensor]) -> list[Tensor]:
        xs[1].mul_(2)
        return [(x @ x).softmax(0) for x in xs]

    compiled = torch.compile(program, backend="fusepass")
    room = torch.randn(6, 257, device="cuda")
    for starts in ((0, 0, 0, 0), (0, 1, 0, 0), (1, 0, 0, 0), (0, 0, 0, 0)):
        made = room.clone()
        xs, same = (
            [one[i : i + 256].view(16, 16) for one, i in zip(some, starts, strict=False)]
            for some in (made, room.clone())
        )
        with torch.no_grad():
            got, want = compiled(xs), program(same)
        for one, other in zip([*got, *xs], [*want, *same], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
