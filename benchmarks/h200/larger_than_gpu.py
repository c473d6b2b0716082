"""Models whose experts do not all go onto the GPU, in transformers, beside what `hammerhead.budget` predicts.

    python benchmarks/h200/larger_than_gpu.py RESULT.json [--model qwen3-235b:12 --model qwen3-30b:48] [--parts
    1,0.5,0.25,0]

Sizes are those of the models, weights are random, and there are as many layers as `NAME:LAYERS` says. For every part of
the experts that the GPU is to hold, a process of its own loads the model with that budget and generates: seconds to the
first token of a prompt, tokens per second after it, and memory of GPU and host. What the program takes around the
experts is taken from the first part, with which the GPU should hold all; the other parts' predictions are made before
they are measured.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

import hammerhead.transformers
from hammerhead import budget
from hammerhead.transformers.__main__ import memory

COMMON = dict(vocab_size=32000, max_position_embeddings=4096, bos_token_id=None, eos_token_id=None, pad_token_id=None)
SIZES = {
    "qwen3-30b": dict(hidden_size=2048, moe_intermediate_size=768, num_attention_heads=32, num_key_value_heads=4),
    "qwen3-235b": dict(hidden_size=4096, moe_intermediate_size=1536, num_attention_heads=64, num_key_value_heads=4),
}
MOE = dict(num_experts=128, num_experts_per_tok=8, norm_topk_prob=True, head_dim=128)


def write(name, layers, folder):
    """A checkpoint in ModelOpt's layout, a file per layer. Weights are pieces of one pool of random bytes."""
    config = transformers.Qwen3MoeConfig(**COMMON, **SIZES[name], **MOE, num_hidden_layers=layers, architectures=["Qwen3MoeForCausalLM"])
    settings = {**config.to_dict(), "dtype": "bfloat16", "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}
    (folder / "config.json").write_text(json.dumps(settings))
    pool = torch.randint(0, 256, (1 << 28,), dtype=torch.uint8)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    files, taken = {}, 0

    def linear(tensors, stem, n, k):
        nonlocal taken
        taken = (taken + 7919) % (pool.numel() - n * k // 2)
        tensors[f"{stem}.weight"] = pool[taken : taken + n * k // 2].view(n, k // 2).clone()
        tensors[f"{stem}.weight_scale"] = torch.full((n, k // 16), 56, dtype=torch.uint8).view(torch.float8_e4m3fn)
        tensors[f"{stem}.weight_scale_2"] = torch.tensor(k**-0.5 / 4)

    def keep(name, tensors):
        file = f"{name}.safetensors"
        save_file(tensors, folder / file, {"format": "pt"})
        files.update(dict.fromkeys(tensors, file))

    parts = {}
    for parameter_name, parameter in model.named_parameters():
        pieces = parameter_name.split(".")
        parts.setdefault(f"layer-{pieces[2]}" if pieces[1] == "layers" else "beside", []).append((parameter_name, parameter.shape))
    for part, parameters in parts.items():
        tensors = {}
        for full, shape in parameters:
            stem = full.removesuffix(".weight")
            if full.endswith(".gate_up_proj"):
                stem, (experts, n, k) = full.removesuffix(".gate_up_proj"), shape
                for expert in range(experts):
                    linear(tensors, f"{stem}.{expert}.gate_proj", n // 2, k)
                    linear(tensors, f"{stem}.{expert}.up_proj", n // 2, k)
                    linear(tensors, f"{stem}.{expert}.down_proj", k, n // 2)
            elif len(shape) == 2 and "_proj" in full:
                linear(tensors, stem, *shape)
            elif len(shape) < 3:
                tensors[full] = torch.randn(shape, dtype=torch.bfloat16) * 0.02 if len(shape) > 1 else torch.ones(shape, dtype=torch.bfloat16)
        keep(part, tensors)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))


def generate(folder, gpu_budget, prompt, tokens):
    """Loads a model with a budget and generates: what came of it."""
    # torch 2.11 plans cuDNN's attention anew for every number of tokens before, 16 ms each.
    torch.backends.cuda.enable_cudnn_sdp(False)
    begun = time.perf_counter()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype="auto", device_map="cuda", quantization_config=hammerhead.transformers.NvFp4Config(gpu_budget=gpu_budget)
    )
    loaded = time.perf_counter() - begun
    layers = [module.layer for module in model.modules() if isinstance(module, hammerhead.transformers.NvFp4Experts)]
    free, total = torch.cuda.mem_get_info()
    found = {
        "resident": statistics.mean(1.0 if layer.resident is None else len(layer.resident) / layer.num_experts for layer in layers),
        "load seconds": loaded,
        "GPU bytes": total - free,
        "host bytes": memory("RssAnon"),
    }
    text = torch.randint(0, COMMON["vocab_size"], (1, prompt), device="cuda")
    with torch.inference_mode():
        model(text, use_cache=True, logits_to_keep=1)
        begun = time.perf_counter()
        out = model(text, use_cache=True, logits_to_keep=1)
        token = out.logits[:, -1:].argmax(-1)
        torch.cuda.synchronize()
        found["first token seconds"] = time.perf_counter() - begun
        times = []
        for _ in range(tokens):
            begun = time.perf_counter()
            # Tokens at random: what a model with random weights says to itself soon asks for the same experts again.
            out = model(torch.randint_like(token, COMMON["vocab_size"]), past_key_values=out.past_key_values, use_cache=True)
            out.logits[:, -1:].argmax(-1).item()
            times.append(time.perf_counter() - begun)
    assert torch.isfinite(out.logits).all(), "a result is not finite"
    return {**found, "step seconds": statistics.median(times), "tokens/s": 1 / statistics.median(times)}


def compare(name, layers, options):
    """One model with every part of its experts on the GPU."""
    with tempfile.TemporaryDirectory(dir=options.folder) as made:
        folder = Path(made)
        write(name, layers, folder)
        model = budget.Model.from_checkpoint(folder)
        machine = budget.measure_machine(model)
        whole = model.layers * model.experts * model.expert_bytes
        print(f"{name}, {layers} layers: {whole / 1e9:.1f} GB of experts, {model.beside_bytes / 1e9:.1f} GB beside them")
        print(f"{'on GPU':>7} {'first token s':>13} {'step ms':>8} {'predicted':>9} {'tokens/s':>9} {'GPU GB':>7} {'host GB':>8} {'load s':>7}", flush=True)
        rows = []
        for part in map(float, options.parts.split(",")):
            # An expert takes a little more when it is packed for a GPU.
            gpu_budget = model.beside_bytes + int(whole * part * 1.01)
            expected = budget.predict(model, machine, gpu_budget)
            command = [sys.executable, __file__, "-", "--one", made, str(gpu_budget), "--prompt", str(options.prompt), "--tokens", str(options.tokens)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(done.stderr)
            found = json.loads(done.stdout.splitlines()[-1])
            if not rows:
                machine = replace(machine, rest=max(0.0, found["step seconds"] - expected.seconds) / model.layers)
                expected = budget.predict(model, machine, gpu_budget)
            rows.append({**found, "predicted seconds": expected.seconds})
            print(
                f"{found['resident']:7.0%} {found['first token seconds']:13.3f} {found['step seconds'] * 1e3:8.2f} {expected.seconds * 1e3:9.2f} "
                f"{found['tokens/s']:9.1f} {found['GPU bytes'] / 1e9:7.1f} {found['host bytes'] / 1e9:8.1f} {found['load seconds']:7.1f}",
                flush=True,
            )
        speeds = {place: vars(getattr(machine, place)) for place in ("host", "gpu")}
        return {"model": vars(model), **speeds, "away": machine.away, "rest": machine.rest, "parts": rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", help="the file that everything measured is written to")
    parser.add_argument("--model", action="append", help="NAME:LAYERS")
    parser.add_argument("--parts", default="1,0.75,0.5,0.25,0")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--folder", help="where checkpoints are written for the while")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(generate(options.one[0], int(options.one[1]), options.prompt, options.tokens)))
        return
    record = {}
    for asked in options.model or ["qwen3-30b:48", "qwen3-235b:12"]:
        name, _, layers = asked.partition(":")
        record[asked] = compare(name, int(layers or 2), options)
        Path(options.result).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
