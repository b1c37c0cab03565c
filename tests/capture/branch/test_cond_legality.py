"""What a cond must not hold: eager runs one arm, and its backward is that of this arm alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import fusepass
from fusepass.errors import CaptureFault
from fusepass.torch_private.versions import torch_version

from ..support.side_by_side import side_by_side, signed

TURNS = signed(1.0, -0.5, 2.0, 0.25)


@torch.library.custom_op("fusepass_tests::doubled", mutates_args=())
def doubled(x: Tensor) -> Tensor:
    """An operator without a backward."""
    return x * 2


@doubled.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def custom(x: Tensor) -> Tensor:
    return doubled(x) if x.sum() > 0 else x * 3


def draws(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x[torch.randperm(4)]
    return x * 2


def writes(x: Tensor) -> Tensor:
    h = x * 2
    if x.sum() > 0:
        h[:2] = x[torch.tensor([3, 0])]
    return h + 0


def leaves_indices(x: Tensor) -> tuple[Tensor, Tensor]:
    index = torch.tensor([3, 0, 1, 2])
    return (x[index], index * 2) if x.sum() > 0 else (x * 2, index + 1)


def solves(x: Tensor) -> Tensor:
    square = torch.eye(4) + x * x.unsqueeze(1)
    return torch.linalg.cholesky(square) if x.sum() > 0 else square.t() * 2


def looks_up(x: Tensor) -> Tensor:
    return F.embedding(torch.tensor([0, 1]), x.unsqueeze(1)) if x.sum() > 0 else x[:2, None] * 3


def fills_integers(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return F.pad(x.long(), (0, 1), value=float("nan"))[:4].to(x.dtype)
    return x * 3


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (custom, "partial_op"),
        (draws, "random_op"),
        (writes, "side_effect"),
        (leaves_indices, "none_grad"),
        (solves, "partial_op"),
    ],
)
def test_held_in_inference_and_kept_in_training(program: object, why: str) -> None:
    outcome = side_by_side(program, *TURNS)  # type: ignore[arg-type]
    assert {treatment for treatment, _ in outcome.treatments} == {"cond"}, outcome.decisions
    outcome = side_by_side(program, *TURNS, grad=True)  # type: ignore[arg-type]
    assert set(outcome.treatments) == {("keep", why)}, outcome.decisions


def test_operations_of_torch_in_training() -> None:
    side_by_side(looks_up, *TURNS, grad=True).only("cond", "partial_op")


def test_a_fill_that_no_integer_can_hold_is_made_where_it_is_asked_for() -> None:
    """NaN raises where the arm is taken, and only there."""
    outcome = side_by_side(fills_integers, *signed(-1.0, -0.5, 2.0, -0.25))
    outcome.only("cond", "partial_op")


@pytest.mark.sampled(3)  # compiling each takes long
@pytest.mark.parametrize("solver", [torch.linalg.cholesky, torch.linalg.inv, torch.inverse])
@pytest.mark.filterwarnings("error::fusepass.errors.CaptureFault")
def test_solvers_in_arms_for_inductor(solver: Callable[[Tensor], Tensor]) -> None:
    """It holds them where they have no effect, as with torch 2.11; else the branch stays."""

    def program(x: Tensor) -> Tensor:
        square = torch.eye(4) + x * x.unsqueeze(1)
        return solver(square) if x.sum() > 0 else square.t() * 2

    compiled = torch.compile(program, backend="fusepass")
    for (x,) in TURNS:
        torch.testing.assert_close(compiled(x), program(x))
    (decided,) = [d for d in fusepass.last_report(compiled).decisions if d.station == "capture"]
    if (decided.treatment, decided.reason_code) != ("cond", "partial_op"):
        assert (decided.treatment, decided.reason_code) == ("keep", "untraceable")
        assert "runs _linalg_check_errors, which has an effect" in decided.reason
    elif torch_version() >= (2, 13):
        pytest.fail(decided.reason)


def branches_for_nothing(x: Tensor) -> Tensor:
    # What the inner branch leaves is read by nobody: it has no selection, and its arm no owner.
    if x.sum() > 0:
        y = x[torch.randperm(4)]
        mask = x.isnan()
        if mask.any():
            z = torch.where(mask, y, x)
            del z
        return y * 2
    return x - 1


def test_a_branch_whose_results_nobody_reads() -> None:
    outcome = side_by_side(branches_for_nothing, *TURNS)
    assert ("cond", "random_op") in outcome.treatments or ("cond", "partial_op") in (
        outcome.treatments
    )


def with_a_number(x: Tensor, rate: float) -> Tensor:
    if x.sum() > 0:
        return torch.rand_like(x) + rate
    return x * rate


def with_a_number_in_one(x: Tensor, rate: float) -> Tensor:
    scaled = x - rate
    if x.sum() > 0:
        y = scaled + torch.rand_like(x)
        if x.max() > 1:
            y = rate - (y + torch.rand_like(x))
        return y
    return scaled * 2


def with_a_number_read_in_an_arm(x: Tensor, rate: float) -> Tensor:
    if x.sum() > 0:
        x = x[torch.tensor([2, 0, 1])] * (1 - rate)
    return x * (1 - rate)


@pytest.mark.parametrize(
    "program", [with_a_number, with_a_number_in_one, with_a_number_read_in_an_arm]
)
def test_floats_that_vary_are_no_operands(
    program: Callable[..., Tensor], recwarn: pytest.WarningsRecorder
) -> None:
    """They are in the graph from the second value on; torch.cond takes tensors and integers."""
    calls = [(x, rate) for rate in (2.0, -1.5, 0.5, 3.0) for x in signed(1.0, -0.5, 2.0)]
    side_by_side(program, *[(x, rate) for (x,), rate in calls])
    assert not [one for one in recwarn if issubclass(one.category, CaptureFault)]


@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("error::fusepass.errors.CaptureFault")
def test_a_float_that_varies_for_inductor(caplog: pytest.LogCaptureFixture) -> None:
    """It has no place for the reading of one in an arm: the branch stays, with a reason."""
    program = with_a_number_read_in_an_arm
    compiled = torch.compile(program, backend="fusepass")
    for rate in (0.5, -1.5, 0.25):
        for (x,) in signed(1.0, -0.5, 2.0):
            torch.testing.assert_close(compiled(x, rate), program(x, rate))
    decided = [d for d in fusepass.last_report(compiled).decisions if d.station == "capture"]
    assert [(d.treatment, d.reason_code) for d in decided][-1] == ("keep", "python_value")
    assert "Backend compiler" not in caplog.text


def no_labels(x: Tensor, y: Tensor) -> Tensor:
    if (y != -100).sum() == 0:
        return x.sum() * 0
    return x[y.clamp(min=0)].sum()


@pytest.mark.parametrize("codegen", ["eager", "inductor"])
@pytest.mark.filterwarnings("error::fusepass.errors.CaptureFault")
def test_a_gradient_that_is_one_number_in_one_arm(codegen: str) -> None:
    """What the backward of a sum gives is expanded, what that of an index is not."""
    x = torch.randn(3)
    calls = [(x, torch.tensor([0, 2, 1])), (x, torch.tensor([-100] * 3))]
    outcome = side_by_side(no_labels, *calls, grad=True, codegen=codegen)
    outcome.only("cond", "partial_op")


def shares_a_number(x: Tensor, y: Tensor) -> Tensor:
    if y.sum() > 0:
        x = x[torch.randperm(len(x))] * (1 / (len(x) + 2))
    return x * (1 / (len(x) + 2))


def shares_it_with_the_other_arm(x: Tensor, y: Tensor) -> Tensor:
    if y.sum() > 0:
        x = x[torch.randperm(len(x))] * (1 / (len(x) + 2))
    else:
        x = x[y.long().abs()] * (1 / (len(x) + 2)) * (3 + 1 / (len(x) + 2))
    return x * (3 + 1 / (len(x) + 2)) * (len(x) + 2)


def shares_it_within(x: Tensor, y: Tensor) -> Tensor:
    if y.sum() > 0:
        if x.sum() < 3:
            x = x[torch.randperm(len(x))] * (1 / (len(x) + 2))
        x = x * (1 / (len(x) + 2) + 5 / len(y))
    return x * (3 + 1 / (len(x) + 2)) - 5 / len(y)


@pytest.mark.parametrize(
    "program", [shares_a_number, shares_it_with_the_other_arm, shares_it_within]
)
@pytest.mark.filterwarnings("error::fusepass.errors.CaptureFault")
def test_a_number_made_of_sizes_that_others_read_too(program: Callable[..., Tensor]) -> None:
    """Torch computes it once, in the arm if that comes first."""
    calls = [
        (torch.ones(size), torch.full((size,), value))
        for size in (4, 7, 5)
        for value in (0.5, -0.5)
    ]
    outcome = side_by_side(program, *calls, dynamic=True)
    assert {treatment for treatment, _ in outcome.treatments} == {"cond"}, outcome.decisions
    assert not outcome.breaks


def gathered(y: Tensor) -> Tensor:
    index = y.abs().long()
    if y.max() > 1:
        y = y.gather(0, index)
    else:
        y = y * 1
    return y.sin()


def cheap(y: Tensor) -> Tensor:
    if y.max() > 1:
        y = y * 2
    return y.sin()


def checkpointed(body: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def program(x: Tensor) -> Tensor:
        result = checkpoint(body, x * 1.0, use_reentrant=False)
        assert isinstance(result, Tensor)
        return result

    return program


@pytest.mark.parametrize(
    ("body", "options", "decided"),
    [
        (gathered, {}, ("keep", "untraceable")),
        (cheap, {"treatment": "cond"}, ("keep", "untraceable")),
        (cheap, {}, ("where", "pure_total")),
    ],
)
@pytest.mark.filterwarnings("error::fusepass.errors.CaptureFault")
def test_no_cond_in_a_checkpointed_function(
    body: Callable[[Tensor], Tensor], options: dict[str, str], decided: tuple[str, str]
) -> None:
    outcome = side_by_side(checkpointed(body), *TURNS, grad=True, **options)
    assert outcome.treatments[0] == decided
    if decided[0] == "keep":
        assert "torch.utils.checkpoint" in outcome.reasons[0]


@pytest.mark.filterwarnings("error::fusepass.errors.CaptureFault")
def test_no_cond_in_a_checkpointed_function_with_inductor() -> None:
    program = checkpointed(gathered)
    compiled = torch.compile(program, backend="fusepass")
    for (x,) in TURNS:
        torch.testing.assert_close(compiled(x), program(x))
        ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        compiled(ours).sum().backward()
        program(theirs).sum().backward()
        torch.testing.assert_close(ours.grad, theirs.grad)
    decided = [d for d in fusepass.last_report(compiled).decisions if d.station == "capture"]
    assert {(d.treatment, d.reason_code) for d in decided} == {("keep", "untraceable")}


def on_a_conjugate(x: Tensor) -> Tensor:
    lazy = torch.complex(x, x * 2).conj()
    if x.sum() > 0:
        return lazy[torch.tensor([3, 0])].abs()
    return lazy[:2].abs() * 3


def on_a_negated_view(x: Tensor) -> Tensor:
    lazy = torch.complex(x, x * 2).conj().imag
    if x.sum() > 0:
        return lazy[torch.tensor([3, 0])] + 1
    return lazy[:2] * 3


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("program", [on_a_conjugate, on_a_negated_view])
def test_lazy_views_are_no_operands(
    program: Callable[..., Tensor], grad: bool, recwarn: pytest.WarningsRecorder
) -> None:
    outcome = side_by_side(program, *TURNS, grad=grad)
    outcome.only("keep", "untraceable")
    assert all("lazily" in why for why in outcome.reasons)
    assert not [one for one in recwarn if issubclass(one.category, CaptureFault)]


def test_a_lazy_argument_is_no_operand(recwarn: pytest.WarningsRecorder) -> None:
    def program(z: Tensor) -> Tensor:
        if z.real.sum() > 0:
            return z[torch.tensor([3, 0])] * 2
        return z[:2] * 3

    f = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    for (x,) in TURNS:
        z = torch.complex(x, x * 2)
        for given in (z.conj(), z):
            assert torch.equal(f(given), program(given))
    assert not [one for one in recwarn if issubclass(one.category, CaptureFault)]


def conjugates(x: Tensor) -> Tensor:
    z = torch.complex(x, x * 2)
    if x.sum() > 0:
        return z.conj()[torch.tensor([3, 0])] * 2
    return z[:2] * 3


def test_an_arm_may_conjugate() -> None:
    side_by_side(conjugates, *TURNS).only("cond", "partial_op")
