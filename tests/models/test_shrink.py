"""Fields of a config are made small by their names, and together."""

from __future__ import annotations

import pytest

from tests.models.shrink import small


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("hidden_size", 4096, 64),
        ("num_attention_heads", 32, 4),
        ("num_attention_heads", 3, 2),
        ("num_key_value_heads", 8, 2),
        ("head_dim", 128, 16),
        ("vocab_size", 32000, 160),
        ("hidden_sizes", (96, 192, 384, 768), (16, 32, 64, 128)),
        ("decoder_in_channels", (256, 256, 256), (64, 64, 64)),
        ("depths", [2, 2, 6, 2], [2, 2, 2, 2]),
        ("conv_kernel", (10, 3, 3), (10, 3, 3)),
        ("image_grid_pinpoints", [[336, 672]], [[64, 64], [64, 128], [128, 64]]),
        ("layer_norm_eps", 1e-5, 1e-5),
        ("use_cache", True, True),
        ("type_vocab_size", 2, 2),
        ("pad_token_id", None, None),
    ],
)
def test_fields_are_made_small_by_their_names(field: str, value: object, wanted: object) -> None:
    assert small(field, value) == wanted
