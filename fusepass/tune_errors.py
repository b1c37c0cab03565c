"""Errors of :mod:`fusepass.tune`'s calls; users find them in :mod:`fusepass.errors`."""

from __future__ import annotations

from fusepass.error_bases import FusepassError, device_refused


class ChoicesNotImported(FusepassError, OSError, ValueError):
    """:func:`fusepass.tune.import_choices` was given what holds no choices for the device."""

    def __init__(self, path: object, problem: str, advice: str) -> None:
        super().__init__(
            f"fusepass: tune.import_choices({str(path)!r}): {problem.rstrip('. ')}. Nothing was "
            f"taken; {advice}."
        )


class TuneDevice(FusepassError, ValueError):
    """A device whose choices were asked for is none, is not there, or has no choices."""

    def __init__(self, device: object, problem: str) -> None:
        shown, why = device_refused(device, problem)
        super().__init__(
            f"fusepass: device={shown} of fusepass.tune: {why}. Give 'cpu' or a CUDA "
            "device of this machine, as a name or a torch.device, or leave it out for the current."
        )
