"""``mode`` and ``inductor.*``: what they mean for Inductor, and that Inductor gets them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._inductor import config, list_mode_options
from torch._inductor.custom_graph_pass import CustomGraphPass

import fusepass
from fusepass import errors
from fusepass.options import MODES, resolve
from fusepass.torch_private.inductor import compile as inductor_compile

OURS = {"joint_custom_pre_pass", "joint_custom_post_pass", "post_grad_custom_post_pass"}


def product(x: Tensor, w: Tensor) -> Tensor:
    return x @ w  # one library call: nothing to generate


class Patches:
    """Stands in for Inductor and keeps the config changes it was handed."""

    def __call__(self, gm: fx.GraphModule, inputs: Any, patches: Any, name: Any) -> Any:
        self.given, self.name = dict(patches), name
        return gm.forward


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> Patches:
    patches = Patches()
    monkeypatch.setattr(inductor_compile, "compile_with_inductor", patches)
    return patches


def run(**kwargs: Any) -> None:
    torch.compile(product, backend="fusepass", **kwargs)(torch.ones(2, 2), torch.ones(2, 2))


def test_modes_are_inductors() -> None:
    assert set(MODES) <= set(list_mode_options())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("as_option", [False, True])
def test_mode_changes_the_same_config(mode: str, as_option: bool, handed: Patches) -> None:
    run(**({"options": {"mode": mode}} if as_option else {"mode": mode}))
    changed = {key: value for key, value in handed.given.items() if key not in OURS}
    assert changed == list_mode_options(mode)


def test_mode_and_options_together_only_as_an_option(handed: Patches) -> None:
    with pytest.raises(RuntimeError, match="mode or options"):
        run(mode="max-autotune", options={"verify": True})  # torch's own rule
    run(options={"mode": "max-autotune", "verify": True})
    assert handed.given["max_autotune"] is True


def test_key_wins_over_mode(handed: Patches) -> None:
    run(options={"mode": "max-autotune", "inductor.triton.cudagraphs": False})
    assert handed.given["triton.cudagraphs"] is False
    assert handed.given["coordinate_descent_tuning"] is True


def test_dashes_are_underscores_as_in_torch_compile(handed: Patches) -> None:
    run(options={"inductor.max-fusion-size": 7})
    assert handed.given["max_fusion_size"] == 7


@pytest.mark.parametrize(
    ("key", "kind", "words"),
    [
        ("inductor.max_fusion_siz", errors.UnknownOption, "inductor.max_fusion_size"),
        ("inductor.", errors.UnknownOption, "unknown option"),
        ("inductor.triton.cudagraph", errors.UnknownOption, "inductor.triton.cudagraphs"),
        ("inductor.triton.cudagraphs", errors.OptionType, "bool"),
        ("inductor.max_fusion_size", errors.OptionType, "int"),
    ],
)
def test_key_is_checked(key: str, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        resolve(given={key: "a string"})


class Spy(CustomGraphPass):
    """Reads a value of Inductor's config while Inductor runs."""

    def __init__(self, key: str) -> None:
        self.key, self.seen = key, []  # type: ignore[var-annotated]

    def __call__(self, graph: fx.Graph) -> None:
        self.seen.append(config.get_config_copy()[self.key])

    def uuid(self) -> Any:
        return None  # not cached: it must run


@pytest.mark.parametrize("scoped", [False, True])
def test_key_is_in_force_while_inductor_runs(scoped: bool) -> None:
    spy = Spy("max_fusion_size")
    keys = {"inductor.max_fusion_size": 3, "inductor.post_grad_custom_pre_pass": spy}
    before = config.max_fusion_size
    if scoped:
        with fusepass.options(**keys):
            run()
    else:
        run(options=keys)
    assert spy.seen == [3]
    assert config.max_fusion_size == before


def test_name_and_keywords_of_later_versions_are_accepted(handed: Patches) -> None:
    from fusepass.backend import fusepass as backend

    gm = fx.symbolic_trace(lambda x: x + 1)
    compiled = backend(gm, [torch.ones(2)], name="region", a_keyword_of_2_17=True)
    assert handed.name == "region"
    (result,) = (compiled(torch.ones(2)),)
    assert result.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("key", ["max_fusion_size", "triton.cudagraphs", "max-autotune"])
def test_inductors_own_without_the_prefix(key: str) -> None:
    with pytest.raises(errors.UnknownOption, match=f"prefix: 'inductor.{key}'"):
        resolve(given={key: 32})


def test_a_misspelled_key_names_the_nearest_one() -> None:
    with pytest.raises(errors.UnknownOption, match=r"mean .inductor\.max_fusion_size") as caught:
        resolve(given={"inductor.max_fusion_sise": 32})
    assert len(str(caught.value)) < 150
