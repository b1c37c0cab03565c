"""Switch the interpreter lock more often while our thread works for a loop.

A thread that wants Python's interpreter asks the one that runs to let go after the *switch
interval*, 5 ms by default. A loader that decodes gives the interpreter back at every image, and a
loop that starts kernels holds it for milliseconds: waiting 5 ms each time cost a loader of 41 ms a
batch 10 ms on an H200's host. Turns of 30 µs were the best of those tried (10, 30 and 100 µs, ten
rounds each on a noisy host): 1 to 4 % above the slower of the two alone. Nobody is interrupted who
is alone.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

SHORT = 3e-5  # seconds

_inside: set[object] = set()  # adding and discarding are atomic: no lock that could be left behind
_before: list[float] = []


@contextlib.contextmanager
def short_turns() -> Iterator[None]:
    """Inside, threads wait for the interpreter at most about 0.03 ms, unless it was less before.

    The interval is the process's. The last one to leave puts it back, if nobody else has set it
    meanwhile.
    """
    own = object()
    if not _inside and sys.getswitchinterval() > SHORT:
        _before[:] = [sys.getswitchinterval()]
        sys.setswitchinterval(SHORT)
    _inside.add(own)
    try:
        yield
    finally:
        _inside.discard(own)
        ours = abs(sys.getswitchinterval() - SHORT) < SHORT / 10  # kept in whole microseconds
        if not _inside and _before and ours:
            sys.setswitchinterval(_before.pop())
