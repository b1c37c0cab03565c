"""Prose that a machine can judge: pages, docstrings, comments, messages and test names.

Plain English is subject, verb, object. Three habits that make a sentence hard to read can be found
without understanding it: a beginning with “Of”, a word that is not the field's, and a sentence that
is a table. What a reader has to read twice otherwise, only a reader finds.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("fusepass", "kernels", "patterns", "tests", "examples")
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
SOURCES = sorted(
    file
    for folder in FOLDERS
    for file in (ROOT / folder).rglob("*.py")
    if file != Path(__file__).resolve()
)
GENERATED = {"performance.md"}  # tables and their captions, written from the records

MOST_NUMBERS = 6
SPACES_OF_A_MESSAGE = 3  # a shorter string is a name or a piece of code

# What is not a word of the field, and the word that is.
RATHER = {
    r"dear(er|est)?": "expensive",
    r"utterances?": "print or log call",
    r"rehearsals?": "dry run",
    r"elsewise": "in another layout",
    r"put to the question": "tried",
    r"single pixels": "1×1",
    r"plane by plane": "NCHW",
    r"own words": "terms",
    r"elementwise|element-wise": "pointwise",
    r"launch(es)? away": "fewer launches",
    r"multiprocessors? stand": "idle multiprocessors",
    r"speak(s)? of": "mention",
    r"whoever|whosoever": "a name for who it is",
    r"thereof|therein|whereof|wherein|whereat": "a pronoun with its noun",
}
BANNED = re.compile(rf"\b(?:{'|'.join(RATHER)})\b", re.IGNORECASE)
BEGINS_WITH_OF = re.compile(r"(?:^|(?<=[.!?:;] )|(?<=[.!?]\n))Of (?!course)", re.MULTILINE)
NUMBER = re.compile(r"(?<![\w.`])\d[\d,.]*(?![\w`])")
CODE = re.compile(r"```.*?```|`[^`]*`|<!--.*?-->|https?://\S+|\]\([^)]*\)", re.DOTALL)
TABLE_ROW = re.compile(r"^\s*\|.*$", re.MULTILINE)
PATH = re.compile(
    r"(?<![\w./-])(?:fusepass|kernels|patterns|tests|examples|docs)(?:/[\w-]+)+\.(?:py|md|json)\b"
)
MODULE = re.compile(r"(?<![\w./:-])fusepass(?:\.[a-z_0-9]+)+")
FILE_NAME = re.compile(r"`([\w-]+\.py)`")
HISTORY = {"CHANGELOG.md"}  # names what was there, too
SENTENCE = re.compile(r"(?<=[.!?])\s+|\n\s*\n|\n(?=[-*#|>])")


def plain(text: str) -> str:
    """A page without code and links' targets."""
    return CODE.sub("x", text)


def without_code(text: str) -> str:
    """A docstring or comment without code and indented blocks."""
    return re.sub(r"``[^`]*``|^ {4,}.*$", "x", text, flags=re.MULTILINE)


@cache
def texts(source: str) -> tuple[tuple[int, str], ...]:
    """Line and text of each docstring and each block of comments of a source file."""
    return (*docstrings(source), *comments(source))


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield node.body[0].lineno, text


def messages(source: str) -> Iterator[tuple[int, str]]:
    """Strings of several words: errors, warnings, reasons, words of reports.

    Docstrings are left out, and so are strings of several lines: those are code to be generated.
    """
    tree = ast.parse(source)
    said = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    parts = {
        id(part): node
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(p.value if isinstance(p, ast.Constant) else "x" for p in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = "" if id(node) in said or id(node) in parts else node.value
        else:
            continue
        if text.count(" ") >= SPACES_OF_A_MESSAGE and "\n" not in text:
            yield node.lineno, text


def names_of_tests(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name[:5] == "test_":
            yield node.lineno, node.name[5:].replace("_", " ").capitalize()


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Comments, with those of neighbouring lines joined."""
    last, begin, words = -2, 0, ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line, text = token.start[0], token.string.lstrip("#: ")
        if line == last + 1:
            words += f"\n{text}"
        else:
            if words:
                yield begin, words
            begin, words = line, text
        last = line
    if words:
        yield begin, words


def faults(text: str, tables: bool = False) -> Iterator[str]:
    """What is wrong with a text; ``tables``: whether rows of tables may be full of numbers."""
    for match in BEGINS_WITH_OF.finditer(text):
        yield f"a sentence begins with “Of”: {text[match.start() : match.start() + 50]!r}"
    for match in BANNED.finditer(text):
        word = match.group().lower()
        rather = next(r for w, r in RATHER.items() if re.fullmatch(w, word))
        yield f"{word!r}: rather {rather!r}"
    prose = TABLE_ROW.sub("", text) if tables else text
    for sentence in SENTENCE.split(prose):
        if len(NUMBER.findall(sentence)) > MOST_NUMBERS:
            yield f"more than {MOST_NUMBERS} numbers in a sentence: {sentence[:80]!r}"


def absent(text: str, folder: Path = ROOT) -> Iterator[str]:
    """Paths, modules and file names in a text that the tree has not; ``folder``: of the page."""
    for path in PATH.findall(text):
        if not (ROOT / path).exists() and not (folder / path).exists():
            yield path
    for module in MODULE.findall(text):
        file, name = file_of(module)
        if name and not re.search(rf"\b{name}\b", file.read_text()):
            yield module
    yield from (name for name in FILE_NAME.findall(text) if name not in file_names())


@cache
def file_names() -> set[str]:
    return {file.name for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")}


def file_of(module: str) -> tuple[Path, str]:
    """The file that a dotted name leads to, and the next part of the name, which it must define."""
    parts = module.split(".")
    folder = ROOT if parts[1] in ("kernels", "patterns") else ROOT / parts[0]
    for at, part in enumerate(parts[1:], 1):
        if (folder / f"{part}.py").exists():
            return folder / f"{part}.py", parts[at + 1] if at + 1 < len(parts) else ""
        if not (folder / part).is_dir():
            return folder / "__init__.py", part
        folder /= part
    return folder / "__init__.py", ""


def assert_plain(folder: str, texts_of: Callable[[str], Iterable[tuple[int, str]]]) -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}: {fault}"
        for file in SOURCES
        if file.is_relative_to(ROOT / folder)
        for line, text in texts_of(file.read_text())
        for fault in faults(without_code(text))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page(page: Path) -> None:
    if page.name not in GENERATED:
        assert list(faults(plain(page.read_text()), tables=True)) == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_and_comments(folder: str) -> None:
    assert_plain(folder, texts)


@pytest.mark.parametrize("folder", [name for name in FOLDERS if name != "tests"])
def test_messages(folder: str) -> None:
    assert_plain(folder, messages)


def test_names_of_tests() -> None:
    assert_plain("tests", names_of_tests)


def test_files_and_modules_named_are_there() -> None:
    pages = ((page, 1, page.read_text()) for page in PAGES if page.name not in HISTORY)
    sources = ((file, line, text) for file in SOURCES for line, text in texts(file.read_text()))
    missing = [
        f"{file.relative_to(ROOT)}:{line}: {name}"
        for file, line, text in (*pages, *sources)
        for name in absent(text, file.parent)
    ]
    assert not missing, "\n".join(missing)


def test_names_that_are_not_there_are_seen() -> None:
    assert list(absent("docs/design.py, `no_such_file.py` and fusepass.tune.no_such_module")) == [
        "docs/design.py",
        "fusepass.tune.no_such_module",
        "no_such_file.py",
    ]
    assert not list(absent("fusepass.syncs, fusepass/backend.py and fusepass.kernels.gemm.op"))


def test_the_lint_sees_each_fault() -> None:
    assert list(faults("A row. Of these, three.")) != []
    assert list(faults("Of course it is.")) == []
    assert list(faults("Two arms are dear.")) != []
    assert list(faults("1, 2, 3, 4, 5, 6 and 7 are numbers.")) != []
    assert list(faults("| 1 | 2 | 3 | 4 | 5 | 6 | 7 |", tables=True)) == []
    assert list(comments("x = 1  # Of one\n# two\n\n# three\n")) == [
        (1, "Of one\ntwo"),
        (4, "three"),
    ]
    assert list(messages('"""Of one."""\nx = "Of one two three"\ny = f"Of {x} two three"\n')) == [
        (2, "Of one two three"),
        (3, "Of x two three"),
    ]
    assert list(names_of_tests("def test_of_two():\n    pass\n")) == [(1, "Of two")]
    assert list(docstrings('def f():\n    """Of one."""\n')) == [(2, "Of one.")]
