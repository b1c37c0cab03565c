"""What the scripts of this folder share: their options, and records that grow row by row."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fusepass.bench.hardware import heading


def options(doc: str | None) -> argparse.ArgumentParser:
    """Options of a script with this docstring: ``--json`` says where its record is to be written."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path)
    return parser


def keeper(
    doc: str | None, path: Path | None, within: str = "rows", device: str = "cuda"
) -> Callable[[str, Any], None]:
    """What prints a row, and adds it to the record, which is written each time.

    Args:
        doc: the script's docstring, which says what was measured, and what was predicted.
        path: of the record; nothing is written if it is None.
        within: the record's key for its rows.
        device: that was measured on.
    """
    rows: dict[str, Any] = {}
    record = {**heading(doc, device), within: rows}

    def keep(name: str, row: Any) -> None:
        rows[name] = row
        sys.stdout.write(f"{name}: {json.dumps(row)}\n")
        sys.stdout.flush()
        if path:
            path.write_text(json.dumps(record, indent=1) + "\n")

    return keep
