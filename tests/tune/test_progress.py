"""What a user sees of a long search."""

from __future__ import annotations

import io

import pytest

from fusepass.tune.timing import progress_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_that_moves_and_goes() -> None:
    out = Terminal()
    assert list(progress_bar("abcd", "timing gemm", wanted=True, stream=out)) == list("abcd")
    *lines, last = out.getvalue().split("\r\x1b[K")[1:]
    assert [line.rsplit("] ")[1] for line in lines] == [f"{i} of 4" for i in (1, 2, 3, 4)]
    assert [line.count("#") for line in lines] == [0, 5, 10, 15]
    assert all(line.startswith("fusepass: timing gemm [") for line in lines)
    assert last == ""


def test_it_goes_when_the_work_fails() -> None:
    out = Terminal()
    work = progress_bar((1, 2), "timing", wanted=True, stream=out)
    next(work)
    with pytest.raises(ValueError, match="no"):
        work.throw(ValueError("no"))
    assert out.getvalue().endswith("\r\x1b[K")


@pytest.mark.parametrize(("stream", "wanted"), [(io.StringIO(), True), (Terminal(), False)])
def test_where_nobody_looks(stream: io.StringIO, wanted: bool) -> None:
    assert list(progress_bar((1, 2), "timing", wanted=wanted, stream=stream)) == [1, 2]
    assert not stream.getvalue()
