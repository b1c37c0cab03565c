"""A program under construction: its arguments, definitions, host attributes and sites."""

from __future__ import annotations

import ast
import contextlib
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from tests.fuzz.draw import Draw

SETS = 5  # of inputs for each program
MARK = "  #@"  # ends the line of a site, until the text is rendered
Lines = list[str]


@dataclass
class Site:
    """One branch on a tensor or one round trip, and the shapes it is an example of."""

    index: int
    shapes: set[str]
    trip: bool = False


@dataclass(frozen=True)
class Argument:
    """An argument of the program: one literal per input set, and whether it may require grad."""

    literals: tuple[str, ...]
    grad: bool = False


@dataclass
class Scope:
    """What a statement can name.

    Attributes:
        data: names of float tensors of the program's shape, oldest first.
        scalars: names of 0-d float tensors.
        own: those of ``data`` that the function made itself, so that it may write to them.
        names: every local name, of whatever type.
        pre: statements for the block around the site that is being written.
        outer: those of ``data`` that are bound there already.
        use: names to be used by the next expression, so that what an arm did can be seen.
        results: names worth returning.
        returns: how an early return is written, ``{}`` for a tensor; "" where none may stand.
        depth: nesting of sites.
    """

    data: list[str] = field(default_factory=list)
    scalars: list[str] = field(default_factory=list)
    own: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    pre: Lines = field(default_factory=list)
    outer: list[str] = field(default_factory=list)
    use: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    returns: str = ""
    depth: int = 0

    def arm(self) -> Scope:
        """For an arm of a site: new names stay inside it."""
        return replace(
            self,
            data=list(self.data),
            scalars=list(self.scalars),
            own=list(self.own),
            names=set(self.names),
            use=[],
            results=[],
        )

    def around(self) -> Scope:
        """For a site that stands here."""
        return replace(self.arm(), pre=[], outer=list(self.data), depth=self.depth + 1)

    def add(self, name: str, *, own: bool = False, result: bool = True) -> None:
        """A float tensor of the program's shape, bound to a name."""
        self.names.add(name)
        if name not in self.data:
            self.data.append(name)
        if own and name not in self.own:
            self.own.append(name)
        if result and name not in self.results:
            self.results.append(name)


class Draft:
    """What has been written so far.

    Attributes:
        draw: the source of choices.
        module: whether the program is the forward of an nn.Module.
        training: whether floating arguments and parameters require grad.
        shape: of the data.
        dtype: of the data: ``float32`` or ``float64``.
        budget: branches that may still be opened.
        trips: round trips that may still be made.
        imports: of the standard library, as statements.
        logs: whether the program has a logger.
        rounded: whether compiled code may add up in another order.
        shared: the argument that shares memory with another one, or with the host; "" if none does.
        held: whether the inputs are made of the host's state.
        subclass: of torch.Tensor, an argument of which the program has; "" if it has none.
        loops: how many loops what is being written stands in.
    """

    def __init__(self, draw: Draw, budget: int = 0, trips: int = 0) -> None:
        self.draw, self.budget, self.trips = draw, budget, trips
        self.module = draw.chance(70)
        self.training = draw.chance(55)
        self.shape: tuple[int, ...] = draw.choice([(3,), (2, 3)])
        self.dtype = draw.weighted({"float32": 6, "float64": 1})
        self.imports: set[str] = set()
        self.logs = self.rounded = self.held = False
        self.shared = self.subclass = ""
        self.loops = 0
        self.arguments: dict[str, Argument] = {}
        self.definitions: dict[str, Lines] = {}
        self.attributes: dict[str, str] = {}
        self.methods: dict[str, Lines] = {}
        self.sites: list[Site] = []
        self.plain_result = False
        self._open: list[Site] = []
        self._within: list[str] = []
        self._numbers: dict[str, int] = {}

    # names and sites

    def fresh(self, prefix: str, scope: Scope | None = None) -> str:
        """A name not used before; local to ``scope`` if one is given."""
        number = self._numbers[prefix] = self._numbers.get(prefix, -1) + 1
        name = f"{prefix}{number}" if number else prefix
        if scope is not None:
            scope.names.add(name)
        return name

    @contextlib.contextmanager
    def site(self, *shapes: str) -> Iterator[str]:
        """Open a site; yields the mark for the end of its line."""
        site = Site(len(self.sites), {*shapes, *self._within})
        if self._open:
            site.shapes.add("nested")
        self.sites.append(site)
        self._open.append(site)
        self.budget -= 1
        try:
            yield f"{MARK}{site.index}"
        finally:
            self._open.pop()

    @contextlib.contextmanager
    def trip(self, *shapes: str) -> Iterator[str]:
        """Open a round trip; yields the mark for the end of its line."""
        site = Site(len(self.sites), set(shapes), trip=True)
        self.sites.append(site)
        self._open.append(site)
        try:
            yield f"{MARK}{site.index}"
        finally:
            self._open.pop()

    @contextlib.contextmanager
    def within(self, shape: str) -> Iterator[None]:
        """Every site opened inside is an example of this shape, too."""
        self._within.append(shape)
        try:
            yield
        finally:
            self._within.pop()

    @contextlib.contextmanager
    def looping(self) -> Iterator[None]:
        """What is written inside stands in a loop."""
        self.loops += 1
        try:
            yield
        finally:
            self.loops -= 1

    def tag(self, *shapes: str) -> None:
        """The site being written is an example of these shapes."""
        if self._open:
            self._open[-1].shapes.update(shapes)

    # arguments

    def data(self, name: str, *, grad: bool) -> str:
        """An argument of the program's shape: of either sign, with a set of special values."""
        if name not in self.arguments:
            self.arguments[name] = Argument(self._literals(), grad)
        return name

    def argument(self, prefix: str, *literals: str) -> str:
        """An argument that never requires grad, from one literal per input set."""
        name = self.fresh(prefix)
        self.arguments[name] = Argument(literals)
        return name

    def spread(self, first: str, second: str) -> tuple[str, ...]:
        """Two literals over the input sets; two such arguments mostly come in all combinations."""
        turns = (
            (0, 1, 0, 1, 0),
            (1, 0, 0, 1, 1),
            (0, 0, 1, 1, 0),
            (1, 1, 0, 0, 1),
            (0, 1, 1, 0, 1),
        )
        return tuple((first, second)[turn] for turn in self.draw.choice(turns))

    def tensor(self, values: list[float] | None = None) -> str:
        """A literal tensor of the program's shape."""
        if values is None:
            source = random.Random(self.draw.integer(0, 99))
            values = [source.choice((0.5, 1.0, 1.5, 2.0, -0.5, -1.0)) for _ in range(self.size)]
        texts = [number(value) for value in values]
        rows = [
            f"[{', '.join(texts[i : i + self.shape[-1]])}]"
            for i in range(0, len(texts), self.shape[-1])
        ]
        inner = rows[0] if len(self.shape) == 1 else f"[{', '.join(rows)}]"
        return f"torch.tensor({inner}{self.dtype_argument})"

    @property
    def size(self) -> int:
        """Elements of the data."""
        return self.shape[0] if len(self.shape) == 1 else self.shape[0] * self.shape[1]

    @property
    def dtype_argument(self) -> str:
        """The dtype as an argument of a constructor; nothing for the default."""
        return "" if self.dtype == "float32" else f", dtype=torch.{self.dtype}"

    def _literals(self) -> tuple[str, ...]:
        source = random.Random(self.draw.integer(0, 999))
        positive = [source.choice((0.25, 0.5, 1.0, 2.0, 3.0)) for _ in range(self.size)]
        negative = [source.choice((-0.5, -1.0, -2.0, 0.0)) for _ in range(self.size)]
        nan, huge = list(positive[::-1]), list(negative[::-1])
        nan[source.randrange(self.size)] = float("nan")
        huge[source.randrange(self.size)] = source.choice((float("inf"), -float("inf"), 0.0))
        mixed = [source.choice((-1.5, -0.5, 0.5, 1.5, 0.0)) for _ in range(self.size)]
        found = [positive, negative, mixed, huge, nan]
        turn = source.randrange(SETS)
        return tuple(self.tensor(values) for values in found[turn:] + found[:turn])

    # the object that holds state

    @property
    def host(self) -> str:
        """The object whose attributes the program may write: the module, or a plain object."""
        return "self" if self.module else "box"

    def attribute(self, name: str, value: str) -> str:
        """An attribute of the host, with its value at the start."""
        self.attributes.setdefault(name, f"self.{name} = {value}")
        return f"{self.host}.{name}"

    def parameter(self, name: str) -> str:
        """A parameter of the module, in the program's shape."""
        if name not in self.attributes:
            self.attributes[name] = f"self.{name} = nn.Parameter({self.tensor()})"
        return f"self.{name}"

    def buffer(self, name: str) -> str:
        """A buffer of the module, in the program's shape."""
        if name not in self.attributes:
            self.attributes[name] = f'self.register_buffer("{name}", {self.tensor()})'
        return f"self.{name}"

    def detached(self, expression: str) -> str:
        """The expression as a value that autograd does not follow, where it would."""
        return f"{atom(expression)}.detach()" if self.training else expression

    # functions of their own

    def free(self, body: Lines, scope: Scope) -> list[str]:
        """Names of the surrounding program that a body reads or rebinds."""
        known = {*scope.names, *self.arguments, self.host}
        used = {node.id for node in ast.walk(ast.parse("\n".join(body))) if type(node) is ast.Name}
        return sorted(used & known)


def number(value: float) -> str:
    """A number as it stands in a program, which defines ``nan`` and ``inf``."""
    return repr(value)


def indented(lines: Lines) -> Lines:
    """A block's statements; ``pass`` if there are none."""
    return [f"    {line}" if line else "" for line in lines or ["pass"]]


def atom(expression: str) -> str:
    """The expression, in parentheses if an attribute or an operator after it would split it."""
    depth = 0
    for char in expression:
        depth += char in "([{"
        depth -= char in ")]}"
        if char == " " and depth == 0:
            return f"({expression})"
    return f"({expression})" if expression.startswith("-") else expression


def renamed(lines: Lines, old: str, new: str) -> Lines:
    """Statements with one name replaced."""
    return [re.sub(rf"\b{old}\b", new, line) for line in lines]
