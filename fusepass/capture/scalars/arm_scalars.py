"""Replace Python numbers that differ between arms, where only tensor arithmetic uses them.

    s = 2.0 if p else 1.0        y = x * s    ->    y = where(p, x * 2.0, x * 1.0)

While tracing, the number is a symbol nobody knows (:func:`choice` stands for it in the graph). Once
the graph is complete each call that uses it is made twice, with either number, and a select takes
its place: type promotion, rounding and overflow are those of the numbers themselves. Where anything
else uses the number (Python, a size, the caller), the branch is taken back. A tensor in one arm and
a number in the other (``num / den if den != 0 else 0``) goes the same way.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from fusepass.capture.nodes.select_node import ARM, BRANCH, Branch, select, without_select
from fusepass.graph.dataflow.node_recorder import NodeRecorder, has_same_metadata
from fusepass.graph.dataflow.reached import reached
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.graph.safety.gradient_gates import zero_safe
from fusepass.graph.safety.tensor_kinds import special_or_transformed_reason
from fusepass.graph.safety.totality import POINTWISE, partial_reason
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.scalars.unbacked_scalars import unknown_number
from fusepass.torch_private.dynamo.stack import wrap_tensor
        return recorder.fake(side)
