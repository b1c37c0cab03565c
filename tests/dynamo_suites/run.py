"""Runs a file of torch's own tests as it is and with its backends mapped to fusepass, and compares.

    python tests/dynamo_suites/run.py ~/pytorch/test/dynamo/test_misc.py --out ~/results --step 3

Each way runs in processes of its own. A test has a result in ``OUT/NAME.WAY.jsonl``; what has one is
not run again, so a run that was ended goes on where it was. docs/design/own_tests.md says more.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
import unittest
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PASSED = ("pass", "xfail")
TAIL = 6000  # characters of an error's text that are kept
START = 120  # seconds until a process is at its first test


class TooSlow(BaseException):
    """The test's time is over."""


def tests_of(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for one in suite:
        if isinstance(one, unittest.TestSuite):
            yield from tests_of(one)
        else:
            yield one


def outcome_of(test: unittest.TestCase, limit: int) -> tuple[str, str]:
    result = unittest.TestResult()
    signal.alarm(limit)
    try:
        unittest.TestSuite([test]).run(result)  # runs setUpClass, too
    except BaseException:  # noqa: BLE001  # unittest itself lets a KeyboardInterrupt through
        result.errors.append((test, traceback.format_exc()))
    finally:
        signal.alarm(0)
    for kind, told in (
        ("error", result.errors),
        ("fail", result.failures),
        ("skip", result.skipped),
        ("xfail", result.expectedFailures),
    ):
        if told:
            text = told[0][1]
            return ("timeout" if "TooSlow" in text else kind), text[-TAIL:]
    return ("xpass" if result.unexpectedSuccesses else "pass"), ""


def child(way: str, file: Path, out: Path, limit: int, wanted: list[str] | None) -> None:
    """Runs the wanted tests of the file in this process; lists all tests where None is wanted."""
    sys.path.insert(0, str(file.parent))
    counts, warnings = [], []
    if way == "mapped":
        import mapping  # beside this file

        counts, warnings = mapping.COUNTS, mapping.WARNINGS
    sys.argv = [str(file)]
    module = importlib.import_module(file.stem)
    tests = {t.id(): t for t in tests_of(unittest.TestLoader().loadTestsFromModule(module))}
    if wanted is None:
        out.write_text(json.dumps(list(tests)))
        return

    def alarm(*_: object) -> None:
        raise TooSlow

    signal.signal(signal.SIGALRM, alarm)
    with out.open("a", buffering=1) as lines:
        for name in wanted:
            lines.write(json.dumps({"start": name}) + "\n")
            counts.clear(), warnings.clear()
            started = time.monotonic()
            what, text = outcome_of(tests[name], limit)
            row = {"id": name, "outcome": what, "text": text, "counts": counts[:]}
            row |= {"warnings": warnings[:], "seconds": round(time.monotonic() - started, 2)}
            lines.write(json.dumps(row) + "\n")
    os._exit(0)  # threads that tests leave behind do not keep the process


def results(out: Path) -> tuple[dict[str, dict[str, Any]], str | None]:
    """The results so far, and the test that was begun last if it has none."""
    found, begun = {}, None
    for line in out.read_text().splitlines() if out.exists() else ():
        row = json.loads(line)
        begun = row.get("start")
        if begun is None:
            found[row["id"]] = row
    return found, begun


def run(way: str, file: Path, args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    args.out.mkdir(parents=True, exist_ok=True)
    out = args.out / f"{file.stem}.{way}.jsonl"
    names, part = (args.out / f"{file.stem}.{kind}.json" for kind in ("ids", f"{way}.part"))
    env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    env["PYTHONPATH"] = os.pathsep.join([*args.path, os.environ.get("PYTHONPATH", "")])
    line = [sys.executable, __file__, str(file), "--limit", str(args.limit), "--child"]
    if not names.exists():
        subprocess.run([*line, "list", "--out", str(names)], env=env, check=True)
    every = [name for name in json.loads(names.read_text()) if args.only in name][:: args.step]
    while True:
        found, begun = results(out)
        if begun is not None:
            died = {"id": begun, "outcome": "died", "text": "", "counts": [], "warnings": []}
            with out.open("a") as lines:
                lines.write(json.dumps({**died, "seconds": 0}) + "\n")
            continue
        left = [name for name in every if name not in found]
        if not left:
            return {name: found[name] for name in every}
        part.write_text(json.dumps(left))
        with (args.out / f"{file.stem}.{way}.log").open("a") as log:
            one = subprocess.Popen(
                [*line, way, "--wanted", str(part), "--out", str(out)],
                env=env,
                stdout=log,
                stderr=log,
            )
            wait_while_it_moves(one, out, args.limit + START)
        if len(results(out)[0]) == len(found) and results(out)[1] is None:
            raise SystemExit(f"{way}: no test of {file} was run; see {log.name}")


def wait_while_it_moves(process: subprocess.Popen, out: Path, limit: int) -> None:
    """Ends a process that a signal cannot reach: one that waits in compiled code."""
    size, since = -1, time.monotonic()
    while process.poll() is None:
        time.sleep(0.2)
        now = out.stat().st_size if out.exists() else 0
        if now != size:
            size, since = now, time.monotonic()
        if time.monotonic() - since > limit:
            process.kill()


def compare(name: str, control: dict[str, Any], mapped: dict[str, Any]) -> None:
    passed = [one for one, row in control.items() if row["outcome"] in PASSED]
    differ = [one for one in passed if mapped[one]["outcome"] != control[one]["outcome"]]
    counted = sum(bool(mapped[one]["counts"]) for one in passed)
    print(
        f"{name}: {len(control)} tests, {len(passed)} pass in the control, {len(differ)} differ,",
        f"{counted} with other counts; control {outcomes(control)}, mapped {outcomes(mapped)}",
    )
    for one in differ:
        said = [line for line in mapped[one]["text"].splitlines() if "Error" in line]
        print(f"  {one}: {mapped[one]['outcome']}: {(said or [''])[-1][:200]}")
    for one, row in mapped.items():
        for warning in row["warnings"]:
            print(f"  {one} warned: {warning[:200]}")


def outcomes(found: dict[str, Any]) -> dict[str, int]:
    return dict(Counter(row["outcome"] for row in found.values()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--only", default="", help="tests whose name holds this")
    parser.add_argument("--step", type=int, default=1, help="every so many-th test of these")
    parser.add_argument("--limit", type=int, default=100, help="seconds a test")
    parser.add_argument("--path", action="append", default=[], help="more folders to import from")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--wanted", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        wanted = json.loads(args.wanted.read_text()) if args.wanted else None
        child(args.child, args.files[0], args.out, args.limit, wanted)
        return
    for file in args.files:
        control = run("control", file.resolve(), args)
        compare(file.stem, control, run("mapped", file.resolve(), args))


if __name__ == "__main__":
    main()
