"""``python -m tests.fuzz``: a campaign, or one program of it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from fusepass.report.paths import problem_with
from tests.fuzz.campaign import Summary, campaign, quiet, run_chunk
from tests.fuzz.generate import seeded
from tests.fuzz.shrink import shortest


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 1 if a program differs from eager."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--programs", type=int, default=200, help="how many (default: 200)")
    parser.add_argument("--seed", type=int, default=0, help="which programs (default: 0)")
    parser.add_argument("--first", type=int, default=0, help="number of the first (default: 0)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")
    parser.add_argument("--seconds", type=float, help="stop after about this time")
    parser.add_argument("--codegen", choices=("eager", "inductor"), default="eager")
    parser.add_argument("--device", default="cpu", help="where tensors are (default: cpu)")
    parser.add_argument("--out", type=Path, help="write the summary there, as JSON")
    parser.add_argument("--show", type=int, metavar="N", help="print program N, run it, and stop")
    parser.add_argument(
        "--shrink", type=int, metavar="N", help="print the shortest program that fails as N does"
    )
    given = parser.parse_args(arguments)
    _check(parser, given)
    if given.shrink is not None:
        return _shrink(given.seed, given.shrink, given.codegen, given.device)
    if given.show is not None:
        print(seeded(given.seed, given.show).source)
        one = range(given.show, given.show + 1)
        (record,) = run_chunk(one, given.seed, given.codegen, given.device)
        print(json.dumps({k: v for k, v in record.items() if k != "source"}, indent=1))
        return 1 if record.get("failures") or "broken" in record else 0
    print(f"seed {given.seed}, programs {given.first} to {given.first + given.programs - 1}")
    summary = campaign(
        given.programs,
        seed=given.seed,
        jobs=given.jobs,
        codegen=given.codegen,
        device=given.device,
        first=given.first,
        most_seconds=given.seconds,
        progress=_progress,
    )
    sys.stderr.write("\n")
    if given.out:
        given.out.write_text(json.dumps(summary.to_dict(), indent=1))
    print(table(summary))
    return 1 if summary.failures or summary.broken else 0


def _check(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    """End with exit status 2 and one line where a campaign could not be run, or not be kept."""
    for option in ("programs", "jobs"):
        if getattr(given, option) < 1:
            parser.error(f"--{option} must be at least 1")
    for option in ("seed", "first", "show", "shrink"):
        if (getattr(given, option) or 0) < 0:
            parser.error(f"--{option} must not be negative")
    if given.seconds is not None and not given.seconds > 0:
        parser.error("--seconds must be more than 0")
    problem = problem_with(given.out, "--out")
    if problem is not None:
        parser.error(problem)
    try:
        device = torch.device(given.device)
    except RuntimeError:
        parser.error(f"--device {given.device}: torch knows no such device")
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error(f"--device {given.device}: torch finds no CUDA device")


def _shrink(seed: int, index: int, codegen: str, device: str) -> int:
    from tests.fuzz.examine import examine

    with quiet():
        program = seeded(seed, index)
        short, failure = shortest(program, lambda p: examine(p, codegen=codegen, device=device))
    if failure is None:
        print(f"seed {seed}, program {index} does what eager does")
        return 0
    print(f"# {failure}\n{short.source}")
    return 1


def table(summary: Summary) -> str:
    """The summary for a person: failures first, then the shapes."""
    ran = f"{summary.programs} programs, {summary.sites} sites, {summary.calls} calls compared"
    asides = {
        "Dynamo's own": len(summary.dynamo),
        "could not be run": len(summary.broken),
        "eager raised unasked": len(summary.unintended),
        "no backward in eager": summary.no_backward,
        "gradients rounded otherwise": summary.rounded,
    }
    counted = ", ".join(f"{name} {count}" for name, count in asides.items())
    lines = [
        f"{ran} in {summary.seconds} s; seed {summary.seed}, codegen {summary.codegen}",
        f"failures {len(summary.failures)}; {counted}",
        f"treatments: {summary.treatments}",
        "of all sites: " + ", ".join(f"{n} {s:.1%}" for n, s in summary.mechanisms.items()),
        "",
        f"{'shape':24}{'sites':>7}{'share':>8}{'removed':>9}{'keep':>7}{'unseen':>8}{'removed':>9}",
    ]
    for shape, row in summary.shapes.items():
        lines.append(
            f"{shape:24}{row['sites']:>7}{row['share']:>8.1%}{row['removed']:>9}{row['keep']:>7}"
            f"{row['unseen']:>8}{row['removed_share']:>9.1%}"
        )
    for failure in summary.failures:
        first = failure["text"].splitlines()[0][:150]
        lines.append(
            f"program {failure['index']}: {failure['kind']} ({failure['context']}, "
            f"input set {failure['call']}): {first}"
        )
    lines += [f"program {one['index']}: {one['error'].splitlines()[-1]}" for one in summary.broken]
    return "\n".join(lines)


def _progress(summary: Summary) -> None:
    sys.stderr.write(
        f"\r{summary.programs} programs, {len(summary.failures)} failures, {summary.seconds:.0f} s "
    )
    sys.stderr.flush()


if __name__ == "__main__":
    raise SystemExit(main())
