"""Applies rules to a graph before autograd and checks what they did."""

from __future__ import annotations

from collections.abc import Iterator

from torch import fx

from fusepass import torch_private
from fusepass.graph.canonical import tensor_value
from fusepass.options import Options
from fusepass.report.decision import Decision, Outcome, Reason, Station
from fusepass.rewrite.rule import Match, Reject, Rule


def rewrite(gm: fx.GraphModule, rules: tuple[Rule, ...], options: Options) -> list[Decision]:
    """Apply the ``before`` rules to ``gm`` and the graphs nested in it, in place.

    Returns:
        One decision per site a rule looked at and did not settle silently.
    """
    decisions: list[Decision] = []
    for module in _innermost_first(gm):
        for rule in rules:
            if rule.place == "before":
                decisions += _apply(module, rule, options)
    return decisions


def _apply(gm: fx.GraphModule, rule: Rule, options: Options) -> list[Decision]:
    anchors = [node for node in gm.graph.nodes if rule.anchor(node)]
    if not anchors:
        return []
    decisions: list[Decision] = []
    fake_mode = torch_private.fake_mode_of(gm)
    changed = False
    for node in anchors:
        match = Match(gm, node, options, fake_mode)
        on = rule.settled_by_capture or options.rule_on(rule.name)
        reject = (
            rule.check(match) if on else Reject(Reason.RULE_OFF, "switched off in options", node)
        )
        if reject is not None:
            if not rule.settled_by_capture:
                decisions.append(
                    _decision(rule, node, Outcome.REJECTED, reject.reason_code, reject.text)
                )
            continue
        expected = _outputs(gm)
        rule.replace(match)
        changed = True
        if not rule.settled_by_capture:
            decisions.append(_decision(rule, node, Outcome.APPLIED, Reason.PROVED, rule.summary))
        if options.verify:
            _verify(rule, gm, expected)
    if changed:
        gm.graph.lint()
        gm.recompile()
    return decisions


def _outputs(gm: fx.GraphModule) -> list[tuple[object, ...] | None]:
    output = next(n for n in iter(reversed(gm.graph.nodes)) if n.op == "output")
    return [_facts(node) for node in output.all_input_nodes]


def _facts(node: fx.Node) -> tuple[object, ...] | None:
    value = tensor_value(node)
    return (
        None if value is None else (value.dtype, value.device, tuple(value.shape), value.stride())
    )


def _verify(rule: Rule, gm: fx.GraphModule, expected: list[tuple[object, ...] | None]) -> None:
    found = _outputs(gm)
    for before, after in zip(expected, found, strict=False):
        if before is not None and after is not None and repr(before) != repr(after):
            raise RuntimeError(
                f"rule {rule.name!r} ({rule.location}) changed an output from {before} to {after}"
            )


def _decision(rule: Rule, node: fx.Node, outcome: Outcome, code: Reason, text: str) -> Decision:
    file, line = torch_private.source_of(node)
    return Decision(Station.BEFORE, rule.name, outcome, code, text, "", file, line)


def _innermost_first(gm: fx.GraphModule) -> Iterator[fx.GraphModule]:
    nested = [m for name, m in gm.named_modules() if name and isinstance(m, fx.GraphModule)]
    yield from reversed(nested)
    yield gm
