"""Makes the small whole models of this folder with the packages that define their layouts.

    python3 -m venv venv && venv/bin/pip install torch transformers==4.57.6 accelerate nvidia-modelopt==0.47.0
    compressed-tensors==0.20.0 venv/bin/python make.py

Nothing is downloaded: the models have random weights from a fixed seed.
"""

import copy
import pathlib
import shutil

import torch

HERE = pathlib.Path(__file__).parent
COMMON = dict(
    vocab_size=64, hidden_size=64, intermediate_size=96, num_attention_heads=2, num_key_value_heads=1, head_dim=32,
    max_position_embeddings=64, num_hidden_layers=2,
)  # fmt: skip
MOE = dict(moe_intermediate_size=32, num_experts=4, num_experts_per_tok=2, mlp_only_layers=[1], norm_topk_prob=True)


def made(kind, **sizes):
    """A model whose weights differ enough from layer to layer that global scales do."""
    import transformers

    torch.manual_seed(2026)
    config = getattr(transformers, f"{kind}Config")(**{**COMMON, **sizes})
    config.architectures = [f"{kind}ForCausalLM"]
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    for number, parameter in enumerate(model.parameters()):
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.1 + 0.02 * (number % 7))
    return model.bfloat16().eval()


def folder(name):
    path = HERE / name
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    return path


def tidy(path):
    for file in path.iterdir():
        if file.suffix != ".safetensors" and file.name not in ("config.json", "model.safetensors.index.json"):
            file.unlink()


def modelopt(name, model, shard="5GB", others=None):
    """All in NVFP4, but for modules that match a pattern of ``others``: those by that configuration of ModelOpt's."""
    import modelopt.torch.export as export
    import modelopt.torch.quantization as quantization

    def calibrate(model):
        for _ in range(8):
            model(torch.randint(0, 64, (4, 16)))

    path = folder(name)
    settings = copy.deepcopy(quantization.NVFP4_DEFAULT_CFG)
    for pattern, other in (others or {}).items():
        # Of a configuration's entries these two say how weights and inputs are quantised; later entries win.
        for quantizer in ("weight_quantizer", "input_quantizer"):
            entries = getattr(quantization, other)["quant_cfg"]
            [entry] = [each for each in entries if each["quantizer_name"] == f"*{quantizer}"]
            settings["quant_cfg"].append({"enable": True, **entry, "quantizer_name": f"{pattern}{quantizer}"})
    model = quantization.quantize(model, settings, calibrate)
    with torch.inference_mode():
        export.export_hf_checkpoint(model, export_dir=path, max_shard_size=shard)
    tidy(path)


def compressed(name, model, ignore, shard="5GB", others=None):
    """All linear layers in NVFP4, but for those that match a pattern of ``others``: these by that preset."""
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationConfig, QuantizationStatus, apply_quantization_config
    from compressed_tensors.quantization.quant_scheme import preset_name_to_scheme
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    path = folder(name)
    presets = {**(others or {}), "Linear": "NVFP4A16"}
    schemes = [preset_name_to_scheme(preset, [target]) for target, preset in presets.items()]
    groups = {f"group_{number}": scheme for number, scheme in enumerate(schemes)}
    config = QuantizationConfig(config_groups=groups, ignore=ignore, quantization_status=QuantizationStatus.FROZEN)
    apply_quantization_config(model, config)
    for module in model.modules():
        scheme = getattr(module, "quantization_scheme", None)
        if scheme is None:
            continue
        weight = module.weight.data.float()
        if scheme.weights.num_bits == 8:
            rows = weight.reshape(1, -1) if scheme.weights.strategy == "tensor" else weight
            scales, _ = calculate_qparams(rows.amin(1), rows.amax(1), scheme.weights)
            module.weight_scale.data = scales.reshape(module.weight_scale.shape)
            if hasattr(module, "input_scale"):
                module.input_scale.data.fill_(1 / 32)
            continue
        blocks = weight.reshape(weight.shape[0], -1, scheme.weights.group_size)
        low, high = blocks.amin(-1), blocks.amax(-1)
        module.weight_global_scale.data = generate_gparam(low.amin(), high.amax()).reshape(1)
        module.weight_scale.data, _ = calculate_qparams(
            low, high, scheme.weights, global_scale=module.weight_global_scale.data
        )
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(path, max_shard_size=shard)
    compressor.update_config(path)
    tidy(path)


def main():
    modelopt("modelopt_llama", made("Llama"))
    modelopt("modelopt_qwen3_moe", made("Qwen3Moe", **MOE), "60KB")
    # One expert that sees every token beside the numbered ones, and a gate of its own.
    modelopt("modelopt_qwen2_moe", made("Qwen2Moe", **{**MOE, "shared_expert_intermediate_size": 48}))
    compressed("compressed_qwen3", made("Qwen3"), ["lm_head"])
    compressed("compressed_qwen3_moe", made("Qwen3Moe", **MOE), ["lm_head", "re:.*mlp.gate$"], "60KB")
    mixed()


def mixed():
    """Models of which some layers are not NVFP4."""
    modelopt(
        "modelopt_mixed_llama", made("Llama"),
        others={"*self_attn*": "FP8_PER_CHANNEL_PER_TOKEN_CFG", "*lm_head*": "NVFP4_DEFAULT_CFG"},
    )  # fmt: skip
    modelopt(
        "modelopt_mixed_qwen3_moe", made("Qwen3Moe", **MOE),
        others={"*self_attn*": "FP8_DEFAULT_CFG", "*layers.1.mlp*": "MXFP8_DEFAULT_CFG"},
    )  # fmt: skip
    modelopt(
        "modelopt_mixed_experts", made("Qwen3Moe", **{**MOE, "mlp_only_layers": []}),
        others={"*layers.0.mlp.experts*": "FP8_DEFAULT_CFG", "*layers.1.mlp.experts*": "MXFP8_DEFAULT_CFG"},
    )  # fmt: skip
    compressed("compressed_mixed_qwen3", made("Qwen3"), ["lm_head"], others={"re:.*self_attn.*": "FP8_DYNAMIC"})
    ignored = ["lm_head", "re:.*mlp.gate$"]
    compressed("compressed_mixed_qwen3_moe", made("Qwen3Moe", **MOE), ignored, others={"re:.*self_attn.*": "FP8"})


if __name__ == "__main__":
    main()
