"""Formulas over predicates: equal ones are one number, and their calls compute them."""

from __future__ import annotations

import itertools
import random
from typing import Any

import torch
from torch import fx

from fusepass.capture.autograd.arm_formulas import ALWAYS, NEVER, Formulas


def predicates(count: int) -> tuple[fx.Graph, list[fx.Node]]:
    graph = fx.Graph()
    return graph, [graph.placeholder(f"p{i}") for i in range(count)]


def test_constants_are_recognized() -> None:
    _, (p, q) = predicates(2)
    formulas = Formulas()
    not_p, just_p = formulas.where(p, NEVER, ALWAYS), formulas.where(p, ALWAYS, NEVER)
    assert formulas.either(just_p, not_p) == ALWAYS
    assert formulas.where(p, NEVER, just_p) == NEVER
    assert formulas.where(q, just_p, just_p) == just_p
    assert formulas.where(p, formulas.where(q, ALWAYS, NEVER), ALWAYS) == formulas.either(
        not_p, formulas.where(q, ALWAYS, NEVER)
    )


def test_calls_compute_the_formula() -> None:
    source = random.Random(3)
    for _ in range(50):
        graph, nodes = predicates(4)
        formulas = Formulas()
        # By formula, its values over all outcomes.
        outcomes = [*itertools.product((False, True), repeat=4)]
        known: dict[int, list[bool]] = {NEVER: [False] * 16, ALWAYS: [True] * 16}
        for _ in range(12):
            a, b = source.choice([*known]), source.choice([*known])
            if source.random() < 0.5:
                made = formulas.either(a, b)
                values = [x or y for x, y in zip(known[a], known[b], strict=True)]
            else:
                i = source.randrange(4)
                made = formulas.where(nodes[i], a, b)
                pairs = zip(outcomes, known[a], known[b], strict=True)
                values = [x if outcome[i] else y for outcome, x, y in pairs]
            assert known.setdefault(made, values) == values
        wanted = [formula for formula in known if formula > ALWAYS]
        recorded: dict[int, fx.Node] = {}

        def call(target: Any, *args: Any) -> fx.Node:
            return graph.call_function(target, args)  # noqa: B023 - called at once

        graph.output(tuple(formulas.record(formula, call, recorded) for formula in wanted))
        run = fx.GraphModule({}, graph)
        for number, outcome in enumerate(outcomes):
            found = run(*map(torch.tensor, outcome))
            assert [bool(one) for one in found] == [known[one][number] for one in wanted]
        for formula in wanted:
            assert set(formulas.predicates(formula)) <= set(nodes)
