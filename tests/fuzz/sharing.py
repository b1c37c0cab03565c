"""Arguments that share memory: views that the caller makes, of another argument or of state."""

from __future__ import annotations

from dataclasses import replace

from tests.fuzz.draft import Argument, Draft, Lines, Scope

SHARED = 6  # percent of the programs
_WITH_X = {"view": 4, "overlap": 5, "detach": 2, "data": 1, "expand": 1, "strided": 2}
_WITH_STATE = {"buffer": 2, "parameter": 1}
_WRITES = ("{0}.add_(1)", "{0}.mul_(2)", "{0}[0] = 1.0", "{0}.copy_({1})", "{0}.zero_()")


def share(d: Draft, scope: Scope) -> None:
    """In some programs, let the argument ``state`` share memory with ``x``, or with the module."""
    if not d.draw.chance(SHARED):
        return
    d.shared = "state"
    kind = d.draw.weighted({**_WITH_X, **(_WITH_STATE if d.module else {})})
    if kind in _WITH_STATE:
        d.held = True
        held = d.buffer("seen") if kind == "buffer" else d.parameter("weight")
        literal = f"{held.replace('self', 'HELD')}.detach()[:]"
        d.arguments["state"] = Argument((literal,) * len(d.arguments["x"].literals))
    else:
        first = d.arguments["x"]
        d.arguments["x"] = replace(first, literals=tuple(_base(d, kind, t) for t in first.literals))
        d.arguments["state"] = Argument((_view(d, kind),) * len(first.literals))
    scope.add("state", result=False)


def written(d: Draft, scope: Scope) -> Lines:
    """Maybe a write, outside of arms, to what shares memory."""
    if not d.shared or not d.draw.chance(35):
        return []
    operand = d.detached(d.draw.choice(scope.data))
    return [d.draw.choice(_WRITES).format(d.shared, operand)]


def _base(d: Draft, kind: str, literal: str) -> str:
    """An argument that a later one of the same set is a view of."""
    if kind == "overlap":
        return f"(base := torch.cat([{literal}, {literal}]))[: {d.shape[0]}]"
    return f"(base := {literal})"


def _view(d: Draft, kind: str) -> str:
    sizes = ", ".join(map(str, d.shape))
    if kind == "overlap":
        return f"base[1 : {d.shape[0] + 1}]"
    if kind == "expand":
        return f"base[:1].expand({sizes})"
    if kind == "strided":
        return f"base.as_strided(({sizes},), {(1,) if len(d.shape) == 1 else (1, d.shape[0])})"
    return {"view": "base[:]", "detach": "base.detach()", "data": "base.data"}[kind]
