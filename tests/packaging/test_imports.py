"""Who may import what: torch's private names in one file, our own folders by their full names."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Callable, Iterator

import pytest

# A file, or a folder of them once it outgrows one.
PRIVATE = ("fusepass/torch_private/",)
# What an example may use although its name is private: torch's documentation tells users to.
DOCUMENTED = {"torch._dynamo.explain"}

Sources = Callable[..., dict[str, str]]


def is_private(dotted: str) -> bool:
    """Whether a part of a dotted name is underscored (``__version__`` and the like are public)."""
    return any(
        part.startswith("_") and not (part.startswith("__") and part.endswith("__"))
        for part in dotted.split(".")
    )


def private_torch_names(source: str) -> Iterator[tuple[int, str]]:
    """Line and dotted name of each private part of torch that a module names.

    Sees imports in every form, attribute chains that start at torch or at a name imported from it,
    and ``import_module("torch._x")``. It cannot see attributes of values (``node._args``).
    """
    tree = ast.parse(source)
    origin: dict[str, str] = {}  # local name -> what it stands for in torch
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "torch":
                    origin[alias.asname or "torch"] = alias.name if alias.asname else "torch"
                    if is_private(alias.name):
                        yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            for alias in node.names:
                dotted = f"{node.module}.{alias.name}"
                origin[alias.asname or alias.name] = dotted
                if is_private(dotted):
                    yield node.lineno, dotted
    inner: set[ast.AST] = set()  # the links of a chain already reported or cleared as a whole
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node not in inner:
            parts: list[str] = []
            link: ast.expr = node
            while isinstance(link, ast.Attribute):
                inner.add(link)
                parts.append(link.attr)
                link = link.value
            chain = ".".join(reversed(parts))
            # The name itself was judged where it was imported.
            if isinstance(link, ast.Name) and link.id in origin and is_private(chain):
                yield node.lineno, f"{origin[link.id]}.{chain}"
        elif isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else node.func
            name = called.id if isinstance(called, ast.Name) else called
            first = node.args[0] if node.args else None
            if (
                name in ("import_module", "__import__", "find_spec")
                and isinstance(first, ast.Constant)
                and str(first.value).split(".")[0] == "torch"
                and is_private(str(first.value))
            ):
                yield node.lineno, str(first.value)


def bare_imports(source: str) -> Iterator[tuple[int, str]]:
    """Line and name of each import of ``patterns`` or ``kernels`` without ``fusepass.``."""
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = ["." * node.level + (node.module or "")]
        for name in names:
            if name.split(".")[0] in ("patterns", "kernels", ""):
                yield node.lineno, name


def imported(source: str) -> set[str]:
    """Full names that a module imports, wherever in it the import stands."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_private_names_of_torch_are_in_one_file(sources: Sources) -> None:
    found = [
        (file, line, name)
        for file, text in sources("fusepass", "patterns", "kernels").items()
        for line, name in private_torch_names(text)
    ]
    assert any(file.startswith(PRIVATE) for file, _, _ in found), "the scan sees nothing there?"
    astray = [f"{file}:{line} {name}" for file, line, name in found if not file.startswith(PRIVATE)]
    assert not astray, "these belong in fusepass.torch_private:\n" + "\n".join(astray)


def test_examples_use_documented_names_only(sources: Sources) -> None:
    found = [
        f"{file}:{line} {name}"
        for file, text in sources("examples").items()
        for line, name in private_torch_names(text)
        if name not in DOCUMENTED
    ]
    assert not found


def test_own_folders_are_imported_by_their_full_names(sources: Sources) -> None:
    files = sources("fusepass", "patterns", "kernels", "examples", "tests")
    found = [
        f"{file}:{line} {name}"
        for file, text in files.items()
        for line, name in bare_imports(text)
        # The helpers of a test folder are found from where they stand; nothing of theirs is
        # installed, and a second copy of one registers no operators.
        if not (file.startswith("tests/") and name.startswith("."))
    ]
    assert not found


@pytest.mark.parametrize(
    ("folder", "banned"), [("patterns", "triton"), ("kernels", "fusepass.patterns")]
)
def test_arrows_between_folders(sources: Sources, folder: str, banned: str) -> None:
    found = [
        f"{file} {name}"
        for file, text in sources(folder).items()
        for name in imported(text)
        if f"{name}.".startswith(f"{banned}.")
    ]
    assert not found


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("import torch._dynamo", ["torch._dynamo"]),
        ("import torch._dynamo.config as c", ["torch._dynamo.config"]),
        ("import torch as t\nt._C.x()", ["torch._C.x"]),
        ("from torch import _C", ["torch._C"]),
        ("from torch._inductor.utils import x", ["torch._inductor.utils.x"]),
        ("from torch.fx import _pytree", ["torch.fx._pytree"]),
        ("from torch import fx\nfx._symbolic_trace.y", ["torch.fx._symbolic_trace.y"]),
        ("import torch\ntorch._dynamo.reset()", ["torch._dynamo.reset"]),
        ("if 1:\n    def f():\n        from torch._x import y", ["torch._x.y"]),
        ("import importlib\nimportlib.import_module('torch._x')", ["torch._x"]),
        ("__import__('torch._x')", ["torch._x"]),
        # near misses
        ("import torch\ntorch.__version__\ntorch.compiler.reset()", []),
        ("import torch\nself._torch = torch.ops.aten.mm", []),
        ("from torch.fx import Node\nnode._args", []),
        ("'torch._dynamo.reset'", []),
        ("import numpy\nnumpy._core", []),
        ("from fusepass.torch_private import x", []),
    ],
)
def test_the_scan_for_private_names(line: str, names: list[str]) -> None:
    assert [name for _, name in private_torch_names(line)] == names


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("import patterns", ["patterns"]),
        ("from kernels.gemm import x", ["kernels.gemm"]),
        ("from . import x", ["."]),
        ("import fusepass.patterns\nfrom fusepass.kernels import gemm", []),
        ("import kernels_of_another", []),
    ],
)
def test_the_scan_for_bare_imports(line: str, names: list[str]) -> None:
    assert [name for _, name in bare_imports(line)] == names


@pytest.mark.parametrize("package", ["fusepass", "fusepass.testing"])
def test_no_module_stands_in_front_of_a_name(package: str) -> None:
    """A name resolved when it is asked for is the module once a module of that name is imported."""
    home = importlib.import_module(package)
    modules = {module.name for module in pkgutil.iter_modules(home.__path__)}
    assert modules.isdisjoint(home._HOME)
