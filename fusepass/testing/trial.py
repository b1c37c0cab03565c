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
from fusepass.rewrite.match.pattern import pattern_of
from fusepass.rewrite.registry import active_rules, rules
from fusepass.rewrite.rule import Rule
from fusepass.testing.call import Seen, at_precision, observed
from fusepass.testing.case import Case
from fusepass.testing.compare import Difference
from fusepass.testing.inputs import Values, inputs_of
from fusepass.testing.near_misses import near_misses
from fusepass.testing.program_text import Text, source_of
from fusepass.testing.rounding import Pair, check_rounding
from fusepass.testing.same_call import exact_values, rounded_values
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
        values, seed: which inputs of the case show it.
        resized: whether it takes the case's second sizes, after the first.
        invalid: the program does not run in eager, or not without the rule either: it says nothing.
    """

    fired: int = 0
    rejected: Counter[tuple[str, str]] = field(default_factory=Counter)
    difference: Difference | None = None
    values: Values = "normal"
    seed: int = 0
    resized: bool = False
    invalid: bool = False


class Trials:
    """Tries cases of one rule in force, each once; op by op unless ``codegen`` says how else."""

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
        with self._program(case) as plain:
            if observed(plain, tuple(self.inputs(case)), None, case.called or "grad").raised:
                return Verdict(invalid=True)
            verdict = self._compared(case, plain)
            off = {"rules": {**self.options.get("rules", {}), self.rule.name: False}}
            if verdict.difference and self._compared(case, plain, off).difference:
                return dataclasses.replace(verdict, difference=None, invalid=True)
        return verdict

    @contextlib.contextmanager
    def _program(self, case: Case) -> Iterator[Any]:
        with contextlib.closing(Text(self.source(case), self.rule.pattern)) as text:
            yield text.program

    def _compared(
        self, case: Case, plain: Any, options: Mapping[str, Any] | None = None
    ) -> Verdict:
        """Compare the case's program, compiled with further options, with the plain one."""
        with self._program(case) as text, warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", RewriteFault)
            given = {**self.options, **(options or {})}
            compiled = torch.compile(text, backend="fusepass", dynamic=case.resized, options=given)
            verdict = self._first(case, plain, compiled)
            for one in said:
                ours = repr(self.rule.name) in str(one.message)
                if ours and isinstance(one.message, RewriteFault):
                    fault = Difference("fault", "", one.message.said)
                    verdict = Verdict(difference=fault)
                    break
            fired, rejected = decisions(compiled, self.rule.name)
        return dataclasses.replace(verdict, fired=fired, rejected=rejected)

    def _first(self, case: Case, plain: Any, compiled: Any) -> Verdict:
        """The first difference, with the inputs that show it."""
        for one in [case, resized(case, self.space)] if case.resized else [case]:
            for kind in get_args(Values):
                holds_floats = any(t.numel() and t.is_floating_point() for t in self.inputs(one))
                if kind == "normal" or holds_floats:
                    verdict = self._check(one, kind, plain, compiled)
                    if verdict.difference is not None:
                        return dataclasses.replace(verdict, resized=one is not case)
        return Verdict()

    def _check(self, case: Case, kind: Values, plain: Any, compiled: Any) -> Verdict:
        seed = 0
        try:
            eager, pairs = self._run(case, kind, seed, plain, compiled)
            for pair in pairs:
                samples = [self._sample(case, kind, seed, plain, eager, pair)]
                found = check_rounding(samples)
                if found is not None and not found.certain:
                    for seed in _MORE_SEEDS:  # bad luck with few numbers is not a fault
                        again, others = self._run(case, kind, seed, plain, compiled)
                        same = [other for other in others if other.path == pair.path]
                        samples += [
                            self._sample(case, kind, seed, plain, again, one) for one in same
                        ]
                    seed = 0
                    found = found if check_rounding(samples) is not None else None
                if found is not None:
                    raise found
        except Difference as difference:
            return Verdict(difference=difference, values=kind, seed=seed)
        return Verdict()

    def _run(
        self, case: Case, kind: Values, seed: int, plain: Any, compiled: Any
    ) -> tuple[Seen, list[Pair]]:
        # A formula for the backward may part from another at infinity and agree elsewhere.
        context = case.called or ("plain" if kind == "special" else "grad")
        eager, other = (
            observed(program, tuple(self.inputs(case, kind, seed)), None, context)
            for program in (plain, compiled)
        )
        return eager, rounded_values(eager, other)

    def _sample(
        self, case: Case, kind: Values, seed: int, plain: Any, eager: Seen, pair: Pair
    ) -> tuple[Pair, Tensor | None, float]:
        def exactly(dtype: torch.dtype) -> Tensor | None:
            exact = at_precision(dtype, plain, self.inputs(case, kind, seed))
            return exact_values(eager, exact).get(id(pair.eager))

        value, floor = exactly(torch.float64), 0.0
        if pair.eager.dtype == torch.float64:
            # Eager is its own reference here; its error is known from the one in float32.
            rough = exactly(torch.float32)
            if value is not None and rough is not None:
                seen = torch.isfinite(rough) & torch.isfinite(value)
                floor = _SINGLE_TO_DOUBLE * rms((rough.double() - value)[seen].detach())
        return pair, value, floor


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
def in_force(rule: Rule) -> Iterator[None]:
    """The scope of a rule; a rule that is registered already, as the built-in ones, needs none.

    Raises RuleError if the rule is malformed, or another rule has its name.
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
