"""Where a site stands: loops, functions of its own, generators, try / except."""

from __future__ import annotations

from collections.abc import Callable

from tests.fuzz import trips
from tests.fuzz.attempts import CAUGHT, RISKS, attempt, risky
from tests.fuzz.draft import Draft, Lines, Scope, indented, renamed
from tests.fuzz.forms import branch, carried
from tests.fuzz.guards import guard
from tests.fuzz.predicates import predicate
from tests.fuzz.subclasses import nested_statement
from tests.fuzz.values import data

PLACES = {
    "straight": 58,
    "range_loop": 6,
    "layer_loop": 8,
    "helper": 4,
    "closure": 4,
    "method": 4,
    "lambda": 4,
    "generator": 5,
    "try": 5,
    "attempt": 5,
}


def statement(d: Draft, scope: Scope) -> Lines:
    """A site with all that stands around it."""
    places = {k: w for k, w in PLACES.items() if d.module or k != "layer_loop"}
    if d.subclass == "nested" and d.draw.chance(50):
        return nested_statement(d, scope)
    place = d.draw.weighted(places)
    if place == "straight":
        return nested(d, scope)
    if place == "lambda":
        return _lambda(d, scope)
    if place == "try":
        return _try(d, scope)
    if place == "attempt":
        return attempt(d, scope, nested)
    if place.endswith("loop"):
        return _loop(d, scope, place)
    if place == "generator":
        return _generator(d, scope)
    return _function(d, scope, place)


TRIP_PLACES = {
    "straight": 64,
    "loop": 10,
    "helper": 6,
    "closure": 4,
    "method": 5,
    "try": 5,
    "attempt": 4,
    "no_grad": 6,
}


def trip_statement(d: Draft, scope: Scope) -> Lines:
    """A round trip with all that stands around it."""
    place = d.draw.weighted(TRIP_PLACES)
    if place == "straight":
        return trips.trip(d, scope)
    if place == "loop":
        return trips.loop(d, scope)
    if place == "no_grad":
        return trips.quietly(d, scope)
    if place == "try":
        return _try(d, scope, trips.trip)
    if place == "attempt":
        return attempt(d, scope, trips.trip)
    return _function(d, scope, place, trips.trip)


def nested(d: Draft, scope: Scope) -> Lines:
    """A site that stands directly in a block."""
    if d.draw.chance(38):
        return guard(d, scope)
    return branch(d, scope, nested)


def _loop(d: Draft, scope: Scope, place: str) -> Lines:
    name = d.fresh("y", scope)
    start = f"{name} = {data(d, scope)}"
    inner = scope.around()
    inner.add(name)
    with d.within(place), d.looping():
        if place == "layer_loop":
            d.attributes.setdefault("layers", _layers(d))
            step = d.draw.choice((f"{name} = layer({name})", f"{name} = {name} + layer({name})"))
            header = "for layer in self.layers:"
        else:
            header = f"for i in range({d.draw.choice((2, 3))}):"
            step = d.draw.choice((f"{name} = {name} * 0.5 + i", f"{name} = {name} - i"))
        kind = d.draw.weighted({"carried": 6, "return": 5, "guard": 2})
        if kind == "return" and scope.returns:
            body = _return(d, inner)
        elif kind == "guard":
            body = guard(d, inner)
        else:
            body = carried(d, inner, name, nested)
        lines = [step, *trips.maybe(d, inner, 15), *body]
        if d.draw.chance(40):
            lines.append(f"{name} = {name} + 1")
    scope.add(name)
    return [start, *inner.pre, header, *indented(lines)]


def _return(d: Draft, scope: Scope) -> Lines:
    here = scope.around()
    with d.site("early_return", "return_in_loop") as mark:
        test = predicate(d, here)
        d.plain_result = True
        value = scope.returns.format(data(d, here))
        return [*here.pre, f"if {test}:{mark}", *indented([f"return {value}"])]


def _layers(d: Draft) -> str:
    last = d.shape[-1]
    cast = "" if d.dtype == "float32" else ".double()"
    kinds = (f"nn.Linear({last}, {last})", "nn.Tanh()", f"nn.LayerNorm({last})")
    made = [d.draw.choice(kinds) for _ in range(d.draw.choice((2, 3)))]
    return f"self.layers = nn.ModuleList([{', '.join(made)}]){cast}"


Inside = Callable[[Draft, Scope], Lines]


def _function(d: Draft, scope: Scope, place: str, inside: Inside = nested) -> Lines:
    """A site in a function of its own, whose result is a tensor."""
    inner = scope.arm()
    inner.pre, inner.returns, inner.own = [], "{}", []
    with d.within(place):
        body = [*inside(d, inner), *trips.maybe(d, inner, 15)]
    body = [*body, f"return {_result(d, inner)}"]
    name = d.fresh({"helper": "step", "closure": "local", "method": "Stage"}[place])
    free = d.free(body, scope)
    result = d.fresh("y")
    if place == "closure":
        bound = _rebound(body)
        arguments = [one for one in free if one in bound and one != d.host]
        lines = [f"def {name}({', '.join(arguments)}):", *indented(body)]
        scope.names.add(name)
        call = f"{name}({', '.join(arguments)})"
    else:
        lines = []
        arguments = free
        owned = [one if one != d.host else "owner" for one in arguments]
        text = indented(renamed(body, d.host, "owner"))
        if place == "helper":
            d.definitions[name] = [f"def {name}({', '.join(owned)}):", *text]
            call = f"{name}({', '.join(arguments)})"
        else:
            method = [f"def run({', '.join(['self', *owned])}):", *text]
            d.definitions[name] = [f"class {name}:", *indented(method)]
            holder = d.attribute(name.lower(), f"{name}()")
            call = f"{holder}.run({', '.join(arguments)})"
    scope.add(result)
    return [*lines, f"{result} = {call}"]


def _rebound(body: Lines) -> set[str]:
    """Names a body assigns to, which Python therefore takes for its own."""
    import ast

    found = set()
    for node in ast.walk(ast.parse("\n".join(body))):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def _result(d: Draft, scope: Scope) -> str:
    """A tensor made of everything a function left."""
    shaped = [name for name in scope.results if name in scope.data]
    return " + ".join(shaped[-3:]) or data(d, scope)


def _lambda(d: Draft, scope: Scope) -> Lines:
    here = scope.around()
    name, result = d.fresh("pick", scope), d.fresh("y")
    operand = d.draw.choice(here.data)
    with d.within("lambda"), d.site("ternary", "leaves_tensor") as mark:
        inner = here.arm()
        inner.data = [*here.data, "v"]
        test = predicate(d, inner)
        line = f"{name} = lambda v: {data(d, inner)} if {test} else {data(d, inner)}{mark}"
    scope.add(result)
    return [*here.pre, line, f"{result} = {name}({operand})"]


def _generator(d: Draft, scope: Scope) -> Lines:
    """A generator with a site between or around its yields."""
    inner = scope.arm()
    inner.pre, inner.returns, inner.own = [], "", []
    name, result = d.fresh("parts"), d.fresh("y", scope)
    with d.within("generator"):
        here = inner.around()
        form = d.draw.choice(("if_else", "else_less"))
        with d.site(form, "leaves_tensor") as mark:
            test = predicate(d, here)
            body = [*here.pre, f"if {test}:{mark}", *indented([f"yield {data(d, here)}"])]
            if form == "if_else":
                body += ["else:", *indented([f"yield {data(d, here)}"])]
        if d.draw.chance(50):
            body = [
                "for i in range(2):",
                *indented([*body, f"yield {d.draw.choice(inner.data)} * i"]),
            ]
        else:
            body.append(f"yield {data(d, inner)}")
    free = d.free(body, scope)
    owned = [one if one != d.host else "owner" for one in free]
    text = indented(renamed(body, d.host, "owner"))
    d.definitions[name] = [f"def {name}({', '.join(owned)}):", *text]
    start = f"{result} = {data(d, scope)}"
    loop = [f"for part in {name}({', '.join(free)}):", f"    {result} = {result} + part"]
    scope.add(result)
    return [start, *loop]


def _try(d: Draft, scope: Scope, inside: Inside = nested) -> Lines:
    inner = scope.arm()
    name = d.fresh("y")
    fallback = data(d, scope)
    with d.within("try"):
        body = [*inside(d, inner), *trips.maybe(d, inner, 15)]
    body.append(f"{name} = {_result(d, inner)}")
    kind = d.draw.choice(RISKS)
    if d.draw.chance(60):
        body.append(f"{name} = {name} + {risky(d, inner, kind)}")
    error = d.draw.choice(CAUGHT[kind] if d.draw.chance(96) else ("ValueError", "KeyError"))
    if d.draw.chance(20):
        d.imports.add("import contextlib")
        body = [f"with contextlib.suppress({error}):", *indented(body)]
        lines = [f"{name} = {fallback}", *body]
    elif d.draw.chance(3):
        bump = f"{name} = {name} * 2"
        lines = [f"{name} = {fallback}", "try:", *indented(body), "finally:", *indented([bump])]
    else:
        paired = d.draw.chance(30) and not error.startswith("(")
        errors = f"(KeyError, {error})" if paired else error
        lines = ["try:", *indented(body), f"except {errors}:", *indented([f"{name} = {fallback}"])]
        if d.draw.chance(25):
            lines += ["else:", *indented([f"{name} = {name} + 1"])]
    scope.add(name)
    return lines
