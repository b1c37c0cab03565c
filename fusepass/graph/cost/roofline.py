"""What a stretch of a graph costs: a roofline estimate, against asking the host which arm to run.

Coarse on purpose. It decides one thing: whether running an arm that may not be needed is cheaper
than waiting for the host. What is outside the stretch is left out, though Inductor would fuse some
of the work with it: the estimate is rather too high, and so rather too careful.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import fx

from fusepass.graph.cost.kernel_model import KernelCost, Pair, modeled_kernels
from fusepass.graph.dataflow.fake_sizes import stored_bytes, tensors_of
from fusepass.tune.device.peaks import peaks_of


def microseconds(
    nodes: Sequence[fx.Node],
    *,
    joins: Sequence[Pair] = (),
    outputs: Iterable[fx.Node] = (),
    training: bool = False,
) -> float:
    """Estimated device time of running ``nodes``, in µs.

    Args:
        nodes: calls in the order of the graph.
        joins: pairs of values between which one is selected afterwards; the select counts.
        outputs: values that are read later.
        training: count the backward of what requires grad too.
    """
    found = modeled_kernels(nodes, joins, outputs)
    return 1e6 * sum(_seconds(launch, training and launch.trained) for launch in found)


def host_round_trip(device: torch.device) -> float:
    """Estimated cost of breaking the graph to read a value back, in µs."""
    return 1e6 * peaks_of(device).round_trip


def estimates(
    arms: dict[bool, list[fx.Node]],
    pairs: Sequence[Pair],
    device: torch.device,
    *,
    training: bool = False,
) -> dict[str, float]:
    """What each treatment of a branch would take, in µs, for the report.

    Nobody knows which arm will be needed. ``cond`` and ``break`` are given for the one that costs
    less, so that ``where``, which runs both, is the least of them only if it does not lose
    whichever is needed. A ``cond`` waits for the host as a break does: what it saves in resuming it
    loses in fusion at its edges and in CUDA graphs. In training its backward asks again.

    Args:
        arms: nodes of each arm.
        pairs: values the arms leave, as (taken, other).
        device: of the predicate.
        training: whether a backward goes through what they leave.

    Returns:
        ``where``: both arms and the select; ``cond``: a host round trip and one arm; ``break``: the
        same, and writing and reading again what could have been fused with the code after it.
    """
    both = microseconds([*arms[True], *arms[False]], joins=pairs, training=training)
    one = min(
        microseconds(arms[side], outputs=[p[not side] for p in pairs], training=training)
        for side in (True, False)
    )
    trip = host_round_trip(device)
    left = sum(stored_bytes(value) for pair in pairs for value in tensors_of(pair[0]))
    lost = 1e6 * 2 * left / peaks_of(device).bandwidth
    return {
        "where": round(both, 2),
        "cond": round(trip * (2 if training else 1) + one, 2),
        "break": round(trip + one + lost, 2),
    }


def _seconds(launch: KernelCost, training: bool) -> float:
    """The slower of operations and bytes; a backward takes twice as many of either.

    The backward of a product is two products, other backwards are one kernel that reads the
    gradient and what was saved.
    """
    peaks = peaks_of(launch.device)
    rate = peaks.flops16 if launch.half_flops_only else peaks.flops32
    work = max(launch.flops / rate, launch.passes * launch.moved / peaks.bandwidth)
    forward = peaks.launch * launch.passes + work
    backward = peaks.launch * (2 if launch.flops else 1) + 2 * work
    return forward + backward if training else forward
