"""Fix Inductor's C++ for a number that is used both under a mask and outside.

What is computed under a mask becomes a vector, and where it is a number, torch 2.11 notes that the
number itself is one from then on: its next use is C++ that does not compile. With a fill of part of
a tensor and a sum with the same number (``x[1:] = 3.0``, ``x + 3.0``) that is soon met. Under
passes of ours it is another variable of the same name that is noted so.

Run on 2.11 to 2.15; from 2.13 on torch does so itself.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from fusepass.torch_private.inductor.passes import under_our_passes
from fusepass.torch_private.patches import Patches, Theirs, once
from fusepass.torch_private.versions import torch_version


@once
def keep_numbers() -> None:
    """Have numbers stay numbers behind a mask, in graphs of ours."""
    if torch_version() >= (2, 13):
        return
    from torch._inductor.codegen.cpp import CppVecOverrides

    def masked(theirs: Theirs, mask: Any, body: Callable[[], Any], other: Any) -> Any:
        ours = under_our_passes()
        return theirs(mask, (lambda: copy.copy(body())) if ours else body, other)

    Patches().put(CppVecOverrides, "masked", masked)
