"""Which operations may return an operand, or a view of one."""

from __future__ import annotations

import functools

import torch

# Those that torch's schemas say nothing about.
_MAY = frozenset(
    """bfloat16 bool byte char cpu cuda double float half int long numpy short type type_as
    requires_grad_ pin_memory""".split()
)


@functools.lru_cache(maxsize=4096)
def may_return_an_operand(name: str) -> bool:
    """Whether a function or method of this name may; what torch does not know counts as such."""
    if name in _MAY or name.endswith("_") or "dropout" in name:
        return True
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        return not (hasattr(torch, name) or hasattr(torch.nn.functional, name))
    schemas = [getattr(packet, overload)._schema for overload in packet.overloads()]
    aliases = (result.alias_info for one in schemas for result in one.returns)
    return any(alias is not None and not alias.is_write for alias in aliases)  # no ``out``
