"""A rule as source text that runs by itself: an import, or its functions and all that they name."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor

from fusepass.report.user_code import is_users_file
from fusepass.rewrite.rule import Rule
from fusepass.testing.program_text import literal

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


def rule_text(rule: Rule) -> str:
    """Lines that bind ``rule``: an import where the rule can be imported, else its source.

    What is written in the program that runs (``__main__``), or made inside a function, cannot be
    imported without running that again.
    """
    file = rule.location.rpartition(":")[0]
    modules: list[Any] = list(sys.modules.values())  # anything may have been put there
    for module in modules:
        known = isinstance(module, ModuleType) and getattr(module, "__file__", None) == file
        found = _place(module, rule) if known and module.__name__ != "__main__" else None
        if found is not None:
            return f"{_import(module, found[0])}\n\nrule = {''.join(found)}"
    try:
        return _Written().rule(rule)
    except _NoText as missing:
        return (
            f"# No text is known of {missing}: put the rule here, made at {rule.location}.\n"
            f"rule = ...  # {rule.name!r}"
        )


class _NoText(Exception):
    """A value that no expression is known for."""


class _Written:
    """The lines written so far, by the name they bind; each name is bound once."""

    def __init__(self) -> None:
        self.lines: dict[str, str] = {}
        self.values: dict[str, Any] = {"torch": torch}

    def rule(self, rule: Rule) -> str:
        functions = {"pattern": rule.pattern, "replacement": rule.replacement, "check": rule.check}
        given = [repr(rule.name)]
        for role, function in functions.items():
            if function is not None:
                given.append(f"{role}={self.named(function, role)}")
        given.append(f"example=({', '.join(map(self.example, rule.inputs()))},)")
        given.append(f"place={rule.place!r}")
        given += [f"devices={rule.devices!r}"] if rule.devices else []
        made = f"rule = fusepass.Rule(\n    {', '.join(given)}\n)"
        return "\n\n".join([*self.lines.values(), made])

    def named(self, function: Callable[..., Any], role: str) -> str:
        """Write a function, and give the name it has."""
        own = getattr(function, "__name__", "")
        name = own if own.isidentifier() else role
        while name in self.values and self.values[name] is not function:
            name = f"{name}_of_rule"
        self.write(name, function)
        return name

    def write(self, name: str, value: Any) -> None:
        """Write lines that bind a name to a value; raises _NoText if that cannot be done."""
        if name in self.values:
            if self.values[name] is value:
                return
            raise _NoText(f"{name}, which is two things in the functions of the rule")
        self.values[name] = value
        if isinstance(value, ModuleType):
            self.lines[name] = f"import {value.__name__} as {name}"
        elif isinstance(value, FunctionType) and is_users_file(value.__code__.co_filename):
            self._write_function(name, value)
        elif isinstance(value, _PLAIN) or _is_plain_container(value):
            self.lines[name] = f"{name} = {_expression(value)}"
        else:
            self.lines[name] = _import_of(name, value)

    def _write_function(self, name: str, function: FunctionType) -> None:
        del self.values[name]  # after all that it names
        self.values[name] = function
        for free, value in _named_by(function):
            self.write(free, value)
        text = _source(function)
        if function.__name__ == "<lambda>":
            text = f"{name} = {text}"
        elif name != function.__name__:
            text = f"{text}\n\n{name} = {function.__name__}"
        self.lines[name] = text

    def example(self, value: Any) -> str:
        """An expression for an input of the pattern."""
        if isinstance(value, Tensor):
            device = "" if value.device.type == "cpu" else f", device={str(value.device)!r}"
            return f"torch.ones({tuple(value.shape)}, dtype={value.dtype}{device})"
        return _expression(value)


def _named_by(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Variables around a function, and globals, that its code names."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            raise _NoText(f"{name}, which is not bound") from None
    scope = function.__globals__
    for name in dict.fromkeys(_globals_of(function.__code__)):
        if name in scope:
            yield name, scope[name]
    for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        _expression(value)  # it is in the text, perhaps by a name
    hints = ast.parse(textwrap.dedent(_source(function)))
    names = {node.id for node in ast.walk(hints) if isinstance(node, ast.Name)}
    for name in sorted(names & scope.keys()):  # annotations, defaults, decorators
        yield name, scope[name]


def _globals_of(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals_of(constant)


def _source(function: FunctionType) -> str:
    try:
        if function.__name__ == "<lambda>":
            return _lambda(function)
        return textwrap.dedent(inspect.getsource(function)).rstrip()
    except (OSError, TypeError, SyntaxError):
        raise _NoText(f"the function {function.__name__}") from None


def _lambda(function: FunctionType) -> str:
    """The text of a lambda: the expression in its file whose body its instructions stand in.

    From Python 3.12 on no instruction of one that gives a constant has a place; then it is the one
    of its line that gives the same.
    """
    lines, _ = inspect.findsource(function)
    text = "".join(lines)
    code = function.__code__
    places = [tuple(n or 0 for n in place) for place in code.co_positions()]
    spans = {((a, column), (b, end)) for a, b, column, end in places if end}
    found = dict[str, str]()
    for node in ast.walk(ast.parse(text)):
        segment = ast.get_source_segment(text, node) if isinstance(node, ast.Lambda) else None
        if segment is None or not isinstance(node, ast.Lambda):
            continue
        body = node.body
        start = (body.lineno, body.col_offset)
        end = (body.end_lineno or 0, body.end_col_offset or 0)
        around = all(start <= a and b <= end for a, b in spans)
        if around if spans else node.lineno == code.co_firstlineno and _gives_same(node, code):
            found.setdefault(ast.dump(node), f"({segment})" if "\n" in segment else segment)
            if spans:
                break
    if len(found) != 1:
        raise _NoText("a lambda")
    return next(iter(found.values()))


def _gives_same(node: ast.Lambda, code: CodeType) -> bool:
    """Whether a lambda of a file has the code of one that gives a constant."""
    (alone,) = (
        one
        for one in compile(ast.Expression(node), code.co_filename, "eval").co_consts
        if isinstance(one, CodeType)
    )
    both = [(one.co_code, repr(one.co_consts), one.co_varnames) for one in (alone, code)]
    return both[0] == both[1]


def _is_plain_container(value: Any) -> bool:
    if isinstance(value, dict) and type(value) is dict:
        return all(map(_is_plain, (*value, *value.values())))
    return type(value) in (list, tuple, set, frozenset) and all(map(_is_plain, value))


def _is_plain(value: Any) -> bool:
    return isinstance(value, _PLAIN) or _is_plain_container(value)


def _expression(value: Any) -> str:
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    if isinstance(value, float):
        return literal(value)
    if _is_plain(value):
        return repr(value)
    raise _NoText(repr(value))


def _import_of(name: str, value: Any) -> str:
    """A line that imports a value of a library by the name it has there."""
    home = getattr(value, "__module__", None) or ""
    own = getattr(value, "__qualname__", None) or getattr(value, "__name__", "")
    candidates = [(home, str(own)), ("torch", str(own)), ("torch.nn.functional", str(own))]
    candidates += [("typing", name), ("torch", name), ("fusepass", name)]
    for module, path in candidates:
        try:
            found = getattr(importlib.import_module(module), path)
        except (ImportError, AttributeError, ValueError):
            continue
        if found is value and module != "__main__":
            return f"from {module} import {path} as {name}"
    raise _NoText(f"{name} ({type(value).__name__})")


def _place(module: ModuleType, rule: Rule) -> tuple[str, str] | None:
    """Name of the module's attribute that is or holds a rule, and the index in it."""
    for name, value in vars(module).items():
        if value is rule:
            return name, ""
        if isinstance(value, (list, tuple)) and any(item is rule for item in value):
            return name, f"[{next(i for i, item in enumerate(value) if item is rule)}]"
        if isinstance(value, dict) and any(item is rule for item in value.values()):
            return name, f"[{next(k for k, item in value.items() if item is rule)!r}]"
    return None


def _import(module: ModuleType, name: str) -> str:
    """Lines that import a name of a module, installed or not."""
    if module.__name__.partition(".")[0] in packages_distributions():
        return f"from {module.__name__} import {name}"
    file = Path(str(module.__file__))
    parts, folder = [file.stem], file.parent
    while (folder / "__init__.py").exists():
        parts.insert(0, folder.name)
        folder = folder.parent
    where = f"import sys\n\nsys.path.insert(0, {str(folder)!r})"
    return f"{where}\nfrom {'.'.join(parts)} import {name}"
