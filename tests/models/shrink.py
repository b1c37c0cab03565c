"""Make a config small: widths, heads, layers, vocabulary and images, by the names of its fields.

Each rule gives all fields of a kind the same small value, so that what has to be equal stays equal
(the width of a text model and of what is projected into it), and what has to divide still divides:
64 wide, 4 heads of 16, groups and experts in powers of two. Lists keep their lengths and ratios.
Fields that a config computes from others are left out, so that it computes them again.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

from tests.models.overrides import AS_THEY_ARE, CONFIGS

WIDTH, HEADS, HEAD, LAYERS, VOCABULARY, IMAGE, PATCH = 64, 4, 16, 2, 160, 64, 8
FIRST_SPECIAL = 140  # token ids from here on stand for something other than text

_Rule = Callable[[int], int]


def _at_most(most: int) -> _Rule:
    return lambda value: min(value, most)


def _exactly(wanted: int) -> _Rule:
    return lambda value: wanted if value > 0 else value


def _heads(value: int) -> int:
    return 1 << (min(value, HEADS).bit_length() - 1) if value > 0 else value


# The first that matches the whole name counts.
_RULES: tuple[tuple[str, _Rule], ...] = tuple(
    (pattern, rule)
    for pattern, rule in (
        (r".*(token_id|token_index|_ids?)", lambda value: value),
        (r"(type_vocab|max_2d|relative|num_buckets|pretraining_tp|chunk_size_feed|stride).*", _at_most(256)),
        (r".*(kernel|stride|ratio|scale|factor|padding|dilation|expand|mult|temperature|theta|rate)s?(_size)?", lambda value: value),
        (r".*(tokens_per_image|image_seq_len|image_seq_length|image_token_len)", _at_most(16)),
        (r"rotary_dim|rotary_ndims", _at_most(8)),
        (r".*mrope_section", lambda value: max(value // 8, 2)),
        (r"num_classes|num_labels|in_channels|num_channels|image_channels|audio_channels|in_chans", _at_most(8)),
        (r".*vocab.*size|.*vocab|.*num_tokens|n_vocab|vocabulary.*", _at_most(VOCABULARY)),
        (r".*(max_position|max_source|max_target|n_positions|n_ctx|seq_len|max_seq|context_length|max_length).*", _at_most(256)),
        (r".*patch_size|.*patch_sizes|tubelet.*", _at_most(PATCH)),
        (r".*(image|img|input|crop|grid)_?(size|resolution).*|resolution", _at_most(IMAGE)),
        (r".*(window|block_size|chunk).*", _at_most(16)),
        (r".*(kv|key_value)_heads|num_kv_heads|n_head_kv|.*num_key_value_heads|kv_n_heads", _at_most(2)),
        (r".*num_key_heads|.*num_value_heads|.*heads?|.*attention_head(s|_num)", _heads),
        (r".*head_dim|d_kv|dim_head|.*head_size|.*d_head|dim_per_head|attention_key_channels|qk_.*dim", _at_most(HEAD)),
        (r".*(num|n)_.*experts$|num_local_experts|n_routed_experts|moe_num_experts|expert_num", _at_most(4)),
        (r".*experts_per_tok(en)?|moe_topk|moe_top_k|top_k|router_top_k|moe_k|num_experts_per.*", _at_most(2)),
        (r"first_k_dense_replace|n_group|topk_group|num_expert_groups?|moe_layer_start_index", _at_most(1)),
        (r"(index_topk)", _at_most(8)),
        (r".*(layers?|depth|blocks|num_stages_)$|n_layers?|.*num_hidden_layers|.*depths", _at_most(LAYERS)),
        (r"num_mel_bins|feature_size|n_mels|num_mels|.*mel.*", _at_most(80)),
        (r"num_queries|num_query_tokens|.*num_latents|num_denoising|.*num_queries|train_num_points|num_negatives", _at_most(16)),
        (r".*codebook_size|num_codevectors.*|.*num_embeddings", _at_most(64)),
        (r"hc_mult|.*(rank)", _at_most(16)),
        (r"num_mem|.*num_groups|.*groups", _at_most(8)),
        (r".*(size|dim|dims|dimension|width|channels?|hidden|embed|embd|d_model|d_ff|ffn|inner|planes|filters|features|units|proj_size|nf|inplanes)s?$", _exactly(WIDTH)),
    )
)  # fmt: skip
_KEEP_LISTS = re.compile(
    r".*(kernel|stride|ratio|factor|dilation|padding|scale|rates|bandwidths|sr_)"
)
_WIDTHS = re.compile(r".*(size|dim|dims|width|channel|hidden|embed|planes|filters)s?")


def small(name: str, value: Any) -> Any:
    """A small value for a field of this name, of the same type and structure."""
    if name == "image_grid_pinpoints" and value:
        return [[IMAGE, IMAGE], [IMAGE, 2 * IMAGE], [2 * IMAGE, IMAGE]]
    if isinstance(value, bool) or value is None or isinstance(value, (str, float)):
        return value
    if isinstance(value, int):
        return _small_number(name, value)
    if isinstance(value, (list, tuple)):
        return type(value)(_small_list(name, list(value)))
    if isinstance(value, Mapping):
        return {key: small(str(key), one) for key, one in value.items()}
    return value


def _small_number(name: str, value: int) -> int:
    for pattern, rule in _RULES:
        if re.fullmatch(pattern, name):
            small_value = rule(value)
            return small_value if value >= WIDTH or small_value < value else value
    return value


def _small_list(name: str, values: list[Any]) -> list[Any]:
    if not all(isinstance(one, int) and not isinstance(one, bool) for one in values):
        return [small(name, one) for one in values]
    if _KEEP_LISTS.fullmatch(name) or not values:
        return values
    if re.fullmatch(r".*(size|resolution|shape)", name) and len(values) <= 3:
        return [_small_number(name, one) for one in values]
    if re.fullmatch(_WIDTHS, name) and min(values) >= 16:
        return _scaled(values)
    return [_small_number(name, one) for one in values]


def _scaled(values: list[int]) -> list[int]:
    """Widths of stages: the least is 16, and the ratios stay, up to 8."""
    least = min(values)
    if least == max(values):
        return [WIDTH] * len(values)
    return [16 * min(max(round(one / least), 1), 8) for one in values]


def shrink(config: Any, given: Mapping[str, Any] | None = None) -> Any:
    """A small config of the same class.

    Args:
        config: an instance, with its defaults.
        given: values of fields that the rules are wrong about; of a nested config a mapping.
    """
    large = sorted({one for one in _ids(config) if one >= FIRST_SPECIAL})
    room = VOCABULARY - FIRST_SPECIAL
    ids = {one: FIRST_SPECIAL + i % room for i, one in enumerate(large)}
    return _shrunk(config, dict(given or {}), ids)


def _shrunk(config: Any, given: dict[str, Any], ids: dict[int, int]) -> Any:
    kind = type(config)
    if kind.__name__ in AS_THEY_ARE:
        return config
    given = {**CONFIGS.get(kind.__name__, {}), **given}
    kwargs: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        name, value = field.name, _value(config, field.name)
        if name in _NEVER or (value is None and field.default is not None):
            continue
        if hasattr(value, "to_dict") and (name in kind.sub_configs or name.endswith("config")):
            told = given.pop(name, {})
            kwargs[name] = _shrunk(value, dict(told), ids) if isinstance(told, Mapping) else told
            continue
        default = _default(field)
        if name == "image_grid_pinpoints":
            kwargs[name] = small(name, value)
        elif not name.startswith("_") and (
            default is not None or not isinstance(value, (list, dict))
        ):
            less = _renumbered(value, ids) if _ID.fullmatch(name) else _field(config, name, value)
            if less != default:
                kwargs[name] = less
    if "mrope_section" in getattr(kind, "ignore_keys_at_rope_validation", ()):
        known = config.rope_parameters or {"rope_type": "default", "rope_theta": 10000.0}
        half = int(HEAD * known.get("partial_rotary_factor", 1.0)) // 2
        first = half // 4
        second = (half - first) // 2
        sections = [first, second, half - first - second]
        kwargs["rope_parameters"] = {**known, "mrope_section": sections}
    _kinds_of_layers(config, kwargs)
    _name_stages(config, kwargs)
    return kind(**(kwargs | given))


def _value(config: Any, name: str) -> Any:
    renamed = getattr(type(config), "attribute_map", {})
    return vars(config).get(name, vars(config).get(renamed.get(name, "")))


def _field(config: Any, name: str, value: Any) -> Any:
    """A small value of a field that goes together with others of its config."""
    held = vars(config)
    layers = next((held[one] for one in _LAYERS if type(held.get(one)) is int), 0)
    staged = "depths" in held or isinstance(held.get("hidden_sizes"), (list, tuple))
    if isinstance(value, (list, tuple)) and len(value) == layers > LAYERS and not staged:
        return small(name, value[:LAYERS])  # one for each layer
    if staged and name == "window_size" and isinstance(value, int):
        return min(value, 2)  # the last stage has few patches
    if value and _KV_HEADS.fullmatch(name) and value in (held.get(one) for one in _ALL_HEADS):
        return min(value, HEADS)
    return small(name, value)


def _kinds_of_layers(config: Any, kwargs: dict[str, Any]) -> None:
    """One layer of each kind."""
    lists = {name: vars(config).get(name) for name in _KINDS}
    lists = {
        name: value
        for name, value in lists.items()
        if isinstance(value, list) and len(set(value)) > 1
    }
    if not lists or not isinstance(_value(config, "num_hidden_layers"), int):
        return
    count = max(LAYERS, *(len(set(value)) for value in lists.values()))
    kwargs["num_hidden_layers"] = count
    for name, value in lists.items():
        kinds = list(dict.fromkeys(value))
        kwargs[name] = kinds + [kinds[-1]] * (count - len(kinds))


_KINDS = ("layer_types", "layers_block_type", "mlp_layer_types")


def _name_stages(config: Any, kwargs: dict[str, Any]) -> None:
    """A backbone whose stages are layers needs as many as are asked for."""
    wanted = vars(config).get("_out_features") or ()
    if len(wanted) < 2:
        return
    if isinstance(_value(config, "num_hidden_layers"), int) and "depths" not in vars(config):
        kwargs["num_hidden_layers"] = max(len(wanted), LAYERS)
        wanted = [f"stage{i + 1}" for i in range(len(wanted))]
    kwargs["out_features"] = list(wanted)


_NEVER = ("id2label", "label2id", "transformers_version", "dtype", "architectures")
_LAYERS = ("num_hidden_layers", "n_layers", "num_layers", "n_layer", "depth", "encoder_layers")
_ALL_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_KV_HEADS = re.compile(r".*(num_key_value_heads|num_kv_heads|kv_n_heads|n_head_kv)")
_ID = re.compile(r".*(token_id|token_index|_id)")


def _default(field: Any) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else None


def _ids(config: Any) -> list[int]:
    """Every token id in a config and those inside it."""
    found: list[int] = []
    for name, value in vars(config).items():
        if hasattr(value, "to_dict"):
            found += _ids(value)
        elif _ID.fullmatch(name):
            found += [
                one for one in (value if isinstance(value, list) else [value]) if type(one) is int
            ]
    return found


def _renumbered(value: Any, ids: dict[int, int]) -> Any:
    """Token ids beyond the small vocabulary become small ones, each another."""
    if isinstance(value, list):
        return [_renumbered(one, ids) for one in value]
    return ids.get(value, value) if type(value) is int else value
