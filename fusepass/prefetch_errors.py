"""Errors and warnings of :func:`fusepass.prefetch`; users find them in :mod:`fusepass.errors`."""

from __future__ import annotations

from fusepass.error_bases import FusepassError, FusepassWarning, device_refused


class NotIterable(FusepassError, TypeError):
    """:func:`fusepass.prefetch` was given something that has no items."""

    def __init__(self, loader: object) -> None:
        super().__init__(
            f"fusepass: prefetch(loader, device) needs an iterable of batches, got {loader!r} of "
            f"type {type(loader).__name__}. Pass the loader first, then the device."
        )


class PrefetchDepth(FusepassError, ValueError):
    """:func:`fusepass.prefetch` was given a depth that is no number of batches."""

    def __init__(self, depth: object) -> None:
        super().__init__(
            f"fusepass: prefetch(depth=…) must be a whole number of batches, at least 1, got "
            f"{depth!r} of type {type(depth).__name__}."
        )


class PrefetchDevice(FusepassError, ValueError):
    """:func:`fusepass.prefetch` was given something that is no device, or one that is not there."""

    def __init__(self, device: object, problem: str) -> None:
        shown, why = device_refused(device, problem)
        super().__init__(
            f"fusepass: prefetch(loader, device={shown}): {why}. Pass the loader first, "
            "and behind it a torch.device, a name such as 'cuda' or 'cpu', or the index of one of "
            "this machine's devices."
        )


class PrefetchDied(FusepassError, RuntimeError):
    """The thread that reads ahead ended without handing over an item or an exception."""

    def __init__(self) -> None:
        super().__init__(
            "fusepass: the thread of prefetch ended without a word: the process was forked while "
            "it ran, or something killed it. Batches it had taken are lost; start a new loop in "
            "the process that uses them."
        )


class PrefetchNotStopped(FusepassWarning):
    """A loop was left while its loader was busy, and the loader did not return in time."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"fusepass: a loop over prefetch(…) was left, and its loader has not returned from "
            f"making a batch within {seconds:g} s. Its thread ends when it does; until then do "
            "not use the loader, or anything it reads from."
        )


class PinnedMemoryFull(FusepassWarning):
    """No pinned memory to stage a batch in; it is copied without."""

    def __init__(self, size: int, problem: str) -> None:
        first = problem.strip().split("\n")[0].rstrip(". ")
        super().__init__(
            f"fusepass: prefetch found no pinned memory for a tensor of {size} bytes: {first}. It "
            "is copied from ordinary memory, which is slower; results are not affected. A smaller "
            "depth, or smaller batches, need less."
        )


class UnmovableBatch(FusepassError, TypeError):
    """A container in a batch holds tensors and cannot be made anew with copies of them."""

    def __init__(self, kind: type, problem: str) -> None:
        super().__init__(
            f"fusepass: prefetch cannot make a {kind.__module__}.{kind.__qualname__} with its "
            f"tensors on another device: {problem.rstrip('. ')}. Register the class with "
            "torch.utils._pytree.register_pytree_node, or give it a method to(device)."
        )
