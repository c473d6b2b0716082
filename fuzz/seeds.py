"""Writes the corpus: small files of every kind that strangers send, and files that lie, which every reader must refuse
or survive.

    python3 seeds.py

Only the standard library is used, so the files are what is written here and nothing else.
"""

import hashlib
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


SIZES = {"U8": 1, "I8": 1, "I64": 8, "F8_E4M3": 1, "F8_E8M0": 1, "F32": 4, "BF16": 2}


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
FFN = "layers.0.ffn"
DEEPSEEK = {
    f"{FFN}.{expert}.{side}.{part}": entry
    for expert, codes in (("experts.0", ("I8", [32, 16], 0x21)), ("shared_experts", ("F8_E4M3", [32, 32], 0x38)))
    for side in ("w1", "w2", "w3")
    for part, entry in {
        "weight": codes, "scale": ("F8_E8M0", [32, 1] if expert == "experts.0" else [1, 1], 120),
    }.items()
} | {f"{FFN}.gate.weight": ("BF16", [1, 32], 0x3F), f"{FFN}.gate.tid2eid": ("I64", [4, 1], 0)}
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
save("safetensors", "deepseek", file(DEEPSEEK))
save("safetensors", "deepseek_scales_of_blocks", file(DEEPSEEK | {f"{FFN}.experts.0.w1.scale": ("F8_E8M0", [1, 1], 120)}))
save("safetensors", "deepseek_no_scale", file({k: v for k, v in DEEPSEEK.items() if not k.endswith("w2.scale")}))
save("safetensors", "deepseek_table_of_nobody", file(DEEPSEEK | {f"{FFN}.gate.tid2eid": ("I64", [4, 1], 255)}))
save("safetensors", "deepseek_table_without_sides", file(DEEPSEEK | {f"{FFN}.gate.tid2eid": ("I64", [0, 0], 0)}))
save("safetensors", "torchao", file(TORCHAO, SWIZZLED))
save("safetensors", "torchao_without_metadata", file(TORCHAO))
VECTOR = ("F32", [32], 0)
AWQ = DENSE | {f"{MLP}.{side}.pre_quant_scale": VECTOR for side in ("gate_proj", "up_proj")}
save("safetensors", "awq", file(AWQ))
save("safetensors", "awq_one_side", file(DENSE | {f"{MLP}.gate_proj.pre_quant_scale": VECTOR}))
save("safetensors", "awq_too_short", file(AWQ | {f"{MLP}.up_proj.pre_quant_scale": ("F32", [31], 0)}))
save("safetensors", "awq_stack", file(FUSED | {f"{MLP}.experts.gate_up_proj_pre_quant_scale": ("BF16", [2, 32], 0x3F)}))
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

# What people write to the tank


def lines(*rows):
    return "\n".join(rows).encode() + b"\n"


PITCH = """name = "first"
contestant = "ada"
kind = "change"
problem = "panels are read 3 times"
solution = "expand the next panel while this one is multiplied"
rollback = "none needed"
new_evidence = ""
[claim]
speedup = 1.05
low = 0.98
high = 1.12
reasoning = "arithmetic"
[complexity]
level = "low"
hours = 0.5
challenges = []
[[risk]]
what = "it is slower"
mitigation = "it is measured"
[[evidence]]
kind = "theory"
what = "other units"
[run]
config = "strategy=ping-pong,tile=16x32,depth=64,stages=2,epilogue=direct,schedule=tile"
[deal]
min_geomean = 1.03
revert_under = 1.0
max_loss = 0.02
max_scratch_bytes = 50000000
staged = true
"""
CONFIG = 'config = "strategy=ping-pong,tile=16x32,depth=64,stages=2,epilogue=direct,schedule=tile"'

save("pitch", "whole", PITCH.encode())
save("pitch", "program", PITCH.replace(CONFIG, 'program = ["kernel", "-v"]\nbuild = ["make"]').encode())
save("pitch", "both_ways", PITCH.replace(CONFIG, CONFIG + '\nbackend = "cuda:1"\nprogram = ["kernel"]').encode())
save("pitch", "wild_card", PITCH.replace('"change"', '"wild-card"').encode())
save("pitch", "minimal_fix", PITCH.replace('"change"', '"minimal-fix"').replace('"low"', '"medium"').encode())
save("pitch", "nothing", b"")
save("pitch", "only_name", b"name = 'x'\n")
save("pitch", "unknown_key", b"nmae = 'x'\n")
save("pitch", "wrong_type", b"name = 3\n")
save("pitch", "no_number", PITCH.replace("3 times", "often").encode())
save("pitch", "hours_are_none", PITCH.replace("hours = 0.5", "hours = nan").encode())
save("pitch", "claim_without_end", PITCH.replace("high = 1.12", "high = inf").encode())
save("pitch", "seventeen_digits", PITCH.replace("1.05", "1.1999999999999999556").replace("0.98", "0.10000000149011612").encode())
save("pitch", "many_digits", PITCH.replace("0.02", "1" * 78 + ".0").encode())
save("pitch", "large_numbers", PITCH.replace("50000000", "9223372036854775807").encode())
save("pitch", "a_large_number_hides_none", PITCH.replace("50000000", "9223372036854775817").replace("hours = 0.5", "hours = nan").encode())
save("pitch", "negative_bytes", PITCH.replace("50000000", "-1").encode())
save("pitch", "strange_config", PITCH.replace("16x32", "99999999999999999999x0").encode())
save("pitch", "key_twice", b"name = 'x'\nname = 'y'\n")
save("pitch", "deep", b"a = " + b"[" * 400)
save("pitch", "dotted", b"claim.speedup = 1\nclaim.low = 1\nclaim.high = 1\ncomplexity = {level = 'high', hours = 9}\n")
save("pitch", "texts", 'name = """a\\u00e9\n"""\nproblem = "7 µs"\n'.encode())

INLINE = PITCH.replace("[claim]", "[round.pitch.claim]").replace("[complexity]", "[round.pitch.complexity]")
INLINE = INLINE.replace("[[risk]]", "[[round.pitch.risk]]").replace("[[evidence]]", "[[round.pitch.evidence]]")
INLINE = INLINE.replace("[run]", "[round.pitch.run]").replace("[deal]", "[round.pitch.deal]")
SEASON = f"""name = "test"
context = "one layer"
metric = "the geometric mean"
baseline = "strategy=two-pass"
backend = "scalar"
threads = 1
sharks = ["skeptic", "pragmatist", "theorist"]
[[problem]]
groups = [[4, 32, 64]]
[[problem]]
groups = [[16, 64, 128], [1, 32, 64]]
activation = "bf16"
output = "f32"
gate = "gelu-tanh"
[settings]
void_retries = 1
rubric = [10.0, 5.0, 2.0, 1.5, 1.2, 1.1, 1.05]
[settings.referee.timing]
looks = [24, 48]
alpha = 0.05
[settings.referee.limits]
run_seconds = 60.0
[settings.referee.checking]
held_out = 12
[deal]
max_loss = 0.05
[[round]]
name = "one"
[[round.pitch]]
{INLINE}"""

save("season", "whole", SEASON.encode())
save("season", "planned", SEASON.replace('"strategy=two-pass"', '"planned"').encode())
save("season", "two_rounds", (SEASON + "[[round]]\nname = 'two'\n").encode())
save("season", "names_files", SEASON.replace('"theorist"', '"ada.toml"').encode())
save("season", "names_a_pitch", (SEASON + "[[round]]\nname = 'two'\npitches = ['../p.toml']\n").encode())
save("season", "same_round_twice", (SEASON + "[[round]]\nname = 'one'\n").encode())
save("season", "the_tanks_own_round", (SEASON + "[[round]]\nname = 'title'\n").encode())
save("season", "same_problem_twice", SEASON.replace("[settings]\n", "[[problem]]\ngroups = [[4, 32, 64]]\n[settings]\n").encode())
save("season", "no_rounds", SEASON[: SEASON.index("[[round]]")].encode())
save("season", "no_problems", SEASON.replace("[[problem]]", "[[other]]").encode())
save("season", "huge_problem", SEASON.replace("[4, 32, 64]", "[9223372036854775807, 32, 64]").encode())
save("season", "empty_problem", SEASON.replace("[4, 32, 64]", "[0, 0, 0]").encode())
save("season", "uneven_k", SEASON.replace("[4, 32, 64]", "[4, 32, 63]").encode())
save("season", "unknown_gate", SEASON.replace("gelu-tanh", "relu").encode())
save("season", "too_long_to_wait", SEASON.replace("run_seconds = 60.0", "run_seconds = 1e300").encode())
save("season", "waits_backwards", SEASON.replace("run_seconds = 60.0", "run_seconds = -1.0").encode())
save("season", "shark_that_thinks_for_ever", SEASON.replace("void_retries = 1", "shark_seconds = 1e300").encode())
save("season", "resamples_without_end", SEASON.replace("alpha = 0.05", "resamples = 9223372036854775807").encode())
save("season", "rotation_is_none", SEASON.replace("alpha = 0.05", "rotation = nan").encode())
save("season", "hours_are_none", SEASON.replace("void_retries = 1", "low_hours = nan").encode())
save("season", "looks_fall", SEASON.replace("[24, 48]", "[48, 24]").encode())
save("season", "looks_of_zero", SEASON.replace("[24, 48]", "[0]").encode())
save("season", "nothing", b"")

# Ledgers: each line is the number of a season, one digit, and an event

WAYS = {"is": "builtin", "ways": [{"problem": "4×32×64 nvfp4→f16", "backend": "scalar", "config": "strategy=two-pass"}]}
OTHER = {"is": "program", "command": ["kernel"], "build": ["make"]}
SPEEDUP = {"estimate": 1.1, "low": 1.09, "high": 1.11}
LEVEL = {"estimate": 1.0, "low": 0.998, "high": 1.002}
CLAIM = {"speedup": 1.5, "low": 1.4249999999999998, "high": 1.5750000000000002, "reasoning": "arithmetic"}
BROUGHT = {
    "name": "first", "kind": "change", "contestant": "ada", "problem": "3 reads", "solution": "fewer", "rollback": "none",
    "new_evidence": "", "claim": CLAIM, "complexity": {"level": "low", "hours": 0.5, "challenges": []},
    "risk": [{"what": "slower", "mitigation": "measured"}], "evidence": [{"kind": "theory", "what": "units"}],
    "run": {"config": "strategy=interleaved"}, "deal": {},
}
PLAYED = {
    "name": "test", "context": "", "metric": "geomean", "baseline": "planned", "backend": "scalar", "threads": 1,
    "problems": [{"groups": [[4, 32, 64]], "activation": "nvfp4", "output": "f16", "gate": "silu"}],
    "settings": {}, "deal": {},
    "sharks": [
        {"name": "skeptic", "temperament": "skeptic", "criteria": [{"name": "speedup", "weight": 1.0, "role": "speedup"}],
         "source": {"from": "builtin", "which": "skeptic"}},
        {"name": "eve", "temperament": "blunt", "criteria": [{"name": "risk", "weight": 1.0, "role": "risk"}],
         "source": {"from": "command", "command": ["judge"]}},
    ],
    "rounds": [{"name": "one", "context": "", "pitches": [BROUGHT]}], "wild_cards": [],
}
MACHINE = {
    "fingerprint": "26c1", "cpu": "a processor", "arch": "x86_64", "os": "linux", "cores": 2, "memory_gib": 24,
    "isa": ["avx2"], "caches": ["L2 Unified 2048K"], "gpus": [],
}
EVIDENCE = {
    "entry": WAYS, "digest": "3633", "refusal": None,
    "shapes": [{"problem": "4×32×64 nvfp4→f16", "predicted": 1.2, "bound_by": "bytes", "possible": 5.0, "scratch_bytes": 4096}],
    "predicted": 1.2, "possible": 4.999999999999999, "changes": 1, "scratch_bytes": 4096, "simulated": [],
    "record": {"judged": 0, "successes": 0, "measured": 0, "bias": 0.0},
}


def measured(pairing, speedup):
    shape = {
        "shape": "4×32×64 nvfp4→f16", "champion_seconds": 0.001, "challenger_seconds": 0.0009, "speedup": speedup,
        "quartets": [0.04879016416943206, -0.0],
    }
    times = {"geomean": speedup, "shapes": [shape]}
    return {
        "pairing": pairing, "seed": 5572789668442447535, "processes": 6, "quartets": 24, "confidence": 0.983, "cold": times,
        "warm": times, "looks": [], "stopped": "precise",
    }


def sitting(outcome):
    course = {
        "clock_resolution": 2e-8, "champion_round_trip": 1e-5, "challenger_round_trip": None, "cache_bytes": 1048576,
        "rotated_bytes": [2097152], "outputs_sampled": 3, "outputs_compared": 1, "remarks": ["a word"],
    }
    controls = {
        pairing: {"measurement": measured(pairing, LEVEL), "passed": True, "finding": ""} for pairing in ("control", "plant")
    }
    return {
        "seed": 1, "champion": "baseline", "challenger": "first", "settings": {}, "course": course, **controls, "margin": 0.01,
        "first": measured("duel", SPEEDUP), "second": None, "roofline": [], "outcome": outcome,
    }


def voted(shark, score, void=None):
    ballot = {"pitch": "first", "scores": {"speedup": score}, "because": {"speedup": "so"}, "probability": 0.7, "expects": 1.2}
    ballot["veto"] = {"cites": "ledger:1", "reason": "seen"}
    return {"kind": "voted", "round": "one", "shark": shark, "ballots": [] if void else [ballot], "void": void}


STANDING = {
    "pitch": "first", "totals": [["skeptic", 4.3500000000000005], ["eve", 5.0]], "mean": 4.7, "risk": 4.3, "complexity": 6.0,
    "deviation": 0.3, "flagged": False, "vetoed": False,
}
TALLY = {"standings": [STANDING], "rulings": [], "research": False, "tied": [], "decided_by": "the mean"}
ROUND = {"round": "one", "pitch": "first"}
JUDGED = {"kind": "judged", **ROUND, "contestant": "ada", "digest": "756c", "claimed": [1.3, 1.2349999999999999, 1.365]}


def judgement(verdict, result=None):
    return JUDGED | {"judgement": {"verdict": verdict, "reasons": ["it is so"], "measured": result}}


EVENTS = {
    "season_opened": {
        "kind": "season-opened", "season": PLAYED, "digest": "068c", "machine": MACHINE, "version": "0.1.0", "champion": WAYS,
        "planned": WAYS,
    },
    "baseline_taken": {"kind": "baseline-taken", "baseline": {
        "shapes": [{"problem": "4×32×64 nvfp4→f16", "seconds": 0.001, "floor_seconds": 0.0002, "flops": 1e6, "bytes": 1e5}],
        "flops_per_second": 5e9, "bytes_per_second": 1e9,
    }},
    "round_opened": {"kind": "round-opened", "round": "one", "round_kind": "regular", "why": ""},
    "pitched": {"kind": "pitched", "round": "one", "pitch": BROUGHT},
    "pitch_checked": {"kind": "pitch-checked", **ROUND, "evidence": EVIDENCE, "disqualified": None},
    "voted": voted("skeptic", 6.5),
    "voted_in_vain": voted("eve", 11, "the score is 11"),
    "tallied": {"kind": "tallied", "round": "one", "tally": TALLY},
    "chosen": {"kind": "chosen", "round": "one", "voted": None, "chosen": "first", "by": "ada", "reason": "", "overrides": True},
    "begun": {"kind": "begun", **ROUND, "champion": WAYS, "deal": {"max_loss": 0.02}},
    "examined": {"kind": "examined", **ROUND, "correctness": None, "blocked": "no"},
    "seated": {
        "kind": "seated", **ROUND, "seed_digest": hashlib.sha256(b"1").hexdigest(), "interrupted": 0,
    },
    "sat": {"kind": "sat", **ROUND, "sitting": sitting({"is": "void", "why": ["the control differs"]}), "blocked": None},
    "judged": judgement("SUCCESS", SPEEDUP),
    "crowned": {"kind": "crowned", **ROUND, "entry": OTHER, "speedup": SPEEDUP},
    "installed": {"kind": "installed", "pitch": "first", "ways": [WAYS["ways"][0] | {"speedup": SPEEDUP}]},
    "researched": {"kind": "researched", "round": "one", "findings": ["at most 5.00× is left"]},
    "round_closed": {"kind": "round-closed", "round": "one", "verdict": "SUCCESS", "note": "first"},
    "season_closed": {"kind": "season-closed", "champion": "first", "entry": OTHER},
    "recovered": {"kind": "recovered", "bytes": 3, "text": "{\"n"},
    "rolled_back": {"kind": "rolled-back", "bucket": "b", "by": "ada", "reason": "r"},
}


def events(*played, season=1):
    return lines(*(f"{season}" + json.dumps(event, ensure_ascii=False, separators=(",", ":")) for event in played))


for name, event in EVENTS.items():
    save("ledger", name, events(event))
save("ledger", "whole_season", events(*EVENTS.values()))
save("ledger", "backwards", events(*reversed(EVENTS.values())))
save("ledger", "two_seasons", events(EVENTS["season_opened"], EVENTS["pitched"], judgement("FAILURE")) + events(
    EVENTS["season_opened"], EVENTS["pitched"], voted("skeptic", 2), EVENTS["round_opened"] | {"round_kind": "title"},
    judgement("VOID"), season=2))
save("ledger", "same_pitch_again", events(EVENTS["season_opened"], EVENTS["pitched"], *[judgement("FAILURE", SPEEDUP)] * 3))
save("ledger", "claim_of_nothing", events(EVENTS["season_opened"], judgement("SUCCESS", SPEEDUP) | {"claimed": [0, -1, 1e308]}))
save("ledger", "times_of_zero", events(EVENTS["season_opened"], {"kind": "baseline-taken", "baseline": {
    "shapes": [{"problem": "x", "seconds": 0.0, "floor_seconds": 0.0, "flops": 0.0, "bytes": 0.0}],
    "flops_per_second": 0.0, "bytes_per_second": 0.0,
}}, EVENTS["sat"]))
save("ledger", "seated_again", events(
    *[EVENTS[name] for name in ("season_opened", "begun", "seated")], EVENTS["seated"] | {"interrupted": 1},
    EVENTS["sat"], EVENTS["judged"]))
save("ledger", "seated_and_never_sat", events(EVENTS["season_opened"], EVENTS["seated"] | {"interrupted": 2**64 - 1}))
save("ledger", "held_with_another_seed", events(
    EVENTS["season_opened"], EVENTS["begun"], EVENTS["seated"] | {"seed_digest": "0"}, EVENTS["sat"]))
save("ledger", "no_event", b"1{}\n2\n{\n")
save("ledger", "torn", events(EVENTS["round_opened"])[:-4])
save("ledger", "a_real_line", b'{"n":1,"at":"2026-01-01T00:00:00Z","season":1,"prev":"' + b"0" * 64 + b'","event":{},"hash":"'
     + b"0" * 64 + b'"}\n')
save("ledger", "zeros", bytes(64))
save("ledger", "nothing", b"")

# PTX

HEAD = ".version 8.8\n.target sm_90a\n.address_size 64\n"


def entry(body, params="", head=HEAD, directives=".reqntid 128"):
    return f"{head}.visible .entry k({params})\n{directives}\n{{\n{body}\n}}\n".encode()


REGS = ".reg .pred %p<4>;\n.reg .b16 %h<4>;\n.reg .b32 %r<16>;\n.reg .b64 %d<8>;\n"
INSTRUCTIONS = {
    "arithmetic": "mov.b32 %r1, %tid.x; add.s32 %r2, %r1, -3; mad.lo.s32 %r3, %r1, %r2, 7; mul.wide.u32 %d1, %r1, 4;\n"
                  "setp.lt.s32 %p1, %r1, %r2; selp.b32 %r4, %r1, 0, %p1; fma.rn.f32 %r5, %r1, 0f3F800000, %r2; cvt.u64.u32 %d2, %r1;\n"
                  "lop3.b32 %r6, %r1, %r2, %r3, 0xea; prmt.b32 %r7, %r1, %r2, 0x5410; mov.b64 %d3, {%r1, %r2}; mov.b64 {%r1, _}, %d3;\n",
    "memory": "ld.param.b64 %d1, [p]; cvta.to.global.u64 %d2, %d1; ld.global.v4.b32 {%r0, %r1, %r2, %r3}, [%d2+16];\n"
              "st.shared.b32 [%r1+-4], %r0; ld.acquire.gpu.global.b32 %r4, [%d2]; atom.relaxed.gpu.global.add.u32 %r5, [%d2], 1;\n",
    "warps": "shfl.sync.idx.b32 %r1|%p1, %r2, 0, 31, 0xffffffff; vote.sync.ballot.b32 %r3, %p1, 0xffffffff; elect.sync _|%p2, -1;\n"
             "bar.warp.sync 0xffffffff; ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r1, %r2}, [%r3]; redux.sync.add.u32 %r1, %r2, -1;\n",
    "barriers": "mbarrier.init.shared::cta.b64 [%r1], 1; fence.mbarrier_init.release.cluster; bar.sync 0; barrier.sync.aligned 1, 64;\n"
                "w: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], %r2; @!%p1 bra w; mbarrier.arrive.shared::cta.b64 _, [%r1];\n",
    "copies": "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d1, {%r2, %r3}], [%r4];\n"
              "cp.async.cg.shared.global [%r1], [%d1], 16, %r2; cp.async.commit_group; cp.async.wait_group 0; prefetch.tensormap [%d1];\n",
    "wgmma": "wgmma.fence.sync.aligned; wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%r0, %r1, %r2, %r3}, %d1, %d2, %p1, 1, -1, 0, 1;\n"
             "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;\n",
    "mma": "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r0, %r1, %r2, %r3}, {%r4, %r5, %r6, %r7}, {%r8, %r9}, {%r0, %r1, %r2, %r3};\n",
    "tcgen05": "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 64; tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r1, %r2}, [%r3];\n"
               "tcgen05.mma.cta_group::1.kind::f16 [%r1], %d1, %d2, %r2, %p1; tcgen05.wait::ld.sync.aligned;\n",
    "narrow": "{ .reg .b8 %b<4>; cvt.rn.satfinite.e2m1x2.f32 %b0, %r1, %r2; @%p1 cvt.rn.f16x2.e2m1x2 %r3, %b0; mov.b32 {%b0, %b1, %b2, %b3}, %r3; "
              "mov.b32 %r4, {%b3, %b2, %b1, 7}; mov.b16 %h2, {%b1, %b2}; }\n"
              "{ .reg .b8 %byte; cvt.u8.u16 %byte, %h1; cvt.rn.relu.f16x2.e2m1x2 %r3, %byte; } cvt.rp.satfinite.ue8m0x2.bf16x2 %h1, %r1; "
              "cvt.rn.relu.satfinite.e5m2x2.f16x2 %h1, %r1; cvt.rn.bf16x2.ue8m0x2 %r1, %h1;\n",
    "scaled": "mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.e2m1.e3m2.f32.ue8m0 {%r1, %r2, %r3, %r4}, "
              "{%r5, %r6, %r7, %r0}, {%r1, %r2}, {%r1, %r2, %r3, %r4}, %r5, {3, 1}, %r6, {2, 3};\n"
              "tcgen05.mma.cta_group::1.kind::mxf4.block_scale.block32 [%r1], %d1, %d2, %r2, [%r3], [%r4], %p1;\n",
    "told": "cp.async.mbarrier.arrive.noinc.shared.b64 [%r1]; mbarrier.arrive_drop.shared::cta.b64 _, [%r1], 2; mbarrier.arrive.noComplete.shared.b64 %d1, [%r1], 1;\n",
    "launch_control": "{ .reg .b128 %a; mov.b128 %a, {%d1, %d2}; clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p1, %a; }\n",
    "unknown": "tex.2d.v4.f32.f32 {%r1, %r2, %r3, %r4}, [t, {%r5, %r6}]; vadd4.u32.u32.u32 %r1, %r2, %r3, %r4; brkpt;\n",
    "scopes": "a: { .reg .b32 %r1; a: bra a; { bra.uni a; } } bra a;\n",
}
for name, body in INSTRUCTIONS.items():
    save("ptx", name, entry(REGS + body + "ret;", ".param .u64 p"))
save("ptx", "all", entry(REGS + "".join(INSTRUCTIONS[name] for name in INSTRUCTIONS if name != "scopes") + "exit;", ".param .u64 p"))
save("ptx", "pointers", b".version 8.0 .target sm_90 .address_size 64\n.func (.param .b32 r) f(.param .b32 a) { st.param.b32 [r], 1; ret; }\n"
    b".global .u64 t[2] = {f, f};\n.entry k() .reqntid 32 { .reg .b64 %d; .param .b32 a; .param .b32 r; mov.u64 %d, f;\n"
    b"p: .callprototype (.param .b32 _) _ (.param .b32 _); call (r), %d, (a), p; ret; }\n")
save("ptx", "debug", entry(
    ".loc 1 3 5\n" + REGS + ".loc 2 43 13, function_name $s, inlined_at 1 3 5\nret;",
    ".param .align 64 .b8 m[128], .param .u64 .ptr .global .align 1 q") +
    b'.file 1 "a/b.py"\n.section .debug_str\n{\n$s:\n.b8 99,100,0\n}\n.section .debug_abbrev { .b8 1\n.b8 2 }\n')
save("ptx", "variables", entry(
    ".shared .align 8 .b8 s[64];\n.local .b32 l[4];\n.reg .b32 r; .reg .b64 d; mov.b32 r, s; mov.b32 r, dyn+16; mov.u64 d, l; ret;",
    head=HEAD + ".extern .shared .align 16 .b8 dyn[];\n.global .align 4 .u32 g[2] = {1, 0xff};\n.const .f32 c = 0f3F800000;\n"))
save("ptx", "unused_variable", entry(".global .align 4 .u32 g[2] = {1, 0xff};\n.local .b32 l[4];\nret;"))
# Names as the printer gives them to registers, labels and shared memory.
save("ptx", "names_of_the_printer", entry(
    "x: mov.u64 %b, %d2; mov.u64 %b, L0; ld.param.u64 %b, [%d0]; bra x;", ".param .u64 %d0, .param .u64 %1",
    head=HEAD + ".global .u64 %d2;\n.global .u32 L0;\n").replace(b"{\n", b"{\n.reg .b64 %b; ", 1))
# Logic is of bits: no assembler takes this, and a number with a sign is another one without.
save("ptx", "logic_of_numbers", entry(REGS + "and.s32 %r2, %r1, -3; ret;"))
# A name of the function's hides the module's, which nobody uses then.
save("ptx", "hidden_name", entry(
    ".shared .align 8 .b8 s[64];\n.reg .b32 r; mov.b32 r, s; ret;", head=HEAD + ".const .f32 s = 0f3F800000;\n"))
save("ptx", "functions", entry(
    REGS + "{ .param .b32 a; st.param.b32 [a], %r1; call.uni (a), f, (a); }\nret;",
    head=HEAD + ".func (.param .b32 out) f(.param .b32 in) { ret; }\n.extern .func g(.param .b64 x);\n"))
save("ptx", "targets", entry(REGS + "ts: .branchtargets A, B;\nbrx.idx %r1, ts; A: B: ret;", directives=".maxntid 64, 2, 1\n.minnctapersm 2"))
# Texts that lie.
save("ptx", "cut", entry(REGS + INSTRUCTIONS["copies"])[:-40])
save("ptx", "deep_blocks", entry("{" * 400 + "}" * 400))
save("ptx", "deep_operands", entry("mov.b32 " + "{" * 400 + ";"))
save("ptx", "many_registers", entry(".reg .b32 %r<4294967295>; ret;"))
save("ptx", "huge_shared", entry("mov.b32 %r, s; ret;", head=HEAD + ".shared .b8 s[18446744073709551615][2];\n"))
save("ptx", "huge_alignment", entry("ret;", ".param .align 18446744073709551615 .b8 m[4]"))
save("ptx", "huge_label", entry("L4294967295: bra L4294967295;"))
save("ptx", "huge_number", entry(REGS + "mov.b32 %r1, 99999999999999999999999; ret;"))
save("ptx", "huge_offset", entry(REGS + "ld.shared.b32 %r1, [%r2+9223372036854775807]; ret;"))
save("ptx", "huge_block", entry("ret;", directives=".reqntid 4294967295, 4294967295, 2"))
save("ptx", "nameless_parameter", entry("ret;", ".param .b32"))
save("ptx", "line_break_in_a_name", entry(".loc 1 1 1, function_name $s, inlined_at 1 1 2\nexit;")
     + b".section .debug_str { $s: .b8 97,10,98,0 }")
save("ptx", "label_twice", entry("a: a: ret;"))
save("ptx", "undeclared", entry("mov.b32 %r1, 0; ret;"))
save("ptx", "open_comment", HEAD.encode() + b"/* no end")
save("ptx", "open_string", HEAD.encode() + b'.file 1 "no end\n')
save("ptx", "no_text", b"\xff\xfe.version")
save("ptx", "no_ascii", HEAD.encode() + "é".encode())
save("ptx", "nothing", b"")

# What comes through pipes


def said(*messages):
    return lines(*(json.dumps(message, separators=(",", ":")) for message in messages))


def matrix(name, rows, k, with_global=True):
    tensors = {
        f"{name}.codes": {"type": "u8", "shape": [rows, k // 2], "offset": 0},
        f"{name}.scales": {"type": "u8", "shape": [rows, k // 16], "offset": 8192},
    }
    return tensors | ({f"{name}.global": {"type": "f64", "shape": [1], "offset": 12288}} if with_global else {})


PREPARE = {
    "type": "prepare", "id": "5f0c", "operation": "dual-gemm",
    "problem": {
        "groups": [[4, 32, 64]], "gate": "silu", "activation": "nvfp4", "output": "f16", "globals": [0.10000000149011612],
    },
    "files": {"constants": "/dev/shm/w", "inputs": "/dev/shm/t", "outputs": "/dev/shm/o"},
    "constants": [matrix("gate.0", 32, 64) | matrix("up.0", 32, 64)], "inputs": [matrix("a.0", 4, 64, False)],
    "outputs": [{"c.0": {"type": "f16", "shape": [4, 32], "offset": 0}}],
}
GPT_OSS_PROBLEM = {
    "groups": [[1, 16, 16]], "gate": "gpt-oss", "clamp": 7.0, "activation": "bf16", "output": "f32", "globals": [0.016393442622950820],
}
HUGE_PROBLEM = {"groups": [[2**63, 2**63, 16]], "gate": "none", "activation": "f32", "output": "f32", "globals": [1.0]}
BALLOT = {
    "pitch": "first", "scores": {"speedup": 3, "complexity": 2.5, "risk": 10, "quality": 0}, "probability": 0.5, "expects": 1.1,
}
save("contestant", "hello", said({"type": "hello", "protocol": 2, "name": "x", "deterministic": True}))
save("contestant", "ready_done", said({"type": "ready", "id": "5f"}, {"type": "done", "id": "5f"}))
save("contestant", "unsupported", said({"type": "unsupported", "id": "5f", "reason": "too wide"}))
save("contestant", "prepare", said(PREPARE))
save("contestant", "prepare_dense", said(
    PREPARE | {"problem": GPT_OSS_PROBLEM, "inputs": [{"a.0": {"type": "bf16", "shape": [1, 16], "offset": 4096}}]}))
save("contestant", "clamp_without_end", said(PREPARE | {"problem": GPT_OSS_PROBLEM | {"clamp": 1e39}}))
save("contestant", "huge_problem", said(PREPARE | {"problem": HUGE_PROBLEM}))
save("contestant", "run_and_bye", said({"type": "run", "id": "5f", "jobs": [{"layer": 0, "input": 1, "output": 2}]}, {"type": "bye"}))
save("contestant", "ballots", said({"ballots": [BALLOT]}))
save("contestant", "ballots_abstain", said({"ballots": [{"pitch": "first", "abstain": "I wrote it"}]}))
save("contestant", "ballots_veto", said({"ballots": [BALLOT | {"veto": {"cites": "rule:x", "reason": "y"}, "because": {"risk": "so"}}]}))
save("contestant", "ballots_eleven", said({"ballots": [BALLOT | {"scores": {"speedup": 11}}]}))
save("contestant", "not_a_number", b'{"type":"hello","protocol":1e999,"name":"x"}\n')
save("contestant", "type_twice", b'{"type":"done","type":"ready","id":"x"}\n')
save("contestant", "deep", b"[" * 500)
save("contestant", "no_text", b"\xff\xfe\n")
save("contestant", "nothing", b"\n\n")


# launch files of `hammerhead check`, and behind a zero what the arrays hold that they name


def array(descr="<f4", shape="(2,)", data=bytes(8)):
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


def launch(text, data=b""):
    return text.encode() + b"\0" + data


MAP = "tensor_map = { buffer = \"a\", dtype = \"f16\", dims = [192, 128], strides = [384], box = [64, 128], swizzle = 128 }\n"
FILLED = "grid = [1]\n[buffer.a]\ndtype = \"f16\"\nshape = [192, 128]\nfill = \"random:3\"\n"
save("launch", "whole", launch(
    "entry = \"k\"\ngrid = [4, 1, 1]\nblock = [256]\ncluster = [2, 1]\nshared = 98352\n[buffer.a]\nfile = \"a.npy\"\nexpect = \"b.npy\"\n"
    "rtol = 1e-5\natol = 0\n[[arg]]\nbuffer = \"a\"\n[[arg]]\nbytes = \"00ff 10\"\n", array()))
save("launch", "map", launch(FILLED + "[[arg]]\nu64 = 7\n[[arg]]\n" + MAP))
save("launch", "numbers", launch("grid = [1]\n" + "".join(
    f"[[arg]]\n{kind} = {value}\n" for kind, value in (("u32", 64), ("i32", -1), ("u64", 2**63 - 1), ("i64", -2**63), ("f32", 0.5), ("f64", "nan")))))
save("launch", "huge_shape", launch("grid = [1]\n[buffer.a]\ndtype = \"f64\"\nshape = [4294967296, 4294967296]\nfill = \"arange\"\n"))
save("launch", "large_fill", launch("grid = [1]\n[buffer.a]\ndtype = \"u8\"\nshape = [2147483648]\nfill = \"random:1\"\n"))
save("launch", "two_large_fills", launch("grid = [1]\n" + "".join(
    f"[buffer.{name}]\ndtype = \"u8\"\nshape = [2147483648]\nfill = \"zeros\"\n" for name in "ab")))
save("launch", "huge_grid", launch("grid = [4294967295, 4294967295, 4294967295]\n"))
save("launch", "four_sides", launch("grid = [1, 1, 1, 1]\n"))
save("launch", "no_such_buffer", launch("grid = [1]\n[[arg]]\nbuffer = \"x\"\n[[arg]]\nu32 = 1\n"))
save("launch", "two_kinds", launch("grid = [1]\n[[arg]]\nu32 = 1\ni32 = 1\n[[arg]]\n"))
save("launch", "odd_digits", launch("grid = [1]\n[[arg]]\nbytes = \"0\"\n[[arg]]\nbytes = \"\u00e9\u00e9\"\n"))
save("launch", "odd_maps", launch(FILLED + "[[arg]]\n" + MAP.replace("[384]", "[]") + "[[arg]]\n" + MAP.replace("[64, 128]", "[0, 4294967295]")))
PARTS = FILLED + "[[arg]]\nbuffer = \"a\"\n[[arg]]\nsize = 512\nparts = [{ at = 64, " + MAP.strip() + " }, { at = 0, buffer = \"a\" }, { at = 8, f32 = 0.5 }, { at = 192, bytes = \"00ff\" }]\n"
save("launch", "parts", launch(PARTS))
save("launch", "parts_that_overlap", launch(PARTS.replace("at = 8,", "at = 4,")))
save("launch", "parts_beyond", launch(PARTS.replace("at = 192", "at = 9223372036854775807")))
save("launch", "parts_of_parts", launch(FILLED + "[[arg]]\nparts = [{ at = 0, parts = [{ at = 0, u32 = 1 }] }]\n[[arg]]\nat = 1\nsize = 3\nu32 = 1\n"))
save("launch", "array_that_lies", launch("grid = [1]\n[buffer.a]\nfile = \"a.npy\"\n", array(shape="(18446744073709551615, 2)")))
save("launch", "expects_another_size", launch(FILLED.replace("random:3", "zeros") + "expect = \"b.npy\"\n", array()))
save("launch", "no_text", launch("grid = [1]\n[buffer.\"a\\nb\"]\nfill = \"x\\ny\"\n"))
save("launch", "cut", launch("grid = [1]\n[buffer.a")[:-1])
save("launch", "nothing", b"")
