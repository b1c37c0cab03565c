"""Boolean-mask indexing: stores, updates, reductions, counts, and selections that are needed."""

from __future__ import annotations

from tests.fuzz.draft import Draft, Lines, Scope, atom
from tests.fuzz.values import fresh

FORMS = {
    "mask_store": 5,
    "mask_update": 5,
    "mask_reduction": 5,
    "mask_count": 4,
    "mask_kept": 4,
    "mask_moment": 4,
}
_MASKS = ("{0} > 0", "{0}.isnan()", "({0} > 0.5) | ({0} < -0.5)", "torch.isfinite({0})", "{0} > 99")
_STORES = ("1.0", "{1}.sum()", "{1}[{2}]", "({1} * 2 + 1)[{2}]", "{0}[{2}].abs() + 1", "0", "nan")
_UPDATES = ("*= 2", "+= 0.5", "/= 3", "-= {1}[{2}]", "*= {1}.sum()", "+= {1}.sum()")
_SUMS = (
    "{0}[{1}].sum()",
    "{0}[{1}].mean()",
    "({0} * 2)[{1}].sum()",
    "({0} - 1)[{1}].abs().mean()",
    "({0}[{1}] - ({0} * 2)[{1}]).pow(2).sum()",
)
_EXACT = (
    "({0} > 0)[{1}].any()",
    "({0} > 0)[{1}].all()",
    "({0} > 0)[{1}].sum()",
    "{0}[{1}].isnan().any()",
)
_COUNTS = (
    "{0}[{1}].numel()",
    "torch.where({1})[0].numel()",
    "{1}.nonzero().numel()",
    "{0}[{1}].shape[0]",
    "len({0}[{1}])",
    "{1}.nonzero().shape[0]",
    "{0}[{1}].size(0)",
)
_KEPT = (
    "{0}[{1}]",
    "{0}[{1}].sort().values",
    "{0}[{1}].cumsum(0)",
    "torch.masked_select({0}, {1})",
    "{1}.nonzero()",
    "{0}[{1}] * 2",
)


def statement(d: Draft, scope: Scope) -> Lines:
    """A mask of the program's shape, and something done where it holds."""
    form = d.draw.weighted(FORMS)
    with d.trip(form) as mark:
        lines, mask = _mask(d, scope)
        operand = d.draw.choice(scope.data)
        if form in ("mask_store", "mask_update"):
            return [*lines, *_stored(d, scope, form, operand, mask, mark)]
        if form == "mask_reduction":
            return [*lines, *_reduced(d, scope, operand, mask, mark)]
        if form == "mask_count":
            return [*lines, *_counted(d, scope, operand, mask, mark)]
        if form == "mask_moment":
            return [*lines, *_moment(d, scope, operand, mask, mark)]
        name = d.fresh("chosen", scope)
        kept = f"{name} = {d.draw.choice(_KEPT).format(operand, mask)}{mark}"
        scope.results.append(name)
        after = d.fresh("y")
        text = f"{after} = {operand} + {name}.shape[0]"
        scope.add(after)
        return [*lines, kept, text]


def _mask(d: Draft, scope: Scope) -> tuple[Lines, str]:
    """A mask, and the lines that bind it: computed, or an argument that holds all, none, some."""
    if d.draw.chance(30):
        return [], given(d)
    name = d.fresh("mask", scope)
    return [f"{name} = {d.draw.choice(_MASKS).format(d.draw.choice(scope.data))}"], name


def given(d: Draft) -> str:
    """An argument that is a mask: some, none, all of it, and others."""
    turn = d.draw.integer(0, 4)
    every = ("> 0", "> 99", "> -99", "< 0.75", "> 1")
    literals = [f"({d.tensor()} {every[(turn + i) % 5]})" for i in range(5)]
    return d.argument("given", *literals)


def _stored(d: Draft, scope: Scope, form: str, operand: str, mask: str, mark: str) -> Lines:
    name = d.fresh("z")
    used = f"~{mask}" if d.draw.chance(15) else mask
    lines = [f"{name} = {fresh(d, scope)}"]
    choices = _STORES if form == "mask_store" else _UPDATES
    text = d.draw.choice(choices).format(name, operand, used)
    sign = "= " if form == "mask_store" else ""
    if len(d.shape) == 2 and d.draw.chance(25):  # of rows
        rows = f"{used if used == mask else f'({used})'}[:, 0]"
        text = d.draw.choice((f"{operand}[0]", "1.0")) if sign else "*= 2"
        lines.append(f"{name}[{rows}] {sign}{text}{mark}")
    else:
        lines.append(f"{name}[{used}] {sign}{text}{mark}")
    scope.add(name, own=True)
    return lines


def _reduced(d: Draft, scope: Scope, operand: str, mask: str, mark: str) -> Lines:
    name, after = d.fresh("s", scope), d.fresh("y")
    summed = d.draw.chance(65)
    text = d.draw.choice(_SUMS if summed else _EXACT).format(atom(operand), mask)
    d.rounded |= summed  # where the mask holds, or over all with zeros: the order is another
    scope.results.append(name)
    lines = [
        f"{name} = {text}{mark}",
        f"{after} = {operand} {d.draw.choice(('*', '+'))} {name}",
    ]
    scope.add(after)
    return lines


def _counted(d: Draft, scope: Scope, operand: str, mask: str, mark: str) -> Lines:
    name, after = d.fresh("n", scope), d.fresh("y")
    text = d.draw.choice(_COUNTS).format(operand, mask)
    use = d.draw.choice(("{0} * {1}", "{0} / ({1} + 1)", "{0} - {1} / 2", "{0} / max({1}, 1)"))
    lines = [f"{name} = {text}{mark}", f"{after} = {use.format(operand, name)}"]
    scope.add(after)
    return lines


def _moment(d: Draft, scope: Scope, operand: str, mask: str, mark: str) -> Lines:
    """The mask, or what it selects from, is written before the selection is used."""
    name, chosen, after = d.fresh("z"), d.fresh("chosen", scope), d.fresh("y")
    write = d.draw.choice((f"{name}.add_(1)", f"{name}[0] = 5.0", f"{mask}.logical_not_()"))
    use = d.draw.choice(("{0}.sum()", "{0}.numel()", "{0}.mean()"))
    d.rounded |= "numel" not in use
    lines = [
        f"{name} = {fresh(d, scope)}",
        f"{chosen} = {name}[{mask}]{mark}",
        write,
        f"{after} = {operand} * {use.format(chosen)}",
    ]
    scope.add(name, own=True)
    scope.add(after)
    return lines
