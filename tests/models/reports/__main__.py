"""Print what becomes of the programs that are modelled on public reports."""

from __future__ import annotations

import sys
import warnings

from .run import cases, outcome_of


def main(wanted: list[str]) -> None:
    """Print a line for each program, and the sums."""
    warnings.simplefilter("ignore")
    whole = wrong = number = 0
    for report, context in cases():
        if wanted and report.name not in wanted:
            continue
        outcome = outcome_of(report, context)
        state = "one graph" if outcome.one_graph else f"{outcome.graphs} graphs"
        state = "WRONG" if outcome.difference else state
        print(f"{report.name:32} {context:6} {state:10} {report.url}")
        for line in outcome.kept:
            print(f"      kept {line}")
        if outcome.difference:
            print("      ", outcome.difference.replace("\n", "\n        "))
        number += 1
        whole += outcome.one_graph
        wrong += outcome.difference is not None
    print(f"{number} programs, {whole} of them one graph, {wrong} wrong")


if __name__ == "__main__":
    main(sys.argv[1:])
