"""``python -m tests.models``: measure models; ``--write-docs`` makes docs/models.md of the results."""

from __future__ import annotations

import argparse
import logging
import os
import re
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")  # the pool forks


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.models", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="", help="a regular expression that names must contain")
    parser.add_argument("--mode", default="eval,train", help="eval, train or both, with a comma")
    parser.add_argument("--out", default="models.jsonl", help="results are appended to this file")
    parser.add_argument("--names", default="", help="a file of names instead of the list")
    parser.add_argument("--ways", default="eager,plain,fusepass", help="eager alone: does it build")
    parser.add_argument("--seconds", type=float, default=150, help="for each model")
    parser.add_argument("--within", type=float, default=float("inf"), help="seconds for all of it")
    parser.add_argument("--new", action="store_true", help="only what tests/models/results lacks")
    parser.add_argument("--write-docs", action="store_true")
    given = parser.parse_args()
    if given.write_docs:
        from tests.models import page

        page.write()
        return
    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")
    from tests.models import catalogue, page, pool

    known = {(one["name"], one["mode"]) for one in page.records()} if given.new else set()
    names = [name for name in catalogue.listed(given.names) if re.search(given.only, name)]
    work = [(name, mode) for mode in given.mode.split(",") for name in names]
    work = [one for one in work if one not in known]
    catalogue.load({name.partition("/")[0] for name, _ in work})
    ways = given.ways.split(",")
    pool.write(given.out, work, given.jobs, _tell, ways, given.seconds, given.within)


def _tell(record: dict) -> None:
    ways = " ".join(
        f"{way} {one['breaks']}b {one['graphs'][-1:]}g {len(one['left'])}l {one['compiles']}c {one.get('different') or ''} {one['error'][:80]}"
        for way in ("plain", "fusepass")
        if (one := record.get(way))
    )
    print(
        f"{record['mode']:5} {record['name']:60} {record['state']:10} {record['wall']:5} {ways} {record.get('error', '')}",
        flush=True,
    )


if __name__ == "__main__":
    main()
