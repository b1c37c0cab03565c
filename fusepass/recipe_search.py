"""Recipes tried whole: named settings of Inductor for one graph, timed on its real inputs.

What a setting is worth for a graph cannot be told beforehand: products of a library may beat those
that Inductor generates once everything around them is fused, and the other way round. Under
``mode="max-autotune…"`` a graph that records no gradients is compiled as asked and once with each
recipe, those that help together once more with all of them, and the fastest is taken if it wins by
more than the noise. All of them give the graph's results within rounding, or are left out. What
was found is remembered for the graph in the table of choices.
"""

from __future__ import annotations

import functools
import hashlib
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

import fusepass
from fusepass import torch_private
from fusepass.errors import CandidateFailed
from fusepass.graph.canonical import op_name
from fusepass.graph.effects import is_random
from fusepass.options import Options
from fusepass.report import artifact
from fusepass.report.decision import Decision, Outcome, Reason, Station
from fusepass.rewrite.copying import remembered
from fusepass.rewrite.driver import innermost_first
from fusepass.torch_private.graphs import real_input
from fusepass.torch_private.trial_compile import compiled_on_trial, is_inductor_option
from fusepass.tune.decide import several_ranks, table_for, winner
from fusepass.tune.problem import INDUCTOR
from fusepass.tune.progress import shown
from fusepass.tune.recording import record
from fusepass.tune.table import Entry
from fusepass.tune.timing import Samples

RULE = "recipes"
Settings = Mapping[str, Any]
Compile = Callable[[Settings], Callable[..., Any]]

_SECONDS = 300.0  # after which no recipe is begun
_ROUNDS, _ROUND_SECONDS = 15, 0.02
_MOST_ROUNDING = {torch.float32: 1e-4, torch.float64: 1e-10}
_MOST_ROUNDING_OF_HALF = 3e-2  # of the results' size; that of a wrong result is near 1


@dataclass(frozen=True)
class Recipe:
    """Settings of Inductor that may be worth trying.

    Attributes:
        name: in reports and in the table.
        settings: by key of Inductor's config; those of a key that it does not have, or that the
            user has set, are not tried.
        calls: tried for graphs with one of these; for all graphs if there are none.
        devices: types of devices it is for.
    """

    name: str
    settings: Settings
    calls: frozenset[str] = frozenset()
    devices: tuple[str, ...] = ("cuda", "cpu")


_CONVOLUTIONS = frozenset("conv1d conv2d conv3d conv_transpose2d convolution".split())
_PRODUCTS = frozenset("linear mm addmm matmul bmm baddbmm einsum".split()) | _CONVOLUTIONS
RECIPES = (
    Recipe(
        "library_products",
        {"max_autotune_gemm_backends": "ATEN", "max_autotune_conv_backends": "ATEN"},
        _PRODUCTS,
    ),
    Recipe("layout_as_it_is", {"layout_optimization": False}, _CONVOLUTIONS),
    Recipe("channels_last", {"force_layout_optimization": True}, _CONVOLUTIONS),
    Recipe("combo_kernels", {"combo_kernels": True}, devices=("cuda",)),
    Recipe("tiles_in_two_dimensions", {"triton.prefer_nd_tiling": True}, devices=("cuda",)),
)


def searched(
    gm: fx.GraphModule, options: Options, settings: Settings, compiled: Compile
) -> tuple[Settings, list[Decision]]:
    """Further settings for a graph, and the decision behind them.

    Args:
        gm: as it is handed to Inductor; edited and put back.
        options: in force.
        settings: chosen already.
        compiled: hands ``gm`` to Inductor with ``settings`` and these, and may edit it.
    """
    asked = options.mode.startswith("max-autotune") and options.codegen == "inductor"
    asked = asked and "triton.cudagraphs" not in options.inductor
    if not asked or options.frozen or not options.rule_on(RULE) or torch.is_grad_enabled():
        return {}, []
    if several_ranks():  # of which each would time for itself
        return {}, []
    inputs = _real_inputs(gm)
    devices = {one.device for one in inputs or () if isinstance(one, Tensor)}
    if inputs is None or len(devices) != 1:
        return {}, []
    (device,) = devices
    recipes = [*_suitable(gm, options, settings, device)]
    if not recipes:
        return {}, []
    obstacle = next(_obstacles(gm), None)
    if obstacle is not None:
        return {}, [_decision(Outcome.REJECTED, Reason.SIDE_EFFECT, obstacle)]
    table, key = table_for(device), _key(gm, options, settings, device)
    known = table.find(key)
    by_name, spent = {one.name: one for one in recipes}, ""
    if known is None or not set(known.candidate.split("+")) <= {INDUCTOR, *by_name}:
        began = time.perf_counter()
        try:
            with artifact.forgotten():
                samples = _Search(gm, inputs, device, options, compiled).times(recipes)
        except _WritesInputs:
            return {}, [_decision(Outcome.REJECTED, Reason.SIDE_EFFECT, "it writes its inputs")]
        except Exception as error:
            if torch_private.is_control_flow(error):
                raise
            problem = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            warnings.warn(CandidateFailed(RULE, problem), stacklevel=2)
            return {}, []
        known = Entry(winner(samples), samples.medians())
        table.add(key, known)
        spent = f"; finding out took {time.perf_counter() - began:.1f} s"
    times = ", ".join(f"{name} {took:.1f} µs" for name, took in known.microseconds.items()) + spent
    if known.candidate == INDUCTOR:
        return {}, [_decision(Outcome.REJECTED, Reason.SLOWER, f"as asked is fastest: {times}")]
    found = _merged([by_name[name] for name in known.candidate.split("+")])
    gain = known.microseconds[INDUCTOR] / known.microseconds[known.candidate]
    text = f"{known.candidate} is {gain:.2f} times as fast: {times}"
    return found, [_decision(Outcome.APPLIED, Reason.MEASURED, text)]


def _decision(outcome: Outcome, code: Reason, text: str) -> Decision:
    return Decision(Station.HAND_OFF, RULE, outcome, code, text)


def _merged(recipes: Sequence[Recipe]) -> dict[str, Any]:
    return {key: value for one in recipes for key, value in one.settings.items()}


def _real_inputs(gm: fx.GraphModule) -> list[Any] | None:
    """What the graph's inputs are in this call, symbolic sizes as numbers; None if not known."""
    found = []
    for node in gm.graph.find_nodes(op="placeholder"):
        value = real_input(node)
        if isinstance(value, torch.SymInt):
            value = torch_private.size_hint(value)
        if not isinstance(value, (Tensor, int)) or type(value) not in _PLAIN:
            return None
        found.append(value)
    return found


_PLAIN = (Tensor, torch.nn.Parameter, torch.nn.Buffer, int)


def _suitable(
    gm: fx.GraphModule, options: Options, settings: Settings, device: torch.device
) -> Iterator[Recipe]:
    """Recipes that would change something for a graph, and nothing that the user has set."""
    names = {op_name(node) for part in innermost_first(gm) for node in part.graph.nodes}
    mode = torch_private.mode_config(options.mode)
    for one in RECIPES:
        if device.type not in one.devices or (one.calls and not names & one.calls):
            continue
        known = {k: v for k, v in one.settings.items() if is_inductor_option(k)}
        if any(key in options.inductor or key in settings for key in known):
            continue
        now = {key: mode.get(key, torch_private.inductor_config_value(key)) for key in known}
        if now != known:
            yield Recipe(one.name, known, one.calls, one.devices)


def _obstacles(gm: fx.GraphModule) -> Iterator[str]:
    """Why a graph cannot be called just to see how long that takes."""
    for node in (node for part in innermost_first(gm) for node in part.graph.nodes):
        if is_random(node):
            yield f"{node.name} draws random numbers"
        if getattr(node.target, "namespace", "aten") not in _WITHOUT_EFFECTS:
            yield f"nobody knows what else {node.target} does"


_WITHOUT_EFFECTS = ("aten", "prims", "fusepass", "higher_order")


def _key(gm: fx.GraphModule, options: Options, settings: Settings, device: torch.device) -> str:
    """A graph, its inputs and what was asked for, as a text of fixed length."""
    text = [fusepass.__version__, options.mode, options.fingerprint()]
    text += [repr(sorted(settings.items())), repr(sorted(options.inductor.items()))]
    text += [part.code for part in innermost_first(gm)]
    for node in gm.graph.find_nodes(op="placeholder"):
        value = real_input(node)
        if isinstance(value, Tensor):
            text.append(f"{value.dtype} {tuple(value.shape)} {value.stride()}")
    if device.type == "cpu":
        text.append(f"{torch.get_num_threads()} threads")
    return f"{RULE} {hashlib.sha256(repr(text).encode()).hexdigest()[:32]}"


class _WritesInputs(Exception):
    """A call of the graph changes what it is given."""


@dataclass(frozen=True)
class _Search:
    """One graph, compiled and timed in several ways."""

    gm: fx.GraphModule
    inputs: Sequence[Any]
    device: torch.device
    options: Options
    compiled: Compile

    def times(self, recipes: Sequence[Recipe]) -> Samples:
        """Times of the graph as asked, with each recipe, and with those that help together.

        Raises:
            _WritesInputs: it cannot be timed.
        """
        until = time.perf_counter() + _SECONDS
        ways: dict[str, Settings] = {INDUCTOR: {}, **{one.name: one.settings for one in recipes}}
        put_back = remembered(innermost_first(self.gm))
        calls: dict[str, Callable[[], Any]] = {}
        expected: Any = None
        try:
            for name in shown([*ways], "recipes: compiling", wanted=True):
                if name != INDUCTOR and time.perf_counter() > until:
                    break
                expected = self._tried(name, ways[name], calls, expected)
                put_back()
            samples = self._timed(calls)
            better = [name for name in samples.rounds if samples.beats(name, INDUCTOR)]
            if len(better) > 1 and time.perf_counter() <= until:
                together = _merged([one for one in recipes if one.name in better])
                self._tried("+".join(better), together, calls, expected)
                samples = self._timed(calls)
            return samples
        finally:
            put_back()

    def _tried(
        self, name: str, settings: Settings, calls: dict[str, Callable[[], Any]], expected: Any
    ) -> Any:
        """Add what calls the graph with these settings, if that works; gives expected results."""
        try:
            wanted = {"triton.cudagraphs": False, **settings}
            run, writes = compiled_on_trial(lambda: self.compiled(wanted))
            if writes:
                raise _WritesInputs
            call = functools.partial(run, *self.inputs)
            with torch_private.real_tensors():
                made = call()
                if expected is not None and not _agree(made, expected):
                    raise ValueError("its results differ from those of the graph as asked")
        except Exception as error:
            if name == INDUCTOR or torch_private.is_control_flow(error):
                raise
            first, *_ = str(error).strip().splitlines() or ["no text"]
            problem = f"{type(error).__name__}: {first}"
            warnings.warn(CandidateFailed(f"recipe {name}", problem), stacklevel=2)
            return expected
        calls[name] = call
        return made if expected is None else expected

    def _timed(self, calls: Mapping[str, Callable[[], Any]]) -> Samples:
        """Microseconds in interleaved rounds: as a CUDA graph if asked for, or by the wall."""
        asked = torch_private.mode_config(self.options.mode).get("triton.cudagraphs")
        with torch_private.real_tensors():
            runs = dict(calls)
            if asked and self.device.type == "cuda":
                runs = {name: record(call).replay for name, call in calls.items()}
            once = max(_seconds(call, 1, self.device) for call in runs.values() for _ in range(2))
            count = max(1, int(_ROUND_SECONDS / max(once, 1e-6)))
            rounds: dict[str, list[float]] = {name: [] for name in runs}
            for turn in range(_ROUNDS):
                for name in [*runs][:: 1 if turn % 2 else -1]:
                    rounds[name].append(1e6 * _seconds(runs[name], count, self.device))
        return Samples(rounds)


def _agree(made: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Whether a graph's results are the same within rounding, NaN and inf at the same places."""
    return all(_close(one, other) for one, other in zip(made, expected, strict=True))


def _close(one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor):
        return bool(one == other)
    if (one.shape, one.dtype, one.stride()) != (other.shape, other.dtype, other.stride()):
        return False
    if not one.is_floating_point():
        return one.is_complex() or torch.equal(one, other)
    if not torch.equal(one.isfinite(), other.isfinite()):
        return False
    wide = [x.double().nan_to_num(0.0, 0.0, 0.0) for x in (one, other)]
    most = _MOST_ROUNDING.get(one.dtype, _MOST_ROUNDING_OF_HALF)
    return bool((wide[0] - wide[1]).norm() <= most * wide[1].norm())


def _seconds(call: Callable[[], Any], count: int, device: torch.device) -> float:
    """Of one of so many synchronised calls."""
    synchronize = torch.cuda.synchronize if device.type == "cuda" else _nothing
    synchronize()
    began = time.perf_counter()
    for _ in range(count):
        call()
    synchronize()
    return (time.perf_counter() - began) / count


def _nothing() -> None:
    """The CPU never queues."""
