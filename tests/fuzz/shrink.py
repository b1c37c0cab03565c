"""A failing program made short: statements, arms, operands and input sets are left out.

Works on the text alone, so it serves programs of any origin. Each simpler program must fail in the
same way; the first that does takes the place of the one before, until none does.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tests.fuzz.program import Program

if TYPE_CHECKING:
    from tests.fuzz.examine import Examined, Failure

_BLOCKS = ("body", "orelse", "finalbody")
_KEPT = {"make", "inputs", "program", "forward", "__init__"}


def shortest(
    program: Program, examine: Callable[[Program], Examined], *, tries: int = 400
) -> tuple[Program, Failure | None]:
    """The shortest program found that differs from eager as this one does, and how it differs.

    Args:
        program: the program.
        examine: runs one.
        tries: programs to run at most.
    """
    first = examine(program).failure
    if first is None:
        return program, None

    def fails(simpler: Program) -> bool:
        found = examine(simpler)
        return found.failure is not None and found.failure.like(first) and not found.unintended

    short = shrink(program, fails, tries=tries)
    return short, examine(short).failure


def shrink(program: Program, fails: Callable[[Program], bool], *, tries: int = 400) -> Program:
    """The shortest program found that still fails.

    Args:
        program: one that fails.
        fails: whether another one fails in the same way.
        tries: programs to run at most.
    """
    best, left = program, tries
    seen = {program.source}
    progress = True
    while progress and left > 0:
        progress = False
        for simpler in _simpler(best):
            if simpler.source in seen:
                continue
            seen.add(simpler.source)
            left -= 1
            if _holds(simpler, fails):
                best, progress = simpler, True
                break
            if left <= 0:
                break
    return best


def _holds(program: Program, fails: Callable[[Program], bool]) -> bool:
    try:
        return fails(program)
    except Exception:  # noqa: BLE001 - a text that is no program any more
        return False


def _simpler(program: Program) -> Iterator[Program]:
    """Programs that lack one thing; those that lack most come first."""
    if program.training:
        yield Program(program.source, (), False, program.name)
    tree = ast.parse(program.source)
    edits = [*_without_sets(tree), *_without_statements(tree), *_without_arguments(tree)]
    edits += [*_without_names(tree), *_without_operands(tree)]
    for edit in edits:
        changed = copy.deepcopy(tree)
        if edit(changed):
            text = ast.unparse(ast.fix_missing_locations(changed)) + "\n"
            yield Program(text, (), program.training, program.name)


Edit = Callable[[ast.Module], bool]


def _node(tree: ast.Module, index: int) -> ast.AST:
    """The node at a place of the walk, which is the same in a copy."""
    return next(node for i, node in enumerate(ast.walk(tree)) if i == index)


def _without_sets(tree: ast.Module) -> Iterator[Edit]:
    """Fewer input sets."""
    sets = _input_sets(tree)
    for index in range(len(sets.elts) if sets is not None and len(sets.elts) > 1 else 0):

        def edit(changed: ast.Module, index: int = index) -> bool:
            found = _input_sets(changed)
            assert found is not None
            del found.elts[index]
            return True

        yield edit


def _input_sets(tree: ast.Module) -> ast.List | None:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "inputs":
            last = node.body[-1]
            if isinstance(last, ast.Return) and isinstance(last.value, ast.List):
                return last.value
    return None


def _without_statements(tree: ast.Module) -> Iterator[Edit]:
    """Without a statement, or with its block in its place."""
    for number, node in enumerate(ast.walk(tree)):
        for block in _BLOCKS:
            statements = getattr(node, block, None)
            if not isinstance(statements, list):
                continue
            for at, statement in enumerate(statements):
                if getattr(statement, "name", "") in _KEPT or isinstance(statement, ast.Return):
                    continue

                def remove(
                    changed: ast.Module, number: int = number, block: str = block, at: int = at
                ) -> bool:
                    owner = _node(changed, number)
                    kept = getattr(owner, block)
                    del kept[at]
                    if not kept and block == "body" and not isinstance(owner, ast.Module):
                        kept.append(ast.Pass())
                    return True

                if not isinstance(statement, ast.Pass):
                    yield remove
                for inner in _BLOCKS:
                    if not getattr(statement, inner, None) or isinstance(statement, ast.ClassDef):
                        continue
                    if isinstance(statement, ast.FunctionDef):
                        continue

                    def unwrap(
                        changed: ast.Module,
                        number: int = number,
                        block: str = block,
                        at: int = at,
                        inner: str = inner,
                    ) -> bool:
                        kept = getattr(_node(changed, number), block)
                        kept[at : at + 1] = getattr(kept[at], inner)
                        return True

                    yield unwrap


def _without_arguments(tree: ast.Module) -> Iterator[Edit]:
    """Without an argument that the program does not use, in its head, its inputs and GRADS."""
    entry = next(
        (
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef) and node.name in ("program", "forward")
        ),
        None,
    )
    if entry is None:
        return
    name = entry.name
    method = int(name == "forward")
    used = {node.id for node in ast.walk(entry) if isinstance(node, ast.Name)}
    for position, argument in enumerate(entry.args.args[method:]):
        if argument.arg in used:
            continue

        def edit(changed: ast.Module, position: int = position) -> bool:
            for node in ast.walk(changed):
                if isinstance(node, ast.FunctionDef) and node.name == name:
                    del node.args.args[position + method]
            sets = _input_sets(changed)
            for one in sets.elts if sets is not None else ():
                assert isinstance(one, ast.Tuple)
                del one.elts[position]
            for node in changed.body:
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "GRADS":
                    grads = [i for i in ast.literal_eval(node.value) if i != position]
                    grads = [i - (i > position) for i in grads]
                    node.value = ast.parse(repr(tuple(grads)), mode="eval").body
            return True

        yield edit


def _without_names(tree: ast.Module) -> Iterator[Edit]:
    """With the value in place of a name that is only another name for it."""
    for number, node in enumerate(ast.walk(tree)):
        match node:
            case ast.Assign(targets=[ast.Name(id=old)], value=ast.Name(id=new)) if old != new:

                def edit(
                    changed: ast.Module, number: int = number, old: str = old, new: str = new
                ) -> bool:
                    renamed = _node(changed, number)
                    for inner in ast.walk(changed):
                        if isinstance(inner, ast.Name) and inner.id == old:
                            inner.id = new
                    return _remove(changed, renamed)

                yield edit


def _remove(tree: ast.AST, statement: ast.AST) -> bool:
    for node in ast.walk(tree):
        for block in _BLOCKS:
            kept = getattr(node, block, None)
            if isinstance(kept, list) and statement in kept:
                kept.remove(statement)
                return bool(kept) or block != "body"
    return False


def _without_operands(tree: ast.Module) -> Iterator[Edit]:
    """With an operand in place of an operation."""
    skipped = {
        id(inner)
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name == "inputs"
        for inner in ast.walk(node)
    }
    for number, node in enumerate(ast.walk(tree)):
        if id(node) in skipped or not isinstance(node, ast.expr):
            continue
        for index in range(len(_operands(node))):

            def edit(changed: ast.Module, number: int = number, index: int = index) -> bool:
                target = _node(changed, number)
                return _replace(changed, target, _operands(target)[index])

            yield edit


def _operands(node: ast.AST) -> list[ast.expr]:
    """What may stand for an expression."""
    match node:
        case ast.BinOp():
            return [node.left, node.right]
        case ast.BoolOp():
            return node.values
        case ast.UnaryOp(op=ast.Not()):
            return [node.operand]
        case ast.IfExp():
            return [node.body, node.orelse]
        case ast.Call(func=ast.Attribute(value=value)):
            plain = isinstance(value, ast.Name) and value.id in ("torch", "F", "nn")
            return node.args[:1] if plain else [value]
        case ast.Tuple() | ast.List():
            return list(node.elts)
        case _:
            return []


def _replace(tree: ast.Module, old: ast.AST, new: ast.AST) -> bool:
    for node in ast.walk(tree):
        for name, value in ast.iter_fields(node):
            if value is old:
                setattr(node, name, new)
                return True
            if isinstance(value, list) and any(one is old for one in value):
                setattr(node, name, [new if one is old else one for one in value])
                return True
    return False
