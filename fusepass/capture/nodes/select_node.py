"""Define the node at a join: it chooses between the values of two arms.

Both arms stand in the graph in front of it, each node tagged with its arm; ``select`` then names,
for every value the program still needs, the one each arm left. It runs as it stands (both arms,
then a choice), so a graph that never reaches our rules still computes the right values; rules in
``patterns/`` turn it into ``torch.where``, ``torch.cond`` or, op by op, ``one_arm``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from fusepass.torch_private.fx.graphs import cond_operator

ARM = "fusepass_arm"  # node.meta key: (site id, which arm) of the innermost arm the node belongs to
BRANCH = "fusepass_branch"  # meta key on a select node: its Branch
HIDES_GRAD = "fusepass_hides_grad"  # on a select node: results that require grad in one arm only
ONE_SIDED = "fusepass_one_sided"  # on a select node: the arm, for results that the other lacks
WRITTEN = "fusepass_written"  # meta key on a select node: from which result on it is written back


@dataclass(frozen=True)
class Branch:
    """What a rule needs to know about a captured branch.

    Attributes:
        site: number of the site, unique in its graph.
        outer: ``(site, arm)`` of the arm this branch stands in, or None.
        treatment: ``where`` or ``cond``.
        gated: whether the arm not taken could give NaN gradients, so its operands need gating.
        file, line: where the branch is in the user's program; no line for one that only asks for
            the outcome of another.
    """

    site: int
    outer: tuple[int, bool] | None
    treatment: str
    gated: bool
    file: str
    line: int


def select(
    predicate: torch.Tensor, taken: tuple[torch.Tensor, ...], other: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, ...]:
    """Values of ``taken`` where the 0-d bool ``predicate`` holds, else those of ``other``."""
    return tuple(torch.where(predicate, a, b) for a, b in zip(taken, other, strict=True))


select.fusepass_pure = True  # type: ignore[attr-defined]


def one_arm(
    predicate: torch.Tensor,
    taken: Callable[..., tuple[torch.Tensor, ...]],
    other: Callable[..., tuple[torch.Tensor, ...]],
    operands: tuple[Any, ...],
) -> tuple[torch.Tensor, ...]:
    """What ``torch.cond`` gives, for a graph that is run op by op.

    The backward is that of the arm that ran. That of ``torch.cond`` traces both arms again in each
    call, with every one inside them twice: eight inside one another take seconds.
    """
    if type(predicate) is not torch.Tensor:  # being traced, there is nothing to read
        result: tuple[torch.Tensor, ...]
        result = cond_operator()(predicate, taken, other, operands)
        return result
    return taken(*operands) if bool(predicate) else other(*operands)


one_arm.fusepass_pure = True  # type: ignore[attr-defined]


def selects_of(graph: fx.Graph) -> list[fx.Node]:
    """The select nodes of the captured branches of a graph."""
    return [node for node in graph.nodes if node.target is select and BRANCH in node.meta]


def branches_of(nodes: Iterable[fx.Node]) -> dict[int, Branch]:
    """The branches of the select nodes among some nodes, by site."""
    return {node.meta[BRANCH].site: node.meta[BRANCH] for node in nodes if BRANCH in node.meta}


def arms_from(tag: tuple[int, bool] | None, branches: dict[int, Branch]) -> Iterator[Any]:
    """An arm, as (site, which arm), and those around it, innermost first."""
    while tag is not None:
        yield tag
        branch = branches.get(tag[0])
        tag = branch.outer if branch is not None else None


def arm_of(node: fx.Node, site: int, branches: dict[int, Branch]) -> bool | None:
    """Which arm of ``site`` the node stands in (True: the arm taken when the predicate holds)."""
    arms = arms_from(node.meta.get(ARM), branches)
    return next((bool(arm) for around, arm in arms if around == site), None)


def sites_around(node: fx.Node, branches: dict[int, Branch]) -> Iterator[int]:
    """The sites in whose arms the node stands, innermost first."""
    return (site for site, _ in arms_from(node.meta.get(ARM), branches))


def without_select(graph: fx.Graph) -> dict[int, Branch]:
    """Branches of a graph that have no select node any more, by site; what arms hold is kept.

    The code that erases the last select of a branch adds it here: nodes of its arms may
    live on, and only the branch says which arm of another one it is in.
    """
    known: dict[int, Branch] = getattr(graph, "_fusepass_branches", {})
    graph._fusepass_branches = known  # type: ignore[attr-defined]
    return known
