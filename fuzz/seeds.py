"""Writes the corpus: small files of every layout, and files that lie, which every reader must refuse or survive.

    python3 seeds.py

Only the standard library is used, so the files are what is written here and nothing else.
"""

import json
import pathlib
import struct

HERE = pathlib.Path(__file__).parent / "corpus"


def save(kind, name, data):
    folder = HERE / kind
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


# safetensors


def framed(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + data


SIZES = {"U8": 1, "F8_E4M3": 1, "F8_E8M0": 1, "F32": 4, "BF16": 2}


def file(tensors, metadata=None):
    header, data = {}, b""
    if metadata:
        header["__metadata__"] = metadata
    for name, (dtype, shape, byte) in tensors.items():
        count = SIZES[dtype]
        for side in shape:
            count *= side
        content = struct.pack("<f", 0.5) * (count // 4) if dtype == "F32" else bytes([byte]) * count
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + count]}
        data += content
    return framed(header, data)


def modelopt(stem, rows=2, k=32):
    return {
        f"{stem}.weight": ("U8", [rows, k // 2], 0x21),
        f"{stem}.weight_scale": ("F8_E4M3", [rows, k // 16], 0x38),
        f"{stem}.weight_scale_2": ("F32", [], 0),
    }


def compressed(stem, rows=2, k=32):
    return {
        f"{stem}.weight_packed": ("U8", [rows, k // 2], 0x43),
        f"{stem}.weight_scale": ("F8_E4M3", [rows, k // 16], 0x40),
        f"{stem}.weight_global_scale": ("F32", [1], 0),
    }


MLP = "model.layers.0.mlp"
DENSE = modelopt(f"{MLP}.gate_proj") | modelopt(f"{MLP}.up_proj")
PACKED = compressed(f"{MLP}.experts.0.w1") | compressed(f"{MLP}.experts.0.w3")
FUSED = {
    f"{MLP}.experts.gate_up_proj": ("U8", [2, 16, 6], 0x21),
    f"{MLP}.experts.gate_up_proj_weight_scale": ("F8_E4M3", [2, 2, 6], 0x38),
    f"{MLP}.experts.gate_up_proj_weight_scale_2": ("F32", [], 0),
}
GPT_OSS = {
    f"{MLP}.experts.gate_up_proj_blocks": ("U8", [2, 4, 1, 16], 0x21),
    f"{MLP}.experts.gate_up_proj_scales": ("U8", [2, 4, 1], 120),
    f"{MLP}.experts.gate_up_proj_bias": ("BF16", [2, 4], 0),
}
TORCHAO = {
    f"{MLP}.{side}._weight_{part}": entry
    for side in ("gate_proj", "up_proj")
    for part, entry in {"qdata": ("U8", [2, 8], 1), "scale": ("F8_E4M3", [128, 4], 0x38)}.items()
}
SWIZZLED = {f"{MLP}.{side}.weight": '{"_data":{"is_swizzled_scales":true}}' for side in ("gate_proj", "up_proj")}

save("safetensors", "modelopt", file(DENSE))
save("safetensors", "compressed_tensors", file(PACKED))
save("safetensors", "fused_transposed", file(FUSED))
save("safetensors", "gpt_oss", file(GPT_OSS))
save("safetensors", "torchao", file(TORCHAO, SWIZZLED))
save("safetensors", "torchao_without_metadata", file(TORCHAO))
save("safetensors", "gpt_oss_nan_scale", file(GPT_OSS | {f"{MLP}.experts.gate_up_proj_scales": ("U8", [2, 4, 1], 255)}))
save("safetensors", "mixed_names", file(DENSE | {f"{MLP}.gate_proj.weight_global_scale": ("F32", [1], 0)}))
save("safetensors", "no_up", file(modelopt(f"{MLP}.gate_proj")))
save("safetensors", "fused_and_apart", file(DENSE | {f"{MLP}.gate_up_proj.weight": ("BF16", [4, 4], 0)}))
save("safetensors", "odd_fused", file(modelopt(f"{MLP}.gate_up_proj", rows=3)))
save("safetensors", "two_towers", file(DENSE | {k.replace("model.", "other."): v for k, v in DENSE.items()}))
save("safetensors", "nan_scale", file(DENSE | {f"{MLP}.gate_proj.weight_scale": ("F8_E4M3", [2, 2], 0x7F)}))
save("safetensors", "one_part_twice", file(DENSE | {f"{MLP}.gate_proj": ("U8", [2, 16], 0)}))
save("safetensors", "huge_numbers", file(modelopt("model.layers.99999999999999999999.mlp.experts.4294967296.gate_proj")))
save("safetensors", "empty_stack", file({
    f"{MLP}.experts.gate_up_proj": ("U8", [2**40, 0, 6], 0),
    f"{MLP}.experts.gate_up_proj_weight_scale": ("F8_E4M3", [2**40, 0, 6], 0),
    f"{MLP}.experts.gate_up_proj_weight_scale_2": ("F32", [], 0),
}))
save("safetensors", "overlap", framed({
    "a": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}, "b": {"dtype": "U8", "shape": [8], "data_offsets": [4, 12]},
}, bytes(12)))
save("safetensors", "beyond_the_end", framed({"a": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}}, bytes(4)))
save("safetensors", "overflowing_shape", framed(
    {"a": {"dtype": "U8", "shape": [2**63, 2, 2], "data_offsets": [0, 0]}}))
save("safetensors", "same_name_twice", framed(
    b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"I8","shape":[4],"data_offsets":[0,4]}}', bytes(4)))
save("safetensors", "header_too_long", struct.pack("<Q", 2**63) + b"{}")
save("safetensors", "header_cut", struct.pack("<Q", 100) + b"{}")
save("safetensors", "deep", framed(b"[" * 1000))
save("safetensors", "nothing", b"")

# GGUF


def text(value):
    value = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(value)) + value


def gguf(tensors, entries=(), data=None, version=3, counts=None):
    """`tensors` are (name, sides with that of rows first, type, offset)."""
    out = b"GGUF" + struct.pack("<I", version)
    out += struct.pack("<QQ", *(counts or (len(tensors), len(entries))))
    for key, kind, value in entries:
        out += text(key) + struct.pack("<I", kind) + value
    for name, sides, kind, offset in tensors:
        out += text(name) + struct.pack(f"<I{len(sides)}Q", len(sides), *sides) + struct.pack("<IQ", kind, offset)
    out += bytes(-len(out) % 32)
    return out + (data if data is not None else bytes(range(256)) * 4)


QWEN = ("general.architecture", 8, text("qwen3moe"))
PAIR = [("blk.0.ffn_gate.weight", [64, 2], 40, 0), ("blk.0.ffn_up.weight", [64, 2], 40, 96)]
STACK = [
    ("blk.0.ffn_gate_exps.weight", [64, 2, 3], 40, 0), ("blk.0.ffn_up_exps.weight", [64, 2, 3], 40, 224),
    ("blk.0.ffn_gate_exps.scale", [3], 0, 448), ("blk.0.ffn_up_exps.scale", [1], 0, 480),
]

save("gguf", "pair", gguf(PAIR, [QWEN]))
save("gguf", "stack", gguf(STACK, [QWEN], data=b"\x38" * 512))
save("gguf", "mxfp4", gguf([("blk.0.ffn_gate.weight", [32, 2], 39, 0), ("blk.0.ffn_up.weight", [32, 2], 39, 64)], [QWEN]))
save("gguf", "array", gguf(PAIR, [QWEN, ("a", 9, struct.pack("<IQ", 4, 2) + bytes(8))]))
save("gguf", "texts", gguf(PAIR, [QWEN, ("a", 9, struct.pack("<IQ", 8, 2) + text("x") + text("é"))]))
save("gguf", "nested_arrays", gguf(PAIR, [("a", 9, struct.pack("<IQ", 9, 1) * 40 + struct.pack("<IQ", 0, 0))]))
save("gguf", "wide_nesting", gguf([], [("a", 9, struct.pack("<IQ", 9, 8) + struct.pack("<IQ", 9, 0) * 8)]))
save("gguf", "huge_array", gguf(PAIR, [("a", 9, struct.pack("<IQ", 10, 2**61))]))
save("gguf", "huge_text_array", gguf(PAIR, [("a", 9, struct.pack("<IQ", 8, 2**60))]))
save("gguf", "huge_text", gguf(PAIR, [("a", 8, struct.pack("<Q", 2**63))]))
save("gguf", "huge_counts", gguf(PAIR, [QWEN], counts=(2**63, 2**63)))
save("gguf", "huge_sides", gguf([("blk.0.ffn_gate.weight", [64, 2**60, 2**60], 40, 0)]))
save("gguf", "many_sides", gguf([("blk.0.ffn_gate.weight", [64] * 9, 40, 0)]))
save("gguf", "beyond_the_end", gguf([("blk.0.ffn_gate.weight", [64, 2**20], 40, 0)]))
save("gguf", "offset_overflows", gguf([("blk.0.ffn_gate.weight", [64, 2], 40, 2**64 - 32)]))
save("gguf", "unaligned", gguf([("blk.0.ffn_gate.weight", [64, 2], 40, 4)]))
save("gguf", "overlap", gguf([("a", [64, 2], 40, 0), ("b", [64, 2], 40, 64)]))
save("gguf", "same_name_twice", gguf([("a", [64, 2], 40, 0), ("a", [64, 2], 40, 96)]))
save("gguf", "same_key_twice", gguf(PAIR, [QWEN, QWEN]))
save("gguf", "uneven_rows", gguf([("blk.0.ffn_gate.weight", [48, 2], 40, 0)]))
save("gguf", "unknown_type", gguf([("blk.0.ffn_gate.weight", [64, 2], 99, 0), ("blk.0.ffn_up.weight", [64, 2], 99, 0)]))
save("gguf", "tall_without_bytes", gguf([
    ("blk.0.ffn_gate_exps.weight", [64, 2, 65536], 99, 0), ("blk.0.ffn_up_exps.weight", [64, 2, 65536], 99, 0)]))
save("gguf", "unknown_value", gguf(PAIR, [("a", 77, b"")]))
save("gguf", "no_sides", gguf([("blk.0.ffn_gate.weight", [], 0, 0), ("blk.0.ffn_up.weight", [], 0, 32)]))
save("gguf", "alignment_of_three", gguf(PAIR, [("general.alignment", 4, struct.pack("<I", 3))]))
save("gguf", "alignment_of_zero", gguf(PAIR, [("general.alignment", 4, struct.pack("<I", 0))]))
save("gguf", "alignment_huge", gguf(PAIR, [("general.alignment", 4, struct.pack("<I", 2**31))]))
save("gguf", "name_is_no_text", gguf([(b"\xff\xfe", [64, 2], 40, 0)]))
save("gguf", "big_endian", b"GGUF" + struct.pack(">IQQ", 3, 0, 0))
save("gguf", "version_1", gguf([], version=1))
save("gguf", "only_magic", b"GGUF")
save("gguf", "empty_model", gguf([]))

# Folders


def folder(config=None, declaration=None, index=None, shard=b""):
    def as_bytes(part):
        return part if isinstance(part, bytes) else json.dumps(part, separators=(",", ":")).encode()

    parts = [as_bytes(part) for part in (config or {}, declaration or {}, index or {})]
    return struct.pack("<3H", *map(len, parts)) + b"".join(parts) + shard


SHARD = "model-00001-of-00001.safetensors"


def index(tensors, shard=SHARD):
    return {"weight_map": {name: shard for name in tensors}}


MODELOPT = {"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head", "*.router"]}, "producer": {"name": "modelopt"}}
save("folder", "modelopt", folder({"model_type": "llama", "hidden_act": "silu"}, MODELOPT, index(DENSE), file(DENSE)))
save("folder", "compressed_tensors", folder(
    {"quantization_config": {"quant_method": "compressed-tensors", "ignore": ["re:.*"]}}, None, index(PACKED), file(PACKED)))
save("folder", "llama4", folder({"model_type": "llama4"}, None, index(FUSED), file(FUSED)))
save("folder", "fused_unknown", folder({"model_type": "new"}, None, index(FUSED), file(FUSED)))
save("folder", "gpt_oss", folder({"model_type": "gpt_oss", "swiglu_limit": 7.0}, None, index(GPT_OSS), file(GPT_OSS)))
save("folder", "contradiction", folder({"quantization_config": {"quant_method": "modelopt"}}, None, index(PACKED), file(PACKED)))
save("folder", "upwards", folder(index=index(DENSE, "../../etc/passwd"), shard=file(DENSE)))
save("folder", "absolute", folder(index=index(DENSE, "/etc/passwd"), shard=file(DENSE)))
save("folder", "dot", folder(index=index(DENSE, "."), shard=file(DENSE)))
save("folder", "no_name", folder(index=index(DENSE, ""), shard=file(DENSE)))
save("folder", "backslash", folder(index=index(DENSE, "..\\x"), shard=file(DENSE)))
save("folder", "nul", folder(index=index(DENSE, "a\0b"), shard=file(DENSE)))
save("folder", "missing_shard", folder(index=index(DENSE, "model-00002-of-00002.safetensors"), shard=file(DENSE)))
save("folder", "missing_tensor", folder(index=index([*DENSE, "ghost"]), shard=file(DENSE)))
save("folder", "index_names_the_config", folder(index=index(DENSE, "config.json"), shard=file(DENSE)))
save("folder", "shard_is_no_text", folder(index={"weight_map": {"a": 3}}, shard=file(DENSE)))
save("folder", "no_weight_map", folder(index={"metadata": {}}, shard=file(DENSE)))
save("folder", "key_twice", folder(index=b'{"weight_map":{"a":"x","a":"y"}}', shard=file(DENSE)))
save("folder", "deep_json", folder(config=b"[" * 5000, index=index(DENSE), shard=file(DENSE)))
save("folder", "cut_shard", folder(index=index(DENSE), shard=file(DENSE)[:-5]))
save("folder", "odd_kinds", folder(
    {"model_type": 7, "hidden_act": [], "swiglu_limit": "x", "text_config": 3, "quantization_config": []},
    {"quantization": 4}, index(DENSE), file(DENSE)))
