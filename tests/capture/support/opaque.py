"""A call that Dynamo cannot put into a graph, and that fusepass leaves to it."""

from __future__ import annotations

import torch


@torch._dynamo.disable
def note(*values: object) -> None:
    """Print, where Dynamo does not see it."""
    print(*values)  # noqa: T201
