"""The switch interval is short inside, and whatever it was outside."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from fusepass.prefetching.gil_switching import SHORT, short_turns
from fusepass.prefetching.lookahead import Lookahead, Staged


@pytest.fixture(autouse=True)
def own_interval() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.004)
    yield
    sys.setswitchinterval(before)


def test_shorter_inside_and_put_back() -> None:
    with short_turns():
        assert sys.getswitchinterval() == pytest.approx(SHORT)
    assert sys.getswitchinterval() == pytest.approx(0.004)


def test_the_last_one_puts_it_back() -> None:
    first, second = short_turns(), short_turns()
    with second:
        first.__enter__()
        first.__exit__(None, None, None)
        assert sys.getswitchinterval() == pytest.approx(SHORT)
    assert sys.getswitchinterval() == pytest.approx(0.004)


def test_an_interval_set_meanwhile_stays() -> None:
    with short_turns():
        sys.setswitchinterval(0.002)
    assert sys.getswitchinterval() == pytest.approx(0.002)


def test_one_that_is_shorter_stays() -> None:
    sys.setswitchinterval(SHORT / 2)
    with short_turns():
        assert sys.getswitchinterval() == pytest.approx(SHORT / 2)
    assert sys.getswitchinterval() == pytest.approx(SHORT / 2)


def test_put_back_behind_an_error() -> None:
    with pytest.raises(ValueError, match="inside"), short_turns():
        raise ValueError("inside")
    assert sys.getswitchinterval() == pytest.approx(0.004)


def test_short_while_batches_are_made_ahead() -> None:
    seen = []

    def items() -> Iterator[int]:
        seen.append(sys.getswitchinterval())
        yield 1

    ahead = Lookahead(items(), Staged, lambda value: value, depth=1)
    assert list(ahead) == [1]
    ahead.close()
    assert seen == [pytest.approx(SHORT)]
    assert sys.getswitchinterval() == pytest.approx(0.004)
