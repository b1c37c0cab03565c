"""What the rules of shrink.py are wrong about, by class: fields of its config, as data."""

from __future__ import annotations

from typing import Any

# Fields of the small config, by the name of a model's class or of its config's.
CONFIGS: dict[str, dict[str, Any]] = {
    "BambaConfig": {"mamba_n_heads": 8, "mamba_d_head": 16},
    "DepthProConfig": {"patch_size": 64},
    "DiaConfig": {"decoder_config": {"num_channels": 9}},
    "DoryConfig": {"num_hidden_layers": 6},
    "DbrxAttentionConfig": {"rope_theta": 10000.0},
    "FalconH1Config": {"mamba_n_heads": 8, "mamba_d_head": 16},
    "FunAsrNanoConfig": {"adaptor_config": {"intermediate_size": 16}},
    "Glm5NextTextConfig": {"index_topk": 16},
    "GraniteMoeHybridConfig": {"mamba_n_heads": 8, "mamba_d_head": 16},
    "Mamba2Config": {"num_heads": 8, "head_dim": 16},
    "Molmo2AdapterConfig": {"vision_feature_layer": [1, 0]},
    "Nemotron3DiarizationAudioConfig": {"chunk_length": 64},
    "Nemotron3_5TranscribeAudioConfig": {"chunk_length": 64},
    "VibeVoiceAsrConfig": {"acoustic_tokenizer_chunk_size": 3200},
    "ZambaConfig": {"num_hidden_layers": 3},
    "Zamba2Config": {"layer_types": ["linear_attention", "hybrid"]},
    "GPTNeoConfig": {"attention_types": [[["global", "local"], 1]]},
    "XLNetConfig": {"d_head": 16},
}
# Fields of the config that is made small.
EXTRA: dict[str, dict[str, Any]] = {}
# Configs that are not made small: their widths depend on one another.
AS_THEY_ARE = ("EfficientLoFTRConfig", "HGNetV2Config")
