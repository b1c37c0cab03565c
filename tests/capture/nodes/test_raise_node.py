"""What the corpus does not look at: tracebacks, reports, options, other code generators, caches."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fusepass
from fusepass.capture.effects import runtime

from ..support.asserting import Logs, asserted_item

HERE = Path(__file__).resolve()
GOOD, BAD = torch.ones(4), -torch.ones(4)
CODEGENS = ("eager", "eager-decomposed", "inductor")


def outcome(target: Callable[..., Any], *args: Any) -> Any:
    """What a call returned, or the exception it raised, to be compared."""
    try:
        return target(*args)
    except Exception as error:  # noqa: BLE001 - whatever the program raises
        return type(error), str(error), error.__cause__, error.__suppress_context__


def treatments(compiled: Any) -> list[tuple[str, str]]:
    report = fusepass.last_report(compiled)
    taken = [d for d in report.decisions if d.station.value == "capture"]
    return [(d.treatment, d.reason_code.value) for d in taken]


def check_positive(h: Tensor, what: str) -> Tensor:
    if h.sum() < 0:
        raise ValueError(f"{what} is {h.sum():.2f}")  # the line the traceback ends at
    return h + 1


def program(x: Tensor) -> Tensor:
    h = x * 2
    return check_positive(h, "h") * 3


class Lookup(nn.Module):
    """The check of labels that speech models make before they compute a loss."""

    def __init__(self, size: int = 10, width: int = 4) -> None:
        super().__init__()
        self.table = nn.Embedding(size, width)
        self.out = nn.Linear(width, size)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, labels: Tensor) -> Tensor:
        size = self.table.num_embeddings
        if labels.max() >= size:
            raise ValueError(f"Label values must be < {size}, got {labels.max()}")
        self.calls.add_(1)
        return F.cross_entropy(self.out(self.table(labels)), labels)


def labels(top: int) -> Tensor:
    return torch.tensor([0, 3, top, 1])


@pytest.mark.parametrize("codegen", CODEGENS)
def test_one_graph_in_every_code_generator(codegen: str) -> None:
    compiled = torch.compile(program, backend="fusepass", options={"codegen": codegen})
    for x in (GOOD, BAD, GOOD * 2, BAD * 3):
        assert str(outcome(compiled, x)) == str(outcome(program, x))
    report = fusepass.last_report(compiled)
    assert len(report.operations) == 1
    assert not report.graph_breaks
    assert treatments(compiled) == [("sink", "raises")]


@pytest.mark.parametrize("codegen", CODEGENS)
def test_training_before_and_after_a_raise(codegen: str) -> None:
    torch.manual_seed(0)
    eager = Lookup()
    module = Lookup()
    module.load_state_dict(eager.state_dict())
    compiled = torch.compile(module, backend="fusepass", options={"codegen": codegen})
    for top in (2, 10, 9, 10**9, -(10**9), 0):
        found = []
        for one in (eager, compiled):
            one.zero_grad()
            result = outcome(one, labels(top)) if top >= 0 else None
            if isinstance(result, Tensor):
                result.backward()
                result = result.item()
            found.append(result)
        if isinstance(found[0], float):
            assert found[0] == pytest.approx(found[1], rel=1e-5)
        else:
            assert found[0] == found[1]
        assert torch.equal(eager.calls, module.calls)
        for a, b in zip(eager.parameters(), module.parameters(), strict=True):
            assert (a.grad is None) == (b.grad is None)
            if a.grad is not None:
                torch.testing.assert_close(a.grad, b.grad)


def test_one_compile_serves_every_size() -> None:
    compiled = torch.compile(program, backend="fusepass", dynamic=True)
    for size in (5, 7, 11):
        for sign in (1, -1):
            x = torch.full((size,), float(sign))
            assert str(outcome(compiled, x)) == str(outcome(program, x))
    assert len(fusepass.last_report(compiled).operations) == 1


def test_fullgraph() -> None:
    compiled = torch.compile(program, backend="fusepass", fullgraph=True)
    assert outcome(compiled, BAD) == outcome(program, BAD)


def test_traceback_ends_where_the_program_raises() -> None:
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    with pytest.raises(ValueError, match=r"h is -8\.00") as caught:
        compiled(BAD)
    frames = traceback.extract_tb(caught.value.__traceback__)
    own = [frame for frame in frames if Path(frame.filename) == HERE]
    assert frames[-1] is own[-1]
    assert [frame.name for frame in own[-2:]] == ["program", "check_positive"]
    assert own[-1].line is not None
    assert own[-1].line.endswith("# the line the traceback ends at")


def test_digits_of_a_message_are_those_of_eager_under_inductor() -> None:
    def mean_in_text(x: Tensor) -> Tensor:
        y = torch.softmax(x * 1.1, -1).exp()
        if x.sum() < 0:
            raise ValueError(f"{y.std().item()!r} {y.double().mean().item()!r}")
        return y

    compiled = torch.compile(mean_in_text, backend="fusepass")
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        x = -torch.rand(33, 65, generator=generator)
        assert outcome(compiled, x) == outcome(mean_in_text, x)
    assert treatments(compiled) == [("sink", "raises")]


def test_message_from_what_only_the_graph_knows() -> None:
    def random_in_text(x: Tensor) -> Tensor:
        noise = torch.rand(3)
        total = (x[:3] + noise).sum()
        if x.sum() < 0:
            raise ValueError(f"{noise} {total:.4f}")
        return x * total

    compiled = torch.compile(random_in_text, backend="fusepass", options={"codegen": "eager"})
    for x in (GOOD, BAD):
        torch.manual_seed(3)
        want = outcome(random_in_text, x)
        torch.manual_seed(3)
        assert str(outcome(compiled, x)) == str(want)
    assert treatments(compiled) == [("sink", "raises")]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"treatment": "keep"}, ("keep", "forced")),
        ({"rules": {"branch": False}}, ("keep", "forced")),
        ({"rules": {"sink": False}}, ("keep", "rule_off")),
        ({"treatment": "where"}, ("sink", "raises")),
        ({"treatment": "cond"}, ("sink", "raises")),
    ],
)
def test_options(options: dict[str, Any], expected: tuple[str, str]) -> None:
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager", **options})
    for x in (GOOD, BAD):
        assert str(outcome(compiled, x)) == str(outcome(program, x))
    assert treatments(compiled) == [expected]


def test_the_report_says_what_remains() -> None:
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    compiled(GOOD)
    (decision,) = [d for d in fusepass.last_report(compiled).decisions if d.treatment == "sink"]
    assert decision.outcome.value == "applied"
    assert "one read-back per call" in decision.reason
    assert Path(decision.file) == HERE


def test_a_call_reads_back_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def three_checks(x: Tensor) -> Tensor:
        for name in "abc":
            x = check_positive(x, name)
        return x

    reads: list[int] = []
    around = runtime.Events.around

    def counted(self: runtime.Events, compiled: Any) -> Any:
        reads.append(len(self.codes))
        return around(self, compiled)

    monkeypatch.setattr(runtime.Events, "around", counted)
    compiled = torch.compile(three_checks, backend="fusepass", options={"codegen": "eager"})
    for x in (GOOD, BAD, BAD + 0.5, GOOD * 2):
        assert str(outcome(compiled, x)) == str(outcome(three_checks, x))
    assert reads == [1]


def test_from_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    for _ in range(2):
        torch.compiler.reset()
        compiled = torch.compile(program, backend="fusepass")
        for x in (BAD, GOOD, BAD * 2):
            assert str(outcome(compiled, x)) == str(outcome(program, x))
        assert treatments(compiled) == [("sink", "raises")]


def number_tested_and_named(x: Tensor) -> Tensor:
    n = (x > 0).sum().item()
    if n < 6:
        raise ValueError(f"{n} tokens, {x.shape[1] * 3} features, {n / 2:.2f}")
    return x * 2


def number_of_an_intermediate(x: Tensor) -> Tensor:
    h = x * 2 + torch.rand(4)
    low = h.min().item()
    if low + x.sum().item() < 0:
        raise ValueError(f"lowest {low:.4f} of {h}")
    return h * 2


def truth_tested_and_named(x: Tensor) -> Tensor:
    bad = (x.sum() < 0).item()
    if bad:
        raise ValueError(f"it is {bad}")
    return x * 2


def number_read_later(x: Tensor) -> Tensor:
    n = (x > 0).sum().item()
    if n < 6:
        raise ValueError(f"{n}")
    return x * n


@pytest.mark.parametrize(
    ("target", "kinds"),
    [
        (number_tested_and_named, {"sink"}),
        (number_of_an_intermediate, {"sink"}),
        (asserted_item, {"sink"}),
        (truth_tested_and_named, None),
        (number_read_later, None),
    ],
)
def test_numbers_read_to_be_tested(target: Callable[..., Any], kinds: set[str] | None) -> None:
    compiled = torch.compile(target, backend="fusepass", options={"codegen": "eager"})
    x = torch.linspace(0.1, 1, 12).reshape(3, 4)
    for given in (x, -x, x - 0.6, x * 1e7, x):
        torch.manual_seed(2)
        want = outcome(target, given)
        torch.manual_seed(2)
        assert str(outcome(compiled, given)) == str(want)
    if kinds is not None:
        assert {kind for kind, _ in treatments(compiled)} == kinds
        assert not fusepass.last_report(compiled).graph_breaks


def looked_up_or_not(x: Tensor, index: Tensor) -> Tensor:
    y = F.embedding(index, x) if (index < 4).all() else x[:2] * 2
    if x[0, 0] < 0:
        raise ValueError(f"the sum is {y.sum().item()}")
    return y + 1


def remainder_or_not(x: Tensor, index: Tensor) -> Tensor:
    y = index % index[0] if index[0] > 0 else index * 2
    if x[0, 0] < 0:
        raise ValueError(f"the values are {y}")
    return y + 1


@pytest.mark.parametrize("target", [looked_up_or_not, remainder_or_not])
def test_a_message_is_made_of_the_arm_taken(target: Callable[..., Any]) -> None:
    """The other one would fail where eager does not run it."""
    compiled = torch.compile(target, backend="fusepass", options={"codegen": "eager"})
    for sign in (1.0, -1.0):
        for index in ([1, 3], [0, 7]):
            args = (torch.full((4, 3), sign), torch.tensor(index))
            assert str(outcome(compiled, *args)) == str(outcome(target, *args))
    assert ("sink", "raises") in treatments(compiled)


def test_an_assert_behind_something_that_cannot_wait() -> None:
    """Kept, and so continued in frames that Dynamo makes; torch 2.11 fails to give one up."""
    logs, logged = Logs(), Logs()
    compiled = torch.compile(logged, backend="fusepass", options={"codegen": "eager"})
    for value in (0.0, 1.0, 3.0, 0.5):
        x = torch.tensor([value, value])
        assert str(outcome(compiled, x)) == str(outcome(logs, x))
    assert len(logged.log) == len(logs.log)


def test_a_loop_that_only_an_exception_ends() -> None:
    def doubles(x: Tensor) -> Tensor:
        while True:
            x = x * 2
            if x.sum() > 100:
                raise OverflowError(f"{x.sum():.0f}")

    compiled = torch.compile(doubles, backend="fusepass", options={"codegen": "eager"})
    assert outcome(compiled, GOOD) == outcome(doubles, GOOD)


def test_hooks_see_the_exception() -> None:
    module = Lookup()
    seen: list[int] = []
    module.register_forward_hook(lambda *_: seen.append(1), always_call=True)
    compiled = torch.compile(module, backend="fusepass", options={"codegen": "eager"})
    for top in (1, 10):
        outcome(compiled, labels(top))
    assert len(seen) == 2


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune-no-cudagraphs"])
def test_labels_out_of_range_leave_the_context_alive(mode: str) -> None:
    eager = Lookup(50, 16).cuda()
    module = Lookup(50, 16).cuda()
    module.load_state_dict(eager.state_dict())
    compiled = torch.compile(module, backend="fusepass", mode=mode)
    with torch.no_grad():
        for top in (2, 50, 49, 10**12, 7, 8, 51, 3):
            given = labels(top).cuda()
            want, got = outcome(eager, given), outcome(compiled, given.clone())
            torch.cuda.synchronize()
            if isinstance(want, Tensor):
                torch.testing.assert_close(got, want)
            else:
                assert got == want
            assert torch.equal(eager.calls, module.calls)
    assert treatments(compiled) == [("sink", "raises")]


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_training_on_a_device(mode: str) -> None:
    eager = Lookup(50, 16).cuda()
    module = Lookup(50, 16).cuda()
    module.load_state_dict(eager.state_dict())
    compiled = torch.compile(module, backend="fusepass", mode=mode)
    for top in (2, 50, 49, 10**12, 7, 51, 3):
        for one in (eager, compiled):
            one.zero_grad()
        want, got = outcome(eager, labels(top).cuda()), outcome(compiled, labels(top).cuda())
        if isinstance(want, Tensor):
            want.backward()
            got.backward()
            torch.testing.assert_close(got, want)
        else:
            assert got == want
        for a, b in zip(eager.parameters(), module.parameters(), strict=True):
            if a.grad is not None:
                torch.testing.assert_close(b.grad, a.grad)
        assert torch.equal(eager.calls, module.calls)


@pytest.mark.gpu
def test_a_message_from_the_device() -> None:
    def several(x: Tensor) -> Tensor:
        h = torch.relu(x) * 2
        if h.isnan().any():
            bad = h.isnan().any(-1)
            raise FloatingPointError(f"rows {bad.nonzero().flatten().tolist()} of {h.shape}: {h}")
        if x.min() <= -10:  # no assert: pytest writes those anew
            raise AssertionError(f"too low: {x.min():.3f}")
        return h

    compiled = torch.compile(several, backend="fusepass")
    x = torch.randn(4, 3, device="cuda")
    nan, low = x.clone(), x.clone()
    nan[2, 1], low[0, 0] = float("nan"), -50
    for given in (x, nan, low, x):
        assert str(outcome(compiled, given)) == str(outcome(several, given))
    assert {t for t, _ in treatments(compiled)} == {"sink"}
