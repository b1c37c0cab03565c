"""One graph compiled with several settings of Inductor, and timed on its real inputs."""

from __future__ import annotations

import contextlib
import functools
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from fusepass.errors import CandidateFailed
from fusepass.numerics import agree
from fusepass.report.decision import in_short
from fusepass.rewrite.apply.graph_rule_driver import innermost_first
from fusepass.rewrite.apply.snapshot import snapshot
from fusepass.torch_private.dynamo.compile_state import is_control_flow
from fusepass.torch_private.inductor import lowering
from fusepass.torch_private.inductor.trial_compile import compiled_on_trial
from fusepass.tune.cuda_graph_call import record
from fusepass.tune.problems.base import INDUCTOR
from fusepass.tune.progress import progress_bar
from fusepass.tune.timing import Samples

Settings = Mapping[str, Any]
Compile = Callable[[Settings], Callable[..., Any]]
Calls = dict[str, Callable[[], Any]]

_SECONDS = 300.0  # after which no way is begun
_TIMING_SECONDS = 20.0
_FEWEST_ROUNDS, _MOST_ROUNDS, _ROUND_SECONDS = 5, 15, 0.02
_TOO_SLOW = 1.5  # times as long as asked, in the first calls


class WritesInputs(Exception):
    """A call of the graph changes what it is given."""


@dataclass(frozen=True)
class SettingsTrial:
    """A graph to be compiled in several ways.

    Attributes:
        gm: edited by each compile, and put back.
        inputs: real ones.
        device: of all of them.
        replayed: whether the time that counts is that of a CUDA graph, not the wall's.
        compiled: hands ``gm`` to Inductor with some settings.
    """

    gm: fx.GraphModule
    inputs: Sequence[Any]
    device: torch.device
    replayed: bool
    compiled: Compile

    def fastest(self, ways: Mapping[str, Settings]) -> tuple[str, dict[str, float]]:
        """The name of the fastest way, and the median of each in microseconds.

        Those that beat the first one by more than the noise are tried together, too, under their
        names with ``+`` between them.

        Args:
            ways: by name; the first is :data:`INDUCTOR`, without settings.

        Raises:
            WritesInputs: it cannot be timed.
            Exception: the first way failed.
        """
        until = time.perf_counter() + _SECONDS
        put_back = snapshot(innermost_first(self.gm))
        calls: Calls = {}
        expected: Any = None
        try:
            with self._device_in_use():
                for name in progress_bar([*ways], "configs: compiling", wanted=True):
                    if name != INDUCTOR and time.perf_counter() > until:
                        break
                    expected = self._try_settings(name, ways[name], calls, expected)
                    put_back()
                samples = self._time_calls(calls)
                times, better = samples.medians(), _better(samples)
                best = min(better, key=times.__getitem__, default=INDUCTOR)
                if len(better) > 1 and time.perf_counter() <= until:
                    all_of_them = "+".join(better)
                    settings = {k: v for name in better for k, v in ways[name].items()}
                    self._try_settings(all_of_them, settings, calls, expected)
                    some = {
                        one: calls[one] for one in (INDUCTOR, best, all_of_them) if one in calls
                    }
                    samples = self._time_calls(some)
                    times |= samples.medians()
                    best = min(_better(samples), key=times.__getitem__, default=INDUCTOR)
                return best, times
        finally:
            put_back()

    def _device_in_use(self) -> contextlib.AbstractContextManager[Any]:
        cuda = self.device.type == "cuda"
        return torch.cuda.device(self.device) if cuda else contextlib.nullcontext()

    def _try_settings(self, name: str, settings: Settings, calls: Calls, expected: Any) -> Any:
        """Add what calls the graph with these settings, if that works; gives expected results."""
        try:
            wanted = {"triton.cudagraphs": False, **settings}
            run, writes = compiled_on_trial(lambda: self.compiled(wanted))
            if writes:
                raise WritesInputs
            call = functools.partial(run, *self.inputs)
            with lowering.real_tensors():
                made = call()
                if expected is not None and not agree(made, expected):
                    raise ValueError("its results differ from those of the graph as asked")
        except Exception as error:
            if name == INDUCTOR or is_control_flow(error):
                raise
            warnings.warn(CandidateFailed(f"config {name}", in_short(error)), stacklevel=2)
            return expected
        calls[name] = call
        return made if expected is None else expected

    def _time_calls(self, calls: Calls) -> Samples:
        """Microseconds in interleaved rounds; what is far too slow takes no part in them."""
        with lowering.real_tensors():
            runs = _as_cuda_graphs(calls) if self.replayed else dict(calls)
            once = {
                name: min(self._seconds(call, 1) for _ in range(2)) for name, call in runs.items()
            }
            runs = {n: call for n, call in runs.items() if once[n] <= _TOO_SLOW * once[INDUCTOR]}
            longest = max(1e-6, *(once[name] for name in runs))
            count = max(1, int(_ROUND_SECONDS / longest))
            most = int(_TIMING_SECONDS / (longest * count * len(runs)))
            rounds: dict[str, list[float]] = {name: [] for name in runs}
            for turn in range(min(_MOST_ROUNDS, max(_FEWEST_ROUNDS, most))):
                for name in [*runs][:: 1 if turn % 2 else -1]:
                    rounds[name].append(1e6 * self._seconds(runs[name], count))
        return Samples(rounds)

    def _seconds(self, call: Callable[[], Any], count: int) -> float:
        """Seconds per call, of ``count`` calls, until all are done; the CPU never queues."""
        cuda = self.device.type == "cuda"
        if cuda:
            torch.cuda.synchronize(self.device)
        began = time.perf_counter()
        for _ in range(count):
            call()
        if cuda:
            torch.cuda.synchronize(self.device)
        return (time.perf_counter() - began) / count


def _as_cuda_graphs(calls: Calls) -> Calls:
    """Those calls that can be CUDA graphs as such; all as they are where the first one cannot be.

    Then Inductor runs the graph without one as well. A config that takes that away is left out.
    """
    made: Calls = {}
    for name, call in calls.items():
        try:
            made[name] = record(call).replay
        except RuntimeError:
            if name == INDUCTOR:
                return dict(calls)
    return made


def _better(samples: Samples) -> list[str]:
    """What beats the first way by more than the noise, round by round and in the median."""
    times = samples.medians()
    names = [name for name in samples.rounds if samples.beats(name, INDUCTOR)]
    return [name for name in names if times[name] < times[INDUCTOR]]
