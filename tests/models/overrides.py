"""What the rules of shrink.py are wrong about, by class: fields of its config, as data."""

from __future__ import annotations

from typing import Any

# Fields of the small config, by the name of a model's class or of its config's.
CONFIGS: dict[str, dict[str, Any]] = {
    "BambaConfig": {"attn_layer_indices": [1], "mamba_n_heads": 8, "mamba_d_head": 16},
    "CohereCompassTextConfig": {"rope_parameters": None},
    "DiaConfig": {"decoder_config": {"num_channels": 9}},
    "DoryConfig": {"num_hidden_layers": 6},
    "Cosmos3EdgeTextConfig": {
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [4, 2, 2],
        }
    },
    "DbrxAttentionConfig": {"rope_theta": 10000.0, "clip_qkv": 8.0},
    "FalconH1Config": {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_ssm": 64},
    "FunAsrNanoConfig": {"adaptor_config": {"intermediate_size": 16}},
    "Glm5NextTextConfig": {"index_topk": 16},
    "GraniteMoeHybridConfig": {
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
        "layer_types": ["mamba", "attention"],
    },
    "Mamba2Config": {"num_heads": 8, "head_dim": 16},
    "Molmo2AdapterConfig": {"vision_feature_layer": [1, 0]},
    "Nemotron3DiarizationAudioConfig": {"chunk_length": 64},
    "Nemotron3_5TranscribeAudioConfig": {"chunk_length": 64},
    "ReformerConfig": {"axial_pos_embds": False},
    "VibeVoiceAsrConfig": {"acoustic_tokenizer_chunk_size": 3200},
    "ZambaConfig": {"num_hidden_layers": 3},
    "Zamba2Config": {"layer_types": ["linear_attention", "hybrid"]},
    "GPTNeoConfig": {"attention_types": [[["global", "local"], 1]]},
    "XLNetConfig": {"d_head": 16},
}
# Fields of the config that is made small.
EXTRA: dict[str, dict[str, Any]] = {
    "AutoformerConfig": {"prediction_length": 8, "context_length": 16, "lags_sequence": [1, 2, 3]},
    "DeepseekV2Config": {"num_experts_per_tok": 2},
    "EfficientNetConfig": {"width_coefficient": 0.25, "depth_coefficient": 0.3, "hidden_dim": 320},
    "EsmConfig": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
    "HunYuanDenseV1Config": {"head_dim": 128},
    "HunYuanMoEV1Config": {"head_dim": 128},
    "InformerConfig": {"prediction_length": 8, "context_length": 16, "lags_sequence": [1, 2, 3]},
    "TimeSeriesTransformerConfig": {
        "prediction_length": 8,
        "context_length": 16,
        "lags_sequence": [1, 2, 3],
    },
}
# Configs that are not made small: their widths depend on one another.
AS_THEY_ARE = ("EfficientNetConfig", "EfficientLoFTRConfig", "HGNetV2Config")
# Arguments of the models of other libraries, by library and name.
ARGUMENTS: dict[str, dict[str, Any]] = {}
