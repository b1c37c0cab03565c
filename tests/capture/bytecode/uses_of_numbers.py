"""Functions that read a number and test it, compute with it first, or use it otherwise."""

from __future__ import annotations

from typing import Any


def read() -> Any:
    """Stands for whatever pushes the value."""


def asked(x: Any) -> Any:
    return 1 if read() else 2


def negated(x: Any) -> Any:
    if not read():
        return 1
    return 2


def compared(x: Any) -> Any:
    if read() > 1e-8:
        return 1
    return 2


def compared_from_the_left(x: Any) -> Any:
    if x.limit < read():
        return 1
    return 2


def compared_with_a_name(x: Any) -> Any:
    if read() == x:
        return 1
    return 2


def compared_with_what_is_computed(x: Any) -> Any:
    if read() > x.limit * 2 + x.other(3):
        return 1
    return 2


def one_of_two_terms(x: Any) -> Any:
    if read() > 1 and x:
        return 1
    return 2


def second_of_two_terms(x: Any) -> Any:
    if x or read() > 1:
        return 1
    return 2


def loop_condition(x: Any) -> Any:
    while read() > 1:
        x = x + 1
    return x


def stored_and_tested(x: Any) -> Any:
    value = read()
    if value > 1:
        return 1
    return 2


def stored_and_tested_twice(x: Any) -> Any:
    value = read()
    if value > 1:
        return 1
    if value < -1 or not value:
        return 3
    return 2


def outcome_stored(x: Any) -> Any:
    positive = read() > 0
    if positive:
        return 1
    return 2


def stored_under_a_second_name(x: Any) -> Any:
    value = read()
    other = value
    if other:
        return 1
    return 2


def chained(x: Any) -> Any:
    if 0 < read() < 5:
        return 1
    return 2


def chained_with_itself(x: Any) -> Any:
    value = read()
    if -1 <= value <= value < x:
        return 1
    return 2


def not_even_tested(x: Any) -> Any:
    read()
    return x


YES = [
    chained,
    chained_with_itself,
    not_even_tested,
    asked,
    negated,
    compared,
    compared_from_the_left,
    compared_with_a_name,
    compared_with_what_is_computed,
    one_of_two_terms,
    second_of_two_terms,
    loop_condition,
    stored_and_tested,
    stored_and_tested_twice,
    outcome_stored,
    stored_under_a_second_name,
]


def arithmetic(x: Any) -> Any:
    if read() - 1 > x:
        return 1
    return 2


def arithmetic_from_the_left(x: Any) -> Any:
    if 2 * read() > x:
        return 1
    return 2


def negative(x: Any) -> Any:
    if -read() > x:
        return 1
    return 2


def arithmetic_stored(x: Any) -> Any:
    value = read()
    twice = value + value
    if twice > 3:
        return 1
    return 2


ARITHMETIC = [arithmetic, arithmetic_from_the_left, negative, arithmetic_stored]


def returned(x: Any) -> Any:
    return read()


def returned_after_a_test(x: Any) -> Any:
    value = read()
    if value > 1:
        return value
    return 2


def outcome_returned(x: Any) -> Any:
    positive = read() > 0
    if positive:
        x = x + 1
    return x, positive


def or_as_value(x: Any) -> Any:
    return read() or x


def and_as_value(x: Any) -> Any:
    return [read() and x]


def given_to_a_call(x: Any) -> Any:
    if abs(read()) > 1:
        return 1
    return 2


def given_as_keyword(x: Any) -> Any:
    if x(limit=read()):
        return 1
    return 2


def method_of_it(x: Any) -> Any:
    if read().real > 1:
        return 1
    return 2


def called(x: Any) -> Any:
    if read()(x):
        return 1
    return 2


def index(x: Any) -> Any:
    if x[read()]:
        return 1
    return 2


def indexed(x: Any) -> Any:
    if read()[0]:
        return 1
    return 2


def stored_and_never_read(x: Any) -> Any:
    value = read()  # noqa: F841
    return x


def stored_and_used_elsewhere(x: Any) -> Any:
    value = read()
    if value > 1:
        x = x * value
    return x


def stored_in_an_attribute(x: Any) -> Any:
    x.value = read()
    return 1 if x.value else 2


def stored_in_a_list(x: Any) -> Any:
    x[0] = read()
    return 1 if x[0] else 2


def put_in_a_list(x: Any) -> Any:
    value = [read()]
    return 1 if value else 2


def one_of_three_arguments(x: Any) -> Any:
    if x(read(), 1, 2) > 0:
        return 1
    return 2


def chained_and_returned(x: Any) -> Any:
    return 0 < read() < 5


def chained_and_used(x: Any) -> Any:
    value = read()
    if 0 < value < 5:
        return value
    return 2


def used_where_only_one_way_leads(x: Any) -> Any:
    value = read()
    for _ in x:
        if value:
            x = value + x
    return 1 if value else 2


def membership(x: Any) -> Any:
    return 1 if read() in x else 2


def identity(x: Any) -> Any:
    return 1 if read() is x else 2


def is_none(x: Any) -> Any:
    return 1 if x.get(read()) is None else 2


def formatted(x: Any) -> Any:
    value = read()
    if value > 1:
        return f"{value}"
    return x


def closed_over(x: Any) -> Any:
    value = read()
    if value:
        return lambda: value
    return x


def deleted(x: Any) -> Any:
    value = read()
    if value:
        x = x + 1
    del value
    return x


def unpacked(x: Any) -> Any:
    a, b = read()
    return 1 if a else b


def asserted_message(x: Any) -> Any:
    value = read()
    if value > 1:
        raise ValueError(f"too large: {value}")
    return x


NO = [
    returned,
    returned_after_a_test,
    outcome_returned,
    or_as_value,
    and_as_value,
    given_to_a_call,
    given_as_keyword,
    method_of_it,
    called,
    index,
    indexed,
    stored_and_never_read,
    stored_and_used_elsewhere,
    stored_in_an_attribute,
    stored_in_a_list,
    put_in_a_list,
    one_of_three_arguments,
    chained_and_returned,
    chained_and_used,
    used_where_only_one_way_leads,
    membership,
    identity,
    is_none,
    formatted,
    closed_over,
    deleted,
    unpacked,
    asserted_message,
]
