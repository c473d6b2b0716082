"""Makes the small models of this folder with the packages that define their layouts.

    python3 -m venv venv && venv/bin/pip install torch transformers==4.57.6 accelerate nvidia-modelopt==0.47.0 \
        compressed-tensors==0.20.0 gguf==0.19.0 torchao==0.18.0
    venv/bin/python make.py [NAME...]

`deepseek_v4` and `deepseek_v41` take transformers==5.23.0, which reads those files, in an environment of their own.

Each model goes to a folder NAME (or a file NAME.gguf), and beside it NAME.expected.safetensors: its quantised MLP weights
as the package itself decodes them, F32 [rows, K], under the names that they have, or would have apart, before they are
quantised. Nothing is downloaded: the models have random weights from a fixed seed.
"""

import json
import pathlib
import shutil
import sys

import numpy
import torch
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).parent


def seed():
    torch.manual_seed(2026)
    numpy.random.seed(2026)


def folder(name):
    path = HERE / name
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    return path


def expected(name, tensors):
    tensors = {key: value.float().contiguous() for key, value in sorted(tensors.items())}
    save_file(tensors, HERE / f"{name}.expected.safetensors")


def stored(path):
    """All tensors of a folder, whichever shard they are in."""
    tensors = {}
    for file in sorted(path.glob("*.safetensors")):
        tensors.update(load_file(file))
    return tensors


def keep_mlps(path, also=()):
    """Leaves out what is of no use to us, so that the files stay small."""
    for file in path.glob("*.safetensors"):
        kept = {
            key: value.contiguous()
            for key, value in load_file(file).items()
            if any(part in key for part in ("mlp.", "feed_forward.", "block_sparse_moe.", *also))
        }
        save_file(kept, file, metadata={"format": "pt"})
        if not kept:
            file.unlink()
    for file in path.glob("*"):
        if file.suffix != ".safetensors" and file.name not in (
            "config.json", "hf_quant_config.json", "model.safetensors.index.json",
        ):
            file.unlink()
    index = path / "model.safetensors.index.json"
    if index.exists():
        text = json.loads(index.read_text())
        files = {file.name: load_file(file) for file in path.glob("*.safetensors")}
        text["weight_map"] = {k: f for k, f in text["weight_map"].items() if k in files.get(f, {})}
        index.write_text(json.dumps(text, indent=1))


# ModelOpt


def modelopt_decode(codes, scale, scale_2):
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    shape = (*codes.shape[:-1], codes.shape[-1] * 2)
    tensor = NVFP4QTensor(torch.Size(shape), torch.float32, codes)
    return tensor.dequantize(dtype=torch.float32, scale=scale, double_scale=scale_2, block_sizes={-1: 16})


def modelopt_export(model, path, recipe, shard):
    import modelopt.torch.export as export
    import modelopt.torch.quantization as quantization

    def calibrate(model):
        for _ in range(4):
            model(torch.randint(0, 32, (4, 16)))

    model = quantization.quantize(model, getattr(quantization, recipe), calibrate)
    with torch.inference_mode():
        export.export_hf_checkpoint(model, export_dir=path, max_shard_size=shard)


def modelopt_qwen3_moe():
    """Experts with gate_proj and up_proj, in shards."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    seed()
    path = folder("modelopt_qwen3_moe")
    config = Qwen3MoeConfig(
        vocab_size=32, hidden_size=64, intermediate_size=64, moe_intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=16, num_experts=4, num_experts_per_tok=2,
        max_position_embeddings=64, mlp_only_layers=[1], architectures=["Qwen3MoeForCausalLM"],
    )
    modelopt_export(Qwen3MoeForCausalLM(config).bfloat16(), path, "NVFP4_DEFAULT_CFG", "12KB")
    keep_mlps(path)
    tensors = stored(path)
    expected(path.name, {
        key: modelopt_decode(codes, tensors[key + "_scale"], tensors[key + "_scale_2"])
        for key, codes in tensors.items() if key + "_scale_2" in tensors
    })


def modelopt_llama4():
    """Fused, stacked and transposed experts, beside a shared one."""
    from transformers import Llama4ForCausalLM, Llama4TextConfig

    seed()
    path = folder("modelopt_llama4")
    config = Llama4TextConfig(
        vocab_size=32, hidden_size=96, intermediate_size=32, intermediate_size_mlp=64, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, head_dim=16, num_local_experts=3, num_experts_per_tok=1,
        max_position_embeddings=64, interleave_moe_layer_step=1, use_qk_norm=False, attn_temperature_tuning=False,
        no_rope_layers=[1], layer_types=["full_attention"], architectures=["Llama4ForCausalLM"],
    )
    model = Llama4ForCausalLM(config)
    for name, parameter in model.named_parameters():
        if "experts" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    modelopt_export(model.bfloat16(), path, "NVFP4_DEFAULT_CFG", "5GB")
    keep_mlps(path)
    tensors = stored(path)
    decoded = {}
    for key, codes in tensors.items():
        if key + "_weight_scale_2" in tensors:
            scale, scale_2 = tensors[key + "_weight_scale"], tensors[key + "_weight_scale_2"]
            turned = codes.transpose(1, 2).contiguous(), scale.transpose(1, 2).contiguous()
            weight = modelopt_decode(*turned, scale_2)
            module, projection = key.rsplit(".", 1)
            for expert, matrix in enumerate(weight):
                halves = matrix.chunk(2) if projection == "gate_up_proj" else [matrix]
                names = ["gate_proj", "up_proj"] if projection == "gate_up_proj" else [projection]
                for name, half in zip(names, halves):
                    decoded[f"{module}.{expert}.{name}.weight"] = half
        elif key + "_scale_2" in tensors:
            decoded[key] = modelopt_decode(codes, tensors[key + "_scale"], tensors[key + "_scale_2"])
    expected(path.name, decoded)


def modelopt_awq():
    """Experts whose tokens are multiplied with a vector first; that of the dense layer went into its norm."""
    from modelopt.torch.quantization import tensor_quant
    from modelopt.torch.quantization.qtensor import NVFP4QTensor
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    # AWQ tries weights in fake quantisation, for which ModelOpt has kernels alone; this is the same in torch.
    def on_cpu(values, block, amax, *_):
        flat = values.reshape(-1, values.shape[-1])
        codes, scale, scale_2 = NVFP4QTensor.quantize(flat, block, None, amax.amax().float() / (6 * 448))
        decoded = codes.dequantize(dtype=values.dtype, scale=scale, double_scale=scale_2, block_sizes={-1: block})
        return decoded.reshape(values.shape)

    tensor_quant.dynamic_block_quantize_op = on_cpu
    seed()
    path = folder("modelopt_awq")
    config = Qwen3MoeConfig(
        vocab_size=32, hidden_size=32, intermediate_size=32, moe_intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=16, num_experts=2, num_experts_per_tok=1,
        max_position_embeddings=64, mlp_only_layers=[1], architectures=["Qwen3MoeForCausalLM"],
    )
    modelopt_export(Qwen3MoeForCausalLM(config).bfloat16(), path, "NVFP4_AWQ_LITE_CFG", "5GB")
    keep_mlps(path)
    tensors = stored(path)
    expected(path.name, {
        key: modelopt_decode(codes, tensors[key + "_scale"], tensors[key + "_scale_2"])
        for key, codes in tensors.items() if key + "_scale_2" in tensors
    })


# compressed-tensors


def compressed(model, path, scheme, ignore, shard):
    """Quantises by the plain recipe, and returns the weights as the package's functions decode them, in f32 where
    decompressing the model would round to bf16."""
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.compressors.mx_utils import decompress_mx_scale
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization.lifecycle.forward import dequantize
    from compressed_tensors.quantization import QuantizationConfig, QuantizationStatus, apply_quantization_config
    from compressed_tensors.quantization.quant_scheme import preset_name_to_scheme
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    config = QuantizationConfig(
        config_groups={"group_0": preset_name_to_scheme(scheme, ["Linear"])}, ignore=ignore,
        quantization_status=QuantizationStatus.FROZEN,
    )
    apply_quantization_config(model, config)
    for module in model.modules():
        scheme = getattr(module, "quantization_scheme", None)
        if scheme is None:
            continue
        args, weight = scheme.weights, module.weight.data.float()
        groups = weight.reshape(weight.shape[0], -1, args.group_size)
        low, high = groups.amin(-1), groups.amax(-1)
        given = {}
        if hasattr(module, "weight_global_scale"):
            module.weight_global_scale.data = generate_gparam(low.amin(), high.amax()).reshape(1)
            given["global_scale"] = module.weight_global_scale.data
        scale, _ = calculate_qparams(low, high, args, **given)
        module.weight_scale.data = scale
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(path, max_shard_size=shard)
    compressor.update_config(path)
    decoded = {}
    for name, module in model.named_modules():
        if hasattr(module, "weight_packed"):
            rows, bytes_ = module.weight_packed.shape
            args, scale = module.quantization_scheme.weights, module.weight_scale
            scale = decompress_mx_scale(scale).float() if scale.dtype == torch.uint8 else scale.float()
            decoded[f"{name}.weight"] = dequantize(
                unpack_fp4_from_uint8(module.weight_packed, rows, 2 * bytes_, dtype=torch.float32), scale=scale, args=args,
                global_scale=getattr(module, "weight_global_scale", None), dtype=torch.float32,
            )
    return decoded


def compressed_tensors_mixtral():
    """Experts with w1 and w3, weights only, in shards so small that parts of one weight lie apart."""
    from transformers import MixtralConfig, MixtralForCausalLM

    seed()
    path = folder("compressed_tensors_mixtral")
    config = MixtralConfig(
        vocab_size=32, hidden_size=64, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, num_local_experts=3, max_position_embeddings=64,
    )
    ignore = ["lm_head", "re:.*block_sparse_moe.gate$", "model.layers.0.block_sparse_moe.experts.2.w2"]
    model = MixtralForCausalLM(config)
    decoded = compressed(model, path, "NVFP4A16", ignore, "3KB")
    keep_mlps(path)
    expected(path.name, {k: v for k, v in decoded.items() if ".experts." in k and "2.w2" not in k})


def compressed_tensors_mxfp4():
    """One power of two for 32 elements, beside each other in one layer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    seed()
    path = folder("compressed_tensors_mxfp4")
    config = LlamaConfig(
        vocab_size=32, hidden_size=64, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=64,
    )
    decoded = compressed(LlamaForCausalLM(config), path, "MXFP4A16", ["lm_head"], "5GB")
    keep_mlps(path)
    expected(path.name, {k: v for k, v in decoded.items() if ".mlp." in k})


# gpt-oss


def gpt_oss():
    """MXFP4 blocks, gate and up row by row, biases, and a gate with a limit of its own."""
    from transformers import GptOssConfig
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    seed()
    path = folder("gpt_oss")
    experts, n, k = 2, 24, 64
    config = GptOssConfig(
        vocab_size=32, hidden_size=k, intermediate_size=n, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, num_local_experts=experts, architectures=["GptOssForCausalLM"],
    ).to_dict()
    config["swiglu_limit"] = 7.0
    config["quantization_config"] = {
        "quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router"],
    }
    (path / "config.json").write_text(json.dumps(config, indent=1))
    tensors, decoded, prefix = {}, {}, "model.layers.0.mlp"
    for projection, rows, width in [("gate_up_proj", 2 * n, k), ("down_proj", k, 64)]:
        blocks = torch.randint(0, 256, (experts, rows, width // 32, 16), dtype=torch.uint8)
        scales = torch.randint(112, 129, (experts, rows, width // 32), dtype=torch.uint8)
        # A block of zeros is given the smallest scale there is.
        blocks[0, 3, 0] = 0
        scales[0, 3, 0] = 0
        tensors[f"{prefix}.experts.{projection}_blocks"] = blocks
        tensors[f"{prefix}.experts.{projection}_scales"] = scales
        tensors[f"{prefix}.experts.{projection}_bias"] = torch.randn(experts, rows).bfloat16()
        # The package gives [E, K, rows], as its own matrix product wants it.
        weight = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).transpose(1, 2)
        for expert in range(experts):
            if projection == "gate_up_proj":
                decoded[f"{prefix}.experts.{expert}.gate_proj.weight"] = weight[expert, 0::2]
                decoded[f"{prefix}.experts.{expert}.up_proj.weight"] = weight[expert, 1::2]
            else:
                decoded[f"{prefix}.experts.{expert}.{projection}.weight"] = weight[expert]
    tensors[f"{prefix}.router.weight"] = torch.randn(experts, k).bfloat16()
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    expected(path.name, decoded)


# DeepSeek


def deepseek_decode(weight, scale):
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    return Fp8Dequantize(None)._dequantize_one(weight, scale, output_dtype=torch.float32)


def deepseek(name, config, sides, block, tables):
    """The files that DeepSeek publishes: experts in MXFP4, what stands beside them in FP8, all scales powers of two."""
    seed()
    path = folder(name)
    (path / "config.json").write_text(json.dumps(config, indent=1))
    k, n = sides
    experts, top, tensors, decoded, beside = 3, 2, {}, {}, {}

    def exponents(*shape):
        return torch.randint(112, 129, shape, dtype=torch.uint8).view(torch.float8_e8m0fnu)

    def fp8(stem, rows, width):
        weight = torch.randn(rows, width).to(torch.float8_e4m3fn)
        scale = exponents(-(-rows // block), -(-width // block))
        tensors[f"{stem}.weight"], tensors[f"{stem}.scale"] = weight, scale
        beside[f"{stem}.weight"] = deepseek_decode(weight, scale)

    for layer, has_table in enumerate(tables):
        ffn = f"layers.{layer}.ffn"
        for expert in range(experts):
            for projection, rows, width in [("w1", n, k), ("w2", k, n), ("w3", n, k)]:
                stem = f"{ffn}.experts.{expert}.{projection}"
                weight = torch.randint(-128, 128, (rows, width // 2), dtype=torch.int8)
                scale = exponents(rows, width // 32)
                tensors[f"{stem}.weight"], tensors[f"{stem}.scale"] = weight, scale
                decoded[f"{stem}.weight"] = deepseek_decode(weight, scale)
        for projection, rows, width in [("w1", n, k), ("w2", k, n), ("w3", n, k)]:
            fp8(f"{ffn}.shared_experts.{projection}", rows, width)
        tensors[f"{ffn}.gate.weight"] = torch.randn(experts, k).bfloat16()
        if has_table:
            tokens = [torch.randperm(experts)[:top] for _ in range(32)]
            tensors[f"{ffn}.gate.tid2eid"] = torch.stack(tokens).to(torch.int64)
        else:
            tensors[f"{ffn}.gate.bias"] = torch.randn(experts)
        tensors[f"layers.{layer}.hc_ffn_scale"] = torch.randn(3)
    fp8("layers.0.attn.wq_a", 2 * block, k)
    if "vision_config" in config:
        tensors["layers.0.ffn.gate.bias_vl"] = torch.randn(experts)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    expected(name, decoded)
    expected(f"{name}.fp8", beside)


DEEPSEEK = {
    "hidden_act": "silu", "num_experts_per_tok": 2, "n_routed_experts": 3, "n_shared_experts": 1, "norm_topk_prob": True,
    "routed_scaling_factor": 1.5, "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "swiglu_limit": 10.0,
    "expert_dtype": "fp4",
}


def deepseek_v4():
    """A layer whose experts a table chooses and one with a correction, FP8 in blocks of 128."""
    deepseek("deepseek_v4", {
        **DEEPSEEK, "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "num_hidden_layers": 2,
        "hidden_size": 64, "moe_intermediate_size": 32, "num_hash_layers": 1, "vocab_size": 32,
        "quantization_config": {
            "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "scale_fmt": "ue8m0",
            "weight_block_size": [128, 128],
        },
    }, (64, 32), 128, [True, False])


def deepseek_v41():
    """FP8 in blocks of 32, and a correction of its own for tokens of images."""
    deepseek("deepseek_v41", {
        "architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41",
        "text_config": {
            **DEEPSEEK, "num_hidden_layers": 1, "hidden_size": 64, "moe_intermediate_size": 32, "vocab_size": 32,
        },
        "vision_config": {},
        "quantization_config": {
            "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "scale_fmt": "ue8m0",
            "weight_block_size": [32, 32],
        },
    }, (64, 32), 32, [False])


# GGUF


def gguf_moe():
    """Stacked and shared experts of NVFP4 with scales of 0 and 0x7F, a dense layer of MXFP4, and one of F16."""
    import gguf
    from gguf.constants import GGMLQuantizationType as Type

    seed()
    random = numpy.random.default_rng(2026)
    path = HERE / "gguf_moe.gguf"
    writer = gguf.GGUFWriter(path, "qwen3moe")
    writer.add_block_count(3)
    writer.add_array("tokenizer.ggml.tokens", ["<s>", "</s>", "e", "é"])
    writer.add_array("some.numbers", [1, 2, 3])
    experts, n, k = 3, 10, 128
    decoded = {}

    def raw(kind, shape):
        block, size = gguf.GGML_QUANT_SIZES[kind]
        data = random.integers(0, 256, (*shape[:-1], shape[-1] // block, size), dtype=numpy.uint8)
        if kind == Type.NVFP4:
            scales = data[..., :4]
            scales &= 0x7F
            # Every kind of scale: zero, what stands for zero, subnormals, the largest, and bit 7 set.
            flat = scales.reshape(-1)
            flat[:: 7], flat[1:: 31], flat[2:: 31], flat[3:: 31] = 0, 0x7F, 0x01, 0x7E
            flat[4:: 31] |= 0x80
            flat[flat == 0xFF] = 0xFE
            data[..., :4] = flat.reshape(scales.shape)
        else:
            data[..., 0] = random.integers(110, 127, data.shape[:-1])
        return data.reshape(*shape[:-1], -1)

    def add(name, kind, shape, module, projection, stacked):
        data = raw(kind, shape)
        writer.add_tensor(f"{name}.weight", data, raw_dtype=kind)
        values = gguf.quants.dequantize(data, kind).astype(numpy.float32)
        if kind == Type.NVFP4:
            scale = random.uniform(0.001, 0.02, shape[0] if stacked else 1).astype(numpy.float32)
            writer.add_tensor(f"{name}.scale", scale)
            writer.add_tensor(f"{name}.input_scale", numpy.ones_like(scale))
            values = values * scale.reshape(-1, 1, 1) if stacked else values * scale
        members = enumerate(values) if stacked else [(None, values)]
        for expert, matrix in members:
            inner = f"{expert}." if stacked else ""
            decoded[f"{module}.{inner}{projection}.weight"] = torch.from_numpy(matrix.copy())

    for projection, gguf_name, rows, width in [
        ("gate_proj", "ffn_gate", n, k), ("up_proj", "ffn_up", n, k), ("down_proj", "ffn_down", k, 64),
    ]:
        add(f"blk.0.{gguf_name}_exps", Type.NVFP4, (experts, rows, width), "model.layers.0.mlp.experts", projection, True)
        add(f"blk.0.{gguf_name}_shexp", Type.NVFP4, (rows, width), "model.layers.0.mlp.shared_expert", projection, False)
        add(f"blk.1.{gguf_name}", Type.MXFP4, (rows, width), "model.layers.1.mlp", projection, False)
        writer.add_tensor(f"blk.2.{gguf_name}.weight", random.standard_normal((rows, width)).astype(numpy.float16))
    writer.add_tensor("blk.0.ffn_gate_inp.weight", random.standard_normal((experts, k)).astype(numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    expected("gguf_moe", decoded)


# torchao


def torchao():
    """One weight with row-major scales and one with blocked, one with a global scale and one without."""
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict

    seed()
    path = folder("torchao")
    weights, decoded = {}, {}
    for projection, rows, k, swizzled, scaled in [
        ("gate_proj", 40, 96, False, True), ("up_proj", 40, 96, True, True), ("down_proj", 96, 48, True, False),
    ]:
        weight = torch.randn(rows, k) * 0.05
        scale = weight.abs().max() / (6 * 448) if scaled else None
        name = f"model.layers.0.mlp.{projection}.weight"
        weights[name] = NVFP4Tensor.to_nvfp4(weight, per_tensor_scale=scale, is_swizzled_scales=swizzled)
        decoded[name] = weights[name].dequantize(torch.float32)
    weights["model.norm.weight"] = torch.ones(96)
    tensors, metadata = flatten_tensor_state_dict(weights)
    save_file(tensors, path / "model.safetensors", metadata=metadata)
    (path / "config.json").write_text(json.dumps({
        "model_type": "llama", "hidden_act": "silu",
        "quantization_config": {"quant_method": "torchao", "quant_type": {"default": {"_type": "NVFP4WeightOnlyConfig"}}},
    }, indent=1))
    expected(path.name, decoded)


MODELS = [
    modelopt_qwen3_moe, modelopt_llama4, modelopt_awq, compressed_tensors_mixtral, compressed_tensors_mxfp4, gpt_oss,
    deepseek_v4, deepseek_v41, gguf_moe, torchao,
]

if __name__ == "__main__":
    for make in MODELS:
        if len(sys.argv) == 1 or make.__name__ in sys.argv[1:]:
            make()
            print(make.__name__)
