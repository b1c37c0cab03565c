"""Inductor: sizes as it writes them."""

from __future__ import annotations

from typing import Any

import torch


def expression(size: Any) -> Any:
    """A symbolic size as an expression; anything else as it is."""
    return size.node.expr if isinstance(size, torch.SymInt) else size
