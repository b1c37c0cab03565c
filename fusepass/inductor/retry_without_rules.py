"""A graph that Inductor cannot compile is compiled again, elsewhere or without the rules.

Where the error names a file of Inductor's cache folder, the file may be damaged, or the disk full:
then the same graph compiles where there is no such file.

Which shapes of a graph make Inductor raise differs from release to release, and a rewritten graph
may have one that the user's own had not. Only rules that capture has settled are needed for the
graph's meaning; they are applied again.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable

from torch import fx

from fusepass.default_rules import graph_edits
from fusepass.errors import FusepassError, InductorFault
from fusepass.inductor import cache_folder
from fusepass.inductor.settings_search import RULE as CONFIG_SEARCH
from fusepass.options import Options
from fusepass.report import cached_decisions, log
from fusepass.report.decision import Decision, Outcome, Reason, in_short
from fusepass.rewrite.apply.graph_rule_driver import innermost_first
from fusepass.rewrite.apply.snapshot import snapshot
from fusepass.rewrite.registry import active_rules
from fusepass.torch_private.dynamo.compile_state import is_control_flow

Compiled = Callable[..., object]


def compiled_or_without_rules(
    gm: fx.GraphModule,
    record: log.GraphRecord,
    options: Options,
    compiled: Callable[[Options], Compiled],
) -> Compiled:
    """What ``compiled(options)`` makes of ``gm``, or makes of it with all optional rules off.

    ``compiled`` edits ``gm`` in place. Before the second try the graph is put back, and the
    decisions of the first are taken back.

    Raises:
        Exception: what Inductor raises without the rules too.
    """
    if options.codegen != "inductor":
        return compiled(options)  # run op by op: nothing to compile that could fail
    put_back = snapshot(innermost_first(gm))
    before, noted = list(record.decisions), cached_decisions.snapshot()

    def tried() -> Compiled | Exception:
        try:
            return compiled(options)
        except Exception as error:
            if is_control_flow(error) or isinstance(error, FusepassError):
                raise
            return error

    def taken_back() -> list[Decision]:
        made = [*record.decisions, *cached_decisions.taken_back(noted)]
        record.decisions = list(before)
        put_back()
        return made

    found = tried()
    if not isinstance(found, Exception):
        return found
    made, problem = taken_back(), in_short(found)
    elsewhere = _in_empty_folder(found, tried, taken_back)
    if elsewhere is not None:
        return elsewhere
    undone = [
        d
        for d in made
        if d.rule in _optional_rules()
        and d.outcome is Outcome.APPLIED
        and not any(d is one for one in before)
    ]
    # "Switched off" would be true of the second try only; what follows says what happened.
    record.undone = frozenset(rule for rule in _optional_rules() if options.rule_on(rule))
    found = compiled(_without_rules(options))
    record.decisions = record.news(record.decisions)
    named = sorted({decision.rule for decision in undone})
    warnings.warn(InductorFault(named, problem), stacklevel=2)
    record.decisions += [_rejected_decision(decision, problem) for decision in undone]
    return found


def _in_empty_folder(
    error: Exception,
    tried: Callable[[], Compiled | Exception],
    taken_back: Callable[[], object],
) -> Compiled | None:
    """What compiles without the cache folder, if the error names a file there; else None."""
    warning = cache_folder.damaged_file_advice(error)
    if warning is None:
        return None
    go_back = cache_folder.use_temporary_folder()
    found = tried()
    if not isinstance(found, Exception):
        warnings.warn(warning, stacklevel=3)
        return found
    taken_back()
    go_back()
    return None


def _rejected_decision(decision: Decision, problem: str) -> Decision:
    """A decision that has been undone, because Inductor could not compile what came of it."""
    return dataclasses.replace(
        decision,
        outcome=Outcome.REJECTED,
        reason_code=Reason.INTERNAL,
        reason=f"undone, Inductor cannot compile the result: {problem}",
        treatment=decision.treatment and "keep",
    )


def _optional_rules() -> set[str]:
    """Names of the rules that a graph can do without."""
    edits = graph_edits()
    early = {rule.name for rule in edits if not rule.settled_by_capture}
    return early | {rule.name for rule in active_rules()}


def _without_rules(options: Options) -> Options:
    off = dict.fromkeys({*_optional_rules(), CONFIG_SEARCH}, False)
    return dataclasses.replace(options, rules={**options.rules, **off}, reuse_regions=False)


def without_rewrites(options: Options) -> Options:
    """Options with which a graph is run op by op, and no rule that it can do without is applied."""
    return dataclasses.replace(_without_rules(options), codegen="eager")
