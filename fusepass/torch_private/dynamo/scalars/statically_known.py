"""Recognise functions that ask what torch knows about a number, and give eager's answer.

Run on torch 2.11 to 2.15.

``statically_known_true(n == 3)`` asks nothing when the program runs: of a number in Python it is
``n == 3``. Dynamo answers it while it traces, so of a number that nobody has read, wrongly.
"""

from __future__ import annotations

from typing import Any

KNOWN = "known: "  # before the name of such a question
SAME = "same"
NEGATED = "negated"
ALWAYS = "always"
NEVER = "never"
ALL_OF = "all of"
ANY_OF = "any of"

_NUMBER = ("bool", "int", "float")
_ANSWERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "expect_true": (SAME, ("bool",)),
    "guard_bool": (SAME, ("bool",)),
    "guard_or_false": (SAME, ("bool",)),
    "guard_or_true": (SAME, ("bool",)),
    "guard_size_oblivious": (SAME, ("bool",)),
    "statically_known_true": (SAME, ("bool",)),
    "definitely_true": (SAME, ("bool",)),
    "statically_known_false": (NEGATED, ("bool",)),
    "definitely_false": (NEGATED, ("bool",)),
    "guard_float": (SAME, ("float",)),
    "guard_int": (SAME, ("int",)),
    "guard_scalar": (SAME, _NUMBER),
    "guarding_hint_or_throw": (SAME, ("bool", "int")),
    "hint_int": (SAME, ("int",)),
    "optimization_hint": (SAME, ("int",)),
    "has_guarding_hint": (ALWAYS, _NUMBER),
    "has_hint": (ALWAYS, _NUMBER),
    "has_static_value": (ALWAYS, _NUMBER),
    "is_concrete_bool": (ALWAYS, ("bool",)),
    "is_concrete_float": (ALWAYS, ("float",)),
    "is_concrete_int": (ALWAYS, ("bool", "int")),
    "has_free_symbols": (NEVER, _NUMBER),
    "has_free_unbacked_symbols": (NEVER, _NUMBER),
    "is_nested_int": (NEVER, _NUMBER),
    "is_symbolic": (NEVER, _NUMBER),
    "sym_and": (ALL_OF, ("bool",)),
    "sym_or": (ANY_OF, ("bool",)),
}


def question(function: Any) -> str | None:
    """The name of a function that looks into a number as it is traced, behind KNOWN, or None."""
    from torch.fx.experimental import symbolic_shapes

    name = getattr(function, "__name__", None)
    if name is None or getattr(function, "__module__", None) != symbolic_shapes.__name__:
        return None
    return KNOWN + str(name)


def answer_of(name: str, kind: str | None) -> str | None:
    """What such a function says of a number that the program has in Python.

    Args:
        name: of the function.
        kind: of the number, ``bool``, ``int`` or ``float``.

    Returns:
        :data:`SAME` for the number itself, :data:`NEGATED`, :data:`ALWAYS` for True, :data:`NEVER`
        for False, :data:`ALL_OF` or :data:`ANY_OF` its arguments; None where it raises, or where
        that is not known.
    """
    answer, kinds = _ANSWERS.get(name, (None, ()))
    return answer if kind in kinds else None
