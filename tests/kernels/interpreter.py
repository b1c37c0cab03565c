"""A test's file as a program whose kernels Triton interprets.

In a process of its own: Triton decides when it is imported whether it interprets.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs Triton, which this torch came without"
)


# The checkout comes last, since what it holds of fusepass is not the package that is tested.
_PROGRAM = f"""
import runpy, sys
sys.path.append({str(Path(__file__).parents[2])!r})
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def interpret(script: str, folder: Path, *arguments: str) -> None:
    """Run ``script`` in ``folder``; it is to print ``interpreted``, and nothing else.

    Its loops run to numbers read in the kernel, which Triton 3.6 cannot interpret with NumPy 2.5
    (``int()`` of an array of one element, an error since then); the test is skipped there.
    """
    found = [_version("triton"), _version("numpy")]
    if found[0] < (3, 7) and found[1] >= (2, 5):
        pytest.skip("the interpreter of Triton 3.6 needs NumPy before 2.5 for such loops")
    done = subprocess.run(
        [sys.executable, "-P", "-c", _PROGRAM, script, *arguments],
        cwd=folder,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == "interpreted\n"


def _version(package: str) -> tuple[int, ...]:
    text = importlib.metadata.version(package)
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])
