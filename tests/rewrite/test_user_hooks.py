"""Passes the user put on Inductor's hooks run beside ours, and decide about caching as before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._dynamo.utils import counters
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass

import fusepass
from fusepass.inductor import passes

HOOKS = ["post_grad_custom_post_pass", "joint_custom_pre_pass", "joint_custom_post_pass"]
needs_lists = pytest.mark.skipif(
    torch.__version__ < (2, 13), reason="one object per hook before torch 2.13"
)


class Pass(CustomGraphPass):
    """Counts the graphs it sees; ``identity`` None means: do not cache."""

    def __init__(self, identity: str | None) -> None:
        self.identity, self.graphs = identity, 0

    def __call__(self, graph: fx.Graph) -> None:
        self.graphs += 1

    def uuid(self) -> Any:
        return self.identity


def product(x: Tensor, w: Tensor) -> Tensor:
    return x @ w  # one library call: nothing to generate


@pytest.fixture(autouse=True)
def folder(cache_dir: Any) -> Iterator[None]:
    """A cache of this test's own: a hit would mean that no pass runs."""
    counters.clear()
    return


def run(options: dict[str, Any] | None = None) -> set[str]:
    """Compile anew and run; the reasons of the decisions of our own pass after autograd."""
    torch.compiler.reset()
    compiled = torch.compile(product, backend="fusepass", options=options or {})
    compiled(torch.ones(2, 2), torch.ones(2, 2))
    report = fusepass.last_report(compiled)
    return {d.reason for d in report.decisions if d.station == "after"}


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("through", ["config", "options"])
def test_both_run(hook: str, through: str) -> None:
    theirs = Pass("theirs")
    if through == "config":
        with config.patch({hook: theirs}):
            ours = run()
    else:
        ours = run({f"inductor.{hook}": theirs})
    assert theirs.graphs == 1
    assert ours
    assert config.get_config_copy()[hook] is None


@pytest.mark.parametrize("hook", HOOKS)
def test_option_replaces_the_users_global_hook_not_ours(hook: str) -> None:
    """As torch.compile(options=...) does."""
    everywhere, here = Pass("everywhere"), Pass("here")
    with config.patch({hook: everywhere}):
        ours = run({f"inductor.{hook}": here})
    assert (everywhere.graphs, here.graphs) == (0, 1)
    assert ours


@needs_lists
def test_a_list_of_hooks() -> None:
    first, second = Pass("first"), Pass("second")
    assert run({"inductor.post_grad_custom_post_pass": [first, second]})
    assert (first.graphs, second.graphs) == (1, 1)


def test_a_plain_function_runs_and_nothing_is_cached() -> None:
    seen: list[int] = []
    hook = {"inductor.post_grad_custom_post_pass": lambda graph: seen.append(len(graph.nodes))}
    for _ in range(2):
        assert run(hook)
    assert len(seen) == 2


@pytest.mark.parametrize("hook", HOOKS)
def test_uuid_none_bypasses_the_cache(hook: str) -> None:
    theirs = Pass(None)
    for _ in range(2):
        assert run({f"inductor.{hook}": theirs})
    assert theirs.graphs == 2
    assert counters["inductor"]["fxgraph_cache_hit"] == 0
    assert counters["inductor"]["fxgraph_cache_bypass"] == 2


@pytest.mark.parametrize("hook", HOOKS)
def test_uuid_is_part_of_the_key(hook: str) -> None:
    first, same, other = Pass("one"), Pass("one"), Pass("two")
    for theirs in (first, same, other):
        assert run({f"inductor.{hook}": theirs})
    assert [first.graphs, same.graphs, other.graphs] == [1, 0, 1]
    assert counters["inductor"]["fxgraph_cache_hit"] == 1
    assert counters["inductor"]["fxgraph_cache_miss"] == 2
    assert counters["inductor"]["fxgraph_cache_bypass"] == 0


def test_ours_alone_is_cached_and_reported_on_a_hit() -> None:
    assert run() == run() != set()
    assert counters["inductor"]["fxgraph_cache_hit"] == 1


def test_options_are_part_of_the_key() -> None:
    for options in ({}, {"allow_zero_grad": True}, {"rules": {"joined_reductions": False}}):
        run(options)
    assert counters["inductor"]["fxgraph_cache_miss"] == 2  # the second cannot change the code
    assert counters["inductor"]["fxgraph_cache_hit"] == 1


def test_a_rule_whose_source_is_gone_bypasses_the_cache_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def gone() -> bytes:
        raise OSError("could not get source code")

    monkeypatch.setattr(passes, "_engine_source", gone)
    for _ in range(2):
        assert run()
    assert counters["inductor"]["fxgraph_cache_bypass"] == 2
    assert "cache is bypassed" in caplog.text
