"""No import circle among our files, counting imports in functions and those for type checkers."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import networkx as nx
import pytest

Sources = Callable[..., dict[str, str]]


def module_name(file: str) -> str:
    """The name a file is imported by; patterns/ and kernels/ stand beside fusepass/."""
    parts = file.removesuffix(".py").removesuffix("/__init__").split("/")
    return ".".join(parts if parts[0] == "fusepass" else ["fusepass", *parts])


def imports_of(text: str, modules: set[str]) -> Iterator[str]:
    """Modules of ours that a file imports, wherever in it the import stands."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found = inner if inner in modules else node.module
                if found in modules:
                    yield found


def graph_of(files: dict[str, str]) -> nx.DiGraph[Any]:
    """Modules, with an edge from each to those it imports."""
    modules = {module_name(file): text for file, text in files.items()}
    graph: nx.DiGraph[Any] = nx.DiGraph()
    graph.add_nodes_from(modules)
    for module, text in modules.items():
        others = set(imports_of(text, set(modules))) - {
            module
        }  # code given to torch imports itself
        graph.add_edges_from((module, other) for other in others)
    return graph


def shortest_circle(graph: nx.DiGraph[Any]) -> list[str]:
    """The modules of a shortest circle, the first again at its end; empty when there is none."""
    circles = [
        [*nx.shortest_path(graph, there, here), there]
        for group in nx.strongly_connected_components(graph)
        for here, there in graph.subgraph(group).edges
    ]
    return min(circles, key=lambda circle: (len(circle), circle), default=[])


def test_there_is_no_import_circle(sources: Sources) -> None:
    graph = graph_of(sources("fusepass", "patterns", "kernels"))
    assert graph.number_of_edges() > graph.number_of_nodes(), "the scan sees nothing?"
    circle = shortest_circle(graph)
    assert not circle, "each imports the next:\n" + "\n".join(circle)


@pytest.mark.parametrize(
    ("line", "circle"),
    [
        ("from fusepass.b import x", True),
        ("import fusepass.b", True),
        ("from fusepass import b", True),
        ("def f():\n    from fusepass.b import x", True),
        ("if TYPE_CHECKING:\n    from fusepass.b import x", True),
        ("from fusepass.kernels.k import x", True),
        ("from fusepass.c import x", False),
        ("'from fusepass.b import x'", False),
        ("from other.b import x", False),
        ("import torch", False),
    ],
)
def test_the_scan_for_circles(line: str, circle: bool) -> None:
    files = {
        "fusepass/__init__.py": "",
        "fusepass/a.py": line,
        "fusepass/b.py": "from fusepass import a",
        "fusepass/c.py": "",
        "kernels/k.py": "from fusepass.a import y",
    }
    found = shortest_circle(graph_of(files))
    assert bool(found) == circle
    if circle:
        assert found[0] == found[-1]
        assert len(found) == 3
        assert all(there in graph_of(files)[here] for here, there in pairwise(found))
