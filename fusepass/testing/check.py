"""``check_rule``: looks for a program, and inputs of it, that a rule changes.

First each way a program can differ from the rule's example, then random mixtures drawn and shrunk
by Hypothesis. A check that never saw the rule fire would prove nothing, so it fails.
"""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from typing import Any, cast

from fusepass.errors import ArgumentType, MissingHypothesis, RuleCheckFailed
from fusepass.report import log
from fusepass.rewrite.option_scope import resolve_checked
from fusepass.rewrite.rule import Rule
from fusepass.testing import strategies
from fusepass.testing.case import Case, changes, plain_case, simpler, smaller
from fusepass.testing.profiles import Profile, RuleCheck, profile_of
from fusepass.testing.snippet import snippet
from fusepass.testing.space import Space, space_of
from fusepass.testing.trial import Trials, Verdict, in_force


def check_rule(
    rule: Rule,
    profile: str = "quick",
    *,
    seed: int | None = None,
    options: Mapping[str, Any] | None = None,
    training: bool | None = None,
    fires_in: float = 1 / 3,
) -> RuleCheck:
    """Look for a program that a rule changes.

    The pattern is put into small programs with inputs generalised from the rule's example, each
    program is run in eager mode and rewritten, and everything that can be seen is compared: values
    by the error rule, dtype, shape, strides, shared memory, what was written, gradients, NaN and
    infinity. Near misses of the pattern, in which one operation differs, must be right as well.

    Args:
        rule: the rule; it need not be registered.
        profile: ``"quick"`` (at most 3 s), ``"ci"`` (20 s), ``"nightly"`` (minutes, with Inductor).
        seed: of the random programs. ``quick`` and ``ci`` have a fixed one by default.
        options: further options for torch.compile. ``candidate`` is ``"reference"`` unless given:
            what is checked is the rewrite, not whether it pays on this machine.
        training: whether the rule must be applied when gradients are asked for: by default yes for
            a rule before autograd, and for one after autograd, where what is saved for the backward
            may stand in its way, not necessarily. False for a rule whose ``check`` turns it down.
        fires_in: the least share of the programs in which the rule must be applied.

    Returns:
        What was tried.

    Raises:
        RuleCheckFailed: (an AssertionError) with the simplest program found, as a snippet to run;
            or because the rule was applied too seldom, with the reasons.
        RuleError: the rule is malformed.
        MissingHypothesis, UnknownProfile: the check cannot be run.
        ArgumentType: it was given no rule.
        UnknownOption, OptionType, OptionValue: bad options.
    """
    given_rule, given_options = cast("Any", rule), cast("Any", options)
    if not isinstance(given_rule, Rule):
        raise ArgumentType("the first argument of check_rule", rule, "a fusepass.Rule")
    if not isinstance(given_options, Mapping | None):
        raise ArgumentType("check_rule(options=…)", options, "a dict of options for torch.compile")
    chosen = profile_of(profile)
    if find_spec("hypothesis") is None:
        raise MissingHypothesis
    if seed is None:
        seed = 0 if chosen.fixed else random.SystemRandom().randrange(2**31)
    space = space_of(rule)
    with in_force(rule), log.trial():
        result = RuleCheck(rule.name, profile, seed)
        given = {"candidate": "reference", **(options or {})}
        resolve_checked(
            options=given
        )  # here: a program that raises is taken for one that is no good
        return _RuleCheckRun(rule, space, chosen, result, given, training).run(fires_in)


class _RuleCheckRun:
    """One run of :func:`check_rule`.

    Its time limit is one of processor time: what is tried must not hang on who else is at work.
    """

    def __init__(
        self,
        rule: Rule,
        space: Space,
        profile: Profile,
        result: RuleCheck,
        options: Mapping[str, Any] | None,
        training: bool | None,
    ) -> None:
        self.rule, self.space, self.profile, self.result = rule, space, profile, result
        self.options = options
        self.trials = Trials(rule, space, options)
        self.must_train = rule.place == "before" if training is None else training
        self.plain = plain_case(space, training=training is not False)
        self.counted: set[Case] = set()
        self.began = self.deadline = 0.0

    def run(self, fires_in: float) -> RuleCheck:
        self._plain()  # torch loads its compiler for the first program of a process: not counted
        self.began = time.monotonic()
        self.deadline = time.process_time() + self.profile.seconds
        self._first()
        self._random(self.trials, self.profile.random)
        if self.profile.generated:
            codegen = Trials(self.rule, self.space, self.options, "inductor")
            self.deadline += self.profile.seconds / 2
            self._random(codegen, self.profile.generated)
        result = self.result
        result.seconds = time.monotonic() - self.began
        if result.fired < fires_in * result.programs:
            self._fail(
                f"applied in {result.fired} of {result.programs} programs only, fewer than "
                f"{fires_in:.0%}: a check of them means little. {self._reasons()}"
            )
        return result

    def _plain(self) -> None:
        """The example itself, for which the rule must be applied."""
        verdict = self._try(self.trials, self.plain)
        if verdict.fired:
            return
        hint = ""
        if any(self.plain.grads):
            other = plain_case(self.space, training=False)
            fires = self._try(self.trials, other).fired
            if fires and not self.must_train:
                self.plain = other
                return
            if fires:
                hint = (
                    " when gradients are asked for. If it is for inference only, let its check "
                    "say so (match.training), and give check_rule training=False"
                )
        self._fail(f"not applied to its own example{hint}. {self._reasons()}")

    def _first(self) -> None:
        misses = len(self.trials.near_misses(self.plain))
        for case in strategies.first_cases(
            self.space, self.plain, self.trials.outputs, misses, self.profile.few
        ):
            verdict = self._try(self.trials, case)
            fields = changes(case, self.plain)
            if verdict.fired or verdict.invalid or case.near_miss:
                continue
            if len(fields) > 1:  # which of them it was matters for the random programs
                for name, value in fields.items():
                    alone = dataclasses.replace(self.plain, **{name: value})
                    if name != "output" and not self._try(self.trials, alone).fired:
                        self.result.silent.append((name, value))
            else:
                self.result.silent += fields.items()

    def _try(self, trials: Trials, case: Case) -> Verdict:
        """Try a case, count it, and fail with the simplest one like it if it shows a difference."""
        if self.deadline and time.process_time() > self.deadline and case not in trials.verdicts:
            self.result.complete = False
            return Verdict(invalid=True)
        verdict = trials(case)
        self._count(case, verdict)
        if verdict.difference is not None:
            self._explain(trials, case)
        return verdict

    def _count(self, case: Case, verdict: Verdict) -> None:
        if verdict.invalid or case in self.counted:
            return
        self.counted.add(case)
        if case.near_miss:
            self.result.near_misses += 1
        else:
            self.result.programs += 1
            self.result.fired += verdict.fired > 0
            self.result.rejected.update(verdict.rejected if not verdict.fired else ())

    def _random(self, trials: Trials, count: int) -> None:
        import hypothesis

        misses = len(trials.near_misses(self.plain))
        strategy = strategies.cases(
            self.space, self.plain, trials.outputs, misses, self.result.silent
        )
        failing: list[Case] = []

        @hypothesis.seed(self.result.seed)
        @hypothesis.settings(
            max_examples=count,
            derandomize=self.profile.fixed,
            database=None,
            deadline=None,
            report_multiple_bugs=False,
            print_blob=False,
            verbosity=hypothesis.Verbosity.quiet,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(strategy)
        def find(case: Case) -> None:
            if time.process_time() > self.deadline and case not in trials.verdicts:
                self.result.complete = self.result.complete and bool(failing)
                return
            verdict = trials(case)
            if verdict.difference is not None:
                if not failing:
                    self.deadline = time.process_time() + self.profile.seconds / 2
                failing.append(case)
                raise _DifferingProgram
            if not failing:
                self._count(case, verdict)

        try:
            find()
        except (_DifferingProgram, hypothesis.errors.HypothesisException):
            if not failing:
                raise
        if failing:
            self._explain(trials, failing[-1])

    def _explain(self, trials: Trials, case: Case) -> None:
        """Make a failing case simpler as long as it fails, and raise RuleCheckFailed with it."""
        until = time.process_time() + min(self.profile.seconds, 10.0)
        case = _least(case, lambda one: simpler(one, self.plain), trials, until)
        what = _described(case, self.plain, trials)
        case = _least(case, smaller, trials, until)
        verdict = trials(case)
        difference = verdict.difference
        assert difference is not None
        self._fail(f"{difference}. {what}", snippet(trials, case, verdict, difference))

    def _reasons(self) -> str:
        reasons = self.result.rejected.most_common(5)
        if not reasons:
            return "No place was looked at: nothing like the pattern was found"
        lines = [f"  {count} × {code}: {text}" for (code, text), count in reasons]
        return "\n".join(["Not applied because of:", *lines])

    def _fail(self, problem: str, text: str = "") -> None:
        result = self.result
        raise RuleCheckFailed(
            self.rule.name, self.rule.location, problem, text, result.profile, result.seed
        )


class _DifferingProgram(Exception):
    """A program that the rule changes; Hypothesis makes it simpler."""


def _least(
    case: Case, steps: Callable[[Case], Iterable[Case]], trials: Trials, until: float
) -> Case:
    """The last of the cases that steps lead to from a failing one, as long as they fail as well."""
    while time.process_time() < until:
        found = next((one for one in steps(case) if trials(one).difference is not None), None)
        if found is None:
            break
        case = found
    return case


def _described(case: Case, plain: Case, trials: Trials) -> str:
    fields: Iterable[tuple[str, Any]] = changes(case, plain).items()
    parts = [f"{name}={value}" for name, value in fields if name != "near_miss"]
    if case.near_miss:
        found = trials.near_misses(case)
        parts.append(f"near miss: {found[(case.near_miss - 1) % len(found)][0]}")
    return "Unlike the example: " + ", ".join(parts) if parts else "On the example itself"
