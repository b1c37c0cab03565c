"""Keep readers after writes when Inductor's C++ backend changes loops.

A call that writes its operand (``scatter_reduce_``, ``index_put_``, an operator of the program)
gives its memory a new name, by which what reads it later is kept behind it. Up to torch 2.14 that
name is forgotten where the C++ backend changes a reader's loops to put it into one kernel with
others: the reader may then run before the write. Gradients of ``max_pool2d`` beside a ``where``
were wrong (pytorch/pytorch#185509). Under passes of ours the name is given again.

Run on 2.11 to 2.15; from 2.15 on torch does so itself.
"""

from __future__ import annotations

from typing import Any

from fusepass.torch_private.inductor.passes import under_our_passes
from fusepass.torch_private.patches import Patches, Theirs, once
from fusepass.torch_private.versions import torch_version


@once
def keep_order_of_writes() -> None:
    """Have readers stay behind the calls that write what they read, in graphs of ours."""
    if torch_version() >= (2, 15):
        return
    from torch._inductor.scheduler import SchedulerNode

    def recompute(theirs: Theirs, node: Any, *args: Any, **kwargs: Any) -> Any:
        made = theirs(node, *args, **kwargs)
        if node.mutation_renames and under_our_passes():
            node.set_read_writes(node.read_writes.rename(node.mutation_renames))
        return made

    Patches().put(SchedulerNode, "recompute_size_and_body", recompute)
