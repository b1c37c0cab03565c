"""``any(x.isnan().any() for x in xs)``: make all tests, and combine them in the graph.

Python stops at the first answer. Where a test has no effect and cannot fail, the ones behind it
may be made as well. That is so if the expression only names operations that are known to be so, and
all that is recorded is total.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch

from fusepass.capture.branch.snapshot import last_node, recorded_since
from fusepass.capture.bytecode.control_flow import region_of
from fusepass.capture.frame_state import Frame, frame_of
from fusepass.capture.nodes.predicate import as_bool_scalar
from fusepass.capture.refusal import Refusal
from fusepass.capture.restarts import restart_leaving, why_kept
from fusepass.graph.dataflow.effects import is_random, written_nodes
from fusepass.graph.safety.totality import partial_reason
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo import stack
from fusepass.torch_private.dynamo.any_calls import read_truth

# What such an expression may name: operations of tensors, and attributes that hold some.
_NAMES = frozenset(
    """
    abs all any bool data detach eq float ge grad gt isfinite isinf isnan isneginf isposinf le
    logical_and logical_not logical_or lt max mean min ne norm square sum torch
    """.split()
)
_KIND = "any"


def on_any(
    translator: Any, is_any: bool, code: CodeType, items: Callable[[], list[Any]]
) -> Any | None:
    """The answer of ``any`` or ``all`` as a truth value that is not read, or None."""
    frame = frame_of(translator.output)
    if frame is None or frame.in_message or frame.options.treatment == "keep":
        return None
    key = (translator.f_code, translator.instruction_pointer)
    if why_kept(frame, _KIND, key) is not None or not _NAMES.issuperset(code.co_names):
        return None
    last = last_node(translator.output.graph)
    frame.collects = True
    try:
        given = [stack.realized(item) for item in items()]
        _check(translator, last)
        if not given or not all(map(stack.is_plain_tensor, given)):
            return None
        tests = [as_bool_scalar(translator, item) for item in given]
    except stack.RESTART_ERRORS:
        raise
    except Exception as error:  # noqa: BLE001  # Dynamo goes on without it
        _leave(frame, key, str(error))
    finally:
        frame.collects = False
    combine = torch.logical_or if is_any else torch.logical_and

    def both(a: Any, b: Any) -> Any:
        args = (a.as_proxy(), b.as_proxy())
        return stack.wrap_call(translator, "call_function", combine, args, {})

    return read_truth(translator, functools.reduce(both, tests))


def joins_before_yield(translator: Any, frame: Frame) -> bool:
    """Whether both arms of a jump in a generator meet again before it hands out an item.

    So they do in ``a or b``, and not in ``for x in xs if p``.
    """
    at = translator.instruction_pointer - 1
    join = region_of(translator.f_code, translator.instructions).join_of(at)
    between = translator.instructions[at:join] if join > at else ()
    return frame.collects and bool(between) and not any("YIELD" in one.opname for one in between)


def _check(translator: Any, last: Any) -> None:
    for node in recorded_since(translator.output.graph, last):
        why = partial_reason(node)
        if why is not None or is_random(node) or written_nodes(node):
            raise Refusal(Reason.PARTIAL_OP, why or "a test has an effect")


def _leave(frame: Frame, key: tuple[Any, int], text: str) -> None:
    restart_leaving(frame, {(_KIND, key): (Reason.PARTIAL_OP, text)})
