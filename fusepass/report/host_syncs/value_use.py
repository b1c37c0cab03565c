"""What the program does with a value that is read: decides a branch, makes text, or something else.

Read from the source: the innermost expression at a place, and the statement around it.
"""

from __future__ import annotations

import ast
import functools
import linecache

from fusepass.report.host_syncs.kinds import Kind
from fusepass.report.host_syncs.place import ProgramPlace, Span

_TRANSPARENT_CALLS = frozenset(
    "bool float int abs round min max any all len not_ truth isnan isinf isfinite isclose".split()
)
_TEXT_CALLS = frozenset(
    """
    print pprint str repr format debug info warning warn error exception critical log write
    set_postfix set_description
    """.split()
)


def use_of(place: ProgramPlace, via: str = "") -> Kind:
    """Whether a number read at a place decides a branch, becomes text, or is used as a number.

    ``via`` is the method that reads it, if known (``__bool__``, ``item``, ``__format__``).
    """
    if place.text or via in ("__format__", "__repr__", "__str__"):
        return Kind.PRINT
    chain = _ancestors(place.file, place.span)
    if not chain:
        return Kind.BRANCH if via == "__bool__" else Kind.ITEM
    return _judge(chain, via)


def calls(place: ProgramPlace, name: str) -> bool:
    """Whether the expression at a place is a call of that name."""
    chain = _ancestors(place.file, place.span)
    return bool(chain) and _is_call(chain[0], (name,))


def _judge(chain: list[ast.AST], via: str) -> Kind:
    """Climb from the expression outwards until something says what its value is for."""
    asked = via == "__bool__" and not _is_call(chain[0], ("bool",))
    inner = chain[0]
    for outer in chain[1:]:
        if isinstance(outer, (ast.If, ast.While, ast.IfExp, ast.Assert)):
            if isinstance(outer, ast.Assert) and outer.msg is inner:
                return Kind.PRINT
            return Kind.BRANCH if outer.test is inner or asked else Kind.ITEM
        if isinstance(outer, ast.comprehension):
            return Kind.BRANCH if inner in outer.ifs else Kind.ITEM
        if isinstance(outer, (ast.FormattedValue, ast.JoinedStr)):
            return Kind.PRINT
        if isinstance(outer, ast.Call):
            name = _called(outer)
            if inner is not outer.func and name in _TEXT_CALLS:
                return Kind.PRINT
            if inner is not outer.func and name not in _TRANSPARENT_CALLS:
                return Kind.BRANCH if asked else Kind.ITEM
        if isinstance(outer, (ast.match_case, ast.Match)):
            return Kind.BRANCH
        if isinstance(outer, (ast.stmt, ast.Lambda)):
            break
        inner = outer
    return Kind.BRANCH if asked else Kind.ITEM


def _is_call(node: ast.AST, names: tuple[str, ...]) -> bool:
    return isinstance(node, ast.Call) and _called(node) in names


def _called(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _ancestors(file: str, span: Span | None) -> list[ast.AST]:
    """The innermost expression that covers a span, and what it stands in, outwards."""
    tree = _tree(file)
    if tree is None or span is None:
        return []
    best: list[ast.AST] = []
    path: list[ast.AST] = []

    def visit(node: ast.AST) -> None:
        nonlocal best
        path.append(node)
        if _covers(node, span):
            best = path[::-1]
        # Decorators stand in front of what they are part of.
        if _covers(node, span) or not hasattr(node, "lineno") or hasattr(node, "decorator_list"):
            for child in ast.iter_child_nodes(node):
                visit(child)
        path.pop()

    visit(tree)
    return best


def _covers(node: ast.AST, span: Span) -> bool:
    first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
    if first is None or last is None:
        return False
    start, end = (first, node.col_offset), (last, node.end_col_offset)  # type: ignore[attr-defined]
    return bool(start <= (span[0], span[2]) and end >= (span[1], span[3]))


@functools.lru_cache(maxsize=64)
def _tree(file: str) -> ast.AST | None:
    text = "".join(linecache.getlines(file))
    try:
        return ast.parse(text) if text else None
    except (SyntaxError, ValueError):
        return None
