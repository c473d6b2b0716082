"""A few layers of known models in transformers on this CPU: NVFP4 by hammerhead.transformers beside transformers' own
bf16.

    python benchmarks/transformers_cpu.py [--layers 2] [--model llama-8b]

Sizes are those of the models, weights are random, and the vocabulary is small, so that the layers are what is timed.
Each model is built and timed in turn, over and over.
"""

import argparse
import gc
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

import hammerhead.transformers  # noqa: F401

COMMON = dict(vocab_size=1024, max_position_embeddings=4096, bos_token_id=None, eos_token_id=None, pad_token_id=None)
SIZES = {
    "llama-8b": ("Llama", dict(hidden_size=4096, intermediate_size=14336, num_attention_heads=32, num_key_value_heads=8)),
    "qwen3-30b-a3b": (
        "Qwen3Moe",
        dict(
            hidden_size=2048, moe_intermediate_size=768, num_experts=128, num_experts_per_tok=8, norm_topk_prob=True,
            num_attention_heads=32, num_key_value_heads=4, head_dim=128,
        ),
    ),
}  # fmt: skip


def configuration(name, layers):
    kind, sizes = SIZES[name]
    return getattr(transformers, f"{kind}Config")(**COMMON, **sizes, num_hidden_layers=layers, architectures=[f"{kind}ForCausalLM"])


def plain(config):
    """transformers' own, in bf16."""
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model = model.to_empty(device="cpu")
    for parameter in model.parameters():
        parameter.data.uniform_(-0.02, 0.02) if parameter.dim() > 1 else parameter.data.fill_(1.0)
    # The one buffer of these models is made anew: it was on the meta device.
    model.model.rotary_emb = type(model.model.rotary_emb)(config=model.config)
    return model.eval()


def packed(config, folder):
    """The same sizes in ModelOpt's layout."""
    settings = {**config.to_dict(), "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}
    (folder / "config.json").write_text(json.dumps(settings))
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    tensors = {}

    def linear(stem, n, k):
        tensors[f"{stem}.weight"] = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8)
        tensors[f"{stem}.weight_scale"] = torch.full((n, k // 16), 56, dtype=torch.uint8).view(torch.float8_e4m3fn)
        tensors[f"{stem}.weight_scale_2"] = torch.tensor(0.005)

    for name, parameter in model.named_parameters():
        stem = name.removesuffix(".weight")
        if parameter.dim() == 3 and name.endswith("gate_up_proj"):
            experts, n, k = parameter.shape
            stem = name.removesuffix(".gate_up_proj")
            for expert in range(experts):
                linear(f"{stem}.{expert}.gate_proj", n // 2, k)
                linear(f"{stem}.{expert}.up_proj", n // 2, k)
                linear(f"{stem}.{expert}.down_proj", k, n // 2)
        elif parameter.dim() == 2 and "_proj" in name:
            linear(stem, *parameter.shape)
        elif parameter.dim() != 3:
            size = parameter.shape
            tensors[name] = torch.randn(size, dtype=torch.bfloat16) * 0.02 if len(size) > 1 else torch.ones(size, dtype=torch.bfloat16)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    tensors.clear()
    return transformers.AutoModelForCausalLM.from_pretrained(folder)


def timed(model, prompt, tokens):
    """Milliseconds of the prompt, and per token after it."""
    times = []
    with torch.inference_mode():
        begun = time.perf_counter()
        out = model(prompt, use_cache=True, logits_to_keep=1)
        first = time.perf_counter() - begun
        token = out.logits[:, -1:].argmax(-1)
        for _ in range(tokens):
            begun = time.perf_counter()
            out = model(token, past_key_values=out.past_key_values, use_cache=True)
            times.append(time.perf_counter() - begun)
            token = out.logits[:, -1:].argmax(-1)
    return 1e3 * first, 1e3 * statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--model", choices=SIZES, action="append")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(f"{options.layers} layers, {options.prompt} tokens of prompt, torch {torch.__version__} on {torch.get_num_threads()} threads")
    print(f"{'model':14} {'weights':8} {'GB':>6} {'prompt ms':>10} {'token ms':>9}")
    for name in options.model or SIZES:
        config = configuration(name, options.layers)
        prompt = torch.randint(0, COMMON["vocab_size"], (1, options.prompt))
        with tempfile.TemporaryDirectory() as folder:
            ours = packed(config, Path(folder))
        theirs = plain(config)
        results = {"nvfp4": [], "bf16": []}
        for _ in range(options.rounds):
            results["nvfp4"].append(timed(ours, prompt, options.tokens))
            results["bf16"].append(timed(theirs, prompt, options.tokens))
        sizes = {
            "nvfp4": sum(module.layer.packed_bytes for module in ours.modules() if hasattr(module, "layer")),
            "bf16": sum(parameter.nbytes for parameter in theirs.parameters()),
        }
        for kind, samples in results.items():
            first, later = (statistics.median(column) for column in zip(*samples))
            print(f"{name:14} {kind:8} {sizes[kind] / 1e9:6.2f} {first:10.1f} {later:9.2f}", flush=True)
        del ours, theirs
        gc.collect()


if __name__ == "__main__":
    main()
