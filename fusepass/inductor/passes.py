"""Stations inside Inductor: passes on the joint and on the forward and backward ATen graphs.

The passes' ``uuid`` covers the code of every rule, the options and the versions, so Inductor's
caches serve a graph only to the rules that made it. What they decide is written into the compiled
artifact, because on a cache hit they do not run at all.
"""

from __future__ import annotations

import functools
import hashlib
import operator
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx

from fusepass import kernels, patterns, tune
from fusepass.default_rules import default_rules, late_rules, region_rules
from fusepass.fusion.gemm.one_row import decompose, mark_own_sums, recompose
from fusepass.graph.dataflow.reached import reached
from fusepass.inductor import device_proof
from fusepass.inductor.faults import steer
from fusepass.inductor.faults.rewrites import split_scaled_adds
from fusepass.options import Options
from fusepass.report import cached_decisions, log
from fusepass.report.decision import Decision, Outcome, Reason, Station
from fusepass.report.version import PACKAGE, VERSION
from fusepass.rewrite.apply.graph_rule_driver import AcceptEdit, rewrite
from fusepass.rewrite.apply.rounds import apply_rules
from fusepass.rewrite.rule import GraphRule, Reject, Rule
from fusepass.rewrite.source_hash import rule_hash
from fusepass.torch_private.inductor.compile import run_op_by_op
from fusepass.torch_private.inductor.passes import graph_pass


def inductor_passes(options: Options, rules: Sequence[Rule]) -> dict[str, Any]:
    """Inductor config key to the pass we put there.

    Rules are given, because the backward is compiled when no scope is open any more.
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
        fold_gates(graph)
        split_scaled_adds(graph)
        mark_own_sums(graph)
        steered = steer.before_inductor(graph)
        if steered:
            cached_decisions.note(steered)

    def before_partition(graph: fx.Graph) -> None:
        steered = steer.before_partition(graph)
        if steered:
            cached_decisions.note(steered)

    return {
        "joint_custom_pre_pass": graph_pass(before_inductor, identity),
        "joint_custom_post_pass": graph_pass(before_partition, identity),
        "post_grad_custom_post_pass": graph_pass(after_autograd, identity),
    }


def pass_uuid(options: Options, rules: Sequence[Rule] = ()) -> str | None:
    """What Inductor's cache keys must hold of ours; None (no caching) if a rule has no source."""
    digest = hashlib.sha256()
    try:
        for rule in rules:
            if rule not in default_rules():
                digest.update(rule_hash(rule).encode())
        digest.update(_engine_source())  # the built-in rules among it
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
        text = "the rules after autograd need CUDA tensors, this graph has none"
        return f"{text}: left as written{left}"
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


# --- On Inductor's graph: copy outputs that share memory written afterwards -----------------------
#     s = scatter(x, …); t = scatter(s, …); x.copy_(t); return s   ->   …; return clone(s)
#
# Inductor makes a scatter into an input in place where the input is written in the end, and takes
# no output for a reader: ``s`` would show what ``t`` stored. Such an output was a copy once, of the
# program (``y = x.clone()``) or kept for the backward, which Inductor took for nothing to do.
#
# Run behind the pass that takes copies away, and in front of the one that makes writes in place.

_STORES = frozenset(
    """as_strided_scatter diagonal_scatter select_scatter slice_scatter index_put
    _unsafe_index_put""".split()
)
# What stands for calls that write their operands, of kernels and operators of the program.
_WRITERS = ("auto_functionalized", "triton_kernel_wrapper_functional")


def copy_shared_outputs(graph: fx.Graph) -> None:
    """Copy each output that Inductor may let share the memory of an input that is written."""
    written = {
        node.args[0]
        for node in graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    }
    nodes = (node for node in written if isinstance(node, fx.Node))
    written = {node for node in nodes if node.op in ("placeholder", "get_attr")}
    if not written:
        return
    output = next(iter(reversed(graph.nodes)))
    copies: dict[fx.Node, fx.Node] = {}
    for node in output.all_input_nodes:
        if _may_be_written(node, written):
            with graph.inserting_after(node):  # behind copy_ it would not count either
                copy = graph.call_function(torch.ops.aten.clone.default, (node,))
            copy.meta = {key: node.meta[key] for key in ("val", "tensor_meta") if key in node.meta}
            if isinstance(copy.meta.get("val"), torch.Tensor):
                copy.meta["val"] = torch.empty_like(copy.meta["val"])
            copies[node] = copy
    if copies:
        output.args = fx.map_arg(output.args, lambda n: copies.get(n, n))


def _may_be_written(node: fx.Node, written: set[Any]) -> bool:
    """Whether a value is a view of what a store into a written input gives."""
    base = _without_views(node)
    if _is_store(base):
        return _store_base(base) in written
    if base.target is operator.getitem and isinstance(base.args[0], fx.Node):
        name = getattr(base.args[0].target, "__name__", "")
        operands = base.args[0].all_input_nodes
        return name.startswith(_WRITERS) and any(_store_base(n) in written for n in operands)
    return False


def _store_base(node: fx.Node) -> fx.Node:
    """What a chain of stores and views began with."""
    node = _without_views(node)
    while _is_store(node) and isinstance(node.args[0], fx.Node):
        node = _without_views(node.args[0])
    return node


def _without_views(node: fx.Node) -> fx.Node:
    while _is_view(node) and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def _is_store(node: fx.Node) -> bool:
    packet = getattr(node.target, "overloadpacket", None)
    return node.op == "call_function" and getattr(packet, "__name__", "") in _STORES


def _is_view(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None or not schema.arguments:
        return False
    alias = schema.arguments[0].alias_info
    return alias is not None and not alias.is_write


# --- On the joint graph: a gate whose two sides are one value is that value -----------------------
#     ``where(p, x, detach(x))  ->  x``
#
# Gating (fusepass/graph/safety/gradient_gates.py) needs the form on the left while autograd derives
# the backward; the mask is then a ``where`` of its own in the backward, and the forward copy of
# ``x``, often a weight, is pure cost. Only folded when the strides are the same, so that nothing
# downstream sees another layout.

_SAME_VALUE = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)


def fold_gates(graph: fx.Graph) -> None:
    """Fold every gate of a joint or forward graph of ATen calls, in place."""
    changed = False
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.where.self):
        _, left, right = node.args
        base = _base(left)
        if (
            base is not _base(right)
            or not isinstance(base, fx.Node)
            or not _same_layout(node, base)
            or _is_output(node)  # an output must not become the input it equals
        ):
            continue
        node.replace_all_uses_with(base)
        graph.erase_node(node)
        changed = True
    if changed:
        graph.eliminate_dead_code()


def _base(value: object) -> object:
    while (
        isinstance(value, fx.Node) and value.op == "call_function" and value.target in _SAME_VALUE
    ):
        value = value.args[0]
    return value


def _is_output(node: fx.Node) -> bool:
    """Whether the node or a view of it is an output."""
    views = reached([node], lambda one: filter(_may_be_a_view, one.users))
    return any(user.op == "output" for view in views for user in view.users)


def _may_be_a_view(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is None or any(argument.alias_info is not None for argument in schema.arguments)


def _same_layout(a: fx.Node, b: fx.Node) -> bool:
    x, y = a.meta.get("val"), b.meta.get("val")
    return (
        isinstance(x, torch.Tensor)
        and isinstance(y, torch.Tensor)
        and x.dtype == y.dtype
        and x.shape == y.shape
        and x.stride() == y.stride()
    )
