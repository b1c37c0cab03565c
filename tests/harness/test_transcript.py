"""A transcript has everything that was said, in order, and nothing that compilers say."""

from __future__ import annotations

import logging
import sys
import warnings

import pytest
import torch

from tests.harness.transcript import Said, recorded

LOG = logging.getLogger("transcript")


def kinds(said: list[Said]) -> list[tuple[str, str]]:
    return [(one.kind, one.text) for one in said]


def test_everything_in_one_order() -> None:
    LOG.setLevel(logging.INFO)
    with recorded() as transcript:
        print("one", 2)  # noqa: T201
        print("three", end="")  # noqa: T201
        LOG.info("four %s", 5)
        warnings.warn("six", RuntimeWarning, stacklevel=1)
        print("seven", file=sys.stderr)  # noqa: T201
        print("eight")  # noqa: T201
    assert kinds(transcript.said) == [
        ("stdout", "one 2\nthree"),
        ("log", "four 5"),
        ("warning", "six"),
        ("stderr", "seven\n"),
        ("stdout", "eight\n"),
    ]
    log, warning = transcript.said[1:3]
    assert log.label == "transcript INFO in test_everything_in_one_order with 1 arguments"
    assert warning.label == "RuntimeWarning"
    assert log.file == warning.file == __file__
    assert warning.line == log.line + 1


def test_exceptions_of_log_records_and_levels() -> None:
    LOG.setLevel(logging.WARNING)
    with recorded() as transcript:
        LOG.info("too low")
        try:
            raise ValueError("bad")
        except ValueError:
            LOG.exception("caught")
    (one,) = transcript.said
    function = "test_exceptions_of_log_records_and_levels"
    assert one.label == f"transcript ERROR in {function} with 0 arguments, ValueError: bad"


def test_what_compilers_say_is_left_out() -> None:
    with recorded() as transcript:
        logging.getLogger("torch._dynamo").warning("recompiles")
        logging.getLogger("fusepass.capture").warning("keeps")
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    assert transcript.said == []


def test_what_torch_fx_writes_of_an_error_is_left_out() -> None:
    graph = torch.fx.symbolic_trace(lambda x: x[7])
    with recorded() as transcript, pytest.raises(IndexError):
        graph(torch.ones(2))
    assert transcript.said == []
    with recorded() as transcript:
        print("one", file=sys.stderr)  # noqa: T201
    assert kinds(transcript.said) == [("stderr", "one\n")]


def test_a_handler_that_leaves_by_itself_may_do_so() -> None:
    """That of torch's trace, which writes down what is compiled as long as it is there."""

    class Leaves(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            traced.removeHandler(self)

    traced = logging.getLogger("torch.__fusepass_tests")
    traced.addHandler(Leaves())
    with recorded():
        traced.error("compiled")
    assert traced.handlers == []


@pytest.mark.parametrize(
    ("shown", "times"), [("always", 3), ("default", 1), ("once", 1), ("ignore", 0)]
)
def test_warnings_are_shown_as_asked_each_time_anew(shown: str, times: int) -> None:
    for _ in range(2):
        with recorded(shown) as transcript:
            for _ in range(3):
                warnings.warn("again", stacklevel=1)
        assert len(transcript.said) == times


def test_warnings_can_raise() -> None:
    with recorded("error") as transcript, pytest.raises(UserWarning, match="now"):
        warnings.warn("now", stacklevel=1)
    assert transcript.said == []


def test_nothing_is_left_behind() -> None:
    before = (sys.stdout, sys.stderr, warnings.showwarning, list(logging.root.handlers))
    logging.disable(logging.ERROR)
    try:
        with recorded():
            LOG.error("heard although logging is disabled outside")
        assert logging.root.manager.disable == logging.ERROR
    finally:
        logging.disable(logging.NOTSET)
    assert (sys.stdout, sys.stderr, warnings.showwarning, list(logging.root.handlers)) == before
