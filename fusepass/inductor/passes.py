"""Stations inside Inductor: passes on the joint and on the forward and backward ATen graphs.

The passes' ``uuid`` covers the code of every rule, the options and the versions, so Inductor's
caches serve a graph only to the rules that made it. What they decide is written into the compiled
artifact, because on a cache hit they do not run at all.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx

from fusepass import kernels, patterns, tune
from fusepass.default_rules import default_rules, graph_edits, late_rules, region_rules
from fusepass.fusion.gemm.one_row import decompose, mark_own_sums, recompose
from fusepass.inductor import device_proof, fold_gates, split_scaled_add
from fusepass.inductor.copy_outputs import copy_shared_outputs
from fusepass.inductor.faults import steer
from fusepass.options import Options
from fusepass.report import cached_decisions, log
from fusepass.report.decision import Decision, Outcome, Reason, Station
from fusepass.report.version import PACKAGE, VERSION
from fusepass.rewrite.apply.graph_rule_driver import AcceptEdit, rewrite
from fusepass.rewrite.apply.rounds import apply_rules
from fusepass.rewrite.graph_rule import GraphRule
from fusepass.rewrite.reject import Reject
from fusepass.rewrite.rule import Rule
from fusepass.rewrite.source_hash import rule_hash
from fusepass.torch_private.inductor.compile import run_op_by_op
from fusepass.torch_private.inductor.passes import graph_pass


def inductor_passes(options: Options, rules: Sequence[Rule]) -> dict[str, Any]:
    """Inductor config key to the pass we put there.

    Args:
        options: in force.
        rules: those for after autograd; the backward is compiled when no scope is open any more.
    """
    record = log.current()

    once = functools.cache(lambda: pass_uuid(options, rules))

    def identity() -> str | None:
        log.compiling_later(record)  # asked for at the start of each graph, also of a cached one
        return once()

    def after_autograd(graph: fx.Graph) -> None:
        log.compiling_later(record)  # where caches are off nobody asks for the identity
        found = rewrite_aten(graph, options, rules)
        copy_shared_outputs(graph)
        cached_decisions.note(found + steer.before_lowering(graph))

    def before_inductor(graph: fx.Graph) -> None:
        fold_gates.fold_gates(graph)
        split_scaled_add.split_scaled_adds(graph)
        mark_own_sums(graph)
        steered = steer.before_inductor(graph)
        if steered:
            cached_decisions.note(steered)

    return {
        "joint_custom_pre_pass": graph_pass(before_inductor, identity),
        "post_grad_custom_post_pass": graph_pass(after_autograd, identity),
    }


def pass_uuid(options: Options, rules: Sequence[Rule] = ()) -> str | None:
    """What Inductor's cache keys must hold of ours; None (no caching) if a rule has no source."""
    digest = hashlib.sha256()
    try:
        for graph_rule in graph_edits():
            digest.update(graph_rule.source_hash().encode())
        built_in = default_rules()
        digest.update(_hash_of_built_in().encode())
        for rule in rules:
            if rule not in built_in:
                digest.update(rule_hash(rule).encode())
        digest.update(_engine_source())
    except (OSError, TypeError) as error:
        log.logger.warning(
            "fusepass: Inductor's cache is bypassed, the source of a rule is not available (%s)",
            error,
        )
        return None
    digest.update(options.fingerprint().encode())
    digest.update(f"{VERSION} {torch.__version__} {tune.epoch()}".encode())
    return digest.hexdigest()


@functools.cache
def _hash_of_built_in() -> str:
    """These do not change while a process runs; the user's may, through what they close over."""
    return " ".join(map(rule_hash, default_rules()))


@functools.cache
def _engine_source() -> bytes:
    """The code that matches and replaces: versions do not tell one working copy from the next."""
    beside = (patterns, kernels)  # in a checkout; in a wheel they lie inside
    folders = [PACKAGE, *(Path(str(package.__file__)).parent for package in beside)]
    return source_of(folders)


def source_of(folders: Iterable[Path]) -> bytes:
    """The code below some folders, each file with its place: generated code names modules."""
    files = {path: path.relative_to(f) for f in folders for path in f.rglob("*.py")}
    parts = (part for path in sorted(files) for part in (bytes(files[path]), path.read_bytes()))
    return b"\0".join(parts)


def rewrite_aten(graph: fx.Graph, options: Options, rules: Sequence[Rule]) -> list[Decision]:
    """Station 4 on one ATen graph: its decisions, or one that says there was nothing to do."""
    gm = graph.owning_module
    decisions: list[Decision] = []
    if gm is not None:
        built_in = frozenset(rule.name for rule in default_rules())
        if _emulates_eager_rounding(
            options
        ):  # what a fused GEMM hands on is not rounded in between
            rules = [rule for rule in rules if rule.name not in built_in]
            decisions = apply_rules(gm, rules, options, "after", built_in)
        else:
            recompose(gm)
            norm, pair, *others = region_rules()
            decisions = _run_rule(gm, norm, options)
            decisions += _run_rule(gm, pair, options)  # a rule for an activation would take half
            decisions += apply_rules(gm, rules, options, "after", built_in)
            for rule in (*others, *late_rules()):
                decisions += _run_rule(gm, rule, options)
            decompose(gm)
    if decisions:
        return decisions
    text = _nothing_done(graph, options, rules)
    return [
        Decision(Station.AFTER, "after_autograd", Outcome.LEFT_TO_INDUCTOR, Reason.NO_RULE, text)
    ]


def _nothing_done(graph: fx.Graph, options: Options, rules: Sequence[Rule]) -> str:
    """Why a graph goes on as it is: what matches may be for another device."""
    calls = [node for node in graph.nodes if node.op == "call_function"]
    products = sum(str(node.target) in _GEMMS for node in calls)
    left = {0: "", 1: ", with its matrix product"}.get(
        products, f", with its {products} matrix products"
    )
    here = options.candidate == "reference" or any(map(_on_cuda, calls))
    if not here and not any(rule.place == "after" and not rule.devices for rule in rules):
        return f"the rules after autograd are for CUDA, the graph is not: left as written{left}"
    return f"no rule after autograd matches: left as written{left}"


def _emulates_eager_rounding(options: Options) -> bool:
    """Whether the user wants each operation rounded as eager rounds it (Inductor's option)."""
    return bool(options.inductor_value("emulate_precision_casts"))


def _run_rule(gm: fx.GraphModule, rule: GraphRule, options: Options) -> list[Decision]:
    """One rule on a graph that has places for it on a GPU, or anywhere if that is asked for."""
    anchors = [node for node in gm.graph.nodes if rule.anchor(node)]
    if options.candidate != "reference" and not any(map(_on_cuda, anchors)):
        return []
    admit = _reject_unproven_kernels(gm) if device_proof.needs_proof(options) else None
    found = rewrite(gm, (rule,), options, Station.AFTER, admit)
    return [one for one in found if one.reason_code is not Reason.VARIANT]


def _reject_unproven_kernels(gm: fx.GraphModule) -> AcceptEdit:
    """Rejects an edit with new calls of kernels that do not work on the device."""
    before = set(device_proof.calls_of(gm))

    def admit(edited: fx.GraphModule) -> Reject | None:
        new = [call for call in device_proof.calls_of(edited) if call not in before]
        return device_proof.first_failure(new, _engine_source())

    return admit


def _on_cuda(node: fx.Node) -> bool:
    """Whether a call is made on a GPU; of the graph's output, whether any call of the graph is.

    What overwrites an input at a graph's end is returned, too, and nothing says what it is.
    """
    near = node.graph.nodes if node.op == "output" else (node, *node.all_input_nodes)
    values = [one.meta.get("val") for one in near]
    return any(isinstance(one, torch.Tensor) and one.is_cuda for one in values)


def op_by_op_compiler(
    options: Options, rules: Sequence[Rule]
) -> Callable[[fx.GraphModule, list[Any]], Callable[..., Any]]:
    """What runs an ATen graph op by op after station 4, for ``codegen="eager-decomposed"``."""
    record = log.current()

    def compile_graph(gm: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        decisions = rewrite_aten(gm.graph, options, rules)
        if record is not None:
            record.decisions += decisions
        return run_op_by_op(gm, inputs)

    return compile_graph


_GEMMS = frozenset(
    {"aten.mm.default", "aten.addmm.default", "aten.bmm.default", "aten.baddbmm.default"}
)
