"""Station 3: give the rewritten graph to Inductor, DDP's parts too, or run it op by op if asked."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from torch import fx

from fusepass.default_rules import graph_rules
from fusepass.inductor.cache_folder import ensure_writable
from fusepass.inductor.passes import inductor_passes, op_by_op_compiler
from fusepass.options import Options
from fusepass.report import log
from fusepass.rewrite.apply.graph_rule_driver import rewrite
from fusepass.rewrite.registry import active_rules
from fusepass.torch_private.dynamo.compile_state import hook_cuts
from fusepass.torch_private.inductor import compile as inductor_compile
from fusepass.torch_private.inductor.checkpoints import checkpoint_as_eager
from fusepass.torch_private.inductor.compile import (
    compile_decomposed_eager,
    cond_config,
    forward_of,
    has_varying_floats,
    host_output_config,
    inductor_config_value,
    mode_config,
    while_loop_config,
    without_autograd_cache,
)
from fusepass.torch_private.inductor.passes import chained_passes
from fusepass.torch_private.patches import Patches


def hand_off(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    options: Options,
    name: str | None,
    settings: Mapping[str, Any],
) -> Callable[..., Any]:
    """Compile ``gm`` as ``options.codegen`` says; hooks the user had set on Inductor still run.

    The user's settings come before ``settings``, which were chosen for this graph.
    """
    if options.codegen == "eager":
        checkpoint_as_eager(gm)
        return forward_of(gm)
    if options.codegen == "eager-decomposed":
        compiler = op_by_op_compiler(options, active_rules("after"))
        return compile_decomposed_eager(gm, inputs, compiler)
    patches = {**cond_config(gm), **mode_config(options.mode)}
    patches |= host_output_config(gm, {**patches, **options.inductor})
    patches |= {**settings, **options.inductor, **while_loop_config(gm)}
    for hook, ours in inductor_passes(options, active_rules("after")).items():
        theirs = patches.get(hook, inductor_config_value(hook))
        patches[hook] = chained_passes(theirs, ours)
    ensure_writable()
    with without_autograd_cache() if has_varying_floats(gm) else nullcontext():
        return inductor_compile.compile_with_inductor(gm, inputs, patches, name)


# --- Whole-graph work on a graph that DDP splits before the backend sees it -----------------------
# A captured branch is nodes of both arms and what selects between them: it is lowered while all of
# them are in one graph. All other rules take the pieces as they come, since a piece is what
# Inductor compiles.


def lower_captured(gm: fx.GraphModule) -> None:
    """Lower what capture has put into a graph of ours; others stay as they are.

    Raises:
        BranchRuleError: a rule that the meaning of the graph depends on failed.
    """
    record = log.current()
    if record is not None:
        rules = tuple(rule for rule in graph_rules() if rule.settled_by_capture)
        record.decide(rewrite(gm, rules, record.options))


def hook_ddp_cuts() -> None:
    """Look at graphs before torch cuts them, where this torch cuts any."""
    with contextlib.suppress(ImportError, AttributeError):
        hook_cuts(Patches(), lower_captured)
