"""What reads a value, itself or through calls that only hand it on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import fx


def readers(node: fx.Node, through: Callable[[fx.Node], bool]) -> Iterator[tuple[fx.Node, fx.Node]]:
    """The nodes that read a value, each with what it reads: the value or what hands it on.

    A call that ``through`` accepts hands on what it reads; its own readers follow behind it.
    """
    todo = [(node, iter(node.users))]
    while todo:
        read, users = todo[-1]
        user = next(users, None)
        if user is None:
            todo.pop()
            continue
        yield user, read
        if through(user):
            todo.append((user, iter(user.users)))
