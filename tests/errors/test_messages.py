"""Errors and warnings: what they derive from, and that each says what is wrong and what to do."""

from __future__ import annotations

import inspect

import pytest

from fusepass import errors

EVERY = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, Exception)
]
MADE = [
    (errors.UnknownOption("mod", ["mode"]), ["'mod'", "'mode'", "options"]),
    (errors.UnknownOption("b", ["a"], "options['rules']"), ["options['rules']"]),
    (errors.OptionType("verify", 1, "True or False"), ["'verify'", "True or False", "int", "1"]),
    (errors.OptionValue("mode", "fast", ["default"]), ["'mode'", "'fast'", "default"]),
    (errors.RuleError("r", "f.py:3", "it broke"), ["'r'", "f.py:3", "it broke"]),
    (errors.NoReport("net"), ["net", "Call it", "reset"]),
    (errors.UnsupportedVersion("3.0", "3.15", "torch 2.11"), ["3.0", "3.15", "torch 2.11"]),
    (errors.UnsupportedVersion("3.0", "3.15", "torch 2.11", "no such"), ["3.15 (no such)"]),
    (errors.CacheUnusable("/cache", "no"), ["/cache", "TORCHINDUCTOR_CACHE_DIR"]),
    (
        errors.CacheNotPrivate("/c", "can be written by other users (mode 777)", is_folder=True),
        ["/c", "mode 777", "chmod go-w /c", "FUSEPASS_CACHE_DIR"],
    ),
    (
        errors.CacheNotPrivate("/c/f", "belongs to another user (x)", is_folder=False),
        ["/c/f", "belongs to another user (x)", "remove it"],
    ),
    (errors.CacheDamaged("/cache/a.so", "/cache", "too short"), ["/cache/a.so", "Delete the file"]),
    (errors.CaptureFault("f.py:3", "no"), ["f.py:3", "report"]),
    (
        errors.FrameNotCompiled("`f` (f.py:3)", "f.py:5", "it prints", "loop"),
        ["`f` (f.py:3)", "f.py:5", "it prints", "body of the loop", "function of its own"],
    ),
    (
        errors.FrameNotCompiled("`f` (f.py:3)", "f.py:5", "it prints", None),
        ["cannot go on behind a graph break there", "move those lines"],
    ),
    (errors.RewriteFault("r", "no"), ["'r'", "report"]),
    (errors.RuleCheckFault("r", "f.py:3", "check raised"), ["f.py:3", "check raised", "Mend"]),
    (errors.OptionsChanged(), ["reset"]),
    (errors.NotIterable(3), ["3", "int", "loader first"]),
    (errors.PrefetchDepth(0), ["depth", "0", "at least 1"]),
    (errors.PrefetchDevice("gpu", "no such. Signatures:\n f()"), ["'gpu'", "no such", "'cuda'"]),
    (errors.PrefetchDied(), ["forked", "new loop"]),
    (errors.PrefetchNotStopped(5.0), ["5 s", "do not use the loader"]),
    (errors.PinnedMemoryFull(12, "no. more\nless"), ["12 bytes", "no. more.", "depth"]),
    (errors.UnmovableBatch(dict, "TypeError: no"), ["builtins.dict", "TypeError: no", "pytree"]),
    (errors.PeaksUnusable("/cache/p.json", "no"), ["/cache/p.json", "FUSEPASS_DEVICE_PEAKS"]),
]
BASES = {
    errors.UnknownOption: ValueError,
    errors.OptionType: TypeError,
    errors.OptionValue: ValueError,
    errors.NoReport: LookupError,
    errors.RuleError: ValueError,
    errors.NotIterable: TypeError,
    errors.PrefetchDepth: ValueError,
    errors.PrefetchDevice: ValueError,
    errors.PrefetchDied: RuntimeError,
    errors.UnmovableBatch: TypeError,
}


@pytest.mark.parametrize(("error", "words"), MADE)
def test_message(error: Exception, words: list[str]) -> None:
    text = str(error)
    assert text.startswith("fusepass: ")
    assert text[-1] == "."
    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize("kind", EVERY)
def test_one_base_for_errors_and_one_for_warnings(kind: type[Exception]) -> None:
    if issubclass(kind, Warning):
        assert issubclass(kind, errors.FusepassWarning)
        assert issubclass(kind, UserWarning)
    else:
        assert issubclass(kind, errors.FusepassError)
    assert kind.__doc__


@pytest.mark.parametrize(("kind", "base"), BASES.items())
def test_what_a_program_would_catch(kind: type[Exception], base: type[Exception]) -> None:
    assert issubclass(kind, base)


def test_long_lists_are_cut() -> None:
    text = str(errors.UnknownOption("zz", [f"key{n}" for n in range(500)]))
    assert "…" in text
    assert len(text) < 1000
