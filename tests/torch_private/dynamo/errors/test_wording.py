"""What torch says, without the names that only its developers know."""

from __future__ import annotations

import pytest

from fusepass.torch_private.dynamo.errors.wording import (
    first_sentence,
    knows_only_torch,
    noun_of,
    operation,
    plain,
)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a change of L['self']", "a change of self"),
        ("L['self']._modules['fc']._parameters['weight']", "self.fc.weight"),
        ("L['self'].layers['0'].__dict__['seen']", "self.layers['0'].seen"),
        ('G["HELD"] grows', "HELD grows"),
        ("L['fn'].__closure__[0].cell_contents", "fn"),
        ("L['___stack0']", "a value"),
        ("L_self_modules_fc_parameters_weight_", "self.fc.weight"),
        ("L_x_", "x"),
        ("Attempted to mutate ListVariable(length=0)", "Attempted to mutate a list"),
        ("jumps with TensorVariable()", "jumps with a tensor"),
        ("of SymNodeVariable", "of a number that is not known"),
        ("a LazyVariableTracker", "a a value"),
        ("aten.nonzero.default is seen", "nonzero is seen"),
        ("torch.ops.aten._unique2.default", "_unique2"),
        ("torch._C._linalg.linalg_inv", "torch.linalg_inv"),
        ("of this HOP is not supported", "of this higher-order operator is not supported"),
        ("Dynamo cannot do it", "torch.compile cannot do it"),
        ("calls <function f at 0x7f00>", "calls f"),
        ("torch._dynamo.graph_break() and torch._check", None),
        ("self.weight, x[0] and Variation stay", None),
        ("VARIABLE_NAME of the program", None),
    ],
)
def test_names_become_those_of_the_program(text: str, wanted: str | None) -> None:
    assert plain(text, "unknown") == (wanted or text)


@pytest.mark.parametrize(
    "text",
    [
        "Eq(u0, 1) is asked",
        "Add tp_iternext_impl to it",
        "with config.capture_scalar_outputs=False",
        "does not work with AOTDispatcher",
        "object at 0x7f0011",
        "the LOAD_FAST bytecode",
        "ObservedKeyError",
        "in torch._numpy",
        "triton_poi_fused_add",
        "Missing `as_proxy()` implementation",
    ],
)
def test_what_nothing_is_known_of_gives_way(text: str) -> None:
    assert plain(text, "unknown") == "unknown"
    assert knows_only_torch(text)


def test_nouns_and_operations() -> None:
    assert (noun_of("ListVariable"), noun_of("BrandNewVariable")) == ("list", "value")
    assert operation("autograd_function_apply") == "an autograd.Function"
    assert (operation("wrapped_mul"), operation("mul")) == ("NumPy's mul", "mul")


def test_first_sentence() -> None:
    assert first_sentence("torch.compile stops. It says why.") == "torch.compile stops"
    assert first_sentence("at 1.5 it ends") == "at 1.5 it ends"
    assert first_sentence("") == ""
