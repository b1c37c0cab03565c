"""try / except around operations that can fail, beside branches and raises."""

from __future__ import annotations

from collections.abc import Callable

from tests.fuzz.draft import Draft, Lines, Scope, indented
from tests.fuzz.guards import check, index_argument, lookup
from tests.fuzz.values import data

CAUGHT = {
    "index": (
        "(IndexError, RuntimeError)",
        "Exception",
        "(IndexError, RuntimeError)",
        "IndexError",
    ),
    "division": ("RuntimeError", "(ValueError, RuntimeError)", "Exception"),
    "factor": ("torch.linalg.LinAlgError", "RuntimeError", "Exception"),
    "number": ("ZeroDivisionError", "ArithmeticError", "Exception"),
}
RISKS = tuple(CAUGHT)
Inside = Callable[[Draft, Scope], Lines]


def attempt(d: Draft, scope: Scope, inside: Inside) -> Lines:
    """A ``try`` with an operation that fails for some inputs, and a site beside it.

    Args:
        d: the program.
        scope: of the block it stands in.
        inside: writes the site.
    """
    inner = scope.arm()
    inner.pre, inner.returns = [], ""
    name = d.fresh("y")
    fallback = data(d, scope)
    kind = d.draw.choice(RISKS)
    computed = [f"{name} = {risky(d, inner, kind)}"]
    with d.within("attempt"):
        raises = d.budget > 0 and d.draw.chance(35)
        site = check(d, inner, "raise") if raises else inside(d, inner)
    place = d.draw.weighted({"before": 3, "after": 3, "alone": 2})
    total = [f"{name} = {name} + {data(d, inner, 0)}"] if d.draw.chance(50) else []
    body = [*computed, *total]
    if place == "before":
        body = [*body, *site]
    elif place == "after":
        body = [*site, *body]
    errors = d.draw.choice(CAUGHT[kind] if d.draw.chance(96) else ("ValueError", "KeyError"))
    if raises and d.draw.chance(50):
        errors = "Exception"
    lines = ["try:", *indented(body), *_handler(d, name, errors, fallback)]
    if d.draw.chance(20):
        lines += ["else:", *indented([f"{name} = {name} + 1"])]
    if d.draw.chance(15):
        lines += ["finally:", *indented([f"{d.fresh('done', scope)} = 1"])]
    scope.add(name)
    return [*site, *lines] if place == "alone" else lines


def _handler(d: Draft, name: str, errors: str, fallback: str) -> Lines:
    kind = d.draw.weighted({"fallback": 6, "shown": 2, "raised": 1})
    if kind == "fallback":
        return [f"except {errors}:", *indented([f"{name} = {fallback}"])]
    header = f"except {errors} as error:"
    if kind == "shown":
        shown = 'print("failed", type(error).__name__)'
        return [header, *indented([shown, f"{name} = {fallback}"])]
    return [header, *indented(['raise ValueError("cannot go on") from error'])]


def risky(d: Draft, scope: Scope, kind: str) -> str:
    """A value like those of the program, whose computation fails for some inputs.

    Args:
        d: the program.
        scope: with the values it may be computed from.
        kind: one of ``RISKS``.
    """
    operand = d.draw.choice(scope.data)
    if kind == "index":
        return lookup(d, operand, index_argument(d))
    if kind == "factor":
        corner = d.argument("corner", *(f"torch.tensor({n})" for n in d.spread("4.0", "-1.0")))
        call = d.draw.choice(("cholesky", "cholesky", "inv"))
        matrix = f"torch.eye(2, device={operand}.device) * {corner}"
        if call == "inv":
            matrix = f"torch.diag({corner}.relu().expand(2))"
        return f"{operand} * torch.linalg.{call}({matrix}).sum().to({operand}.dtype)"
    den = d.argument("parts", *(f"torch.tensor({n})" for n in d.spread("2", "0")))
    whole = d.argument("whole", *(f"torch.tensor({n})" for n in (7, 5, 4, 9, 6)))
    if kind == "number":
        return f"{operand} * ({whole}.item() / {den}.item())"
    return f"{operand} * ({whole} {d.draw.choice(('//', '%'))} {den})"
