"""``assert_no_syncs``: a lint for CI that a program never makes the host wait for the device."""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import fnmatch
from typing import Any

from fusepass.errors import HostSyncs, UnknownSyncKind
from fusepass.report.explain import was_compiled_with_fusepass
from fusepass.report.host_syncs.api import listed
from fusepass.report.host_syncs.kinds import Kind
from fusepass.report.host_syncs.result import Sync, table


def assert_no_syncs(
    fn: Any, /, *args: Any, allow: Collection[str] | str | None = None, **kwargs: Any
) -> None:
    """One call of ``fn`` must not make the host wait for the device.

    In an eager function all waits count; in a callable compiled with fusepass those that remain;
    in one compiled with another backend those that it leaves. It needs no GPU: without one the
    CPU stands in for it (see :func:`fusepass.syncs`). Arguments, parameters and other state are put
    back.

    Args:
        fn: a function, an nn.Module, or either of them compiled with any backend.
        *args: positional arguments of the call.
        allow: what may stay: kinds (``"print"``), or places as ``file:line`` patterns
            (``"train.py:*"``, ``"*/models/*:12"``), matched against the end of the path.
            None: nothing.
        **kwargs: keyword arguments of the call.

    Raises:
        HostSyncs: (an AssertionError) with the table of those that are left, and what to write.
        UnknownSyncKind: an entry of ``allow`` is neither.
    """
    allowed = [allow] if isinstance(allow, str) else list(allow or ())
    for entry in allowed:
        if entry not in list(Kind) and ":" not in str(entry):
            raise UnknownSyncKind(entry, [kind.value for kind in Kind])
    found = listed(fn, args, kwargs, with_fusepass=was_compiled_with_fusepass(fn))
    left = tuple(row for row in found.remaining if not any(_allows(one, row) for one in allowed))
    if left:
        raise HostSyncs(found.program, len(left), "\n".join(table(left)), left)


def _allows(entry: str, row: Sync) -> bool:
    """Whether an entry of ``allow`` covers a row."""
    if ":" not in entry:
        return entry == row.kind.value
    place = f"{row.file}:{row.line}".replace("\\", "/")
    return fnmatch(place, entry) or fnmatch(place, f"*/{entry}")
