"""Sites that guard: raises and assertions, masked stores, operations that can fail in an arm."""

from __future__ import annotations

from tests.fuzz.draft import Draft, Lines, Scope, atom, indented
from tests.fuzz.effects import KINDS
from tests.fuzz.predicates import control
from tests.fuzz.values import data, fresh

GUARDS = {"masked": 10, "raise": 3, "assert": 9, "partial": 12, "partial_guard": 6, "writes": 5}
_ERRORS = ("ValueError", "RuntimeError", "IndexError", "Unstable")
_UNSTABLE = [
    "class Unstable(ArithmeticError):",
    "    def __init__(self, text):",
    '        super().__init__(f"unstable: {text}")',
]
_BAD = ("{0}.isnan().any()", "torch.isinf({0}).any()", "({0} > 2).any()", "{0}.sum() > 5")


def guard(d: Draft, scope: Scope) -> Lines:
    """One site of :data:`GUARDS`, or several raises in order."""
    kind = d.draw.weighted(GUARDS)
    if kind == "masked":
        return _masked(d, scope)
    if kind == "partial":
        return _partial_arm(d, scope)
    if kind == "partial_guard":
        return _before_partial(d, scope)
    if kind == "writes":
        return _between_writes(d, scope)
    lines = check(d, scope, kind)
    if d.budget > 0 and d.draw.chance(50):
        d.sites[-1].shapes.add("raises_in_order")
        lines += check(d, scope, d.draw.choice(("raise", "assert")), "raises_in_order")
    return lines


def check(d: Draft, scope: Scope, kind: str, *shapes: str) -> Lines:
    """A ``raise`` or an ``assert``, for inputs that are bad."""
    here = scope.around()
    if kind == "assert":
        with d.site("assert", *shapes) as mark:
            good = _good(d, here)
            if d.draw.chance(50):
                return [*here.pre, f"assert {good}{mark}"]
            d.tag("assert_message")
            d.sites[-1].shapes.discard("assert")
            return [*here.pre, f"assert {good}, {_text(d, here)}{mark}"]
    with d.site("raise", *shapes) as mark:
        bad = _bad(d, here)
        return [*here.pre, f"if {bad}:{mark}", *indented([_raise(d, here)])]


def _bad(d: Draft, here: Scope) -> str:
    """A condition that is true in few input sets."""
    if d.draw.chance(40):
        return control(d)
    d.tag("bool_tensor", "shape_0d")
    return d.draw.choice(_BAD).format(atom(d.draw.choice(here.data)))


def _good(d: Draft, here: Scope) -> str:
    bad = _bad(d, here)
    if " > " in bad:
        return f"not ({bad})" if d.draw.chance(50) else bad.replace(" > ", " <= ", 1)
    return f"not {bad}"


def _raise(d: Draft, here: Scope) -> str:
    error = d.draw.choice(_ERRORS)
    if error == "Unstable":
        d.definitions["Unstable"] = _UNSTABLE
    return f"raise {error}({_text(d, here)})"


def _text(d: Draft, here: Scope) -> str:
    """A message: of a tensor, of numbers taken from one, or of what Python knows."""
    operand = d.draw.choice(here.data)
    return d.draw.choice(
        (
            f'f"bad values: {{{d.detached(operand)}}}"',
            f'f"bad sum {{{operand}.sum().item()}} in {{tuple({operand}.shape)}}"',
            f'f"bad {{{operand}.dtype}}"',
            '"bad input"',
        )
    )


def _between_writes(d: Draft, scope: Scope) -> Lines:
    """In-place writes that callers can see, before and after a raise."""
    if d.module:
        kind = d.draw.choice(("write_buffer", "write_argument"))
    else:
        kind = "write_argument"
    assert kind in KINDS
    target = d.buffer("seen") if kind == "write_buffer" else d.data("state", grad=False)
    here = scope.around()
    operand = d.detached(d.draw.choice(here.data))
    before, after = d.draw.choice(
        (
            ("{0}.add_(1)", "{0}.mul_(2)"),
            ("{0}.copy_({1})", "{0}.add_({1})"),
            ("{0} += {1}", "{0} -= 1"),
        )
    )
    if "+=" in before and "." not in target:
        before, after = "{0}.add_({1})", "{0}.sub_(1)"
    with d.site("raise", "raise_between_writes", kind) as mark:
        bad = _bad(d, here)
        lines = [
            before.format(target, operand),
            *here.pre,
            f"if {bad}:{mark}",
            *indented([_raise(d, here)]),
            after.format(target, operand),
        ]
    name = d.fresh("y")
    lines.append(f"{name} = {data(d, scope)} + {target}")
    scope.add(name)
    return lines


def index_argument(d: Draft) -> str:
    """An argument of indices into the first axis; out of range in one input set."""
    size = d.shape[0]
    inside = [str(i % size) for i in range(size)]
    sets = [", ".join(inside), ", ".join(reversed(inside)), ", ".join([inside[0]] * size)]
    sets.append(sets[0])
    sets.insert(d.draw.integer(0, len(sets)), ", ".join([*inside[:-1], "7"]))
    return d.argument("index", *(f"torch.tensor([{one}])" for one in sets))


def lookup(d: Draft, operand: str, index: str) -> str:
    """Rows of an operand by indices, which raises where one is out of range."""
    size, rest = d.shape[0], len(d.shape) > 1
    choices = [f"{operand}.index_select(0, {index})", f"{operand}[{index}]"]
    if rest:
        choices.append(f"F.embedding({index}, {operand})")
    else:
        choices.append(f"{operand}.gather(0, {index})")
        choices.append(f"F.embedding({index}, {operand}.reshape({size}, 1)).squeeze(1)")
    return d.draw.choice(choices)


def _before_partial(d: Draft, scope: Scope) -> Lines:
    """A raise that guards an operation on the indices it checks."""
    here = scope.around()
    index, bound = index_argument(d), d.shape[0]
    with d.site("raise", "raise_before_partial", "bool_tensor", "shape_0d") as mark:
        message = d.draw.choice(
            (f'f"index {{{index}.max()}} of {bound}"', f'f"{{{index}.tolist()}}"')
        )
        if d.draw.chance(40):
            d.sites[-1].shapes.discard("raise")
            d.tag("assert_message")
            check = [f"assert {index}.max() < {bound}, {message}{mark}"]
        else:
            test = d.draw.choice((f"{index}.max() >= {bound}", f"({index} >= {bound}).any()"))
            check = [f"if {test}:{mark}", *indented([f"raise IndexError({message})"])]
    name = d.fresh("y")
    lines = [*here.pre, *check, f"{name} = {lookup(d, d.draw.choice(scope.data), index)}"]
    scope.add(name)
    return lines


def _partial_arm(d: Draft, scope: Scope) -> Lines:
    """An arm that would fail if it were run untaken."""
    here = scope.around()
    name = d.fresh("y")
    kind = d.draw.choice(("partial_index", "partial_division"))
    otherwise = d.draw.chance(60)
    with d.site("if_else" if otherwise else "else_less", kind, "leaves_tensor") as mark:
        operand = d.draw.choice(here.data)
        if kind == "partial_index":
            index = index_argument(d)
            d.tag("bool_tensor", "shape_0d")
            test = d.draw.choice(
                (f"{index}.max() < {d.shape[0]}", f"({index} < {d.shape[0]}).all()")
            )
            taken = lookup(d, operand, index)
        else:
            den = d.argument("parts", *(f"torch.tensor({n})" for n in d.spread("2", "0")))
            d.tag("int_tensor", "shape_0d")
            test = d.draw.choice((f"{den} != 0", den, f"{den} > 0"))
            whole = d.argument("whole", *(f"torch.tensor({n})" for n in (7, 5, 4, 9, 6)))
            taken = f"{operand} * ({whole} {d.draw.choice(('//', '%'))} {den})"
        lines = [] if otherwise else [f"{name} = {data(d, here)}"]
        lines += [f"if {test}:{mark}", *indented([f"{name} = {taken}"])]
        if otherwise:
            lines += ["else:", *indented([f"{name} = {data(d, here)}"])]
    scope.add(name)
    return [*here.pre, *lines]


def _masked(d: Draft, scope: Scope) -> Lines:
    """A store where a mask holds, skipped when it holds nowhere."""
    here = scope.around()
    mask = d.fresh("mask", scope)
    where = d.draw.weighted({"local": 4, "argument": 2, "buffer": 2})
    if where == "buffer" and d.module:
        target = d.buffer("running")
    elif where == "argument":
        target = d.data("state", grad=False)
    else:
        where, target = "local", d.fresh("z", scope)
    operand = d.draw.choice(here.data)
    tested = d.draw.choice(("{0} > 1", "{0}.isnan()", "{0} == 0", "torch.isinf({0})", "{0} < 0"))
    lines = [f"{target} = {fresh(d, here)}"] if where == "local" else []
    lines.append(f"{mask} = {tested.format(operand)}")
    with d.site("else_less", f"write_{where}") as mark:
        how = d.draw.weighted({"any": 8, "sum": 3, "not": 2, "invert": 2, "slice": 2})
        d.tag("masked_store" if how == "any" else "masked_other_guard")
        d.tag("shape_0d", "bool_tensor")
        header, used, into = f"if {mask}.any():", mask, target
        if how == "sum":
            header = f"if {mask}.sum() > 0:"
        elif how == "not":
            header = f"if not (~{mask}).all():"
        elif how == "invert":
            header, used = f"if (~{mask}).any():", f"~{mask}"
        elif how == "slice":
            header, used, into = f"if {mask}[:1].any():", f"{mask}[:1]", f"{target}[:1]"
        value = d.draw.choice(here.data)
        value = value if where == "local" else d.detached(value)
        value = f"{value}[:1]" if how == "slice" else value
        stores = [
            f"{into}[{used}] = 0.0",
            f"{into}.masked_fill_({used}, 1.0)",
            f"{into}[{used}] = {value}[{used}]",
            f"{into}[{used}] += 1",
        ]
        if where == "local" and how != "slice":
            d.tag("leaves_tensor")
            stores.append(f"{into} = {into}.masked_fill({used}, 0.0)")
            stores.append(f"{into} = torch.where({used}, {value}, {into})")
        lines += [*here.pre, header + mark, *indented([d.draw.choice(stores)])]
    if where == "local":
        scope.add(target, own=True)
    return lines
