"""An attention mask known at compile time that masks nothing, or, if allowed, only the future.

    ``sdpa(q, k, v, attn_mask=all True)``            ``->  sdpa(q, k, v)``
    ``sdpa(q, k, v, attn_mask=tril(ones(L, L)))``    ``->  sdpa(q, k, v, is_causal=True)``

The first is equal by the definition of scaled dot-product attention: a bool mask keeps the scores
where it is True; NaN stays NaN. What torch makes of infinity depends on which of its kernels runs,
and that on the mask: on CUDA efficient attention in single precision makes NaN of an infinite
value, where the fallback for a broadcast mask has infinity, and flash attention NaN of rows whose
scores are all minus infinity, where others have 0.

So is the second, of finite numbers: ``is_causal`` stands for the lower triangle of an L × S matrix
counted from its upper left corner. But with a mask torch adds minus infinity to a score, and NaN
stays NaN; with ``is_causal`` its fused kernels, on CPU and GPU, do not look at what is hidden. One
key that is NaN makes NaN of all rows, or of the rows that see it. So this is an option, but for
masks that are there because the program is traced:

transformers leaves such masks out when it runs eagerly, says ``is_causal`` instead, and passes them
when it is traced, because tracing could not look at them. What it gives eagerly is what counts.
With a mask the flash and cuDNN kernels do not apply; with one that was broadcast in its last
dimension nothing but the unfused float32 fallback does (measured on an H200 in BART-large, batch 8
of 512 tokens: 14.4 ms of device time against 7.3 ms in eager).
"""

from __future__ import annotations

import re

import torch
from torch import fx

from fusepass.graph.dataflow.constant_folding import NotConstant, constant_value
from fusepass.graph.dataflow.effects import is_state_change
from fusepass.graph.ops.op_names import argument, op_name, tensor_value
from fusepass.report.decision import Reason
from fusepass.rewrite.rule import GraphRule, Reject, RuleSite

_MASK, _DROPOUT, _CAUSAL = (3, "attn_mask"), (4, "dropout_p"), (5, "is_causal")


def _is_masked_attention(node: fx.Node) -> bool:
    if op_name(node) != "scaled_dot_product_attention":
        return False
    mask = tensor_value(argument(node, *_MASK))
    return mask is not None and mask.dtype is torch.bool


def _check(site: RuleSite) -> Reject | None:
    node = site.anchor
    if site.options.codegen != "inductor":
        return Reject(Reason.RULE_OFF, "op-by-op codegen keeps every call as written", node)
    if argument(node, *_DROPOUT, 0.0) != 0.0:
        return Reject(
            Reason.RANDOM_OP, "with dropout another kernel would draw other random numbers", node
        )
    if argument(node, *_CAUSAL, False) is not False:
        return Reject(Reason.VARIANT, "is_causal is given beside the mask", node)
    try:
        kind = _kind(node)
    except NotConstant as reason:
        return Reject(Reason.NOT_CONSTANT, f"the mask is not known at compile time: {reason}", node)
    if kind is not None and _moves_under_autocast(site):
        return Reject(Reason.STRIDE_MISMATCH, "under autocast strides cannot be followed", node)
    if kind is None:
        return Reject(
            Reason.VARIANT,
            "the mask is constant, but neither all True nor the causal triangle",
            node,
        )
    allowed = site.options.allow_hidden_nan or _is_for_tracing(argument(node, *_MASK))
    if kind == "causal" and not allowed:
        text = "is_causal does not pass on NaN of keys and values that the mask hides"
        return Reject(Reason.INEXACT, f"{text} (allow_hidden_nan permits it)", node)
    return None


# Functions here leave a mask out in eager where it would be the causal triangle of all tokens.
_MADE_FOR_TRACING = re.compile(r"transformers.(masking_utils|modeling_attn_mask_utils)\.py\b")
_SAME_MASK = frozenset("expand getitem narrow reshape to unsqueeze view".split())


def _is_for_tracing(mask: fx.Node) -> bool:
    """Whether a mask was made by functions that, run eagerly, would have left it out."""
    while not _MADE_FOR_TRACING.search(mask.meta.get("stack_trace") or ""):
        source = mask.args[0] if mask.args else None
        if op_name(mask) not in _SAME_MASK or not isinstance(source, fx.Node):
            return False
        mask = source
    return True


def _moves_under_autocast(site: RuleSite) -> bool:
    """Whether the graph switches autocast: then the check of strides after the rewrite is blind."""
    return any(is_state_change(n) and "autocast" in str(n.target) for n in site.gm.graph.nodes)


def _widens(mask: torch.Tensor, query: torch.Tensor) -> bool:
    """Whether broadcasting with the mask gives the result more batches or heads than the query."""
    lead = mask.shape[:-2]
    if len(lead) > query.dim() - 2:
        return True
    own = query.shape[query.dim() - 2 - len(lead) : -2]
    return any(m != 1 and m != q for m, q in zip(lead, own, strict=True))


def _kind(node: fx.Node) -> str | None:
    mask = constant_value(argument(node, *_MASK))
    query, key = tensor_value(argument(node, 0, "query")), tensor_value(argument(node, 1, "key"))
    if query is None or key is None or _widens(mask, query):
        return None
    for dim, stride in enumerate(mask.stride()):
        if stride == 0 and dim < mask.dim() - 2:
            mask = mask.narrow(dim, 0, 1)
    if bool(mask.all()):
        return "full"
    rows, columns = query.shape[-2], key.shape[-2]
    if tuple(mask.shape[-2:]) != (rows, columns):
        return None
    return (
        "causal"
        if bool((mask == torch.ones(rows, columns, dtype=torch.bool).tril()).all())
        else None
    )


def _replace(site: RuleSite) -> None:
    node = site.anchor
    kind = _kind(node)
    scale = argument(node, 6, "scale")
    grouped = argument(node, 7, "enable_gqa", False)
    node.args = tuple(argument(node, n, name) for n, name in enumerate(("query", "key", "value")))
    node.kwargs = {"dropout_p": 0.0, "is_causal": kind == "causal", "scale": scale}
    if grouped is not False:
        node.kwargs = {**node.kwargs, "enable_gqa": grouped}


RULE = GraphRule(
    "constant_attention_mask",
    _is_masked_attention,
    _check,
    _replace,
    summary="the mask is known at compile time and equals no mask or is_causal",
    moves=True,
)
