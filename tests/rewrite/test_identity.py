"""What Inductor's cache keys contain of ours: all that can change a graph, and nothing else."""

from __future__ import annotations

import inspect
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusepass.default_rules import default_rules, graph_rules
from fusepass.inductor import passes
from fusepass.options import resolve
from fusepass.rewrite import graph_rule, source_hash

IN_THE_KEY = [
    "fusepass.patterns.branch_to_where",
    "fusepass.patterns.branch_to_cond",
    "fusepass.patterns.constant_attention_mask",
    "fusepass.patterns.host_tensor",
    "fusepass.patterns.joined_reductions",
    "fusepass.graph.dataflow.write_history",
    "fusepass.graph.dataflow.mask_facts",
    "fusepass.graph.dataflow.value_numbering",
    "fusepass.patterns.branch_drop",
    "fusepass.patterns.short_circuit",
    "fusepass.graph.safety.gradient_gates",
    "fusepass.graph.dataflow.constant_folding",
    "fusepass.patterns.linear_activation",
]
NOT_IN_THE_KEY = ["fusepass.report.report", "fusepass.errors", "fusepass.capture.dynamo_hooks"]


@pytest.fixture
def edit(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that adds a comment to a module's source, as far as anybody can see."""
    original: Callable[[Any], str] = inspect.getsource

    def change(name: str) -> None:
        def source(part: Any) -> str:
            text = original(part)
            return text + "# more\n" if part is sys.modules[name] else text

        monkeypatch.setattr(inspect, "getsource", source)
        forget()

    forget()
    yield change
    forget()


def forget() -> None:
    graph_rule._source.cache_clear()
    source_hash._module_source.cache_clear()
    passes._hash_of_built_in.cache_clear()


def identity(**options: Any) -> str | None:
    return passes.pass_uuid(resolve(given=options), default_rules())


def test_same_again() -> None:
    assert identity() == identity() is not None


@pytest.mark.parametrize("name", IN_THE_KEY)
def test_changed_source_changes_it(name: str, edit: Callable[[str], None]) -> None:
    before = identity()
    edit(name)
    assert identity() not in (before, None)


def test_changed_engine_changes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = identity()
    monkeypatch.setattr(passes, "_engine_source", lambda: b"more")
    assert identity() not in (before, None)


def test_a_changed_file_in_any_folder_changes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    homes = {"PACKAGE": passes.PACKAGE}
    for package in (passes.patterns, passes.kernels):
        homes[package.__name__] = Path(str(package.__file__)).parent
    for name, home in homes.items():
        copy = tmp_path / name
        shutil.copytree(home, copy, ignore=shutil.ignore_patterns("__pycache__"))
        if name == "PACKAGE":
            monkeypatch.setattr(passes, "PACKAGE", copy)
        else:
            monkeypatch.setattr(sys.modules[name], "__file__", str(copy / "__init__.py"))
    seen = {passes._engine_source.__wrapped__()}
    folders = {path.parent for path in tmp_path.rglob("*.py")}
    assert len(folders) > len(homes)
    for folder in sorted(folders):
        with max(folder.glob("*.py")).open("a") as file:
            file.write("# more\n")
        found = passes._engine_source.__wrapped__()
        assert found not in seen, folder
        seen.add(found)


@pytest.mark.parametrize("name", NOT_IN_THE_KEY)
def test_other_source_does_not(name: str, edit: Callable[[str], None]) -> None:
    """Capture and report leave their mark on the graph itself, or none."""
    before = identity()
    edit(name)
    assert identity() == before


@pytest.mark.parametrize(
    "options",
    [
        {"rules": {"branch": False}},
        {"treatment": "cond"},
        {"candidate": "reference"},
        {"codegen": "eager"},
        {"mode": "max-autotune"},
        {"verify": False},
    ],
)
def test_options_change_it(options: dict[str, Any]) -> None:
    assert identity(**options) != identity()


def test_version_changes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = identity()
    monkeypatch.setattr(passes, "VERSION", "0.0.0")
    assert identity() != before


def test_every_rule_is_in_the_table() -> None:
    """A rule added to the defaults gets its line above."""
    modules = {r.anchor.__module__ for r in graph_rules()}
    assert modules <= set(IN_THE_KEY)
