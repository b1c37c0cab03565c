"""Correct the times of a watched call by those of an unwatched one: watching slows the host.

Both traces hold the same waits in the same order, as long as the program does the same twice.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from fusepass.report.host_syncs.trace import HostWait


def undisturbed(
    watched: Sequence[HostWait], plain: Sequence[HostWait]
) -> list[tuple[float, float | None] | None]:
    """For each watched wait how long the host and the device waited in the plain call.

    None where the plain call has no such wait at that place in the order.

    Args:
        watched: waits of the call that was watched.
        plain: waits of the same call by itself.
    """
    times: list[tuple[float, float | None] | None] = [None] * len(watched)
    matcher = difflib.SequenceMatcher(
        None, [_token(w) for w in watched], [_token(w) for w in plain], autojunk=False
    )
    for block in matcher.get_matching_blocks():
        for offset in range(block.size):
            found = plain[block.b + offset]
            times[block.a + offset] = found.wait_us, found.idle_us
    return times


def _token(wait: HostWait) -> tuple[str, str, str]:
    return wait.call, wait.operation, wait.direction
