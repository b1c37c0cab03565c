"""Dynamo: errors that end the trace of a frame, and those it finds. Run on 2.11, 2.13, 2.15."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from fusepass.torch_private.dynamo import is_dynamos_file
from fusepass.torch_private.stack import restart_errors


def hook_errors(
    on_error: Callable[[Any, Exception], None],
    on_skip: Callable[[Any, Exception], None],
    on_fault: Callable[[Any, Exception], None],
) -> Callable[[], None]:
    """Call the handlers for what ends the trace of a frame; what is returned takes them out."""
    from torch._dynamo import exc
    from torch._dynamo.symbolic_convert import InstructionTranslator
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    own = vars(InstructionTranslator).get("run")
    run = InstructionTranslator.run

    @functools.wraps(run)
    def with_error(self: Any) -> None:
        try:
            run(self)
        except (exc.TorchRuntimeError, exc.UserError, GuardOnDataDependentSymNode) as error:
            on_error(self, error)
            raise
        except (exc.Unsupported, exc.SkipFrame) as error:
            on_skip(self, error)
            raise
        except restart_errors():
            raise
        except Exception as error:
            on_fault(self, error)
            raise

    InstructionTranslator.run = with_error  # type: ignore[method-assign]
    if own is None:
        return lambda: delattr(InstructionTranslator, "run")
    return lambda: setattr(InstructionTranslator, "run", own)


def hook_observed(on_observed: Callable[[Any, Exception], None]) -> Callable[[], None]:
    """Call the handler where Dynamo finds that the program raises; see ``Handlers``."""
    from torch._dynamo import exc
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase as Translator

    ends = (exc.ObservedUserStopIteration, exc.ObservedGeneratorExit)
    handle = Translator.exception_handler

    @functools.wraps(handle)
    def with_observed(self: Any, raised: Any) -> None:
        stated = self.current_instruction.opname in ("RAISE_VARARGS", "RERAISE")
        stated = stated and not is_dynamos_file(self.f_code.co_filename)
        if not stated and not isinstance(raised, ends):
            on_observed(self, raised)
        handle(self, raised)

    ours: Any = with_observed
    Translator.exception_handler = ours  # type: ignore[method-assign]
    return lambda: setattr(Translator, "exception_handler", handle)
