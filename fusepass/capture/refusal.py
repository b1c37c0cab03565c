"""Define the exception that ends the capture of a branch, with its reason."""

from __future__ import annotations

import warnings

from fusepass.errors import CaptureFault
from fusepass.report.decision import Reason
from fusepass.torch_private.dynamo.errors.error_hooks import (
    call_of_ours_fails,
    fails_on_fakes,
    users_errors,
)
from fusepass.torch_private.dynamo.errors.stop_reasons import (
    error_in_short,
    python_error,
    why_stopped,
)
from fusepass.torch_private.dynamo.scalars.unbacked_sizes import gives_unknown_sizes
from fusepass.torch_private.dynamo.stack import OBSERVED_EXCEPTIONS, UNSUPPORTED_ERRORS


class Refusal(Exception):
    """The branch must keep its graph break.

    Attributes:
        code: reason code of the report.
        text: one sentence for a person.
        saved_in: sites of earlier branches whose arms may save what this branch writes. They are
            kept as well, because the write follows them in any case.
    """

    def __init__(self, code: Reason, text: str, saved_in: tuple[int, ...] = ()) -> None:
        super().__init__(f"{code.value}: {text}")
        self.code = code
        self.text = text
        self.saved_in = saved_in


class ArmRaises(Refusal):
    """An arm was traced into an exception: it may be one that always raises."""


class ArmStops(ArmRaises):
    """An arm cannot be traced on: what stands in the way may be part of a message."""


def refusal_after(error: Exception, what: str, where: tuple[str, int]) -> Refusal:
    """Why a site is kept after an error, with a warning if it is ours and nobody foresaw it.

    Args:
        error: raised while the site was traced.
        what: was traced, for a person: the program's own calls in it may have failed.
        where: file and line of the site.
    """
    if isinstance(error, Refusal):
        return error
    if isinstance(error, OBSERVED_EXCEPTIONS):
        return Refusal(Reason.RAISES, f"{what} raises {python_error(error)}")
    if call_of_ours_fails(error):
        return Refusal(*fault(error, *where))
    if isinstance(error, UNSUPPORTED_ERRORS):
        return Refusal(Reason.UNTRACEABLE, f"{what} cannot be traced: {why_stopped(error)}")
    why = error_in_short(error)
    if fails_on_fakes(error) or isinstance(error, users_errors()):
        why = "a size is not known" if gives_unknown_sizes(error) else why
        return Refusal(Reason.UNTRACEABLE, f"{what} fails when it is traced ({why})")
    if isinstance(error, AttributeError) and error.name == "__name__":  # `exit`, in Dynamo
        return Refusal(Reason.UNTRACEABLE, f"{what} calls something without a name ({why})")
    return Refusal(*fault(error, *where))


def fault(error: Exception, file: str, line: int) -> tuple[Reason, str]:
    """Why something is kept after an error of ours, of which a warning tells."""
    warnings.warn(CaptureFault(f"{file}:{line}", repr(error)), stacklevel=3)
    return Reason.INTERNAL, error_in_short(error)
