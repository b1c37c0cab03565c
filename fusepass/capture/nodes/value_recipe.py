"""Store how to make an exception or a line of text after the graph has run.

A recipe is the construction as Dynamo traced it, with places where tensors and numbers of the graph
go. It is carried out with Python's own functions on real values, so that the text is
eager's: ``f"{x.max():.3f}"`` becomes ``str.format("{:.3f}", <operand 0>)``.
"""

from __future__ import annotations

import operator
import string
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from fusepass.capture.nodes import emit
from fusepass.capture.refusal import Refusal
from fusepass.graph.ops.op_names import tensor_value
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.containers import container_items, kind_of
from fusepass.torch_private.dynamo.deferred_values import (
    constant_or_class,
    is_of_this_message,
    late_parts,
)
from fusepass.torch_private.dynamo.errors.raising import exception_parts
from fusepass.torch_private.dynamo.stack import is_any_tensor, number_node, realized
from fusepass.torch_private.fx.graphs import call_target
