"""Options with the names of rules checked, and scopes of options.

Imported with fusepass itself, so what needs torch is imported in the functions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from fusepass.errors import ArgumentType, OptionsChanged, UnknownOption
from fusepass.options import SCOPES, Options, build, resolve, with_current_names
from fusepass.report import warn_once


def resolve_checked(mode: str | None = None, options: Mapping[str, Any] | None = None) -> Options:
    """As :func:`fusepass.options.resolve`, and every rule named in the options exists.

    Raises:
        UnknownOption: a key or a rule that does not exist.
        OptionType: a value of the wrong type.
        OptionValue: a value that is not one of those allowed.
        ArgumentType: what torch.compile was given is no mapping.
    """
    return _with_known_rules(resolve(mode, options))


@contextlib.contextmanager
def options(*misplaced: object, **given: Any) -> Iterator[Options]:
    """Scope of options for everything compiled inside it.

    Keys are those of :class:`Options`; Inductor's own go in as ``**{"inductor.key": value}``.

    Args:
        misplaced: nothing; is here to tell who gives a dict what to do.
        given: keys and values.

    Yields:
        The options as they would apply to a callable compiled here without its own.

    Raises:
        UnknownOption, OptionType, OptionValue: as :func:`resolve_checked`, on entry.
        ArgumentType: an argument without a keyword, on entry.
    """
    from fusepass.report import live_compiles

    for value in misplaced:
        expected = "keywords, as in fusepass.options(verify=False) or fusepass.options(**given)"
        raise ArgumentType("the arguments of fusepass.options", value, expected)
    current = with_current_names(given, stacklevel=5)
    _with_known_rules(build(current))
    outside = resolve()
    token = SCOPES.set((*SCOPES.get(), current))
    try:
        inside = resolve()
        if inside != outside and live_compiles.anything_differs():
            warn_once.warn(OptionsChanged(), stacklevel=3)
        yield inside
    finally:
        SCOPES.reset(token)


def _with_known_rules(options: Options) -> Options:
    from fusepass.rewrite.registry import rule_names

    for name in options.rules:
        if name not in rule_names():
            raise UnknownOption(name, rule_names(), "options['rules']")
    return options
