"""Whether computing for all elements costs less than selecting and waiting for the host.

Half of the elements are taken to be selected: nobody knows. Selecting them reads the mask twice,
writes and reads their places, and copies them; what follows then takes half as long.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from fusepass.graph import cost
from fusepass.graph.canonical import tensor_value
from fusepass.graph.selected import Selection
from fusepass.graph.sizes import elements, stored_bytes
from fusepass.tune.known_peaks import peaks_of

_PLACE = 8  # bytes of the place of one selected element along one dimension


def estimates(made: Sequence[fx.Node], roots: dict[fx.Node, Selection]) -> dict[str, float]:
    """What either way would take, in µs of the device.

    Args:
        made: the calls that compute for all elements, in the order of their graph.
        roots: the selections of the program, and what selects.
    """
    whole = cost.microseconds(made)
    selecting = sum(_selecting(root, selection) for root, selection in roots.items())
    return {"whole": round(whole, 2), "selected": round(selecting + whole / 2, 2)}


def _selecting(root: fx.Node, selection: Selection) -> float:
    mask = tensor_value(selection.mask)
    if mask is None:
        return 0.0
    sources = [n for n in root.all_input_nodes if n is not selection.mask]
    values = [value for value in map(tensor_value, sources) if value is not None]
    copied = sum(map(stored_bytes, values))
    places = elements(mask) * mask.dim() * _PLACE
    moved = 2 * stored_bytes(mask) + places + copied  # half of the places and elements, twice
    return cost.host_round_trip(mask.device) + 1e6 * moved / peaks_of(mask.device).bandwidth
