"""A kernel in Gluon for Inductor, which takes kernels of the user in Triton only.

Inductor writes the text of a user's kernel, a ``triton.jit`` function, into its generated code, and
asks it which of its arguments it writes. It is given a function in Triton with the kernel's
parameters that stores to the kernel's outputs and does nothing else; behind the function's text
stands the kernel's, in Gluon, and a call that has Inductor's launcher compile that one instead
(``torch_private/inductor/kernel_launcher.py``).
"""

from __future__ import annotations

import hashlib
import linecache
import types
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fusepass.kernels.codegen.inductor_source import LAUNCHERS, with_source_suffix
from fusepass.kernels.gemm.hopper.tma_plan import TmaOperand

_STUB = "fusepass_gemm"


def gluon_stub(
    text: str,
    name: str,
    parameters: Sequence[str],
    fixed: Collection[str],
    written: Sequence[str],
    described: Mapping[str, TmaOperand],
) -> Any:
    """What Inductor can be given for a kernel in Gluon.

    Args:
        text: of a module that defines the kernel, with all it needs.
        name: the kernel's.
        parameters: the kernel's, in order.
        fixed: those that are constants while it is compiled.
        written: those that are pointers to what it writes.
        described: those that the launcher makes descriptors of, each with the names of the
            parameters that say how many rows and columns there are and how far rows are apart, with
            the tile, and with whether tensor cores multiply it.
    """
    given = ", ".join(f"{one}: tl.constexpr" if one in fixed else one for one in parameters)
    stores = "\n".join(f"    tl.store({one}, 0.0)" for one in written)
    stub = f"def {_STUB}({given}):\n{stores}\n"
    behind = f"{text}\n\nfrom {LAUNCHERS} import use\nuse({name}, globals(), {described!r})\n"
    source = f"import triton\nimport triton.language as tl\n\n\n@triton.jit\n{stub}"
    file = f"<fusepass stub {hashlib.sha256((source + behind).encode()).hexdigest()[:16]}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    module = types.ModuleType("fusepass_stub")
    module.__file__ = file
    exec(compile(source.replace("@triton.jit\n", ""), file, "exec"), vars(module))
    return with_source_suffix(vars(module)[_STUB], behind)
