"""Every error and warning that a user of fusepass can meet, with the base class of each kind.

A message states the fact, its cause, and what to do next. No other module defines an exception that
leaves the package, so this file is also the list to read when one appears.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable, Mapping, Sequence


class FusepassError(Exception):
    """Base of every error raised by fusepass."""


class FusepassWarning(UserWarning):
    """Base of every warning issued by fusepass."""


def device_refused(device: object, problem: str) -> tuple[str, str]:
    """What was given for a device, and why torch does not take it, as one line each."""
    first = problem.strip().split("\n")[0].rstrip(". ")
    if "invalid combination" in first:  # torch lists all its signatures
        first = f"a {type(device).__name__} is no device"
    shown = repr(str(device) if type(device).__name__ == "device" else device)
    return shown[:200], first


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """A question that names the known name nearest to an unknown one, if there is one near."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f" Did you mean {near[0]!r}?" if near else ""


class RenamedName(FusepassWarning, DeprecationWarning):
    """A public name that has another spelling now; the old one works for one release."""

    def __init__(self, what: str, old: str, new: str) -> None:
        super().__init__(
            f"fusepass: {what} {old!r} has a new name, {new!r}. The old name goes with the next "
            f"release. Write {new!r}."
        )


def current_name(what: str, name: str, renamed: Mapping[str, str], stacklevel: int = 3) -> str:
    """The spelling of a public name that is in use; warns of an old one.

    Args:
        what: the kind of name, for the warning.
        name: as the user spells it.
        renamed: old spellings, and what they are spelled now.
        stacklevel: whom the warning is for, as :func:`warnings.warn` counts.
    """
    if name not in renamed:
        return name
    warnings.warn(RenamedName(what, name, renamed[name]), stacklevel=stacklevel)
    return renamed[name]


_WRITABLE = (
    "; make the folder writable, or point FUSEPASS_CACHE_DIR at another, to keep {} between "
    "processes"
)


class UnknownOption(FusepassError, ValueError):
    """An option key that fusepass (or, behind ``inductor.``, Inductor) does not have."""

    def __init__(
        self, key: str, known: Iterable[str], where: str = "options", hint: str = ""
    ) -> None:
        names = sorted(known)
        hint = hint or did_you_mean(key, names, 0.5).strip()
        shown = ", ".join(names) if len(names) <= 40 else ", ".join(names[:40]) + ", …"
        enough = hint and key.startswith("inductor.")  # which has hundreds
        listed = "" if enough else f"Known options: {shown}."
        told = " ".join(part for part in (hint, listed) if part)
        super().__init__(f"fusepass: unknown option {key!r} in {where}. {told}".rstrip())


class OptionType(FusepassError, TypeError):
    """An option whose value has the wrong type."""

    def __init__(self, key: str, value: object, expected: str) -> None:
        super().__init__(
            f"fusepass: option {key!r} must be {expected}, got {value!r} of type "
            f"{type(value).__name__}. Change the value passed to torch.compile(options=…)."
        )


class OptionValue(FusepassError, ValueError):
    """An option of the right type with a value that is not one of those allowed."""

    def __init__(self, key: str, value: object, allowed: Iterable[str]) -> None:
        names = [str(name) for name in allowed]
        hint = did_you_mean(str(value), names, 0.5)
        super().__init__(
            f"fusepass: option {key!r} has no value {value!r}.{hint} Allowed: {', '.join(names)}."
        )


class ArgumentType(FusepassError, TypeError):
    """An argument of a function of fusepass that is of the wrong type."""

    def __init__(self, argument: str, value: object, expected: str) -> None:
        super().__init__(
            f"fusepass: {argument} must be {expected}, got {repr(value)[:100]} of type "
            f"{type(value).__name__}."
        )


class UnknownRule(FusepassError, ValueError):
    """An assertion names a rule that is not in force."""

    def __init__(self, name: str, known: Iterable[str], where: str) -> None:
        names = sorted(known)
        hint = did_you_mean(name, names, 0.5)
        super().__init__(
            f"fusepass: unknown rule {name!r} in {where}.{hint} In force: {', '.join(names)}."
        )


class RuleError(FusepassError, ValueError):
    """A rule that is malformed, or whose rewrite changed what it must not change."""

    def __init__(self, rule: str, location: str, problem: str) -> None:
        first = problem.strip().split("\n")[0].rstrip(". ")  # torch explains itself at length
        super().__init__(f"fusepass: rule {rule!r} ({location}): {first}.")


class BranchRuleError(RuleError):
    """A rule of fusepass's own failed at a captured branch; the branches are given back."""


class NoReport(FusepassError, LookupError):
    """:func:`fusepass.last_report` was asked about a callable that fusepass has not compiled."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"fusepass: no compile of {what} is on record. Call it once with inputs first, and "
            'make sure it came from torch.compile(…, backend="fusepass"). If another backend '
            "compiled it before, torch may have given up on it for all of them: call "
            "fusepass.reset() first."
        )


class BenchError(FusepassError, ValueError):
    """A benchmark target, suite or mode that cannot be run."""


class UnsupportedVersion(FusepassWarning):
    """Branch capture is off: this (torch, Python) pair was not tested, or lacks what it needs."""

    def __init__(self, torch: str, python: str, supported: str, problem: str = "") -> None:
        why = f" ({problem})" if problem else ""
        super().__init__(
            f"fusepass: branch capture is off on torch {torch} with Python {python}{why}; it is "
            f"tested on {supported}. Everything else works; branches on a tensor break the graph "
            "as they do under Inductor. Install a tested version to get it back."
        )


class CacheUnusable(FusepassWarning):
    """A cache file or folder that cannot be read or written; the program goes on without it."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(
            f"fusepass: {path}: {problem}. Compilation goes on with a temporary folder; make this "
            "one writable, or point TORCHINDUCTOR_CACHE_DIR at another, to get warm starts."
        )


class CacheDamaged(FusepassWarning):
    """A file that Inductor keeps in its cache folder is damaged; the graph was compiled without it.

    Attributes:
        path: of the file.
    """

    def __init__(self, path: str, folder: str, problem: str) -> None:
        self.path = path
        super().__init__(
            f"fusepass: {path} in Inductor's cache folder is damaged ({problem}). The graph was "
            "compiled again in a temporary folder, which this process goes on with. Delete the "
            f"file, or all of {folder}: nothing is kept there but what a compile makes again."
        )


class CaptureFault(FusepassWarning):
    """Branch capture met something it did not foresee and took the ordinary graph break."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(
            f"fusepass: branch at {where} kept as a graph break after an internal error: "
            f"{problem}. "
            "The result is not affected; please report this."
        )


class FrameNotCompiled(FusepassWarning):
    """A function that computes with tensors has no compiled graph at all, and runs in eager mode.

    Args:
        function: its name, file and line.
        place: file and line at which its graph breaks.
        cause: why the graph breaks there.
        block: in what torch.compile cannot go on behind a break, None if that is not known.
    """

    def __init__(self, function: str, place: str, cause: str, block: str | None) -> None:
        within = {None: "there", "try": "in a `try`"}.get(block, f"in a {block}")
        body = {None: "those lines", "generator": "what the generator computes"}
        moved = body.get(block, f"the body of the {'`try`' if block == 'try' else block}")
        super().__init__(
            f"fusepass: {function} runs in eager mode, without any compiled graph. Its graph "
            f"breaks at {place}, and torch.compile cannot go on behind a graph break {within}. "
            f"The graph breaks because: {cause}. Remove that cause, or move {moved} into a "
            "function of its own: it is then compiled by itself."
        )


class RewriteFault(FusepassWarning):
    """A rewrite failed or changed an output; it was undone and plain Inductor used instead.

    Attributes:
        said: what is wrong with the rule, without its name.
    """

    def __init__(self, rule: str, problem: str) -> None:
        self.said = f"it was undone: {problem}"
        super().__init__(
            f"fusepass: rule {rule!r} was undone: {problem}. The graph runs without it; please "
            "report this."
        )


class RuleCheckFault(RewriteFault):
    """The ``check`` of a user's rule failed; the rule is left out of that graph."""

    def __init__(self, rule: str, location: str, problem: str) -> None:
        self.said = f"its {problem}"
        FusepassWarning.__init__(
            self,
            f"fusepass: rule {rule!r} ({location}): its {problem}. The rule is left out of this "
            "graph; the result is not affected. Mend the check: it returns None to go on, a "
            "fusepass.Reject or a fusepass.Accept.",
        )


class DtypeOfTrace(FusepassWarning):
    """The dtype that torch.compile assumes for a result is not eager's; the graph may not break."""

    def __init__(self, where: str, fact: str) -> None:
        super().__init__(
            f"fusepass: {where}: {fact} (pytorch #194547). With fullgraph the graph may not end "
            "there, so the program is told the wrong dtype, and results computed from it may have "
            "that. Give both tensors the same dtype, or leave fullgraph out."
        )


class InductorFault(FusepassWarning):
    """Inductor could not compile a rewritten graph; it was compiled without the rules."""

    def __init__(self, rules: Sequence[str], problem: str) -> None:
        by = f"rewritten by {', '.join(rules)}" if rules else "with fusepass's passes"
        super().__init__(
            f"fusepass: Inductor failed on a graph {by}: {problem}. The graph runs without the "
            "rules; please report this."
        )


class RulePackageFault(FusepassWarning):
    """Rules that an installed package offers cannot be used."""

    def __init__(self, name: str, where: str, problem: str) -> None:
        super().__init__(
            f"fusepass: rules of entry point {name!r} ({where}) are left out: {problem}. "
            "Everything else works; update or uninstall the package that offers them."
        )


class RulesChanged(FusepassWarning):
    """Rules were changed after a callable had already been compiled with the old ones."""

    def __init__(self) -> None:
        super().__init__(
            "fusepass: rules apply when a callable is (re)compiled; callables compiled earlier "
            "keep the rules they were compiled with. Call fusepass.reset() to compile them again."
        )


class OptionsChanged(FusepassWarning):
    """Options were changed after a callable had already been compiled with the old ones."""

    def __init__(self) -> None:
        super().__init__(
            "fusepass: options apply when a callable is (re)compiled; callables compiled earlier "
            "keep "
            "the options they were compiled with. Call fusepass.reset() to compile them again."
        )


class UnknownActivation(FusepassError, ValueError):
    """A fused operator was called with an activation it does not have."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        hint = did_you_mean(name, names)
        super().__init__(
            f"fusepass: no activation {name!r} in fusepass::linear_activation.{hint} There are: "
            f"{', '.join(names)}."
        )


class ChoicesUnusable(FusepassWarning):
    """The file of measured choices cannot be read or written, or was damaged."""

    def __init__(self, path: str, problem: str, advice: str = "") -> None:
        super().__init__(
            f"fusepass: choices file {path}: {problem}. This process goes on with what it measures "
            f"itself{advice or _WRITABLE.format('choices')}."
        )


class CacheNotPrivate(FusepassWarning):
    """A folder or file of the cache may have been written by somebody else, and is not used."""

    def __init__(self, path: str, problem: str, *, is_folder: bool) -> None:
        mend = f"make it yours alone (chmod go-w {path})"
        if "belongs" in problem:
            mend = "remove it"
        if is_folder:
            mend += ", or point FUSEPASS_CACHE_DIR at a folder that only you can write"
        super().__init__(
            f"fusepass: cache: {path} {problem}, who could put choices and code for the GPU there. "
            "It is neither read nor written; this process measures and compiles itself what it "
            f"needs. To keep that between processes {mend}."
        )


class PeaksUnusable(FusepassWarning):
    """What a device reaches could not be measured, or not be kept in a file."""

    def __init__(self, where: str, problem: str, advice: str = "") -> None:
        super().__init__(
            f"fusepass: device peaks, {where}: {problem}. They only weigh the arms of a branch "
            "against a graph break; results are not affected"
            f"{advice or _WRITABLE.format('them')}. FUSEPASS_DEVICE_PEAKS=shipped measures nothing."
        )


class CandidateFailed(FusepassWarning):
    """A way to compute a fused operation failed while it was timed; it is not used."""

    def __init__(self, candidate: str, problem: str) -> None:
        super().__init__(
            f"fusepass: candidate {candidate!r} failed while it was timed: {problem}. Inductor's "
            "own code is used in its place; the result is not affected. "
            "options={'candidate': 'inductor'} turns timing off."
        )


class RuleCheckFailed(FusepassError, AssertionError):
    """:func:`fusepass.testing.check_rule` found a program that a rule changes, or none it acts on.

    Attributes:
        snippet: a runnable program that shows it, ``""`` where there is none to show.
        profile, seed: what to give ``check_rule`` to try the same programs again.
    """

    def __init__(
        self, rule: str, location: str, problem: str, snippet: str, profile: str, seed: int
    ) -> None:
        self.snippet, self.profile, self.seed = snippet, profile, seed
        problem = f"{problem} (profile {profile!r}, seed {seed})"
        shown = f"\nTo see it, run:\n\n{snippet}" if snippet else ""
        super().__init__(f"fusepass: rule {rule!r} ({location}): {problem}.{shown}")


class RewriteMismatch(FusepassError, AssertionError):
    """An assertion of :mod:`fusepass.testing` about one program does not hold."""

    def __init__(self, program: str, problem: str, report: str) -> None:
        super().__init__(f"fusepass: {program}: {problem}.\n\n{report}")


class HostSyncs(FusepassError, AssertionError):
    """:func:`fusepass.testing.assert_no_syncs` found places where the host waits for the device.

    Attributes:
        syncs: the rows found, without those allowed.
    """

    def __init__(self, program: str, count: int, table: str, syncs: object) -> None:
        self.syncs = syncs
        places = "1 place" if count == 1 else f"{count} places"
        super().__init__(
            f"fusepass: {program} makes the host wait for the device in {places}. Change them as "
            f"said below each, or name what may stay in allow=(…): a kind, or file:line.\n\n{table}"
        )


class NotAProgram(FusepassError, TypeError):
    """:func:`fusepass.syncs` and the like were given something that cannot be called."""

    def __init__(self, given: object) -> None:
        super().__init__(
            f"fusepass: an object of type {type(given).__name__} is no program: give a function or "
            "an nn.Module first, and behind it the arguments of one call."
        )


class NotCompiled(FusepassWarning):
    """:func:`fusepass.syncs` looked at a program that torch.compile cannot compile."""

    def __init__(self, name: str, error: Exception) -> None:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        super().__init__(
            f"fusepass.syncs: {name} runs, but torch.compile raises {type(error).__name__}: "
            f"{' '.join(lines[:2])}. The list shows the waits of the program as it is written; "
            "fusepass removes none of them until it compiles."
        )


class UnknownSyncKind(FusepassError, ValueError):
    """An entry of ``assert_no_syncs(allow=…)`` that is neither a kind nor a place."""

    def __init__(self, entry: object, kinds: Iterable[str]) -> None:
        names = list(kinds)
        hint = did_you_mean(str(entry), names)
        super().__init__(
            f"fusepass: allow={entry!r} of assert_no_syncs is neither a kind nor a pattern "
            f"'file:line'.{hint} Kinds: {', '.join(names)}."
        )


class MissingHypothesis(FusepassError, ImportError):
    """``check_rule`` draws its programs with Hypothesis, which is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "fusepass: fusepass.testing.check_rule needs Hypothesis: "
            "pip install 'hypothesis>=6.100'."
        )


class UnknownProfile(FusepassError, ValueError):
    """A profile that ``check_rule`` does not have."""

    def __init__(self, profile: str, known: Iterable[str]) -> None:
        super().__init__(
            f"fusepass: no profile {profile!r} of fusepass.testing.check_rule. There are: "
            f"{', '.join(known)}."
        )


class FrozenChanged(FusepassError, RuntimeError):
    """A weight was written after it had become a constant of compiled code."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"fusepass: {name} was changed after it had been compiled as a constant "
            "(options={'frozen': True}). Call torch.compiler.reset() to compile again with what it "
            "is now, or leave the option out."
        )


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
