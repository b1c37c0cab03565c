"""Where arms meet: the contents they left in memory older than them are written into it, once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from fusepass import torch_private
from fusepass.capture.shadow import Shadows
from fusepass.graph.canonical import tensor_value


def write_back(translator: Any, shadows: Shadows, contents: Iterable[Any]) -> None:
    """Record ``root.copy_(content)`` for each memory the arms wrote.

    Autograd follows the write where it followed those of the arms: a parameter that an arm updates
    under ``no_grad`` must not become part of the graph.

    Args:
        translator: Dynamo's translator, at the join.
        shadows: what the arms wrote.
        contents: the selected contents, as tracked tensors, in the order of ``shadows.finals``.
    """
    for root, content in zip(shadows.finals, contents, strict=True):
        value = tensor_value(root)
        wanted = shadows.tracked[root]
        switch = value is not None and _differs(value, content, wanted)
        if switch:
            torch_private.record_grad_mode(translator, wanted)
        _copy(translator, root, content)
        if switch:
            torch_private.record_grad_mode(translator, not wanted)


def _differs(root: torch.Tensor, content: Any, wanted: bool) -> bool:
    grads = root.requires_grad or content.as_proxy().node.meta["example_value"].requires_grad
    return grads and torch.is_grad_enabled() is not wanted


def _copy(translator: Any, root: fx.Node, content: Any) -> None:
    target = torch_private.proxy_of(translator, root)
    node = translator.output.create_proxy("call_method", "copy_", (target, content.as_proxy()), {})
    node.node.meta["example_value"] = root.meta["example_value"]
