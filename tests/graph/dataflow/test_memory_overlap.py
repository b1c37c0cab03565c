"""Which tensors share memory with one that is written, and whether that is still so."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from fusepass.graph.dataflow.memory_overlap import OverlapCheck, has_no_internal_overlap


def sharing(
    *tensors: Tensor, written: int = 1, whole: bool = False, varies: bool = False
) -> OverlapCheck:
    return OverlapCheck(tensors, written, whole=whole, varies=varies)


def test_pairs_with_what_is_written() -> None:
    base = torch.zeros(8, 4)
    assert sharing(base, base[1:]).pairs == {(0, 1)}
    assert sharing(base[:4], base[4:]).pairs == frozenset()
    assert sharing(base[:4], base[4:], whole=True).pairs == {(0, 1)}
    # Two that are only read may share as they like.
    assert sharing(torch.zeros(3), base, base[1:]).pairs == frozenset()
    assert sharing(base[:4], base, base[2:6], base[4:]).pairs == {(0, 1), (0, 2)}
    assert sharing(base[:4], base[4:], base[3:5], written=2).pairs == {(0, 2), (1, 2)}


def test_empty_tensors_share_nothing() -> None:
    base = torch.zeros(8)
    assert sharing(base, base[3:3]).pairs == frozenset()
    assert sharing(base[3:3], base).pairs == frozenset()


def test_arrays_in_one_place_share_without_one_storage() -> None:
    array = torch.zeros(8).numpy()
    assert sharing(torch.from_numpy(array), torch.from_numpy(array[2:])).pairs == {(0, 1)}


def test_disjoint_tensors_stay_disjoint() -> None:
    first, second = torch.zeros(2, 6), torch.zeros(2, 6)
    asked = sharing(first[0], second[0])
    assert asked.holds(first[0], second[0])
    assert asked.holds(first[0], second[1])  # only what is read has moved
    assert asked.holds(second[0], first[1])  # all has
    assert not asked.holds(first[0], first[0])
    assert not asked.holds(first[0], first.view(-1)[3:9])
    assert asked.holds(first[0], first[1])
    assert not asked.holds(second.view(-1)[5:11], second[1])


def test_shared_stays_shared() -> None:
    one, other = torch.zeros(4, 6), torch.zeros(4, 6)
    asked = sharing(one[:3], one[1:])
    assert asked.holds(one[:3], one[1:])
    assert asked.holds(other[:3], other[1:])
    assert not asked.holds(one[:3], other[1:])


def test_what_varies_is_measured_anew() -> None:
    base = torch.zeros(8)
    asked = sharing(base[:2], base[4:], varies=True)
    assert asked.holds(base[:3], base[4:])
    assert not asked.holds(base[:5], base[4:])


def test_without_memory_of_its_own() -> None:
    asked = sharing(torch.zeros(3), torch.zeros(3))
    assert not torch.vmap(lambda x: torch.tensor(asked.holds(x, x)), randomness="error")(
        torch.zeros(2, 3)
    ).any()


@pytest.mark.parametrize("seed", range(20))
def test_overlap_agrees_with_a_check_of_every_byte(seed: int) -> None:
    """Over sequences of calls, with contiguous pieces of a few memories."""
    draw = random.Random(seed)
    memories = [torch.zeros(40) for _ in range(3)]
    lengths = [draw.randint(0, 9) for _ in range(6)]
    written = draw.randint(1, 5)

    def drawn(before: list[Tensor] | None) -> list[Tensor]:
        made = []
        for position, length in enumerate(lengths):
            if before is not None and draw.random() < 0.6:
                made.append(before[position])
                continue
            start = draw.randint(0, 30)
            made.append(draw.choice(memories)[start : start + length])
        return made

    def by_bytes(tensors: list[Tensor]) -> set[tuple[int, int]]:
        places = [{t.data_ptr() + 4 * i for i in range(t.numel())} for t in tensors]
        return {
            (i, j)
            for i in range(written)
            for j in range(i + 1, len(places))
            if places[i] & places[j]
        }

    tensors = drawn(None)
    asked = sharing(*tensors, written=written)
    expected = by_bytes(tensors)
    assert asked.pairs == expected
    for _ in range(60):
        tensors = drawn(tensors)
        assert asked.holds(*tensors) is (by_bytes(tensors) == expected)


def test_own_places() -> None:
    base = torch.zeros(4, 6)
    assert has_no_internal_overlap(base)
    assert has_no_internal_overlap(base.t()[::2])
    assert has_no_internal_overlap(base[:, 1:3])
    assert not has_no_internal_overlap(base[0].expand(4, 6))
    assert not has_no_internal_overlap(base.as_strided((4, 6), (1, 3)))
