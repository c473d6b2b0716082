"""Small configurations of every architecture: sizes by the names of fields, and what single architectures need
besides.

Sizes are multiples of 16, and those that a loader could confuse differ: hidden 64, MLP 96, experts 48, shared
experts 80. Towers have the sizes of the text model, so that a weight that lands in the wrong tower still fits, and
only the numbers tell. Factors that default to 1 are set to something else, and limits to values that are reached.
"""

import dataclasses
import re

from transformers import PreTrainedConfig
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

VOCABULARY = 128
WORDS = range(5, 96)
"""Ids of plain text. Above them lie those that stand for images and the like."""

AUTO = {
    "AutoModelForCausalLM": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "AutoModelForSeq2SeqLM": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "AutoModelForImageTextToText": "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "AutoModelForMultimodalLM": "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES",
}


def architectures():
    """Every class of the four mappings once, as {class: (auto class, model type)}."""
    found = {}
    for auto, mapping in AUTO.items():
        for model_type, classes in getattr(modeling_auto, mapping).items():
            for name in (classes,) if isinstance(classes, str) else classes:
                found.setdefault(name, (auto, model_type))
    return found


# The first pattern that matches a whole name decides. A number stands for integers, or for each of several; a
# function gets the default.
SIZES = [
    (r"(vocab_size|\w+_vocab_size|vocab_size_per_layer_input|decoder_vocab_size)", VOCABULARY),
    (r"(hidden_size|d_model|n_embd|emb_dim|embed_dim|hidden_dim|model_dim|out_hidden_size|output_proj_dims|text_hidden_size|encoder_hidden_size)", 64),
    (r"(projector_hidden_size|projection_dim|mm_embed_dim|backbone_hidden_size|cross_attention_hidden_size|vision_hidden_size|input_hidden_size)", 64),
    (r"(moe_intermediate_size|expert_ffn_hidden_size|moe_ffn_hidden_size|expert_dim)", 48),
    (r"(moe_)?shared(_experts?)?_intermediate_size", lambda size: 80 if size else size),
    (r"(\w*intermediate_size\w*|\w*ffn_dim|d_ff|dff|dim_ff|ffn_hidden_size|mlp_dim|n_inner)", 96),
    (r"(num_hidden_layers|n_layers?|num_layers|num_decoder_layers)", 4),
    (r"(\w*encoder_layers|\w*decoder_layers|depth|layers|num_blocks|conf_num_hidden_layers|resampler_depth|n_blocks|\w+_num_hidden_layers)", 2),
    (r"(num_key_value_heads|num_kv_heads|\w+_num_key_value_heads|linear_num_key_heads|index_n_heads)", 2),
    (r"(\w*num_attention_heads|\w*num_heads|n_heads?|\w*attention_heads|linear_num_value_heads|conf_num_attention_heads)", 4),
    (r"(head_dim|\w*_head_dim|qk_rope_head_dim|d_kv|kv_channels|dim_head)", lambda size: 32 if size and size > 64 else 16),
    (r"q_lora_rank", 48),
    (r"(kv_lora_rank|o_lora_rank|laurel_rank|hidden_size_per_layer_input)", 32),
    (r"rotary_dim", 16),
    (r"(num_experts|n_routed_experts|num_local_experts|moe_num_experts|num_moe_experts)", lambda count: 4 if count and count > 1 else count),
    (r"(num_experts_per_tok\w*|moe_topk|moe_k|moe_top_k|top_k_experts)", lambda count: min(count, 2)),
    (r"n_group", lambda count: min(count, 2)),
    (r"topk_group", 1),
    (r"(max_position_embeddings|n_positions|max_seq_len|n_ctx|\w+_positions|max_sequence_length|\w+_max_position_embeddings)", 128),
    (r"(sliding_window|sliding_window_size|local_attention|attention_chunk_size|keep_window_size|attention_window_size)", 8),
    (r"(image_size|img_size)", 32),
    (r"patch_size", 8),
    (r"output_channels", 16),
    (r"(mamba_d_state|ssm_state_size|state_size)", 16),
    (r"(mamba_n_heads|mamba_num_heads)", 8),
    (r"(mamba_chunk_size|chunk_size)", lambda size: min(size, 8)),
    (r"(first_k_dense_replace|num_dense_layers)", lambda count: min(count, 1)),
    (r"(max_window_layers|full_attention_interval|\w*sliding_window_pattern|global_attn_every_n_layers|no_rope_layer_interval)", 2),
    (r"pad_token_id", 0),
    (r"bos_token_id", 1),
    (r"(eos_token_id|forced_eos_token_id|sep_token_id)", 2),
    (r"decoder_start_token_id", 3),
]
IDS = re.compile(r"\w+_token(_id|_index)?|\w+_token_id_\w+")
FACTORS = [
    (r"\w*multiplier", lambda factor: 0.75 if factor == 1 else factor),
    (r"(logits_scaling|\w*routed_scaling_factor|router_scaling_factor|route_scale|logit_scale)", lambda factor: 1.5 if factor == 1 else factor),
    (r"swiglu_limit", lambda limit: 0.75),
]

# Fields that default to None, and that a model of random weights needs or that would otherwise be derived from
# something large.
UNSET = {"head_dim": 16, "num_experts_per_tok": 2, "n_routed_experts": 4, "num_kv_heads": 4, "top_k_experts": 2, "moe_intermediate_size": 48}

SMALL = object()
"""Stands for a part that is there, small, where it is left out by default."""

MIXED = ["linear_attention", "full_attention"] * 2
SLIDING = ["sliding_attention", "full_attention"] * 2

# What the rules above do not know, by model type of a configuration or of a part of one: {type: (fields, reason)}.
OVERRIDES = {
    "bailing_hybrid": ({"layer_group_size": 2}, "both kinds of attention in four layers"),
    "bamba": ({"attn_layer_indices": [1, 3]}, "both kinds of layers"),
    "blt": ({"encoder_hash_byte_group_vocab": 64, "encoder_hash_byte_group_size": [3], "num_hidden_layers": 4}, "a table of three million rows"),
    "blt_local_encoder": ({"hidden_size_global": 64}, "width of the model between"),
    "blt_local_decoder": ({"hidden_size_global": 64}, "width of the model between"),
    "chameleon": ({"vocabulary_map": {"<image>": 100, "IMGIMGA": 101}}, "image tokens are found in it"),
    "chameleon_vqgan": ({"base_channels": 32, "resolution": 32, "latent_channels": 32, "num_embeddings": 16}, "convolutions"),
    "cohere_compass_text": (
        {"layer_types": SLIDING, "rope_parameters": {kind: {"rope_type": "default", "rope_theta": 1e4} for kind in SLIDING}},
        "rotary embeddings per kind of layer",
    ),
    "cosmos3_edge_text": ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]}}, "sections are checked"),
    "dbrx": ({"attn_config": {"rope_theta": 1e4, "clip_qkv": 0.5, "kv_n_heads": 2}}, "no default, and a limit that is reached"),
    "deepseek_ocr2_sam_vision_model": ({"downsample_channels": [32, 64], "output_channels": 16, "global_attn_indexes": [1]}, "convolutions"),
    "deepseek_ocr2_text": ({"mlp_layer_types": ["dense", "sparse", "sparse", "sparse"]}, "no default"),
    "diffusion_gemma_text": ({"num_experts": 4, "layer_types": SLIDING}, "no default"),
    "dots1": ({"n_shared_experts": 1}, "no default"),
    "emu3": ({"vocabulary_map": {"<image>": 100, "<|extra_200|>": 101}}, "image tokens are found in it"),
    "emu3_vqgan": ({"base_channels": 32, "codebook_size": 16, "embed_dim": 4, "hidden_size": 64}, "convolutions"),
    "ernie4_5_vl_moe_text": (
        {"moe_intermediate_size": [48, 32], "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [3, 3, 2]}},
        "experts for text and for images, of different sizes; height and width in equal sections",
    ),
    "fun_asr_nano": ({"adaptor_config": {"intermediate_size": 16}}, "a fourth of the width"),
    "fun_asr_nano_encoder": ({"num_timestamp_prediction_layers": 2}, "many layers"),
    "gemma3": ({"mm_tokens_per_image": 4}, "fewer than patches"),
    "gemma3n_text": (
        {"layer_types": SLIDING, "num_kv_shared_layers": 2, "altup_num_inputs": 2, "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0]},
        "shared keys and values, and sparse layers beside dense ones",
    ),
    "gemma4": ({"vision_config": SMALL, "audio_config": SMALL}, "towers that are optional"),
    "gemma4_text": ({"num_experts": 4, "enable_moe_block": True}, "experts beside the MLP"),
    "glm5_next_text": ({"qk_rope_head_dim": 0, "index_kpool": 4, "index_topk": 8, "hc_mult": 2}, "no rotary part; fewer indices than tokens"),
    "glmasr_encoder": ({"intermediate_size": 256}, "four frames in one"),
    "gpt_neo": ({"attention_types": [[["global", "local"], 2]]}, "one entry per layer"),
    "granite4_vision": ({"deepstack_layer_map": [[-1, 0]], "spatial_target_layers": [0, 1, 2, 3], "downsample_rate": "1/2"}, "no defaults"),
    "granitemoehybrid": ({"layer_types": MIXED}, "both kinds of layers"),
    "helium": ({"head_dim": 16}, "its output projection is square"),
    "hunyuan_vl_text": ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 2, 2, 2]}}, "no default"),
    "jamba": ({"attn_layer_period": 2, "attn_layer_offset": 1}, "both kinds of layers"),
    "janus_vqgan": ({"base_channels": 32, "num_embeddings": 16, "image_token_embed_dim": 64, "latent_channels": 32}, "convolutions"),
    "kimi_linear": ({"layer_types": MIXED}, "both kinds of attention"),
    "kosmos-2": ({"latent_query_num": 4}, "tokens per image"),
    "kyutai_speech_to_text": ({"num_codebooks": 2}, "as many inputs per token"),
    "lfm2_moe": ({"layer_types": ["conv", "full_attention"] * 2}, "both kinds of layers"),
    "llama4_text": ({"interleave_moe_layer_step": 2}, "dense layers beside those of experts"),
    "llama4_vision_model": ({"vision_output_dim": 64, "projector_input_dim": 64, "projector_output_dim": 64}, "an adapter of its own width"),
    "longcat_flash": ({"zero_expert_num": 2, "moe_topk": 3}, "experts that return their input"),
    "mamba2": ({"num_heads": 8, "head_dim": 16, "n_groups": 2}, "expand times hidden"),
    "mimi": ({"upsample_groups": 64, "num_filters": 8, "codebook_size": 16, "codebook_dim": 32, "vector_quantization_hidden_dimension": 32}, "convolutions"),
    "mllama_text_model": ({"cross_attention_layers": [1, 3]}, "layers that there are"),
    "mllama_vision_model": ({"num_global_layers": 2, "vision_output_dim": 192, "intermediate_layers_indices": [0, 1]}, "layers that there are"),
    "molmo2_adapter": ({"vision_feature_layer": [-1, -2]}, "layers that there are"),
    "muse_spark_audio": ({"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1], "out_hidden_size": 64}, "convolutions"),
    "muse_spark_text": ({"moe_hidden_size": 32}, "experts of a width of their own"),
    "nemotron": ({"num_key_value_heads": 2}, "no default"),
    "nemotron3_diarization": ({"head_config": {"audio_hidden_size": 64}}, "width of the encoder"),
    "nemotron_h": (
        {"layers_block_type": ["mamba", "attention", "moe", "mlp"], "n_groups": 2, "mamba_num_heads": 8, "mamba_head_dim": 16},
        "each kind of layer once",
    ),
    "paddleocr_vl_text": ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]}}, "no default"),
    "prophetnet": ({"num_encoder_layers": 2, "num_decoder_layers": 2}, "layers of both sides"),
    "qwen2_5_omni": ({"enable_audio_output": False}, "a vocoder of a hundred million weights"),
    "qwen3_asr_encoder": ({"downsample_hidden_size": 16, "n_window": 16, "n_window_infer": 32}, "convolutions"),
    "qwen3_omni_moe": ({"enable_audio_output": False}, "a vocoder"),
    "qwen3_omni_moe_audio_encoder": ({"downsample_hidden_size": 16}, "convolutions"),
    "qwen3_omni_moe_talker_text": ({"shared_expert_intermediate_size": 80}, "no default"),
    "qwen4_exp_text": (
        {"hc_lowrank": 16, "ngram_vocab_size_base": 64, "split_ngram_parts": 1, "indexer_n_heads": 2, "indexer_kv_heads": 1,
         "head_dim": 16, "indexer_head_dim": 16, "indexer_budget": 8, "indexer_compress_ratio": 4, "layer_types": MIXED},
        "a table of twenty million rows, and an indexer without defaults",
    ),
    "reformer": (
        {"is_decoder": True, "axial_pos_shape": [8, 16], "axial_pos_embds_dim": [32, 32], "attn_layers": ["local", "lsh"] * 2},
        "a causal model, with positions that factor",
    ),
    "step3p5": ({"sliding_window": 8, "share_expert_dim": 80, "num_sliding_attention_heads": 4}, "no default"),
    "t5gemma2_encoder": ({"mm_tokens_per_image": 4}, "fewer than patches"),
    "vibevoice_acoustic_tokenizer_encoder": ({"num_filters": 2, "depths": [1] * 7}, "convolutions"),
    "vipllava": ({"vision_feature_layers": [-1, -2]}, "layers that there are"),
    "xlstm": ({"qk_dim_factor": 1.0, "chunk_size": 8}, "its kernel in torch takes equal widths alone"),
    "xmod": ({"default_language": "en_XX", "languages": ["en_XX"]}, "an adapter per language"),
    "zamba": (
        {"num_hidden_layers": 6, "layers_block_type": ["mamba", "mamba", "hybrid", "mamba", "hybrid", "mamba"], "num_key_value_heads": 4},
        "both kinds of layers, the first at a fixed place",
    ),
    "zamba2": ({"layers_block_type": ["mamba", "hybrid"] * 2, "num_key_value_heads": 4, "adapter_rank": 16}, "both kinds of layers"),
}


def small(kind: type[PreTrainedConfig], chosen=None, base=None):
    """A small configuration of a class, with ``chosen`` fields instead of what the rules say. ``base`` is what the
    class around it has there by default."""
    fields = {}
    taken = iter(range(WORDS.stop, VOCABULARY))
    for field in dataclasses.fields(kind):
        given = vars(base).get(field.name, field.default) if base is not None else field.default
        value = ruled(field.name, field.default if given is None or isinstance(given, (dict, list, PreTrainedConfig)) else given, taken)
        if value is None and given != field.default and isinstance(given, (bool, int, float, str)):
            value = given
        if value is not None:
            fields[field.name] = value
    if "kv_lora_rank" in fields or base is not None and "num_key_value_heads" in fields:
        fields["num_key_value_heads"] = 4
    if base is not None and fields.get("head_dim"):
        fields["head_dim"] = 16
    for name, part in parts(kind).items():
        fields[name] = part
    wanted, _ = OVERRIDES.get(kind.model_type, ({}, ""))
    wanted = {name: small(kind.sub_configs[name]).to_dict() if value is SMALL else value for name, value in wanted.items()}
    return with_sections(kind(**merged(merged(fields, wanted), chosen or {})))


def with_sections(config):
    """Rotary sections of time, height and width for the width that heads have here."""
    rotary = getattr(config, "rope_parameters", None)
    if isinstance(rotary, dict) and "rope_theta" in rotary and "mrope_section" in (type(config).ignore_keys_at_rope_validation or ()):
        width = vars(config).get("head_dim") or config.hidden_size // config.num_attention_heads
        half = int(width * (rotary.get("partial_rotary_factor") or 1)) // 2
        if sum(rotary.get("mrope_section") or ()) != half:
            rotary["mrope_section"] = [half - 2 * (half // 3), half // 3, half // 3]
    return config


def ruled(name, default, taken):
    if default is None:
        is_id = IDS.fullmatch(name) and re.search("image|video|audio", name)
        return next(taken) if is_id else UNSET.get(name)
    if isinstance(default, (bool, str)):
        return None
    if isinstance(default, float):
        found = next((rule for pattern, rule in FACTORS if re.fullmatch(pattern, name)), None)
        return found and found(default)
    for pattern, rule in SIZES:
        if re.fullmatch(pattern, name):
            one = rule if callable(rule) else lambda _: rule
            return one(default) if isinstance(default, int) else type(default)(one(item) for item in default)
    return next(taken) if isinstance(default, int) and IDS.fullmatch(name) else None


def parts(kind):
    """The configurations inside one, small, as dictionaries."""
    if not kind.sub_configs:
        return {}
    whole = kind()
    found = {name: getattr(whole, name, None) for name in kind.sub_configs}
    return {name: small(type(part), base=part).to_dict() for name, part in found.items() if isinstance(part, PreTrainedConfig)}


def merged(fields, more):
    """Fields with others in their place; those of a part are merged into the part."""
    out = dict(fields)
    for name, value in more.items():
        inside = isinstance(value, dict) and isinstance(out.get(name), dict)
        out[name] = merged(out[name], value) if inside else value
    return out
