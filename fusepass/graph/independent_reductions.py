"""Reductions of several tensors that could run side by side, in a graph of calls of torch."""

from __future__ import annotations

from torch import fx

from fusepass.graph.canonical import op_name

NAMES = frozenset(
    "sum mean prod amax amin aminmax max min all any std var std_mean var_mean norm vector_norm "
    "linalg_norm linalg_vector_norm normalize logsumexp softmax log_softmax softmin layer_norm "
    "group_norm batch_norm instance_norm rms_norm cosine_similarity cross_entropy nll_loss "
    "mse_loss l1_loss smooth_l1_loss huber_loss kl_div binary_cross_entropy "
    "binary_cross_entropy_with_logits".split()
)
_OF_LISTS = frozenset({"_foreach_norm", "_foreach_max"})


def independent_reductions(graph: fx.Graph) -> int:
    """How many tensors are reduced by calls that need no other's result.

    Several reductions of one tensor count once: Inductor computes them in one kernel.
    """
    behind: set[fx.Node] = set()
    reduced: set[fx.Node] = set()
    for node in graph.nodes:
        if not behind.isdisjoint(node.all_input_nodes):
            behind.add(node)
            continue
        name = op_name(node)
        if name in NAMES and node.all_input_nodes:
            reduced.add(node.all_input_nodes[0])
        elif name in _OF_LISTS:
            reduced.update(node.all_input_nodes)
        else:
            continue
        behind.add(node)
    return len(reduced)
