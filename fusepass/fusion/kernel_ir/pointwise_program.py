"""Many independent pointwise computations as one plain value, for one kernel that does them all.

Each is a *member*: an :class:`fusepass.fusion.kernel_ir.epilogue.Epilogue` of no product, its
*body*, with operands and results of its own. An operand is ``full`` (an element for each of the
result's), ``column`` (one for each index of the result's slowest dimension, as the scale of an
output channel's weights) or ``scalar``. Equal bodies are written down once.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass

from fusepass.fusion.kernel_ir.epilogue import Epilogue
from fusepass.fusion.kernel_ir.epilogue import parse as parse_epilogue


@dataclass(frozen=True)
class PointwiseProgram:
    """What a kernel does.

    Attributes:
        bodies: the different computations, each with at least one output.
        members: for each member the position of its body.
    """

    bodies: tuple[Epilogue, ...]
    members: tuple[int, ...]

    def text(self) -> str:
        """As JSON on one line: equal for equal programs."""
        record = {"bodies": [body.text() for body in self.bodies], "members": self.members}
        return json.dumps(record, separators=(",", ":"))

    @property
    def starts(self) -> tuple[int, ...]:
        """Where the operands of each member begin among those of all, and how many there are."""
        counts = [0]
        for body in self.members:
            counts.append(counts[-1] + len(self.bodies[body].operands))
        return tuple(counts)

    @property
    def result_starts(self) -> tuple[int, ...]:
        """Likewise of the results."""
        counts = [0]
        for body in self.members:
            counts.append(counts[-1] + len(self.bodies[body].outputs))
        return tuple(counts)


@functools.lru_cache(maxsize=256)
def parse(text: str) -> PointwiseProgram:
    """The program of a text.

    Raises:
        ValueError: it is none.
    """
    try:
        record = json.loads(text)
        bodies = tuple(map(parse_epilogue, record["bodies"]))
        members = tuple(map(int, record["members"]))
    except (KeyError, TypeError, ValueError) as fault:
        raise ValueError(f"a malformed program of members: {fault}") from None
    kinds = {operand.kind for body in bodies for operand in body.operands}
    plain = all(body.products == 0 and body.outputs == body.stored != () for body in bodies)
    if not plain or kinds - {"full", "column", "scalar"}:
        raise ValueError("a malformed program of members: a body is not one of them")
    if any(not 0 <= body < len(bodies) for body in members):
        raise ValueError("a malformed program of members: it names a body that it has not")
    return PointwiseProgram(bodies, members)
