"""The pytest plugin: how hard rules are checked, from the command line; a reset between tests.

pytest loads this in every session of every project that fusepass is installed beside, so nothing
here imports torch, Hypothesis or the rest of fusepass before a test asks for it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

PROFILES = ("quick", "ci", "nightly")  # those of fusepass.testing.profiles, read without it


def pytest_addoption(parser: pytest.Parser) -> None:
    """Command-line options of the plugin."""
    group = parser.getgroup("fusepass", "property tests of rules for fusepass")
    group.addoption(
        "--fusepass-profile",
        choices=PROFILES,
        default="quick",
        help="how many programs fusepass_check_rule tries for each rule (default: quick)",
    )
    group.addoption(
        "--fusepass-seed",
        type=int,
        default=None,
        help="seed of these programs; a failure says which one it had",
    )


def pytest_report_header(config: pytest.Config) -> str | None:
    """What was asked for, in the header; nothing for who asked for nothing."""
    profile, seed = config.getoption("--fusepass-profile"), config.getoption("--fusepass-seed")
    if profile == "quick" and seed is None:
        return None
    shown = "of the profile" if seed is None else seed
    return f"fusepass: rules checked with profile {profile}, seed {shown}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[Any]) -> Generator[None, Any, Any]:
    """Say below a failed check how to run the same programs again."""
    report = yield
    errors = sys.modules.get("fusepass.errors")
    if errors is not None and call.excinfo is not None:
        failure = call.excinfo.value
        if isinstance(failure, errors.RuleCheckFailed):
            flags = f"--fusepass-profile {failure.profile} --fusepass-seed {failure.seed}"
            report.sections.append(("fusepass", f"to try the same programs again: {flags}"))
    return report


@pytest.fixture
def fusepass_rule_profile(request: pytest.FixtureRequest) -> str:
    """The profile to check rules with: ``--fusepass-profile``."""
    return str(request.config.getoption("--fusepass-profile"))


@pytest.fixture
def fusepass_check_rule(
    request: pytest.FixtureRequest, fusepass_rule_profile: str
) -> Callable[..., Any]:
    """``fusepass.testing.check_rule`` with the profile and the seed of the command line."""
    from fusepass.testing import check_rule

    seed = request.config.getoption("--fusepass-seed")
    return functools.partial(check_rule, profile=fusepass_rule_profile, seed=seed)


@pytest.fixture
def fusepass_reset() -> Iterator[None]:
    """Nothing compiled before the test, and nothing it compiled after it."""
    _reset()
    yield
    _reset()


def _reset() -> None:
    if "torch" in sys.modules:  # else nothing can have been compiled
        from fusepass.report.explain import reset

        reset()
