"""Station 3: give the rewritten graph to Inductor, or run it op by op when asked to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from torch import fx

from fusepass import torch_private
from fusepass.cache_check import ensure_writable
from fusepass.options import Options
from fusepass.rewrite.after_autograd import inductor_passes, op_by_op_compiler
from fusepass.rewrite.registry import active_rules
from fusepass.torch_private.checkpoints import checkpoint_as_eager
from fusepass.torch_private.tensorified import has_varying_floats, without_autograd_cache


def hand_off(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    options: Options,
    name: str | None,
    settings: Mapping[str, Any],
) -> Callable[..., Any]:
    """Compile ``gm`` as ``options.codegen`` says; hooks the user had set on Inductor still run.

    Args:
        gm: rewritten.
        inputs: examples.
        options: in force.
        name: of the region, from torch 2.13 on.
        settings: of Inductor, chosen for this graph; the user's come before them.
    """
    if options.codegen == "eager":
        checkpoint_as_eager(gm)
        return torch_private.forward_of(gm)
    if options.codegen == "eager-decomposed":
        compiler = op_by_op_compiler(options, active_rules("after"))
        return torch_private.compile_decomposed_eager(gm, inputs, compiler)
    patches = {**torch_private.cond_config(gm), **torch_private.mode_config(options.mode)}
    patches |= torch_private.host_output_config(gm, {**patches, **options.inductor})
    patches |= {**settings, **options.inductor}
    for hook, ours in inductor_passes(options, active_rules("after")).items():
        theirs = patches.get(hook, torch_private.inductor_config_value(hook))
        patches[hook] = torch_private.chained_passes(theirs, ours)
    ensure_writable()
    with without_autograd_cache() if has_varying_floats(gm) else nullcontext():
        return torch_private.compile_with_inductor(gm, inputs, patches, name)
