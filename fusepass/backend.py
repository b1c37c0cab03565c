"""Compile one graph: capture, rules, hand-off to Inductor, report.

Capture → rewrite → hand-off → rewrite inside Inductor → report. ``torch.compile(model,
backend="fusepass")`` finds :func:`fusepass` through the package's entry point.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from fusepass import tune
from fusepass.default_rules import graph_rules
from fusepass.errors import FusepassError, UnsupportedVersion
from fusepass.inductor.faults import steer
from fusepass.inductor.frozen_weights import with_frozen_weights_check
from fusepass.inductor.hand_off import hand_off, hook_ddp_cuts
from fusepass.inductor.repeated_layers import reuse_layers
from fusepass.inductor.retry_without_rules import compiled_or_without_rules, without_rewrites
from fusepass.inductor.settings import layout_settings
from fusepass.inductor.settings_search import compiled_with_fastest_config
from fusepass.options import Options
from fusepass.report import log, warn_once
from fusepass.report.decision import Decision, Outcome, Reason, Station, in_short
from fusepass.report.host_syncs.graph import waits_in_graph
from fusepass.rewrite.apply.graph_rule_driver import innermost_first, rewrite
from fusepass.rewrite.apply.rounds import apply_rules
from fusepass.rewrite.option_scope import resolve_checked
from fusepass.rewrite.registry import active_rules
from fusepass.torch_private.dynamo.compile_state import allow_registering_twice, transparent
from fusepass.torch_private.dynamo.saved_tensors import saving_masks_unhooked, saving_unhooked
from fusepass.torch_private.inductor.compile import reset_cudagraphs
from fusepass.torch_private.versions import version_text

allow_registering_twice()  # threads that compile first at once are all still to register it


def fusepass(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    name: str | None = None,
    **_later: Any,
) -> Callable[..., Any]:
    """Compile one captured graph.

    Args:
        gm: graph of torch calls, as Dynamo recorded it.
        inputs: example inputs, real or fake.
        mode: as for Inductor; the same as ``options={"mode": …}``.
        options: see :class:`fusepass.options.Options`.
        name: region name that torch 2.13 and later pass on.

    Returns:
        A callable with the inputs and outputs of ``gm``.

    Raises:
        UnknownOption, OptionType, OptionValue: bad options.
    """
    resolved = _resolved(mode, options)
    record = log.current() or log.GraphRecord(gm.__class__.__name__, "", 0)
    if record.as_written is not None:
        resolved = without_rewrites(resolved)
    operations, waits = record.operations, record.waits  # of the pieces before this one

    def compiled(options: Options) -> Callable[..., Any]:
        record.decide(rewrite(gm, graph_rules(), options))  # station 2
        for graph in innermost_first(gm):
            record.decisions += apply_rules(graph, active_rules("before"), options, "before")
        if log.are_counted():
            record.waits = waits + waits_in_graph(gm, record.decisions)
        record.operations = operations + sum(n.op.startswith("call_") for n in gm.graph.nodes)
        record.decisions += reuse_layers(gm, options)
        steered, options = steer.before_hand_off(gm, options)
        told = [*steered, _handed(options, record.as_written)]
        record.decisions += [one for one in told if one not in record.decisions]
        settings, found = layout_settings(gm, options)
        record.decisions += found

        def handed(more: Mapping[str, Any]) -> Callable[..., Any]:
            return hand_off(gm, inputs, options, name, {**settings, **more})

        # Stations 3, 4, 5; 6 is the log.
        runs = compiled_with_fastest_config(gm, record, options, settings, handed)
        return with_frozen_weights_check(runs, gm, options)

    # Dynamo's frames are traced so, too; but the backend is also called by itself.
    with saving_unhooked():
        runs = compiled_or_without_rules(gm, record, resolved, compiled)
    captured = any(d.station is Station.CAPTURE for d in record.decisions)
    if captured and torch.is_grad_enabled():
        runs = saving_masks_unhooked(runs)
    return log.counting(runs, record)


def _resolved(mode: str | None, options: Mapping[str, Any] | None) -> Options:
    try:
        return resolve_checked(mode, options)
    except FusepassError as error:
        raise transparent(error) from None


def _handed(options: Options, as_written: str | None) -> Decision:
    what = {
        "inductor": f"the rest goes to Inductor, mode {options.mode}",
        "eager": "the graph is run op by op as written (codegen eager)",
        "eager-decomposed": "the graph is run op by op, decomposed (codegen eager-decomposed)",
    }[options.codegen]
    if as_written is not None:
        what = f"the graph is run op by op as written: {as_written}"
    return Decision(
        Station.HAND_OFF,
        "codegen",
        Outcome.LEFT_TO_INDUCTOR,
        Reason.NO_RULE if as_written is None else Reason.ALIAS,
        what,
    )


def reset() -> None:
    """Part of torch._dynamo.reset(): forget reports and timings, and free CUDA-graph memory."""
    log.clear()
    warn_once.forget()
    tune.reset()
    reset_cudagraphs()


fusepass.reset = reset  # type: ignore[attr-defined]

# Station 1: Dynamo asks capture at each branch of a frame that is compiled for this backend.
try:
    from fusepass.capture import dynamo_hooks
except (ImportError, AttributeError) as error:  # a torch without a name that capture needs
    warnings.warn(UnsupportedVersion(*version_text(), in_short(error)), stacklevel=2)
else:
    dynamo_hooks.install(fusepass)
hook_ddp_cuts()
