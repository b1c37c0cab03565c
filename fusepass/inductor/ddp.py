"""Whole-graph work on a graph that DDP splits before the backend sees it.

A captured branch is nodes of both arms and what selects between them: it is lowered while all of
them are in one graph. All other rules take the pieces as they come, since a piece is what Inductor
compiles.
"""

from __future__ import annotations

import contextlib

from torch import fx

from fusepass.default_rules import graph_rules
from fusepass.report import log
from fusepass.rewrite.apply.graph_rule_driver import rewrite
from fusepass.torch_private.dynamo.compile_state import hook_cuts
from fusepass.torch_private.patches import Patches


def lower_captured(gm: fx.GraphModule) -> None:
    """Lower what capture has put into a graph of ours; others stay as they are.

    Raises:
        BranchRuleError: a rule that the meaning of the graph depends on failed.
    """
    record = log.current()
    if record is not None:
        rules = tuple(rule for rule in graph_rules() if rule.settled_by_capture)
        record.decide(rewrite(gm, rules, record.options))


def install() -> None:
    """Look at graphs before torch cuts them, where this torch cuts any."""
    with contextlib.suppress(ImportError, AttributeError):
        hook_cuts(Patches(), lower_captured)
