"""Print one of the README's two commands, so that the pipeline runs what the README says.

A command is the ``sh`` block that follows the line ``<!-- command: NAME -->``. With ``--venv`` and
``--install`` its environment and what it installs are replaced (the README installs the checkout;
the pipeline installs the wheel it has just built); everything else stays as written.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"
# `.venv` as a whole path component; `-e '.[extra]'` is how the README installs the checkout.
_VENV = re.compile(r"(?<![\w/])\.venv(?![\w.])")
_TARGET = re.compile(r"-e '\.\[(\w+)\]'")


def command(name: str, text: str) -> str:
    """The command called ``name`` in the README's ``text``.

    Raises:
        ValueError: there is not exactly one such command.
    """
    found = re.findall(rf"<!-- command: {re.escape(name)} -->\s*```sh\n(.*?)\n```", text, re.DOTALL)
    if len(found) != 1:
        raise ValueError(f"README.md has {len(found)} commands called {name!r}, expected one")
    return str(found[0])


def redirect(line: str, venv: str, wheel: str) -> str:
    """``line`` with its environment at ``venv`` and ``wheel`` installed in place of the checkout.

    Raises:
        ValueError: the command no longer has the form that can be redirected.
    """
    line, environments = _VENV.subn(venv, line)
    line, targets = _TARGET.subn(lambda match: f"'{wheel}[{match[1]}]'", line)
    if environments < 2 or targets != 1:
        raise ValueError(
            f"cannot redirect the README's command (see .ci/readme_command.py): {line}"
        )
    return line


def main() -> None:
    """Print the command asked for on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="quickstart or test")
    parser.add_argument("--venv", help="environment to use in place of .venv")
    parser.add_argument("--install", help="wheel to install in place of the checkout")
    given = parser.parse_args()
    line = command(given.name, README.read_text())
    if given.venv or given.install:
        if not (given.venv and given.install):
            parser.error("--venv and --install go together")
        line = redirect(line, given.venv, given.install)
    print(line)


if __name__ == "__main__":
    main()
