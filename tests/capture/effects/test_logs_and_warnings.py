"""Log records and warnings of compiled code, compared with eager's."""

# ruff: noqa: LOG015, B028, T201 - the programs write in every way there is

from __future__ import annotations

import logging
import traceback
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.harness.call import call

from ..support.written import assert_kept, assert_late, assert_same_text, treatments
from .test_print_hooks import graded, inputs, logger


def helper(x: Tensor) -> Tensor:
    logger.warning("mean %s of %d in %s", x.mean(), len(x), x.shape)
    logging.getLogger("fusepass_tests.speech").info("an f-string %.2f", x.sum())
    logger.log(logging.ERROR, f"{x.sum():.2f}")
    return x + 1


class Deep(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return helper(x * 2)


def test_log_records() -> None:
    logger.setLevel(logging.DEBUG)
    compiled = assert_same_text(Deep(), inputs, graded)
    assert {"late"} <= set(dict(treatments(compiled)))


def methods(x: Tensor) -> Tensor:
    logger.debug("debug %s", x)
    logger.info("info")
    logger.error("error %(a)s", {"a": x.sum().item()})
    logger.critical("critical %s %s", [x], x.dtype)
    return x + 1


def test_levels_are_those_of_the_call() -> None:
    logger.setLevel(logging.DEBUG)
    compiled = assert_same_text(methods, inputs)
    assert_late(compiled, 4)
    for level in (logging.ERROR, logging.INFO):
        logger.setLevel(level)
        assert call(compiled, inputs()).said == call(methods, inputs()).said


def test_root_functions_of_logging() -> None:
    def program(x: Tensor) -> Tensor:
        logging.warning("root %s", x.sum())
        logging.info("quiet")
        return x * 2

    assert_late(assert_same_text(program, inputs), 2)


def test_other_loggers_are_told_apart() -> None:
    class Holder:
        def __init__(self, name: str) -> None:
            self.log = logging.getLogger(name)

    def program(holder: Holder, x: Tensor) -> Tensor:
        holder.log.warning("x %s", x)
        return x * 2

    names = ["fusepass_tests.a", "fusepass_tests.b"]
    first, second = ((lambda name=name: (Holder(name), *inputs())) for name in names)
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    for make in (first, second, first):
        assert call(compiled, make()).said == call(program, make()).said


def asks_before(x: Tensor) -> Tensor:
    log = logging.getLogger("fusepass_tests.asked.below")
    if log.isEnabledFor(logging.DEBUG):
        log.debug("debug %s", x.sum())
    if log.isEnabledFor(logging.INFO):
        log.info("info %s", x.max())
    return x * 2


def test_a_logger_that_is_asked_first(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("fusepass_tests.asked")
    compiled = torch.compile(asks_before, backend="fusepass", options={"codegen": "eager"})
    for level in (logging.INFO, logging.DEBUG, logging.ERROR, logging.INFO):
        log.setLevel(level)
        for _ in range(2):
            assert call(compiled, inputs()).said == call(asks_before, inputs()).said
    assert_late(compiled, graphs=3)
    log.setLevel(logging.DEBUG)
    logging.disable(logging.DEBUG)
    caplog.clear()
    try:
        compiled(*inputs())
        assert [record.levelno for record in caplog.records] == [logging.INFO]
    finally:
        logging.disable(logging.NOTSET)


def test_an_adapter() -> None:
    adapter = logging.LoggerAdapter(logger, {"rank": 0})

    def program(x: Tensor) -> Tensor:
        adapter.info("x %s", x.sum())
        return x * 2

    logger.setLevel(logging.INFO)
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    for _ in range(2):
        assert call(compiled, inputs()).said == call(program, inputs()).said


class Own(logging.Logger):
    def info(self, msg: object, *args: object, **kwargs: Any) -> None:
        super().info(f"own {msg}", *args, **kwargs)


class OwnWarning(UserWarning):
    def __init__(self, text: str, code: int = 3) -> None:
        super().__init__(text, code)


def warns(x: Tensor) -> Tensor:
    warnings.warn(f"mean {x.mean():.3f}")
    warnings.warn("of a class", DeprecationWarning)
    warnings.warn(OwnWarning("made here"))
    warnings.warn("level", category=RuntimeWarning, stacklevel=1)
    return x + 1


def warns_of_its_caller(x: Tensor) -> Tensor:
    warnings.warn(f"{x.sum()} caller", stacklevel=2)
    return x * 2


def calls(x: Tensor) -> Tensor:
    y = warns_of_its_caller(x)
    return y + 1


@pytest.mark.parametrize("program", [warns, calls])
def test_warnings(program: Any) -> None:
    assert_late(assert_same_text(program, inputs))


def test_warnings_are_shown_once() -> None:
    def program(x: Tensor) -> Tensor:
        warnings.warn("once per place")
        return x + 1

    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    compiled(*inputs())
    counts = []
    for target in (program, compiled):
        globals().pop("__warningregistry__", None)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("default")
            for _ in range(3):
                target(*inputs())
        counts.append(len(seen))
    assert counts == [1, 1]


def test_a_warning_that_is_an_error_is_kept() -> None:
    def program(x: Tensor) -> Tensor:
        y = x * 2
        warnings.warn("an error")
        x.zero_()
        return y

    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    (x,) = inputs()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        with pytest.raises(UserWarning, match="an error"):
            compiled(x)
    assert torch.equal(x, inputs()[0])
    assert_kept(compiled, "raises")


def warns_in_each_round(x: Tensor, quiet: list[Any]) -> Tensor:
    for _ in range(2):
        if not quiet:
            warnings.warn(f"sum {x.sum().item()}")
            print("max", x.max())
        if (x > 0).sum() == 0:
            return x
    return x * 2


def raises_in_a_later_round(x: Tensor, quiet: list[Any]) -> Tensor:
    for _ in range(3):
        if x.sum() > 50:
            raise ValueError(f"sum {x.sum().item()}")
        x = x * 5
        if (x > 0).sum() == 0:
            return x
    return x * 2


@pytest.mark.parametrize("program", [warns_in_each_round, raises_in_a_later_round])
def test_lines_of_a_loop_that_goes_on_behind_a_graph_break(
    program: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """What stands in front of the break has no lines of its own in the code that goes on."""
    turns = (torch.ones(2), -torch.ones(2), torch.full((2,), 30.0))
    given = [lambda x=x: (x.clone(), []) for x in turns]
    compiled = torch.compile(program, backend="fusepass", options={"codegen": "eager"})
    shown = []
    for called in (program, compiled):
        lines: list[Any] = []
        for make in given:
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                try:
                    lines.append(called(*make()).tolist())
                except ValueError as error:
                    frames = traceback.extract_tb(error.__traceback__)
                    lines.append([f.lineno for f in frames if f.filename == __file__][-1])
            own = (w for w in warned if w.filename == __file__)
            lines.append([(str(w.message), w.lineno) for w in own])
        shown.append((lines, capsys.readouterr().out))
    assert shown[0] == shown[1]
