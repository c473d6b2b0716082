"""Models whose experts do not all go onto the GPU, in transformers, beside predictions and beside llama.cpp.

    python benchmarks/h200/larger_than_gpu.py RESULT.json [--model qwen3-235b:12 --model qwen3-30b:48] [--parts
    1,0.5,0.25,0] [--llama-bench PATH]

Sizes are those of the models, weights are random, and there are as many layers as `NAME:LAYERS` says. For every part of
the experts that the GPU is to hold, a process of its own loads the model with that budget and generates: seconds to the
first token of prompts (where who waits spins, and where it sleeps), tokens per second after them, and memory of GPU and
host. What `hammerhead.budget` predicts knows nothing of what is measured; only what the program takes around the
experts is taken from the first part, with which the GPU should hold all. Where it holds some, it holds a part of every
layer's in one row, and the first layers' in the next (`whole_layers`); where it does not hold all, one more row is with
weights that are brought over for long prompts (`stream`). With `--uneven` routers prefer some experts. Then there is a
row in which the hottest are moved to the GPU after each eight of 32 prompts, and predictions of it, and of rows without
experts on the GPU, have the counts of that run.

Steps are timed twice: as transformers queues them, and replayed (`hammerhead.transformers.replay_steps`). Before, the
logits of six steps are compared with those of the same cache without graphs, and twelve tokens of `generate` with those
without: they must be the same to the bit.

`--llama-bench` names llama.cpp's program of that name, built with CUDA (b10361 was; how, the README says): it gets
files of the same sizes with ggml's NVFP4 and MXFP4. Of the two, the one that generates faster with no expert on the GPU
is timed with the other parts, too.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

# Processes are forked from this one, which must not have used the GPU; torch would, to see if there is one.
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"

import torch
import transformers
from safetensors.torch import save_file

import hammerhead.transformers
import llama_peer
from hammerhead import budget
from hammerhead._cost import measure_calls, random_layer
from hammerhead.transformers.__main__ import memory

COMMON = dict(vocab_size=32000, max_position_embeddings=4096, bos_token_id=None, eos_token_id=None, pad_token_id=None)
SIZES = {
    "qwen3-30b": dict(hidden_size=2048, moe_intermediate_size=768, num_attention_heads=32, num_key_value_heads=4),
    "qwen3-235b": dict(hidden_size=4096, moe_intermediate_size=1536, num_attention_heads=64, num_key_value_heads=4),
    # DeepSeek-V3's experts, with Qwen3's attention and routing and no shared expert.
    "deepseek-v3-experts": dict(hidden_size=7168, moe_intermediate_size=2048, num_attention_heads=64, num_key_value_heads=4, num_experts=256),
}
MOE = dict(num_experts=128, num_experts_per_tok=8, norm_topk_prob=True, head_dim=128)
READ = 8 << 30
# Prompts that are not counted: Python and torch's allocator take some ten to get as fast as they stay.
WARM = 10
GREEDY = dict(max_new_tokens=12, do_sample=False)
WAYS = {"": {}, "whole layers": {"whole_layers": True}, "streamed": {"stream": True}, "hottest": {}}


def sizes_of(name):
    return {**COMMON, **MOE, **SIZES[name]}


def write(name, layers, folder, uneven=0.0):
    """A checkpoint in ModelOpt's layout, a file per layer. Weights are pieces of one pool of random bytes. A router's
    rows grow by so many powers of two from the first expert's to the last one's: those of larger rows are chosen more
    often."""
    config = transformers.Qwen3MoeConfig(**sizes_of(name), num_hidden_layers=layers, architectures=["Qwen3MoeForCausalLM"])
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
                if full.endswith(".mlp.gate.weight"):
                    tensors[full] *= torch.logspace(-uneven / 2, uneven / 2, shape[0], base=2)[:, None].bfloat16()
        keep(part, tensors)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))


def ways_of(part, uneven):
    """How a part of the experts may be on the GPU."""
    some = ["whole layers", *(["hottest"] if uneven else [])]
    return ["", *(some if 0 < part < 1 else []), *(["streamed"] if part < 1 else [])]


def generate(folder, gpu_budget, way, prompts, tokens, compiled):
    """Loads a model with a budget and generates: what came of it."""
    # torch 2.11 plans cuDNN's attention anew for every number of tokens before, 16 ms each.
    torch.backends.cuda.enable_cudnn_sdp(False)
    begun = time.perf_counter()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder,
        dtype="auto",
        device_map="cuda",
        quantization_config=hammerhead.transformers.NvFp4Config(gpu_budget=gpu_budget, **WAYS[way]),
    )
    loaded = time.perf_counter() - begun
    layers = [module.layer for module in model.modules() if isinstance(module, hammerhead.transformers.NvFp4Experts)]
    free, total = torch.cuda.mem_get_info()
    found = {
        "resident": statistics.mean(1.0 if layer.resident is None else len(layer.resident) / layer.num_experts for layer in layers),
        "load seconds": loaded,
        "streams from": layers[-1].streams_from,
        "GPU bytes": total - free,
        "host bytes": memory("RssAnon"),
        "first token seconds": {},
        "asleep": {},
    }
    with torch.inference_mode():
        if way == "hottest":
            found["moved"] = sum(place_once(model, max(prompts)) for _ in range(4))
        for prompt in prompts:
            text = torch.randint(0, COMMON["vocab_size"], (1, prompt), device="cuda")
            for _ in range(WARM):
                first_token(model, text, torch.cuda.Event())
            # Who waits for the GPU spins, or sleeps and leaves its core to the experts.
            for name, blocking in (("first token seconds", False), ("asleep", True)):
                found[name][prompt] = statistics.median(first_token(model, text, torch.cuda.Event(blocking=blocking)) for _ in range(3))
        text = text[:, : min(prompts)]
        # Tokens at random: what a model with random weights says to itself soon asks for the same experts again.
        said = torch.randint(0, COMMON["vocab_size"], (tokens, 1, 1), device="cuda")
        found["queued step seconds"], _ = steps(model, text, transformers.DynamicCache(), said)
        length = text.shape[1] + tokens
        _, expected = steps(model, text, transformers.StaticCache(config=model.config, max_cache_len=length), said[:6])
        said_so = None if compiled else model.generate(text, attention_mask=torch.ones_like(text), cache_implementation="static", disable_compile=True, **GREEDY)
        hammerhead.transformers.replay_steps(model, compile=compiled)
        replayed = model.generate(text, attention_mask=torch.ones_like(text), **GREEDY)
        found["step seconds"], logits = steps(model, text, transformers.StaticCache(config=model.config, max_cache_len=length), said)
    found["heat"] = hammerhead.transformers.heat(model)
    assert torch.isfinite(logits).all(), "a result is not finite"
    if compiled:
        found["apart"] = ((logits[:6] - expected).norm() / expected.norm()).item()
        return {**found, "tokens/s": 1 / found["step seconds"]}
    assert torch.equal(said_so, replayed), "generate says something else with replayed steps"
    assert torch.equal(logits[:6], expected), "replayed steps differ from those that were queued"
    return {**found, "tokens/s": 1 / found["step seconds"]}


def place_once(model, prompt):
    """Moves experts by what eight prompts ask for; says how many."""
    for _ in range(8):
        model(torch.randint(0, COMMON["vocab_size"], (1, prompt), device="cuda"), logits_to_keep=1)
    return hammerhead.transformers.place_hottest(model)


def first_token(model, text, event):
    """Seconds until a prompt's first token is known, which an event is waited for."""
    begun = time.perf_counter()
    token = model(text, use_cache=True, logits_to_keep=1).logits[:, -1:].argmax(-1)
    event.record()
    event.synchronize()
    token.item()
    return time.perf_counter() - begun


def steps(model, text, cache, said):
    """The median of steps after a prompt, each until its token is known, and what logits they had."""
    model(text, past_key_values=cache, use_cache=True, logits_to_keep=1)
    times, logits = [], []
    for token in said:
        begun = time.perf_counter()
        out = model(input_ids=token, past_key_values=cache, use_cache=True)
        out.logits[:, -1:].argmax(-1).item()
        times.append(time.perf_counter() - begun)
        logits.append(out.logits[0, -1])
    return statistics.median(times), torch.stack(logits)


def host_bandwidth():
    """Bytes per second that all cores read, the best of five sums over more than any cache holds."""
    numbers = torch.ones(READ // 8, dtype=torch.int64)
    times = []
    for _ in range(5):
        begun = time.perf_counter()
        assert int(numbers.sum()) == numbers.numel()
        times.append(time.perf_counter() - begun)
    return READ / min(times)


def host_share(model):
    """Seconds of one token in a layer of the GPU's that holds no expert: the way to the host, its experts, and back."""
    layer = random_layer(model.hidden, model.intermediate, model.experts, backend="cuda", gpu_bytes=0)
    x, weights = torch.randn(1, model.hidden, device="cuda").bfloat16(), torch.ones(1, model.top_k, device="cuda")
    turns = [torch.randperm(layer.num_experts, device="cuda")[None, : model.top_k] for _ in range(12)]
    return measure_calls([lambda ids=ids: layer(x, ids, weights) for ids in turns])


def apart(task, *arguments):
    """Calls in a process of its own."""
    with ProcessPoolExecutor(1, get_context("fork")) as pool:
        return pool.submit(task, *arguments).result()


def compare(name, layers, options, record, save):
    """One model with every part of its experts on the GPU."""
    parts, prompts = ([kind(part) for part in text.split(",")] for kind, text in ((float, options.parts), (int, options.prompts)))
    if options.llama_bench:
        record["llama.cpp"] = beside(name, layers, parts, prompts, options)
        save()
    with tempfile.TemporaryDirectory(dir=options.folder) as made:
        folder = Path(made)
        apart(write, name, layers, folder, options.uneven)
        model = budget.Model.from_checkpoint(folder)
        machine, reads = apart(budget.measure_machine, model), apart(host_bandwidth)
        whole = model.layers * model.experts * model.expert_bytes
        once = apart(host_share, model)
        print(f"{name}, {layers} layers: {whole / 1e9:.1f} GB of experts, {model.beside_bytes / 1e9:.1f} GB beside them")
        print(
            f"one token in a layer with all experts on the host: {once * 1e6:.0f} us, which reads {model.top_k * model.expert_bytes / once / 1e9:.0f} GB/s "
            f"of the {reads / 1e9:.0f} that its memory gives"
        )
        first = " ".join(f"{f'{prompt} tokens ms':>13} {'asleep':>7} {'predicted':>9}" for prompt in prompts)
        print(f"{'on GPU':>7} {first} {'queued ms':>9} {'step ms':>8} {'predicted':>9} {'tokens/s':>9} {'GPU GB':>7} {'host GB':>8} {'load s':>7}", flush=True)
        rows = []
        for part, way in [(part, way) for part in parts for way in ways_of(part, options.uneven)]:
            # An expert takes a little more when it is packed for a GPU.
            gpu_budget = model.beside_bytes + int(whole * part * 1.01)
            found = apart(generate, folder, gpu_budget, way, prompts, options.tokens, options.compile)
            placed = {"whole_layers": way == "whole layers"}
            # Counts say how many hits there are where the hottest experts are on the GPU, or none.
            if options.uneven and (way == "hottest" or not part):
                placed["heat"] = budget.heat_of(model, found["heat"])
            expected = budget.predict(model, machine, gpu_budget, **placed)
            if not rows:
                machine = replace(machine, rest=max(0.0, found["step seconds"] - expected.seconds) / model.layers)
                expected = budget.predict(model, machine, gpu_budget)
            said = {n: budget.predict(model, machine, gpu_budget, tokens=n, stream=way == "streamed", **placed).seconds for n in prompts}
            rows.append({**found, "way": way, "predicted seconds": expected.seconds, "predicted first token seconds": said})
            first = " ".join(f"{found['first token seconds'][n] * 1e3:13.1f} {found['asleep'][n] * 1e3:7.1f} {said[n] * 1e3:9.1f}" for n in prompts)
            print(
                f"{found['resident']:7.0%} {first} {found['queued step seconds'] * 1e3:9.2f} {found['step seconds'] * 1e3:8.2f} {expected.seconds * 1e3:9.2f} "
                f"{found['tokens/s']:9.1f} {found['GPU bytes'] / 1e9:7.1f} {found['host bytes'] / 1e9:8.1f} {found['load seconds']:7.1f}  {way} "
                f"{found.get('moved', '')}",
                flush=True,
            )
            speeds = {place: vars(getattr(machine, place)) for place in ("host", "gpu")} | {"away": machine.away, "rest": machine.rest}
            record |= {"model": vars(model), **speeds, "host bandwidth": reads, "host share seconds": once, "parts": rows}
            save()


def beside(name, layers, parts, prompts, options):
    """llama.cpp with every part, in ggml's type that generates fastest with no expert on the GPU."""
    with tempfile.TemporaryDirectory(dir=options.folder) as made:
        files = {kind: Path(made) / f"{kind}.gguf" for kind in options.types.split(",")}
        found = {}
        for kind, path in files.items():
            apart(llama_peer.write_gguf, sizes_of(name), layers, kind, path)
            found[kind] = {0.0: llama_peer.measure(options.llama_bench, path, layers, 0.0, prompts, options.tokens)}
        best = max(found, key=lambda kind: found[kind][0.0]["tokens/s"])
        for part in set(parts) - {0.0}:
            found[best][part] = llama_peer.measure(options.llama_bench, files[best], layers, part, prompts, options.tokens)
    for kind, rows in found.items():
        for part in sorted(rows, reverse=True):
            first = ", ".join(f"{prompt} tokens {seconds * 1e3:.1f} ms" for prompt, seconds in rows[part]["first token seconds"].items())
            print(f"llama.cpp, {name}, {layers} layers, {kind}: {rows[part]['resident']:.0%} on the GPU, {first}, {rows[part]['tokens/s']:.1f} tokens/s", flush=True)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", help="the file that everything measured is written to")
    parser.add_argument("--model", action="append", help="NAME:LAYERS")
    parser.add_argument("--parts", default="1,0.75,0.5,0.25,0")
    parser.add_argument("--prompts", default="128,512")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--compile", action="store_true", help="torch compiles the norms and routers of replayed steps")
    parser.add_argument("--uneven", type=float, default=0.0, help="powers of two between the least and the largest row of a router; the hottest experts are placed, too")
    parser.add_argument("--folder", help="where checkpoints are written for the while")
    parser.add_argument("--llama-bench", type=os.path.abspath, help="llama.cpp's program, to time it as well")
    parser.add_argument("--types", default="nvfp4,mxfp4", help="of ggml's matrices: nvfp4, mxfp4, q4_0")
    options = parser.parse_args()
    record = {}
    for asked in options.model or ["qwen3-30b:48", "qwen3-235b:12"]:
        name, _, layers = asked.partition(":")
        record[asked] = {}
        compare(name, int(layers or 2), options, record[asked], lambda: Path(options.result).write_text(json.dumps(record, indent=1) + "\n"))


if __name__ == "__main__":
    main()
