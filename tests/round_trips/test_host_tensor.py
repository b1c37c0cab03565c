"""The rule that makes on a device what the program makes on the CPU and copies there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import fusepass
from fusepass.host_tensors.device_copies import device_copy_at
from fusepass.testing.compare import assert_same

from .harness import check_decisions
from .host_chains import DYNAMIC, MADE, ON_DEVICE, Program
from .host_chains_kept import KEPT, LEFT
from .pretend import THERE, in_eager, pretended
from .program import Program as Entry
from .table import TABLE

__all__ = ["pretended"]
Found = list[tuple[str, str]]


def run(
    program: Program, graphs: list[fx.GraphModule], dynamic: bool = False, **options: Any
) -> Found:
    """Compare a program with eager on several inputs; what was decided about its own lines."""
    if program in ON_DEVICE and THERE == "meta":
        pytest.skip("needs a build of torch with CUDA, though no GPU")

    def there(x: Tensor) -> Any:
        return program(x.to(THERE), THERE)

    torch.compiler.reset()
    compiled = torch.compile(there, backend="fusepass", dynamic=dynamic, options=options)
    for size in (7, 9) if dynamic else (7, 7):
        x = torch.randn(size, size)
        torch.manual_seed(1)
        expected = in_eager(there, x)
        torch.manual_seed(1)
        assert_same(expected, compiled(x), "result")
    assert len(graphs) == 1 or dynamic  # some calls make a size a constant while they are traced
    decisions = fusepass.last_report(compiled).decisions
    return [
        (d.outcome.value, d.reason_code.value)
        for d in decisions
        if d.rule == "host_tensor" and "host_chains" in d.file
    ]


def crossings(gm: fx.GraphModule) -> int:
    """Copies from the CPU left in a graph, less that of the program's input."""
    found = [c for c in map(device_copy_at, gm.graph.nodes) if c is not None]
    return len([c for c in found if not any(o.op == "placeholder" for o in c.operands)])


def constants(gm: fx.GraphModule) -> int:
    return len(gm.graph.find_nodes(op="get_attr"))


@pytest.mark.parametrize("program", MADE)
def test_is_made_on_the_device(program: Program, pretended: list[fx.GraphModule]) -> None:
    found = run(program, pretended)
    assert set(found) == {("applied", "on_device")}
    assert (crossings(pretended[0]), constants(pretended[0])) == (0, 0)


@pytest.mark.parametrize("program", KEPT)
def test_is_uploaded_once(program: Program, pretended: list[fx.GraphModule]) -> None:
    found = run(program, pretended)
    assert set(found) == {("applied", "on_device")}
    assert crossings(pretended[0]) == 0
    assert constants(pretended[0]) > 0


@pytest.mark.parametrize(("program", "reason"), LEFT.items())
def test_is_left(program: Program, reason: str, pretended: list[fx.GraphModule]) -> None:
    assert run(program, pretended) == [("rejected", reason)]
    assert crossings(pretended[0]) == 1


@pytest.mark.parametrize(("program", "reason"), DYNAMIC.items())
def test_dynamic_sizes(program: Program, reason: str, pretended: list[fx.GraphModule]) -> None:
    outcome = "applied" if reason == "on_device" else "rejected"
    found = run(program, pretended, dynamic=True)
    assert set(found) == {(outcome, reason)}


def _can_pretend(program: Entry) -> bool:
    """Not parameters, which are on the CPU, nor what breaks the graph and looks at the device."""
    return program.name not in _NOT_HERE and not isinstance(program.make(), nn.Module)


_NOT_HERE = (
    "host_tensors.made_with_gradients",
    "host_traps.decided_on_the_host",
    "host_traps.number_of_the_host",
    "host_traps.printed_on_the_host",
    "host_traps.mixed_devices_raise",
    "host_traps.by_cuda",
)


@pytest.mark.parametrize(
    "program",
    [p for p in TABLE if p.name.startswith("host_") and _can_pretend(p)],
    ids=lambda program: program.name,
)
def test_table(program: Entry, pretended: list[fx.GraphModule]) -> None:
    """What the lines of the table promise for CUDA."""
    function = program.make()

    def there(*args: Any) -> Any:
        moved = (
            a.to(THERE) if isinstance(a, Tensor) and i not in program.hosted else a
            for i, a in enumerate(args)
        )
        return function(*moved)

    (draw,) = program.draws
    compiled = torch.compile(there, backend="fusepass", dynamic=program.dynamic)
    for args, others in zip(program.draws[draw](), program.draws[draw](), strict=True):
        torch.manual_seed(3)
        expected = in_eager(there, *args)
        torch.manual_seed(3)
        assert_same(expected, compiled(*others), "result")
    report = fusepass.last_report(compiled).to_dict()
    own = [d for d in report["decisions"] if "programs/host_" in d["file"]]
    check_decisions(program, draw, "plain", {**report, "decisions": own}, "cuda")
