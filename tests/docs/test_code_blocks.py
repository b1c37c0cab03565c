"""Every block of Python in the README and in docs/ runs, and prints the text block behind it.

A page is one program: its blocks run in order in one module, as a reader would paste them into one
file. In a text block a line ``…`` stands for any lines, and ``…`` in a line for any characters.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import fusepass
from fusepass.rewrite.registry import active_rules
from fusepass.rewrite.rule import Rule
from fusepass.testing import RuleCheck, check_rule
from fusepass.testing.profiles import PROFILES

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# Pages whose blocks are programs of their own, with the test that runs each of them.
SEPARATE = {"docs/reasons.md": "tests/report/test_reasons.py"}
# Programs of their own on a page: blocks that import what they use start a new module.
MODULE_PER_BLOCK = {"README.md"}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: its kind, its text, and its line in the page."""

    kind: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text()
    return [
        Block(match.group(1), match.group(2), text[: match.start()].count("\n") + 1)
        for match in BLOCK.finditer(text)
    ]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def pages_with_code() -> list[str]:
    return [name_of(p) for p in PAGES if any(b.kind == "python" for b in blocks(p))]


def agrees(printed: str, expected: str) -> bool:
    """Whether ``expected``, with its ``…``, describes ``printed``."""
    parts = [re.escape(part) for part in re.split(r"^…\n", expected, flags=re.MULTILINE)]
    wanted = r"(?:.*\n)*?".join(parts).replace("…", ".*")
    return re.fullmatch(wanted, printed.rstrip("\n") + "\n") is not None


@pytest.fixture
def as_before() -> Iterator[None]:
    """The rules in force before are those in force behind."""
    names = {rule.name for rule in active_rules()}
    yield
    fusepass.reset()
    for rule in active_rules():
        if rule.name not in names:
            fusepass.unregister(rule)


def run(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[ModuleType]:
    """Run a page's blocks; the modules that they made.

    Raises:
        AssertionError: a block prints something else than the text block behind it.
    """
    modules: list[ModuleType] = []
    done = ""
    listed = blocks(page)
    for number, block in enumerate(listed):
        if block.kind != "python":
            continue
        if not modules or name_of(page) in MODULE_PER_BLOCK:
            fusepass.reset()  # what the program before compiled is gone with that program
            modules.append(ModuleType(f"page_{page.stem}_{len(modules)}"))
            monkeypatch.setitem(sys.modules, modules[-1].__name__, modules[-1])
            done = ""
        # A file of its own: tracing and reports read source lines. Earlier blocks are blank lines.
        (folder / str(block.line)).mkdir()
        monkeypatch.chdir(folder / str(block.line))
        file = Path.cwd() / "program.py"
        file.write_text("\n" * done.count("\n") + block.text)
        done += block.text
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(file.read_text(), str(file), "exec"), vars(modules[-1]))
        follower = listed[number + 1] if number + 1 < len(listed) else None
        if follower is not None and follower.kind == "text":
            where = f"{name_of(page)}:{follower.line} should be\n{output.getvalue()}"
            assert agrees(output.getvalue(), follower.text), where
    return modules


@pytest.mark.parametrize("name", [n for n in pages_with_code() if n not in SEPARATE])
def test_page_runs_and_prints_what_it_says(
    name: str, as_before: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its rules pass ``check_rule``, except those that a page calls wrong."""
    checked = []  # by the page itself, too

    def check(rule: Rule, *given: Any, **more: Any) -> RuleCheck:
        result = check_rule(rule, *given, **more)
        checked.append(rule)
        return result

    monkeypatch.setattr(fusepass.testing, "check_rule", check)
    modules = run(ROOT / name, tmp_path, monkeypatch)
    brief = dataclasses.replace(PROFILES["quick"], seconds=1.0)
    monkeypatch.setitem(PROFILES, "quick", brief)
    values = itertools.chain.from_iterable(vars(module).items() for module in modules)
    for called, rule in values:
        if isinstance(rule, Rule) and called != "wrong" and rule not in checked:
            check_rule(rule)


@pytest.mark.parametrize("name", sorted(SEPARATE))
def test_separate_pages_have_their_test(name: str) -> None:
    assert (ROOT / name).exists()
    assert Path(name).name in (ROOT / SEPARATE[name]).read_text()


def test_a_wrong_output_is_seen() -> None:
    assert agrees("a\nb\nc\n", "a\n…\nc\n")
    assert agrees("a\nb\n", "…\n")
    assert agrees("took 3 s\n", "took … s\n")
    assert not agrees("took 3\n4 s\n", "took … s\n")
    assert not agrees("a\nb\n", "a\n")
    assert not agrees("a.b\n", "axb\n")


def test_every_text_block_stands_behind_code() -> None:
    """A block of output that no block of Python precedes is never compared with anything."""
    for page in PAGES:
        kinds = [block.kind for block in blocks(page)]
        for before, kind in itertools.pairwise(["", *kinds]):
            assert kind != "text" or before == "python", name_of(page)
