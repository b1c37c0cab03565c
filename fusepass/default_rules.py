"""The one ordered list of rules that are on without asking. Order is priority."""

from __future__ import annotations

import functools

from fusepass.rewrite.rule import GraphRule, Rule


@functools.cache
def graph_rules() -> tuple[GraphRule, ...]:
    """Rules that edit the graph before autograd; they run first, in this order."""
    from fusepass.patterns import (
        branch_drop,
        branch_to_cond,
        branch_to_where,
        constant_attention_mask,
        host_tensor,
        joined_reductions,
        loop_to_while,
        short_circuit,
    )

    return (
        host_tensor.RULE,
        short_circuit.RULE,
        joined_reductions.RULE,
        branch_drop.RULE,
        branch_to_where.RULE,
        branch_to_cond.RULE,
        loop_to_while.RULE,
        constant_attention_mask.RULE,
    )


@functools.cache
def default_rules() -> tuple[Rule, ...]:
    """Rules made of patterns, for before and after autograd."""
    from fusepass.patterns import linear_activation

    return linear_activation.RULES


@functools.cache
def region_rules() -> tuple[GraphRule, ...]:
    """Rules that edit ATen graphs themselves, for GEMMs: first with a norm, then pairs, others."""
    from fusepass.patterns import gemm_region, normed_gemms, sibling_gemms

    pair, one = gemm_region.RULES
    return normed_gemms.RULE, pair, sibling_gemms.RULE, one


@functools.cache
def late_rules() -> tuple[GraphRule, ...]:
    """Those that follow: convolutions, then pointwise calls, also those that rules made.

    The last one leaves calls in the graph that only Inductor understands.
    """
    from fusepass.patterns import (
        conv_1x1,
        conv_region,
        conv_relu,
        depthwise,
        grouped_cat,
        horizontal,
        pool,
        whole_reductions,
    )

    return (
        conv_relu.RULE,
        depthwise.RULE,
        conv_1x1.RULE,
        conv_region.RULE,
        pool.RULE,
        grouped_cat.RULE,
        horizontal.RULE,
        whole_reductions.RULE,
    )


def graph_edits() -> tuple[GraphRule, ...]:
    """All of those that edit a graph themselves, wherever they stand."""
    return (*graph_rules(), *region_rules(), *late_rules())
