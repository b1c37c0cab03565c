"""Small models of classes of libraries: as eager, and no worse than with plain Dynamo."""

from __future__ import annotations

import importlib.util
from importlib import metadata

import pytest
import torch

from tests.models import catalogue, page
from tests.models.build import NotBuilt
from tests.models.measure import measured

KNOWN = {(one["name"], one["mode"]): one for one in page.records() if "fusepass" in one}
# What takes long is left to `python -m tests.models`.
QUICK = [
    key
    for key, one in KNOWN.items()
    if one["wall"] < 12 and importlib.util.find_spec(key[0].partition("/")[0])
]


@pytest.mark.sampled(max(len(QUICK) // 2, 1))
@pytest.mark.parametrize(("name", "mode"), QUICK)
def test_model_is_as_eager_and_no_worse_than_recorded(name: str, mode: str) -> None:
    library = name.partition("/")[0]
    try:
        *_, record = measured(name, mode)
    except (AttributeError, ImportError, NotBuilt) as error:
        pytest.skip(f"another version of the library: {error}")
    ours, plain, known = record["fusepass"], record["plain"], KNOWN[name, mode]
    assert not ours["different"], ours["difference"]
    assert not ours["error"] or plain["error"], ours["error"]
    assert not record["warnings"]
    versions = (torch.__version__, f"{library} {metadata.version(library)}")
    if versions == (known["torch"], known["library"]) and not page.is_loser(known):
        assert not page.is_loser(record), record


def test_the_list_has_each_model_once() -> None:
    names = catalogue.listed()
    assert len(names) == len(set(names)) >= 120
