"""Which cases to try: each way a program can differ from the plain one, then mixtures of them.

A rule is usually wrong in one respect (zero sizes, a stride, a result written to), so each is
tried by itself or with few others first; Hypothesis then mixes them.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fusepass.testing.case import AFTER, AROUND, BEFORE, LAYOUTS, Case
from fusepass.testing.space import Space

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy

Change = tuple[str, Any]  # a field of a case and its value


def operand_changes(space: Space) -> list[Change]:
    """Other scalars, dtypes and ranks."""
    found: list[Change] = []
    first = tuple(values[0] for values in space.scalars.values())
    for index, values in enumerate(space.scalars.values()):
        found += [("scalars", (*first[:index], v, *first[index + 1 :])) for v in values[1:]]
    found += [("dtypes", choice) for choice in space.dtypes[1:]]
    found += [("lift", group) for group in space.lifts]
    return found + [("ones", (axis,)) for axis in space.ones]


def layout_changes(space: Space, plain: Case) -> list[Change]:
    """Other places in memory, operands that are one tensor, gradients for some operands only."""
    count = len(space.tensors)
    found: list[Change] = [("layouts", (layout,) * count) for layout in LAYOUTS[1:]]
    found += [("same", pair) for pair in space.same]
    if sum(plain.grads) > 1:
        for index in range(count):
            if plain.grads[index]:
                found.append(("grads", tuple(i == index for i in range(count))))
    return found


def program_changes(space: Space) -> list[Change]:
    """Other operations before and after."""
    found: list[Change] = [("after", after) for after in AFTER if after]
    return found + [
        ("before", tuple(before if space.floating(p) else "" for p in space.tensors))
        for before in BEFORE
        if before and space.tensors
    ]


def context_changes(space: Space, plain: Case) -> list[Change]:
    """Other surroundings of the call, gradients for all operands or for none among them."""
    found: list[Change] = [("around", around) for around in AROUND if around]
    found += [("beside", True), ("again", True), ("called", "inference")]
    training = any(plain.grads)
    found.append(("grads", tuple(not training and space.floating(p) for p in space.tensors)))
    return [*found, ("resized", True)]


def size_changes(space: Space, plain: Case) -> list[Change]:
    """All dimensions odd, all larger; each of them empty, and of one element."""
    found: list[Change] = [
        ("sizes", tuple(wanted if wanted in dim.sizes else dim.base for dim in space.dims))
        for wanted in (7, 33)
    ]
    for size in (0, 1):
        for index, dim in enumerate(space.dims):
            if size in dim.sizes[1:]:
                found.append(("sizes", (*plain.sizes[:index], size, *plain.sizes[index + 1 :])))
    return found


def first_cases(space: Space, plain: Case, outputs: int, misses: int, few: bool) -> Iterator[Case]:
    """Cases to try before the random ones, of a pattern with so many results and near misses.

    With ``few``, several changes are made at once where they do not hide one another.
    """
    columns = [
        operand_changes(space),
        layout_changes(space, plain),
        program_changes(space),
    ]
    rows = itertools.zip_longest(*columns) if few else ((c,) for c in itertools.chain(*columns))
    together = [dict(change for change in row if change is not None) for row in rows]
    alone = [
        {name: value}
        for name, value in (*size_changes(space, plain), *context_changes(space, plain))
    ]
    step = max(1, misses // 8) if few else 1
    near = [{"near_miss": index} for index in range(1, misses + 1, step)]
    # In turns: a check that runs out of time has seen some of each.
    for fields in itertools.chain.from_iterable(itertools.zip_longest(alone, together, near)):
        if fields is None:
            continue
        output = max(outputs - 1, 0) if "after" in fields else 0
        yield dataclasses.replace(plain, **{"output": output, **fields})


def cases(
    space: Space, plain: Case, outputs: int, misses: int, silent: Collection[Change]
) -> SearchStrategy[Case]:
    """Random mixtures of changes, for Hypothesis; the simplest is the plain case.

    Changes for which the rule did not fire (``silent``) are left out.
    """
    from hypothesis import strategies as st

    changes = [
        *operand_changes(space),
        *layout_changes(space, plain),
        *program_changes(space),
        *context_changes(space, plain),
    ]
    choices: dict[str, list[Any]] = {}
    for name, value in changes:
        if (name, value) not in silent:
            choices.setdefault(name, []).append(value)

    @st.composite
    def draw_case(draw: DrawFn) -> Case:
        def pick(values: Sequence[Any], least: Any, weight: int = 2) -> Any:
            return draw(st.sampled_from([least] * weight * len(values) + list(values)))

        fields = {
            name: pick(values, getattr(plain, name), 3 if name == "resized" else 1)
            for name, values in choices.items()
        }
        layouts = st.sampled_from(LAYOUTS)
        if fields.get("layouts", plain.layouts) != plain.layouts:  # one each
            fields["layouts"] = tuple(draw(layouts) for _ in space.tensors)
        fields["sizes"] = tuple(
            draw(st.sampled_from([dim.base, *(s for s in dim.sizes if s > 1), *dim.sizes]))
            for dim in space.dims
        )
        if outputs > 1:
            fields["output"] = draw(st.integers(0, outputs - 1))
        if misses and draw(st.integers(0, 3)) == 3:
            fields["near_miss"] = draw(st.integers(1, misses))
        fields["seed"] = draw(st.integers(0, 99))
        return dataclasses.replace(plain, **fields)

    return draw_case()
