"""``python -m fusepass COMMAND``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit status (2 for a request that cannot be carried out)."""
    from fusepass.bench import cli as bench
    from fusepass.errors import FusepassError
    from fusepass.report.host_syncs import cli as syncs

    parser = argparse.ArgumentParser(prog="python -m fusepass")
    commands = parser.add_subparsers(dest="command", required=True)
    bench.add_arguments(
        commands.add_parser("bench", help="time eager, Inductor and fusepass side by side")
    )
    syncs.add_arguments(
        commands.add_parser("syncs", help="list where one call makes the host wait for the device")
    )
    arguments = parser.parse_args(argv)
    try:
        return {"bench": bench.run, "syncs": syncs.run}[arguments.command](arguments)
    except FusepassError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
