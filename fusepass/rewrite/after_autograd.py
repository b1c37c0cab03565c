"""Stations inside Inductor: passes on the joint and on the forward and backward ATen graphs.

The passes' ``uuid`` covers the code of every rule, the options and the versions, so Inductor's
caches serve a graph only to the rules that made it. What they decide is written into the compiled
artifact, because on a cache hit they do not run at all.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import fx

import fusepass
from fusepass import torch_private
from fusepass.options import Options
from fusepass.report import log
from fusepass.report.decision import Decision, Outcome, Reason, Station
from fusepass.rewrite import gate_folding
from fusepass.rewrite.default_rules import default_rules


def inductor_passes(options: Options) -> dict[str, Any]:
    """Inductor config key to the pass we put there."""
    record = log.current()

    def identity() -> str | None:
        log.compiling_later(record)  # asked for at the start of each graph, also of a cached one
        return pass_identity(options)

    def after_autograd(graph: fx.Graph) -> None:
        log.compiling_later(record)  # where caches are off nobody asks for the identity
        _after_autograd(graph)

    return {
        "joint_custom_pre_pass": torch_private.graph_pass(gate_folding.fold_gates, identity),
        "post_grad_custom_post_pass": torch_private.graph_pass(after_autograd, identity),
    }


def pass_identity(options: Options) -> str | None:
    """What Inductor's cache keys must hold of ours; None (no caching) if a rule has no source."""
    digest = hashlib.sha256()
    try:
        for rule in default_rules():
            digest.update(rule.source_hash().encode())
        digest.update(_source_of(gate_folding).encode())
    except (OSError, TypeError) as error:
        log.logger.warning(
            "fusepass: Inductor's cache is bypassed, the source of a rule is not available (%s)",
            error,
        )
        return None
    digest.update(options.fingerprint().encode())
    digest.update(f"{fusepass.__version__} {torch.__version__}".encode())
    return digest.hexdigest()


def _source_of(module: Any) -> str:
    import inspect

    return inspect.getsource(module)


def _after_autograd(graph: fx.Graph) -> None:
    """Station 4. No rule stands here yet; the report says what it saw."""
    matmuls = sum(n.op == "call_function" and str(n.target) in _GEMMS for n in graph.nodes)
    text = f"{matmuls} matrix products left to Inductor: no rule after autograd yet"
    log.note_in_artifact(
        [Decision(Station.AFTER, "after_autograd", Outcome.LEFT_TO_INDUCTOR, Reason.NO_RULE, text)]
    )


_GEMMS = frozenset(
    {"aten.mm.default", "aten.addmm.default", "aten.bmm.default", "aten.baddbmm.default"}
)
