"""llama.cpp beside us: files with random weights, and what its `llama-bench` says of them.

A part of the experts lies on the GPU in llama.cpp's own way: `--n-cpu-moe N` leaves those of N whole layers to the
host. `llama-bench` takes tokens at random and times prompts and single tokens, with a KV cache in f16, as many threads
as there are cores, and load mode `none`: weights lie in memory of its own rather than in the file's pages.
"""

import json
import os
import struct
import subprocess
from pathlib import Path

import numpy

KINDS = {"f32": (0, 1, 4), "bf16": (30, 1, 2), "q4_0": (2, 32, 18), "mxfp4": (39, 32, 17), "nvfp4": (40, 64, 36)}
"""ggml's number of a type, the elements of a block, and its bytes."""
POOL = 1 << 26


def blocks_of(kind):
    """A pool of blocks with random elements and scales that keep sums near those of a trained model."""
    numbers = numpy.random.default_rng(1)
    _, _, size = KINDS[kind]
    pool = numbers.integers(0, 256, (POOL // size, size), dtype=numpy.uint8)
    if kind == "nvfp4":
        pool[:, :4] = 3  # 3 · 2⁻⁹, four of e4m3
    elif kind == "mxfp4":
        pool[:, 0] = 119  # 2⁻⁸
    elif kind == "q4_0":
        pool[:, :2] = numpy.frombuffer(numpy.float16(0.004).tobytes(), numpy.uint8)
    return pool.reshape(-1)


def write_gguf(config, layers, kind, path):
    """A file of a model of Qwen3's kind, with experts and attention of one type of ggml's and the rest in bf16: header,
    keys, a directory of tensors, and their bytes. ``config`` has transformers' names."""
    hidden, inner, vocabulary = config["hidden_size"], config["moe_intermediate_size"], config["vocab_size"]
    heads, kv_heads, head = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    experts = config["num_experts"]
    tensors = [("token_embd.weight", (hidden, vocabulary), "bf16"), ("output.weight", (hidden, vocabulary), "bf16")]
    tensors.append(("output_norm.weight", (hidden,), "f32"))
    for layer in range(layers):
        stem = f"blk.{layer}."
        tensors += [(f"{stem}{norm}.weight", (hidden,), "f32") for norm in ("attn_norm", "ffn_norm")]
        tensors += [(f"{stem}attn_{which}_norm.weight", (head,), "f32") for which in "qk"]
        tensors.append((f"{stem}attn_q.weight", (hidden, heads * head), kind))
        tensors += [(f"{stem}attn_{which}.weight", (hidden, kv_heads * head), kind) for which in "kv"]
        tensors.append((f"{stem}attn_output.weight", (heads * head, hidden), kind))
        tensors.append((f"{stem}ffn_gate_inp.weight", (hidden, experts), "f32"))
        tensors += [(f"{stem}ffn_{which}_exps.weight", (hidden, inner, experts), kind) for which in ("gate", "up")]
        tensors.append((f"{stem}ffn_down_exps.weight", (inner, hidden, experts), kind))

    def text(value):
        return struct.pack("<Q", len(value)) + value.encode()

    def key(name, value):
        if isinstance(value, str):
            return text(name) + struct.pack("<I", 8) + text(value)
        return text(name) + (struct.pack("<If", 6, value) if isinstance(value, float) else struct.pack("<II", 4, value))

    numbers = {
        "block_count": layers, "context_length": 4096, "embedding_length": hidden, "feed_forward_length": inner,
        "expert_feed_forward_length": inner, "expert_count": experts, "expert_used_count": config["num_experts_per_tok"],
        "attention.head_count": heads, "attention.head_count_kv": kv_heads, "attention.key_length": head,
        "attention.value_length": head, "attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 1e6,
        "vocab_size": vocabulary,
    }  # fmt: skip
    keys = [key("general.architecture", "qwen3moe"), key("tokenizer.ggml.model", "none")]
    keys += [key(f"qwen3moe.{name}", value) for name, value in numbers.items()]
    directory, starts, at = [], [], 0
    for name, sides, kind_of in tensors:
        number, elements, size = KINDS[kind_of]
        count = int(numpy.prod(sides)) // elements * size
        directory.append(text(name) + struct.pack(f"<I{len(sides)}QIQ", len(sides), *sides, number, at))
        starts.append((at, count, kind_of))
        at += -(-count // 32) * 32
    head_bytes = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys + directory)
    base = -(-len(head_bytes) // 32) * 32
    pools = {kind: blocks_of(kind)}
    drawn = numpy.random.default_rng(2).standard_normal(1 << 22, dtype=numpy.float32) * 0.02
    pools["bf16"] = (drawn.view(numpy.uint32) >> 16).astype(numpy.uint16).view(numpy.uint8)
    with path.open("wb") as file:
        file.write(head_bytes)
        for index, ((start, count, kind_of), (_, sides, _)) in enumerate(zip(starts, tensors)):
            file.seek(base + start)
            if len(sides) == 1:
                file.write(numpy.ones(sides[0], numpy.float32).tobytes())
                continue
            pool = drawn.view(numpy.uint8) if kind_of == "f32" else pools[kind_of]
            size = KINDS[kind_of][2]
            # Every tensor begins elsewhere in the pool, so that no two layers are alike.
            begin = index * 7919 % (len(pool) // size) * size
            while count:
                piece = pool[begin : begin + count]
                file.write(piece)
                count, begin = count - len(piece), 0
        file.truncate(base + at)


def measure(bench, path, layers, part, prompts, tokens):
    """What llama-bench says with a part of the layers' experts on the GPU: seconds of prompts, tokens per second."""
    away = round(layers * (1 - part))
    command = [bench, "-m", str(path), "-ngl", "99", "-ncmoe", str(away), "-t", str(os.cpu_count()), "-fa", "on", "-lm", "none"]
    command += ["-p", ",".join(map(str, prompts)), "-n", str(tokens), "-r", "3", "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | library_path())
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr[-3000:]}")
    tests = json.loads(done.stdout[done.stdout.index("[") :])
    # Where it finds no GPU it computes without, and says CUDA nevertheless.
    if not all("CUDA" in test["backends"] and test["gpu_info"] for test in tests):
        raise SystemExit(f"llama-bench used {tests[0]['backends']}: no GPU. {done.stderr[-2000:]}")
    found = {"resident": 1 - away / layers, "first token seconds": {}}
    for test in tests:
        seconds = sorted(test["samples_ns"])[len(test["samples_ns"]) // 2] / 1e9
        if test["n_gen"]:
            found["tokens/s"] = test["n_gen"] / seconds
        else:
            found["first token seconds"][test["n_prompt"]] = seconds
    return found


def library_path():
    """Where torch's CUDA libraries lie, for a llama.cpp that was built elsewhere."""
    import torch

    folders = sorted({str(file.parent) for file in Path(torch.__file__).parent.parent.glob("nvidia/**/lib*.so*")})
    return {"LD_LIBRARY_PATH": ":".join([*folders, os.environ.get("LD_LIBRARY_PATH", "")])}
