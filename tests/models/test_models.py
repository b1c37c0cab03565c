"""Small models of classes of libraries: as eager, and no worse than with plain Dynamo."""

from __future__ import annotations

import importlib.util

import pytest

from tests.models import catalogue, page
from tests.models.build import NotBuilt
from tests.models.measure import measured
from tests.models.shrink import small


def _known() -> dict[tuple[str, str], dict]:
    return {(one["name"], one["mode"]): one for one in page.records() if "fusepass" in one}


KNOWN = _known()
# What takes long with plain Dynamo is left to `python -m tests.models`.
QUICK = [
    key
    for key, one in KNOWN.items()
    if one["wall"] < 40 and len(one["fusepass"]["graphs"]) == 6 and key[0] in catalogue.listed()
]


@pytest.mark.sampled(max(len(QUICK) // 4, 1))
@pytest.mark.parametrize(("name", "mode"), QUICK, ids=str)
def test_model_is_as_eager_and_no_worse_than_recorded(name: str, mode: str) -> None:
    if importlib.util.find_spec(name.partition("/")[0]) is None:
        pytest.skip(f"{name} is of a library that is not installed")
    try:
        *_, record = measured(name, mode)
    except (AttributeError, ImportError, NotBuilt) as error:
        pytest.skip(f"another version of the library: {error}")
    ours, plain = record["fusepass"], record["plain"]
    assert not ours["different"], ours["difference"]
    assert not ours["error"] or plain["error"]
    assert not record["warnings"]
    if not page.is_loser(KNOWN[name, mode]):
        assert not page.is_loser(record), record


def test_the_list_has_each_model_once_and_the_page_has_many_rows() -> None:
    names = catalogue.listed()
    assert len(names) == len(set(names)) >= 120
    assert len(KNOWN) >= 20


def test_page_is_made_of_the_records() -> None:
    assert page.PAGE.read_text() == page.text(page.records())


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("hidden_size", 4096, 64),
        ("num_attention_heads", 32, 4),
        ("num_key_value_heads", 8, 2),
        ("head_dim", 128, 16),
        ("vocab_size", 32000, 160),
        ("hidden_sizes", (96, 192, 384, 768), (16, 32, 64, 128)),
        ("depths", [2, 2, 6, 2], [2, 2, 2, 2]),
        ("conv_kernel", (10, 3, 3), (10, 3, 3)),
        ("layer_norm_eps", 1e-5, 1e-5),
        ("use_cache", True, True),
        ("type_vocab_size", 2, 2),
    ],
)
def test_fields_are_made_small_by_their_names(field: str, value: object, wanted: object) -> None:
    assert small(field, value) == wanted
