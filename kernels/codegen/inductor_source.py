"""A Triton kernel with further code after its text, which Inductor copies into generated code.

Inductor writes the text of a user's kernel, and of the functions it calls, and makes a launcher of
it. What stands behind the text runs next, and may have the launcher do something else.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

from fusepass.torch_private.inductor import kernel_call

LAUNCHERS = "fusepass.torch_private.inductor.kernel_launcher"


def with_source_suffix(function: FunctionType, text: str) -> Any:
    """A ``triton.jit`` function that brings a text along.

    Args:
        function: of Triton's language, not compiled yet.
        text: lines of Python, which find the launcher among their globals.
    """
    from triton.runtime.jit import JITFunction

    class WithSuffix(JITFunction):
        """A function whose text has more behind it."""

        src = property(lambda self: self._src + "\n\n" + text)

    return WithSuffix(function)


def with_single_config(made: Any, config: Any, *, direct: bool) -> Any:
    """A ``triton.jit`` function with its one configuration.

    Args:
        made: that function.
        config: of Triton.
        direct: for Inductor's code, to be launched as Inductor's kernels are.
    """
    import triton

    return triton.autotune([config], key=[])(with_direct_launch(made.fn) if direct else made)


def with_direct_launch(function: FunctionType) -> Any:
    """A ``triton.jit`` function that Inductor launches as it launches its own kernels.

    With a torch whose launchers were not tested on a device, as it launches those of the user.
    """
    if not kernel_call.kernel_calls_tested():
        import triton

        return triton.jit(function)
    return with_source_suffix(function, f"from {LAUNCHERS} import direct\ndirect(globals())\n")
