from __future__ import annotations

import dis
from types import SimpleNamespace
from typing import Any

import pytest

from fusepass.capture.bytecode.control_flow import EXIT, analyse
from fusepass.capture.bytecode.control_flow import live_sets as analyse_liveness


def instructions_of(function: Any) -> list[SimpleNamespace]:
    """Instructions as Dynamo holds them: jump targets are instructions, not offsets."""
    raw = [i for i in dis.get_instructions(function) if i.opname not in ("CACHE", "EXTENDED_ARG")]
    found = [
        SimpleNamespace(
            opname=i.opname, opcode=i.opcode, argval=i.argval, target=None, exn_tab_entry=None
        )
        for i in raw
    ]
    at = {i.offset: n for n, i in enumerate(raw)}
    jumps = set(dis.hasjrel) | set(dis.hasjabs)
    for one, i in zip(found, raw, strict=True):
        if i.opcode in jumps:
            one.target = found[at[i.argval]]
    return found


def first_jump(instructions: list[SimpleNamespace]) -> int:
    return next(n for n, i in enumerate(instructions) if "JUMP" in i.opname and "IF" in i.opname)


def rejoins(x):
    if x:
        y = 1
    else:
        y = 2
    return [y, y, y, y, y, y]  # long enough that no compiler copies it into both arms


def returns_early(x):
    if x:
        return x
    return [x, x]


def raises_in_an_arm(x):
    if x:
        raise ValueError("no")
    y = 3
    return [y, y, y, y, y]


def in_a_loop(xs):
    for x in xs:
        if x:
            xs = x
    return xs


def test_arms_that_rejoin_meet_where_the_value_is_read() -> None:
    code = instructions_of(rejoins)
    join = analyse(code).join_of(first_jump(code))
    assert join != EXIT
    assert code[join].opname.startswith("LOAD_FAST")
    assert code[join].argval == "y" or "y" in code[join].argval


def test_an_early_return_meets_at_the_exit() -> None:
    code = instructions_of(returns_early)
    assert analyse(code).join_of(first_jump(code)) == EXIT


def test_an_arm_that_raises_is_seen_and_does_not_hide_the_rest() -> None:
    code = instructions_of(raises_in_an_arm)
    region = analyse(code)
    jump = first_jump(code)
    taken, passed = code.index(code[jump].target), jump + 1
    assert region.only_raises(taken) != region.only_raises(passed)


def test_in_a_loop_the_arms_meet_at_its_head() -> None:
    code = instructions_of(in_a_loop)
    join = analyse(code).join_of(first_jump(code))
    heads = {"FOR_ITER", "JUMP_BACKWARD"}
    assert code[join].opname in heads


def rebinds(x):
    if x:
        scratch = 1
        x = scratch
    scratch = 2
    return [scratch, x, x, x, x]


def reads_later(x):
    if x:
        scratch = 1
    return [scratch, x, x, x, x]


@pytest.mark.parametrize(("function", "live"), [(rebinds, False), (reads_later, True)])
def test_a_name_written_before_it_is_read_again_is_dead(function: Any, live: bool) -> None:
    code = instructions_of(function)
    join = analyse(code).join_of(first_jump(code))
    if join == EXIT:
        pytest.skip("this Python copies the tail into both arms")
    names = analyse_liveness(code)[join]
    assert ("scratch" in names) is live
    assert "x" in names


def chained(a, b):
    if a and b():
        return a
    return [a, a]


def chained_three(a, b, c):
    if (a or b()) and c():
        return a
    return [a, a]


def nested_with_a_statement(a, b):
    if a:
        b = b()
        if b:
            return a
    return [a, a]


def other_target(a, b):
    if a:
        return [b, b] if b() else [b]
    return [a, a]


def looped(a, b):
    while a and b():
        a = a()
    return [a, a]


@pytest.mark.parametrize(
    ("function", "settled"),
    [
        (chained, [False]),
        (chained_three, [True, False]),
        (nested_with_a_statement, []),
        (other_target, []),
    ],
)
def test_chains_of_tests(function: Any, settled: list[bool]) -> None:
    instructions = instructions_of(function)
    chains = analyse(instructions).chains
    assert [truth for _, (_, truth) in sorted(chains.items())] == settled
    jumps = [n for n, i in enumerate(instructions) if "JUMP" in i.opname and "IF" in i.opname]
    assert {end for end, _ in chains.values()} <= set(jumps)
    assert all(jump < end for jump, (end, _) in chains.items())


def test_the_body_of_a_loop_is_no_test() -> None:
    instructions = instructions_of(looped)
    chains = analyse(instructions).chains
    tests = [n for n, i in enumerate(instructions) if "JUMP" in i.opname and "IF" in i.opname]
    assert all(end == tests[tests.index(jump) + 1] for jump, (end, _) in chains.items())
    assert tests[1] not in chains, "from the test to the next one there is a statement"
