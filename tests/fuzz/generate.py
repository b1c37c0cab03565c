"""A whole program: preamble, sites, results, and the text around them."""

from __future__ import annotations

from tests.fuzz.draft import MARK, SETS, Draft, Lines, Scope, indented
from tests.fuzz.draw import Draw, RandomDraw
from tests.fuzz.effects import shown
from tests.fuzz.places import statement, trip_statement
from tests.fuzz.program import Program, Site
from tests.fuzz.sharing import share, written
from tests.fuzz.subclasses import subclass
from tests.fuzz.values import data, fresh

_RETURNS = {"{0}": 6, "({0}, x)": 2, "[{0}]": 1, '{{"out": {0}}}': 1}
_HEAD = ["import torch", "import torch.nn.functional as F", "from torch import nn"]


def program(draw: Draw, name: str = "program") -> Program:
    """Write one program.

    Args:
        draw: the source of choices.
        name: for messages.
    """
    d = Draft(draw, *_length(draw))
    return _text(d, _body(d), name)


def seeded(seed: int, index: int) -> Program:
    """The program of a campaign's seed and a place in it; the same on every machine."""
    return program(RandomDraw(f"{seed}:{index}"), f"seed {seed}, program {index}")


def _length(draw: Draw) -> tuple[int, int]:
    """How many branches and how many round trips: of one kind, or of both."""
    branches = draw.weighted({1: 3, 2: 3, 3: 2, 4: 2})
    trips = draw.weighted({2: 3, 3: 3, 1: 2, 4: 2})
    kind = draw.weighted({"branches": 4, "trips": 4, "both": 3})
    return 0 if kind == "trips" else branches, 0 if kind == "branches" else trips


def _body(d: Draft) -> Lines:
    scope = Scope(returns=d.draw.weighted(_RETURNS))
    scope.add(d.data("x", grad=d.training), result=False)
    if d.draw.chance(40):
        scope.add(d.data("w", grad=d.training and d.draw.chance(70)), result=False)
    share(d, scope)
    subclass(d, scope)
    lines: Lines = []
    if d.draw.chance(50):
        name = d.fresh("h", scope)
        source = d.draw.choice(scope.data)
        step = fresh(d, scope)
        if d.module and d.draw.chance(50):
            step = f"{source} * {d.parameter('weight')}"
        lines.append(f"{name} = {step}")
        scope.add(name, own=True)
    printing = d.draw.chance(9)
    while d.budget > 0 or d.trips > 0:
        if d.budget > 0 and not (d.trips > 0 and d.draw.chance(50)):
            if printing and d.draw.chance(50):
                lines.append(shown(d, scope, "before"))
            lines += statement(d, scope)
        else:
            lines += trip_statement(d, scope)
        lines += written(d, scope)
    for shape, holds in (("shared_memory", d.shared), ("subclass", d.subclass)):
        if holds:
            _everywhere(d, shape)
    if printing:
        lines.append(shown(d, scope, "end"))
        _everywhere(d, "print_outside")
    if d.draw.chance(10):
        name, operand = d.fresh("noise", scope), d.draw.choice(scope.data)
        call = d.draw.choice(
            ("torch.rand_like({0})", "F.dropout({0}, 0.5)", "torch.randn({1}, device={0}.device)")
        )
        lines.append(f"{name} = {call.format(operand, ', '.join(map(str, d.shape)))}")
        scope.add(name)
        _everywhere(d, "random_after")
    return [*lines, f"return {_result(d, scope)}"]


def _everywhere(d: Draft, shape: str) -> None:
    for site in d.sites:
        if not site.trip:
            site.shapes.add(shape)


def _result(d: Draft, scope: Scope) -> str:
    """What is returned: of the same kind as by early returns, which all sites can be seen in."""
    shaped = [name for name in scope.results if name in scope.data]
    if d.plain_result or d.draw.chance(25):
        together = " + ".join(shaped[-4:]) or data(d, scope)
        return scope.returns.format(together)
    every = scope.results[-5:] or [data(d, scope)]
    if len(every) == 1:
        return every[0]
    if d.draw.chance(15):
        return "{" + ", ".join(f'"{name}": {name}' for name in every) + "}"
    return ", ".join(every)


def _text(d: Draft, body: Lines, name: str) -> Program:
    arguments = ", ".join(d.arguments)
    state = list(d.attributes.values())
    lines = [f"# tests.fuzz: {name}", *_imports(d), *_HEAD, ""]
    lines += ['nan, inf = float("nan"), float("inf")']
    if d.logs:
        lines += ['LOG = logging.getLogger("program")', "LOG.setLevel(logging.INFO)"]
    for definition in d.definitions.values():
        lines += ["", "", *definition]
    if d.module:
        init = ["super().__init__()", *state]
        lines += ["", "", "class Model(nn.Module):"]
        lines += indented(["def __init__(self):", *indented(init)])
        lines += ["", *indented([f"def forward(self, {arguments}):", *indented(body)])]
        held = ["global HELD", "HELD = model"] if d.held else []
        make = ["torch.manual_seed(0)", "model = Model()", *held, "return model, model"]
    else:
        function = [f"def program({arguments}):", *indented(body)]
        make = [*function, "", "return program, None"]
        if state:
            lines += ["", "", "class Box:"]
            lines += indented(["def __init__(self):", *indented(state)])
            make = ["box = Box()", "", *function, "", "return program, box"]
    lines += ["", "", "def make():", *indented(make)]
    sets = [
        "(" + ", ".join(argument.literals[i] for argument in d.arguments.values()) + ",),"
        for i in range(SETS)
    ]
    lines += ["", "", "def inputs():", *indented(["return [", *indented(sets), "]"])]
    grads = [i for i, argument in enumerate(d.arguments.values()) if argument.grad]
    lines += ["", "", f"GRADS = {tuple(grads)}"] + ["ROUNDED = True"] * d.rounded
    text, sites = _marked(d, lines)
    return Program(text, sites, d.training, name)


def _imports(d: Draft) -> Lines:
    lines = sorted(d.imports) + ["from dataclasses import dataclass"] * ("Bundle" in d.definitions)
    return lines + ["from typing import NamedTuple", ""] * ("Pair" in d.definitions)


def _marked(d: Draft, lines: Lines) -> tuple[str, tuple[Site, ...]]:
    """The text without marks, and the sites they stood for."""
    sites = []
    for number, line in enumerate(lines, 1):
        text, mark, index = line.partition(MARK)
        if mark:
            lines[number - 1] = text
            site = d.sites[int(index)]
            sites.append(Site(number, frozenset(site.shapes), site.trip))
    return "\n".join(lines) + "\n", tuple(sites)
