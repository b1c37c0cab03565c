"""Try configs whole: named settings of Inductor for one graph, timed on its real inputs.

The value of a setting for a graph cannot be predicted: a library's GEMM may beat a generated one
once everything around it is fused, or lose to it. Under ``mode="max-autotune…"`` a graph that
records no gradients is compiled as asked and once with each config; those that help are then tried
together. The fastest is taken if it wins by more than the noise. Each must give the graph's results
within rounding. The choice is kept for the graph in the table of choices.

A graph is timed only if a call leaves no trace but its results and in-place writes: it draws no
random numbers and calls no operator of unknown effect.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx

from fusepass.errors import CandidateFailed
from fusepass.graph.dataflow.effects import is_random
from fusepass.graph.ops.op_names import op_name
from fusepass.numerics import agree
from fusepass.options import Options
from fusepass.report import cached_decisions
from fusepass.report.decision import Decision, Outcome, Reason, Station, in_short
from fusepass.report.log import GraphRecord
from fusepass.report.version import VERSION
from fusepass.rewrite.apply.graph_rule_driver import innermost_first
from fusepass.rewrite.apply.snapshot import snapshot
from fusepass.torch_private.dynamo.compile_state import is_control_flow
from fusepass.torch_private.fx.graphs import higher_order_name, operator_name, real_input, size_hint
from fusepass.torch_private.inductor import lowering
from fusepass.torch_private.inductor.compile import inductor_config_value, mode_config
from fusepass.torch_private.inductor.trial_compile import (
    compiled_on_trial,
    is_default,
    is_inductor_option,
)
from fusepass.tune.cuda_graph_call import record
from fusepass.tune.decide import several_ranks, table_for
from fusepass.tune.problems.base import INDUCTOR
from fusepass.tune.table import ChoiceEntry, ChoiceTable
from fusepass.tune.timing import Samples, progress_bar

# --- One graph compiled with several settings of Inductor, and timed on its real inputs -----------

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
        names with ``+`` between them. The first way is :data:`INDUCTOR`, without settings.

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


RULE = "inductor_configs"


@dataclass(frozen=True)
class InductorConfig:
    """Settings of Inductor that may be worth trying.

    Attributes:
        name: in reports and in the table.
        settings: by key of Inductor's config; those of a key that it does not have are left out,
            and nothing is tried of what the user has set, anywhere.
        calls: tried for graphs with one of these; for all graphs if there are none.
        devices: types of devices it is for.
    """

    name: str
    settings: Settings
    calls: frozenset[str] = frozenset()
    devices: tuple[str, ...] = ("cuda", "cpu")


_CONVOLUTIONS = frozenset("conv1d conv2d conv3d conv_transpose2d convolution".split())
_MATMULS = frozenset("linear mm addmm matmul bmm baddbmm einsum".split()) | _CONVOLUTIONS
_REDUCTIONS = frozenset(
    "sum mean prod amax amin aminmax max min all any std var std_mean var_mean norm vector_norm "
    "linalg_norm linalg_vector_norm normalize logsumexp softmax log_softmax softmin layer_norm "
    "group_norm batch_norm instance_norm rms_norm cosine_similarity cross_entropy nll_loss "
    "mse_loss l1_loss smooth_l1_loss huber_loss kl_div binary_cross_entropy "
    "binary_cross_entropy_with_logits".split()
)
CONFIGS = (
    InductorConfig(
        "library_products",
        {"max_autotune_gemm_backends": "ATEN", "max_autotune_conv_backends": "ATEN"},
        _MATMULS,
    ),
    InductorConfig("layout_as_it_is", {"layout_optimization": False}, _CONVOLUTIONS),
    InductorConfig("channels_last", {"force_layout_optimization": True}, _CONVOLUTIONS),
    InductorConfig("combo_kernels", {"combo_kernels": True}, devices=("cuda",)),
    InductorConfig("whole_reductions", {"split_reductions": False}, _REDUCTIONS, ("cuda",)),
    InductorConfig(
        "cooperative_reductions",
        {"triton.cooperative_reductions": True},
        _REDUCTIONS,
        ("cuda",),
    ),
    InductorConfig("tiles_in_two_dimensions", {"triton.prefer_nd_tiling": True}, devices=("cuda",)),
)


def compiled_with_fastest_config(
    gm: fx.GraphModule,
    record: GraphRecord,
    options: Options,
    settings: Settings,
    compiled: Compile,
) -> Callable[..., Any]:
    """What runs a graph.

    What was said of compiles on trial is taken back from ``record``.

    Raises:
        Exception: what ``compiled({})`` raises.
    """
    if not _is_enabled(options):
        return compiled({})
    before = list(record.decisions)
    try:
        with cached_decisions.forgotten():
            found = _fastest_config(gm, options, settings, compiled)
    except Exception as error:
        if is_control_flow(error):
            raise
        _warn(RULE, error)
        found = None
    record.decisions = before if found is None else [*before, found.decision]
    if found is None or not found.settings:
        return compiled({})
    put_back = snapshot(innermost_first(gm))
    try:
        return compiled(found.settings)
    except Exception as error:
        if is_control_flow(error):
            raise
        _warn(f"config {found.name}", error)
    put_back()
    found.table.add(found.key, ChoiceEntry(INDUCTOR, {}))
    text = f"Inductor cannot compile it with {found.name}, only on trial"
    record.decisions = [*before, _decision(Outcome.REJECTED, Reason.INTERNAL, text)]
    return compiled({})


def _warn(name: str, error: Exception) -> None:
    warnings.warn(CandidateFailed(name, in_short(error)), stacklevel=3)


@dataclass(frozen=True)
class _SearchResult:
    """What a search came to: the settings of a config, or none."""

    decision: Decision
    settings: Settings
    name: str
    table: ChoiceTable
    key: str


def _fastest_config(
    gm: fx.GraphModule, options: Options, settings: Settings, compiled: Compile
) -> _SearchResult | None:
    """The fastest of the configs, from the table or by trying; None where nothing is tried."""
    inputs = _real_inputs(gm)
    devices = {one.device for one in inputs or () if isinstance(one, Tensor)}
    if inputs is None or len(devices) != 1:
        return None
    (device,) = devices
    configs = {one.name: one for one in _applicable_configs(gm, options, settings, device)}
    if not configs:
        return None
    table, key = table_for(device), _key(gm, options, settings, device)

    def skipped(code: Reason, text: str) -> _SearchResult:
        return _SearchResult(_decision(Outcome.REJECTED, code, text), {}, INDUCTOR, table, key)

    obstacle = next(side_effects_of_call(innermost_first(gm)), None)
    if obstacle is not None:
        return skipped(Reason.SIDE_EFFECT, f"not tried: {obstacle}")
    known, spent = table.find(key), ""
    if known is None or not _is_usable(known, configs):
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return None
        began = time.perf_counter()
        asked = mode_config(options.mode).get("triton.cudagraphs")
        trial = SettingsTrial(gm, inputs, device, bool(asked) and device.type == "cuda", compiled)
        ways: dict[str, Settings] = {INDUCTOR: {}}
        ways |= {name: one.settings for name, one in configs.items()}
        try:
            known = ChoiceEntry(*trial.fastest(ways))
        except WritesInputs:
            return skipped(Reason.SIDE_EFFECT, "not tried: it writes its inputs")
        table.add(key, known)
        spent = f"; finding out took {time.perf_counter() - began:.1f} s"
    times = ", ".join(f"{name} {took:.1f} µs" for name, took in known.microseconds.items()) + spent
    if known.candidate == INDUCTOR:
        none = "what was fastest on trial could not be compiled in the end"
        return skipped(Reason.SLOWER, f"as asked is fastest: {times}" if times else none)
    names = known.candidate.split("+")
    chosen = {k: v for name in names for k, v in configs[name].settings.items()}
    gain = known.microseconds[INDUCTOR] / known.microseconds[known.candidate]
    text = f"{known.candidate} is {gain:.2f} times as fast: {times}"
    decision = _decision(Outcome.APPLIED, Reason.MEASURED, text)
    return _SearchResult(decision, chosen, known.candidate, table, key)


def _is_enabled(options: Options) -> bool:
    """Whether configs are tried at all; several ranks would each time for themselves."""
    return (
        options.mode.startswith("max-autotune")
        and options.codegen == "inductor"
        and not options.frozen
        and options.rule_on(RULE)
        and "triton.cudagraphs" not in options.inductor
        and not torch.is_grad_enabled()
        and not torch.are_deterministic_algorithms_enabled()
        and not several_ranks()
    )


def _is_usable(entry: ChoiceEntry, configs: dict[str, InductorConfig]) -> bool:
    names = set(entry.candidate.split("+"))
    if entry.candidate == INDUCTOR:
        return True
    times = [entry.microseconds.get(name, 0.0) for name in (INDUCTOR, entry.candidate)]
    return names <= set(configs) and min(times) > 0


def _decision(outcome: Outcome, code: Reason, text: str) -> Decision:
    return Decision(Station.HAND_OFF, RULE, outcome, code, text)


_PLAIN = (Tensor, torch.nn.Parameter, torch.nn.Buffer, int)


def _real_inputs(gm: fx.GraphModule) -> list[Any] | None:
    """What the graph's inputs are in this call, symbolic sizes as numbers; None if not known."""
    found = []
    for node in gm.graph.find_nodes(op="placeholder"):
        value = real_input(node)
        if isinstance(value, torch.SymInt):
            value = size_hint(value)
        if type(value) not in _PLAIN:
            return None
        found.append(value)
    return found


def _applicable_configs(
    gm: fx.GraphModule, options: Options, settings: Settings, device: torch.device
) -> Iterator[InductorConfig]:
    """Configs that would change something for a graph, and nothing that the user has set."""
    names = {op_name(node) for part in innermost_first(gm) for node in part.graph.nodes}
    mode = mode_config(options.mode)
    for one in CONFIGS:
        if device.type not in one.devices or (one.calls and not names & one.calls):
            continue
        known = {k: v for k, v in one.settings.items() if is_inductor_option(k)}
        if any(k in options.inductor or k in settings or not is_default(k) for k in known):
            continue
        now = {k: mode.get(k, inductor_config_value(k)) for k in known}
        if now != known:
            yield replace(one, settings=known)


def _key(gm: fx.GraphModule, options: Options, settings: Settings, device: torch.device) -> str:
    """A graph, its inputs and what was asked for, as a text of fixed length."""
    text = [VERSION, options.mode, options.fingerprint()]
    text += [repr(sorted(settings.items())), repr(sorted(options.inductor.items()))]
    text += [torch.get_float32_matmul_precision(), f"{torch.backends.cudnn.allow_tf32}"]
    text += [f"{torch.backends.cudnn.benchmark} {torch.is_autocast_enabled(device.type)}"]
    text += [part.code for part in innermost_first(gm)]
    for node in gm.graph.find_nodes(op="placeholder"):
        value = real_input(node)
        if isinstance(value, Tensor):
            text.append(f"{value.dtype} {tuple(value.shape)} {value.stride()}")
    if device.type == "cpu":
        text.append(f"{torch.get_num_threads()} threads")
    return f"{RULE} {hashlib.sha256(repr(text).encode()).hexdigest()[:32]}"


_NAMESPACES = ("aten", "prims", "fusepass")
# They call graphs, which are looked at themselves, and do nothing else.
_HIGHER_ORDER = frozenset(
    """
    autograd_function_apply checkpoint cond hints_wrapper invoke_subgraph map map_impl
    tag_activation_checkpoint while_loop wrap wrap_activation_checkpoint
    """.split()
)
_BUILTINS = frozenset("abs float getattr int len max min pow round slice sum tuple".split())


def side_effects_of_call(parts: Iterable[fx.GraphModule]) -> Iterator[str]:
    """What a call of a graph would leave behind besides its results and what it writes in place.

    Only what is known to leave nothing is passed over: operators of others may do anything, and
    so may Python functions that Dynamo was told not to look into.
    """
    for node in (node for part in parts for node in part.graph.nodes):
        if is_random(node):
            yield f"{node.name} draws random numbers"
        elif not _is_known(node):
            yield f"nobody knows what {node.name} does besides computing"


def _is_known(node: fx.Node) -> bool:
    target = node.target
    if node.op == "call_module":
        return False
    if node.op != "call_function":
        return True
    higher_order = higher_order_name(target)
    if higher_order is not None:
        return higher_order in _HIGHER_ORDER
    registered = operator_name(target)
    if registered is not None:
        return registered[0] in _NAMESPACES
    module = getattr(target, "__module__", None) or ""
    if module == "builtins":
        return getattr(target, "__name__", "") in _BUILTINS
    return module.partition(".")[0] == "fusepass" or op_name(node) is not None
