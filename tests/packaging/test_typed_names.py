"""A type checker sees the names that there are, and no others: no ``__getattr__`` hides a typo."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import fusepass
from fusepass import testing


@pytest.mark.parametrize("package", [fusepass, testing])
def test_getattr_is_hidden_and_every_name_is_there(package: object) -> None:
    tree = ast.parse(Path(str(package.__file__)).read_text())  # type: ignore[attr-defined]
    bound: set[str] = set()
    for node in tree.body:
        hidden = isinstance(node, ast.If) and ast.unparse(node.test) == "not TYPE_CHECKING"
        inside = node.body if isinstance(node, ast.If) and not hidden else [node]
        for one in inside:
            if isinstance(one, (ast.FunctionDef, ast.ClassDef)):
                bound.add(one.name)
            elif isinstance(one, (ast.Import, ast.ImportFrom)):
                bound |= {alias.asname or alias.name for alias in one.names}
            elif isinstance(one, ast.Assign):
                bound |= {ast.unparse(target) for target in one.targets}
    assert "__getattr__" not in bound
    assert set(package.__all__) <= bound  # type: ignore[attr-defined]


def test_a_typo_is_an_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'expplain'"):
        fusepass.expplain  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'chekc_rule'"):
        testing.chekc_rule  # type: ignore[attr-defined]  # noqa: B018
