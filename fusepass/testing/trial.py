"""One case tried: eager beside compiled, whether the rule fired, and whether it is to blame."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

import torch
from torch import Tensor

from fusepass.errors import NoReport, RewriteFault
from fusepass.numerics import rms
from fusepass.report.decision import Outcome
from fusepass.report.explain import last_report
from fusepass.rewrite.match.from_rule import pattern_of
from fusepass.rewrite.registry import active_rules, rules
from fusepass.rewrite.rule import Rule
from fusepass.testing import oracle
from fusepass.testing.case import Case
from fusepass.testing.inputs import Values, inputs_of
from fusepass.testing.near_misses import near_misses
from fusepass.testing.observe import Observation, at_precision, observe
from fusepass.testing.oracle import Difference
from fusepass.testing.program_text import Text, source_of
from fusepass.testing.space import FLOATS, Space
from fusepass.torch_private.fx.tracing import guards_not_timed

CODEGEN = {"before": "eager", "after": "eager-decomposed"}
_SINGLE_TO_DOUBLE = torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps
_MORE_SEEDS = range(10, 42)


@dataclass(frozen=True)
class Verdict:
    """What came of a case.

    Attributes:
        fired: how often the rule was applied.
        rejected: reason code and sentence of the places where it was not, with their counts.
        difference: what the compiled program did otherwise because of the rule; None if nothing.
        invalid: the program does not run in eager, or not without the rule either: it says nothing.
    """

    fired: int = 0
    rejected: Counter[tuple[str, str]] = field(default_factory=Counter)
    difference: Difference | None = None
    invalid: bool = False


class Trials:
    """Tries cases of one rule, which must be in force; each case once.

    Args:
        rule: the rule.
        space: the inputs its example stands for.
        options: for torch.compile, beside ``codegen``.
        codegen: how the rewritten program runs; by default op by op.
    """

    def __init__(
        self,
        rule: Rule,
        space: Space,
        options: Mapping[str, Any] | None = None,
        codegen: str | None = None,
    ) -> None:
        self.rule, self.space = rule, space
        self.options = {"codegen": codegen or CODEGEN[rule.place], **(options or {})}
        self.verdicts: dict[Case, Verdict] = {}
        with torch.no_grad():
            returned = rule.pattern(*rule.inputs())
        self.outputs = len(returned) if isinstance(returned, (tuple, list)) else 0
        self._near_misses: dict[tuple[Any, ...], list[tuple[str, list[str]]]] = {}

    def __call__(self, case: Case) -> Verdict:
        """Try a case, or say again what came of it."""
        if case not in self.verdicts:
            self.verdicts[case] = self._try(case)
        return self.verdicts[case]

    def near_misses(self, case: Case) -> list[tuple[str, list[str]]]:
        """What each near miss for the sizes of a case changes, and its lines."""
        key = (case.sizes, case.ones, case.lift, case.dtypes, case.scalars)
        if key not in self._near_misses:
            tensors = iter(inputs_of(dataclasses.replace(case, same=None), self.space))
            scalars = dict(zip(self.space.scalars, case.scalars, strict=True))
            given = [
                next(tensors) if p in self.space.tensors else scalars[p]
                for p in range(len(self.space.names))
            ]
            self._near_misses[key] = near_misses(self.rule.pattern, self.space.names, given)
        return self._near_misses[key]

    def source(self, case: Case) -> str:
        """The case's program as text."""
        lines = None
        if case.near_miss:
            found = self.near_misses(case)
            lines = found[(case.near_miss - 1) % len(found)][1] if found else None
        return source_of(case, self.space, lines, self.outputs)

    def inputs(self, case: Case, values: Values = "normal", seed: int = 0) -> list[Tensor]:
        """Fresh inputs of the case's program."""
        return inputs_of(case, self.space, values, seed)

    def _try(self, case: Case) -> Verdict:
        if case.near_miss and not self.near_misses(case):
            return Verdict(invalid=True)
        source = self.source(case)
        with _program(source, self.rule) as plain:
            eager = observe(plain, self.inputs(case), called=case.called)
            if eager.error is not None:
                return Verdict(invalid=True)
            with _program(source, self.rule) as text:
                verdict = self._compare(case, plain, text)
            if verdict.difference is not None and self._without_rule(case, plain):
                return dataclasses.replace(verdict, difference=None, invalid=True)
        return verdict

    def _without_rule(self, case: Case, plain: Any) -> bool:
        """Whether the compiled program differs from eager although the rule is off."""
        off = {"rules": {**self.options.get("rules", {}), self.rule.name: False}}
        with _program(self.source(case), self.rule) as text:
            return self._compare(case, plain, text, off).difference is not None

    def _compare(
        self, case: Case, plain: Any, text: Any, options: Mapping[str, Any] | None = None
    ) -> Verdict:
        compiled = torch.compile(
            text,
            backend="fusepass",
            dynamic=case.resized,
            options={**self.options, **(options or {})},
        )
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", RewriteFault)
            difference = self._difference(case, plain, compiled)
        fault = next((w.message for w in said if self._is_ours(w)), None)
        if isinstance(fault, RewriteFault):
            difference = Difference("rule", "fault", "", fault.said)
        fired, rejected = decisions(compiled, self.rule.name)
        return Verdict(fired, rejected, difference)

    def _is_ours(self, warning: warnings.WarningMessage) -> bool:
        return repr(self.rule.name) in str(warning.message)

    def _difference(self, case: Case, plain: Any, compiled: Any) -> Difference | None:
        cases = [case, resized(case, self.space)] if case.resized else [case]
        for one in cases:
            for kind in get_args(Values):
                if kind != "normal" and _is_empty(self.inputs(one)):
                    continue
                found = self._first(one, kind, plain, compiled)
                if found is not None:
                    return dataclasses.replace(found, values=kind, resized=one is not case)
        return None

    def _first(self, case: Case, kind: Values, plain: Any, compiled: Any) -> Difference | None:
        pairs = self._run(case, kind, 0, plain, compiled)
        if isinstance(pairs, Difference):
            return pairs
        judged = (self._judge(case, kind, pair, plain, compiled) for pair in pairs)
        return next((found for found in judged if found is not None), None)

    def _run(
        self, case: Case, kind: Values, seed: int, plain: Any, compiled: Any
    ) -> Difference | list[oracle.Pair]:
        seen = []
        for program in (plain, compiled):
            torch.manual_seed(case.seed)
            inputs = self.inputs(case, kind, seed)
            # A formula for the backward may part from another at infinity and agree elsewhere.
            backward = kind != "special"
            seen.append(observe(program, inputs, called=case.called, backward=backward))
        return oracle.compare(*seen)

    def _judge(
        self, case: Case, kind: Values, pair: oracle.Pair, plain: Any, compiled: Any
    ) -> Difference | None:
        samples = [self._sample(case, kind, 0, pair, plain)]
        found = oracle.judge_values(samples)
        if found is None or found.certain:
            return found
        for seed in _MORE_SEEDS:  # bad luck with few numbers is not a fault
            pairs = self._run(case, kind, seed, plain, compiled)
            if isinstance(pairs, Difference):
                return dataclasses.replace(pairs, seed=seed)
            samples += [
                self._sample(case, kind, seed, p, plain) for p in pairs if p.path == pair.path
            ]
        return found if oracle.judge_values(samples) is not None else None

    def _sample(
        self, case: Case, kind: Values, seed: int, pair: oracle.Pair, plain: Any
    ) -> tuple[oracle.Pair, Tensor | None, float]:
        exact = _exactly(torch.float64, case, plain, self.inputs(case, kind, seed))
        value = oracle.exact_value(pair.path, exact)
        floor = 0.0
        if pair.eager.dtype == torch.float64:
            # Eager is its own reference here; its error is known from the one in float32.
            single = _exactly(torch.float32, case, plain, self.inputs(case, kind, seed))
            rough = oracle.exact_value(pair.path, single)
            if value is not None and rough is not None:
                seen = torch.isfinite(rough) & torch.isfinite(value)
                difference = (rough.double() - value)[seen].detach()
                floor = _SINGLE_TO_DOUBLE * rms(difference)
        if value is not None and value.shape != pair.eager.shape:
            value = None
        return pair, value, floor


def _exactly(dtype: torch.dtype, case: Case, plain: Any, inputs: list[Tensor]) -> Observation:
    torch.manual_seed(case.seed)
    return at_precision(dtype, plain, inputs)


def _is_empty(inputs: list[Tensor]) -> bool:
    return not any(t.numel() and t.is_floating_point() for t in inputs)


def resized(case: Case, space: Space) -> Case:
    """The case with every size that can be another one being another one."""
    sizes = []
    for dim, size in zip(space.dims, case.sizes, strict=True):
        sizes.append(next((s for s in dim.sizes if s > 1 and s != size), size))
    return dataclasses.replace(case, sizes=tuple(sizes))


def decisions(compiled: Any, name: str) -> tuple[int, Counter[tuple[str, str]]]:
    """How often a rule was applied in a compiled program, and the reasons where it was not."""
    try:
        report = last_report(compiled)
    except NoReport:  # a program of which nothing was left to compile
        return 0, Counter()
    ours = [d for d in report.decisions if d.rule == name]
    fired = sum(d.outcome is Outcome.APPLIED for d in ours)
    left = (d for d in ours if d.outcome is not Outcome.APPLIED)
    return fired, Counter((d.reason_code.value, d.reason) for d in left)


@contextlib.contextmanager
def _program(source: str, rule: Rule) -> Iterator[Any]:
    text = Text(source, rule.pattern)
    try:
        yield text.program
    finally:
        text.close()


@contextlib.contextmanager
def in_force(rule: Rule) -> Iterator[None]:
    """The scope of a rule; a rule that is registered already, as the built-in ones, needs none.

    Raises:
        RuleError: the rule is malformed, or another rule has its name.
    """
    with warnings.catch_warnings():
        # What was compiled before may stay as it is; torch's warnings are about drawn inputs.
        warnings.simplefilter("ignore")
        known = any(one is rule for one in active_rules())
        scope = contextlib.nullcontext() if known else rules(rule)
        with scope, guards_not_timed():
            if rule.place == "after":  # all are traced for each dtype once in a process
                for one in active_rules("after"):
                    for dtype in FLOATS:
                        pattern_of(one, dtype)
            yield
