"""The command line: ``python -m fusepass syncs module:function``."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from fusepass.errors import BenchError, FusepassError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``syncs``; docs/syncs.md explains them."""
    parser.add_argument("target", help="module:function or path/to/file.py:function, as for bench")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the list here as JSON")
    parser.add_argument("--grad", action="store_true", help="leave autograd on")


def run(arguments: argparse.Namespace) -> int:
    """List the host synchronisations of one call of a target; returns 1 if any remain.

    A target that raises has its traceback shown, and makes it 2: it says nothing about waits. So
    does what fails beside it, a compiler say, and that is not laid to the target.
    """
    import torch

    from fusepass.bench.program import check_built, load_function
    from fusepass.report.host_syncs.api import raised_by_program, syncs
    from fusepass.report.paths import check_output

    check_output(arguments.json, "fusepass syncs", "--json")
    built = None
    try:
        make: Callable[[], object] = load_function(arguments.target)
        built = check_built(make(), arguments.target)
        with torch.set_grad_enabled(arguments.grad):
            found = syncs(built.model, *built.args, **built.kwargs)
    except BenchError as error:  # targets are those of bench, and so are its words
        said = str(error).replace("fusepass bench:", "fusepass syncs:", 1)
        raise BenchError(said) from error
    except FusepassError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - what a program raises can be anything
        traceback.print_exception(error)
        kind = type(error).__name__
        exits = isinstance(error, SystemExit)  # nothing but a program does
        its_own = built is None or exits or raised_by_program(error)
        what = f"{arguments.target} raised {kind}"
        if not its_own:
            what = f"{kind} while {arguments.target} was watched, which did not raise it"
        print(f"fusepass syncs: {what}; see above.", file=sys.stderr)
        return 2
    if arguments.json is not None:
        arguments.json.write_text(found.to_json() + "\n")
    print(found)
    return 1 if found.remaining else 0
