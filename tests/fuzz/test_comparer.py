"""The comparison is not blind: a fault of every kind, put in by hand, is seen and named."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import pytest
import torch

from fusepass.errors import CaptureFault
from fusepass.testing.compare import Difference, tensors
from tests.fuzz.program import Program, loaded
from tests.fuzz.run import call, side
from tests.harness.call import Seen
from tests.harness.same_call import Rounded, assert_same_call

SOURCE = """
import logging
import random
import sys
import warnings

import torch
from torch import nn

LOG = logging.getLogger("comparer")


class Box:
    def __init__(self):
        self.low = torch.zeros(2)
        self.log = []
        self.steps = 0


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.gain = nn.Parameter(torch.ones(2))
        self.register_buffer("seen", torch.zeros(2))
        self.box = Box()

    def forward(self, x, state, flag):
        y = x * self.weight
        z = y.detach() * 2
        if flag:
            y = y + 1
            state.add_(1)
            self.seen.copy_(state)
            self.box.low = state * 3
            self.box.log.append(state[0])
            self.box.steps += 1
            print("arm", state)
            LOG.warning("sum %s", state.sum())
            warnings.warn(f"max {state.max()}")
        elif x.sum() < 0:
            raise ValueError(f"negative {state.tolist()}")
        noise = torch.rand_like(state)
        pair = (y, z)
        out = {"pair": pair, "view": z[:1], "copy": z.clone(), "zero": torch.zeros(1)}
        return {**out, "same": state, "list": [1, True], "noise": noise}


def make():
    torch.manual_seed(0)
    model = Model()
    return model, model


def inputs():
    return [
        (torch.tensor([1.0, 2.0]), torch.tensor([0.5, -1.0]), torch.tensor(True)),
        (torch.tensor([-1.0, 0.5]), torch.tensor([0.5, -1.0]), torch.tensor(False)),
    ]


GRADS = (0,)
"""


class Fault(NamedTuple):
    """A line that is changed, into what, and what the difference must be called."""

    old: str
    new: str
    kind: str
    context: str = "inference"
    call: int = 0


ADD, NOISE, FORM = "y = y + 1", "noise =", "y = x * self.weight"
LOW, PRINT, RAISE = "self.box.low = state * 3", 'print("arm", state)', "raise ValueError"
SUM = 'LOG.warning("sum %s", state.sum())'
WARN = 'warnings.warn(f"max {state.max()}")'
FAULTS = {
    "values": Fault(ADD, "y = y + 1.000001", "values"),
    "sign of zero": Fault("torch.zeros(1)", "-torch.zeros(1)", "values"),
    "dtype": Fault("z[:1]", "z.double()[:1]", "dtype"),
    "shape": Fault("z[:1]", "z[:1].reshape(1, 1)", "shape"),
    "stride": Fault("z[:1]", "z[::2]", "stride"),
    "requires_grad": Fault("pair = (y, z)", "pair = (y.detach(), z)", "requires_grad", "training"),
    "alias lost": Fault("z[:1]", "z[:1].clone()", "aliasing"),
    "alias made": Fault("z.clone()", "z", "aliasing"),
    "alias in a list": Fault("state[0])", "state[0].clone())", "aliasing"),
    "identity lost": Fault('"same": state', '"same": state.view_as(state)', "aliasing"),
    "argument not written": Fault("state.add_(1)", "state = state + 1", "values"),
    "argument written too often": Fault(NOISE, "state.mul_(2); noise =", "values"),
    "buffer not written": Fault("self.seen.copy_(state)", "pass", "values"),
    "buffer rebound": Fault("self.seen.copy_(state)", "self.seen = state", "aliasing"),
    "attribute": Fault(LOW, "self.box.low = state * 2", "values"),
    "attribute not rebound": Fault(LOW, "pass", "values"),
    "list": Fault("self.box.log.append(state[0])", "pass", "structure"),
    "Python attribute": Fault("self.box.steps += 1", "pass", "python value"),
    "type of a number": Fault("[1, True]", "[1.0, True]", "structure"),
    "truth for a number": Fault("[1, True]", "[1, 1]", "structure"),
    "type of a container": Fault("pair = (y, z)", "pair = [y, z]", "structure"),
    "length": Fault("pair = (y, z)", "pair = (y, z, z)", "structure"),
    "keys": Fault('{"pair": pair, "view": z[:1],', '{"view": z[:1], "pair": pair,', "structure"),
    "exception's text": Fault("negative {", "negative  {", "exception", call=1),
    "exception's type": Fault(RAISE, "raise TypeError", "exception", call=1),
    "no exception": Fault(RAISE, "str", "exception", call=1),
    "an exception": Fault(ADD, "raise ValueError", "exception"),
    "written before an exception": Fault(
        RAISE, "state.add_(1); raise ValueError", "exception", call=1
    ),
    "state before an exception": Fault(
        RAISE, "self.seen.add_(1); raise ValueError", "values", call=1
    ),
    "print": Fault(PRINT, "pass", "printed text"),
    "printed elsewhere": Fault(
        "self.box.steps += 1", f"self.box.steps += 1; {PRINT}", "printed text"
    ),
    "printed to another stream": Fault(
        PRINT, 'print("arm", state, file=sys.stderr)', "printed text"
    ),
    "printed after the log record": Fault(
        f"{PRINT}\n            {SUM}", f"{SUM}; {PRINT}", "printed text"
    ),
    "not logged": Fault(SUM, "pass", "printed text"),
    "logged with another level": Fault(SUM, SUM.replace("warning", "error"), "printed text"),
    "logged from another line": Fault(SUM, f"pass\n            {SUM}", "printed text"),
    "logged with other arguments": Fault(
        SUM, SUM.replace('"sum %s", state.sum()', 'f"sum {state.sum()}"'), "printed text"
    ),
    "logged by another function": Fault(SUM, f"(lambda: {SUM})()", "printed text"),
    "not warned": Fault(WARN, "pass", "printed text"),
    "another warning": Fault(WARN, WARN.replace("max", "min", 1), "printed text"),
    "another category": Fault(WARN, WARN[:-1] + ", RuntimeWarning)", "printed text"),
    "warned from another line": Fault(WARN, f"pass\n            {WARN}", "printed text"),
    "printed twice": Fault(PRINT, f"{PRINT}; print()", "printed text"),
    "random state": Fault("out =", "torch.rand(1); out =", "random state"),
    "Python's random state": Fault("out =", "random.random(); out =", "random state"),
    "other random numbers": Fault(NOISE, "torch.rand(1); noise =", "values"),
    "gradient": Fault(ADD, "y = y + 1 + 0.01 * (x - x.detach())", "gradient", "training"),
    "gradient of a parameter": Fault(
        FORM, "y = x * (2 * self.weight - self.weight.detach())", "gradient", "training"
    ),
    "NaN gradient": Fault(
        ADD, "y = y + 1 + 0 * (x - x.detach()).abs().sqrt()", "gradient", "training"
    ),
    "None becomes zero": Fault(ADD, "y = y + 1 + 0 * self.gain", "None gradient", "training"),
    "becomes None": Fault(FORM, "y = x * self.weight.detach()", "None gradient", "training"),
    "grad mode": Fault(NOISE, "torch.set_grad_enabled(False); noise =", "grad mode"),
}


def seen(source: str, context: str, index: int) -> Seen:
    with loaded(Program(source)) as names:
        one = call(side(names, context), index, context)
    one.said = [dataclasses.replace(said, file="program") for said in one.said]
    torch.set_grad_enabled(True)
    return one


def compared(other: str, context: str, index: int, rounded: Rounded = "nothing") -> bool:
    pair = (seen(source, context, index) for source in (SOURCE, other))
    return assert_same_call(*pair, rounded=rounded)


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_seen(name: str) -> None:
    fault = FAULTS[name]
    assert fault.old in SOURCE
    with pytest.raises(Difference) as caught:
        compared(SOURCE.replace(fault.old, fault.new, 1), fault.context, fault.call)
    assert caught.value.kind == fault.kind


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("context", ["inference", "training"])
def test_no_fault_is_seen_where_there_is_none(context: str, index: int) -> None:
    assert compared(SOURCE, context, index)


def test_the_order_of_a_sum_of_gradients_is_let_pass_and_told() -> None:
    other = SOURCE.replace(ADD, "y = y + 1 + 2e-7 * (x - x.detach())")
    assert not compared(other, "training", 0, "gradients")
    with pytest.raises(Difference) as caught:
        compared(other, "training", 0)
    assert caught.value.kind == "gradient"


def test_sums_in_another_order_are_let_pass_where_a_program_says_so() -> None:
    other = SOURCE.replace(ADD, "y = y + 1.0000003")
    assert compared(other, "inference", 0, "everything")
    with pytest.raises(Difference):
        compared(other, "inference", 0, "gradients")


def test_warnings_of_our_own_are_passed_on() -> None:
    eager, other = (seen(SOURCE, "inference", 0) for _ in range(2))
    other.faults.append(CaptureFault("a line", "a fault"))
    with pytest.warns(CaptureFault, match="a fault"):
        assert_same_call(eager, other)


def test_all_state_and_arguments_move() -> None:
    with loaded(Program(SOURCE)) as names:
        one = side(names, "inference", device="meta")
    found = [*tensors(one.owner), *tensors(one.sets), one.owner.box.low]
    assert len(found) == 3 + 6 + 1
    assert all(tensor.is_meta for tensor in found)
