"""Checkpoints that the rows of the classes do not have, each with what a loader may get wrong about it."""

import re

import checkpoints
import configs
import torch
from judge import Case

FP8 = re.compile(r"self_attn\.[qkvo]_proj$")


def dropped(written, stem):
    """Takes a quantised weight out of a checkpoint, and gives its expanded one."""
    for name in [name for name in written.tensors if name.startswith((f"{stem}.weight", f"{stem}.input_", f"{stem}_weight_scale", f"{stem}_input"))]:
        del written.tensors[name]
    written.tensors.pop(stem, None)
    return written.expanded[f"{stem}.weight" if f"{stem}.weight" in written.expanded else stem]


def fp8(written, stem, files, per_row):
    """A weight in FP8: one scale, or one per row."""
    weight = files[f"{stem}.weight"]
    dropped(written, stem)
    scale = weight.abs().amax(1, keepdim=True) / 448 if per_row else weight.abs().amax() / 448
    written.tensors[f"{stem}.weight"] = codes = (weight / scale).to(torch.float8_e4m3fn)
    written.tensors[f"{stem}.weight_scale"] = scale
    written.expanded[f"{stem}.weight"] = codes.float() * scale


def mixed_modelopt(written, config, files):
    layers = {}
    for stem in written.quantised:
        is_fp8 = FP8.search(stem) is not None
        layers[stem] = {"quant_algo": "FP8"} if is_fp8 else {"quant_algo": "NVFP4", "group_size": 16}
        if is_fp8:
            fp8(written, stem, files, per_row=False)
            written.tensors[f"{stem}.input_scale"] = torch.tensor(0.01)
    config["quantization_config"] |= {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    del config["quantization_config"]["config_groups"]


def mixed_compressed(written, config, files):
    for stem in filter(FP8.search, written.quantised):
        fp8(written, stem, files, per_row=True)
    said = config["quantization_config"]
    nvfp4 = said["config_groups"]["group_0"] | {"targets": ["re:.*mlp.*_proj$"]}
    weights = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False, "group_size": None}
    inputs = weights | {"strategy": "token", "dynamic": True}
    first = {"format": "float-quantized", "targets": ["re:.*self_attn.*_proj$"], "weights": weights, "input_activations": inputs, "output_activations": None}
    said |= {"format": "mixed-precision", "config_groups": {"group_0": first, "group_1": nvfp4}}


def only_hf_quant_config(written, config, files):
    ignore = config.pop("quantization_config")["ignore"]
    quantization = {"quant_algo": "NVFP4", "kv_cache_quant_algo": None, "group_size": 16, "exclude_modules": ignore}
    config["files"] = {"hf_quant_config.json": {"producer": {"name": "modelopt", "version": "0.47.0"}, "quantization": quantization}}


def mtp_layer(written, config, files):
    """The layer that predicts the token after the next, numbered after the model's last one. transformers leaves it
    alone."""
    last = config["num_hidden_layers"] - 1
    for tensors in (written.tensors, written.expanded):
        copies = {name.replace(f".layers.{last}.", f".layers.{last + 1}."): tensor.clone() for name, tensor in tensors.items() if f".layers.{last}." in name}
        tensors.update(copies)
        tensors[f"model.layers.{last + 1}.enorm.weight"] = torch.ones(64)
        tensors[f"model.layers.{last + 1}.hnorm.weight"] = torch.ones(64)
    eh = torch.randn(64, 128, generator=torch.Generator().manual_seed(3))
    checkpoints.modelopt(written, f"model.layers.{last + 1}.eh_proj", eh)


def mxfp4(written, config, files):
    for stem in written.quantised:
        dropped(written, stem)
        blocks, scales, expanded = checkpoints.mxfp4(files[stem].mT.contiguous())
        written.tensors[f"{stem}_blocks"], written.tensors[f"{stem}_scales"] = blocks, scales
        written.expanded[stem] = expanded.mT.contiguous()
    kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": kept}


def deepseek(written, config, files):
    """DeepSeek-V4's own layout: experts in MXFP4, other matrices in FP8 by blocks of 128, powers of two for scales."""
    for stem in written.quantised:
        dropped(written, stem)
        weight = files[f"{stem}.weight"]
        if ".experts." in stem:
            blocks, scales, expanded = checkpoints.mxfp4(weight)
            codes = blocks.flatten(1).view(torch.int8)
        else:
            tiles = torch.nn.functional.max_pool2d(weight.abs()[None], 128, ceil_mode=True)[0]
            exponents = torch.ceil(torch.log2(tiles / 448)).int()
            units = torch.exp2(exponents.float()).repeat_interleave(128, 0).repeat_interleave(128, 1)
            units = units[: weight.shape[0], : weight.shape[1]]
            codes, scales = (weight / units).to(torch.float8_e4m3fn), (exponents + 127).to(torch.uint8)
            expanded = codes.float() * units
        written.tensors[f"{stem}.weight"], written.tensors[f"{stem}.scale"] = codes, scales.view(torch.float8_e8m0fnu)
        written.expanded[f"{stem}.weight"] = expanded
    config["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "scale_fmt": "ue8m0", "weight_block_size": [128, 128]}
    config["expert_dtype"] = "fp4"


def awq(pattern):
    """Weights that tokens are multiplied with a vector before; gate and up share theirs."""

    def rewrite(written, config, files):
        for stem in filter(re.compile(pattern).search, written.quantised):
            owner = stem.rpartition(".")[0] if stem.endswith(("gate_proj", "up_proj")) else stem
            made = torch.Generator().manual_seed(len(owner) + sum(map(ord, owner)))
            scale = (0.5 + torch.rand(files[f"{stem}.weight"].shape[1], generator=made)).bfloat16()
            written.tensors[f"{stem}.pre_quant_scale"] = scale
            written.expanded[f"{stem}.weight"] = written.expanded[f"{stem}.weight"] * scale.float()
        config["quantization_config"]["quant_algo"] = "NVFP4_AWQ"

    return rewrite


def kv_scales(written, config, files):
    for stem in written.quantised:
        if stem.endswith(("k_proj", "v_proj")):
            written.tensors[f"{stem}.{stem[-6]}_scale"] = torch.tensor(0.05)
    config["quantization_config"]["kv_cache_scheme"] = {"dynamic": False, "num_bits": 8, "type": "float"}


def quantised_head(written, config, files):
    checkpoints.modelopt(written, "lm_head", files["lm_head.weight"])
    config["quantization_config"]["ignore"].remove("lm_head")


def named(pattern):
    found = re.compile(pattern)
    return lambda name: found.search(name) is not None


FALCON_H1 = {
    "mlp_multipliers": [0.7, 1.3], "ssm_multipliers": [0.6, 0.8, 1.2, 0.9, 1.1], "key_multiplier": 0.6, "attention_in_multiplier": 0.9,
    "attention_out_multiplier": 1.2, "ssm_in_multiplier": 0.8, "ssm_out_multiplier": 1.3, "lm_head_multiplier": 0.5, "embedding_multiplier": 1.4,
}  # fmt: skip
BIASES = {"attention_bias": True, "mlp_bias": True}

# Name: (class, layout, what to change, reason).
CONSTRUCTIONS = {
    "llava-text-only": ("LlavaForConditionalGeneration", "modelopt", {"chosen": named("language_model")}, "the vision tower has the same shapes, unquantised"),
    "llava-vision-only": ("LlavaForConditionalGeneration", "modelopt", {"chosen": named("vision_tower")}, "the text tower has the same shapes, unquantised"),
    "bart-decoder-only": ("BartForConditionalGeneration", "modelopt", {"chosen": named("decoder")}, "encoder and decoder have the same names and shapes"),
    "bart-encoder-only": ("BartForConditionalGeneration", "compressed", {"chosen": named("encoder.layers")}, "encoder and decoder have the same names and shapes"),
    "falcon-h1-multipliers": ("FalconH1ForCausalLM", "modelopt", {"fields": FALCON_H1}, "factors inside the MLP, between gate and up"),
    "gemma3n-sparsity": ("Gemma3nForCausalLM", "modelopt", {}, "the gate is cut off at a quantile before its function"),
    "gemma3-images": ("Gemma3ForConditionalGeneration", "modelopt", {}, "two towers, and an image"),
    "longcat-zero-experts": ("LongcatFlashForCausalLM", "modelopt", {}, "experts without weights that return their input"),
    "muse-spark-norm-after-experts": ("MuseSparkForConditionalGeneration", "modelopt", {}, "experts with a norm after them, of another width"),
    "llama4-stacked": ("Llama4ForCausalLM", "modelopt", {}, "experts in one transposed tensor; the router's weight is on the input"),
    "nemotron-h-relu2": ("NemotronHForCausalLM", "modelopt", {}, "experts without a gate, with the square of ReLU"),
    "gpt-oss-mxfp4": ("GptOssForCausalLM", "modelopt", {"chosen": named("experts"), "rewrite": mxfp4}, "blocks of 32, rows of gate and up in turn, biases, a limit"),
    "deepseek-v3-mtp": ("DeepseekV3ForCausalLM", "modelopt", {"rewrite": mtp_layer}, "a layer in the files that the model does not have"),
    "deepseek-v4-own": ("DeepseekV4ForCausalLM", "modelopt", {"fields": {"moe_intermediate_size": 64}, "chosen": named(r"ffn\.(shared_)?experts|attn\.w(q_a|q_b|kv|o_a|o_b)\."), "rewrite": deepseek}, "the files that DeepSeek publishes: MXFP4 experts, FP8 beside them"),
    "mixed-fp8-modelopt": ("LlamaForCausalLM", "modelopt", {"rewrite": mixed_modelopt}, "FP8 attention beside NVFP4 MLPs, one scale per matrix"),
    "mixed-fp8-compressed": ("LlamaForCausalLM", "compressed", {"rewrite": mixed_compressed}, "FP8 attention beside NVFP4 MLPs, one scale per row"),
    "hf-quant-config": ("LlamaForCausalLM", "modelopt", {"rewrite": only_hf_quant_config}, "config.json says nothing"),
    "phi3-fused": ("Phi3ForCausalLM", "modelopt", {}, "qkv and gate_up are one matrix each"),
    "tied-embeddings": ("LlamaForCausalLM", "modelopt", {"fields": {"tie_word_embeddings": True}}, "the head is the embedding"),
    "quantised-head": ("LlamaForCausalLM", "modelopt", {"rewrite": quantised_head}, "the head is quantised, too"),
    "awq-experts": ("Qwen3MoeForCausalLM", "modelopt", {"rewrite": awq(r"experts\.\d+\.(gate|up)_proj$")}, "tokens are scaled before gate and up"),
    "awq-dense": ("LlamaForCausalLM", "modelopt", {"rewrite": awq(r"(o_proj|down_proj)$")}, "tokens are scaled before single matrices"),
    "biases": ("LlamaForCausalLM", "modelopt", {"fields": BIASES}, "attention and MLPs with biases"),
    "biases-compressed": ("LlamaForCausalLM", "compressed", {"fields": BIASES}, "attention and MLPs with biases"),
    "kv-cache-scales": ("LlamaForCausalLM", "modelopt", {"rewrite": kv_scales}, "scales of a cache that nobody keeps in FP8 here"),
    "mixtral-one-expert-kept": ("MixtralForCausalLM", "compressed", {"chosen": lambda name: "experts.1.w2" not in name}, "one matrix of one expert is not quantised"),
    "qwen3-gate-only": ("Qwen3ForCausalLM", "modelopt", {"chosen": named("gate_proj")}, "gate is quantised, and up is not"),
}


def constructions():
    """The list as cases, of the classes that this transformers has."""
    known = configs.architectures()
    for name, (model, layout, change, reason) in CONSTRUCTIONS.items():
        if model in known:
            yield Case(name, model, *known[model], layout, reason=reason, **change)
