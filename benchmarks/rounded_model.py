"""What rounding tokens does to a model: its next-token probabilities beside those of exact tokens.

    python benchmarks/rounded_model.py [MODEL ...] [--device cuda] [--text FILE] [--tokens 1024] [--outliers 1000 [--quiet]] [--json RESULT.json]

MODEL is the folder of a checkpoint that `hammerhead.transformers` loads. Without one, a small Qwen3-MoE with random
weights is quantised to NVFP4 and taken; with --outliers N four channels of its tokens are larger by N, and with --quiet
sixteen, whose weights are smaller by N. Its input is the text, or random tokens where there is none or no tokenizer.

    W4A16   4-bit weights, bf16 tokens: what is computed if nothing is asked for
    FP8     tokens, intermediates and folded weights rounded to e4m3 (docs/fp8.md); Hopper GPUs alone
    W4A4    tokens and intermediates of gated MLPs and experts rounded to NVFP4, as checkpoints of that kind ask for
    e4m3 by rows, by 128    what goes into gated MLPs and experts rounded to e4m3 with a power of two per row, or per 128 of
            it; weights and intermediates exact. On every device: it says what a factor per 128 would gain

Each is held against the same model with tokens in single precision: the mean Kullback-Leibler divergence from its
probabilities in nats, the largest one, and how often both have the same token in front. Linear layers outside of MLPs
and experts are exact everywhere.
"""

import argparse
import json
import tempfile
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

import hammerhead
from hammerhead.transformers import NvFp4Config, NvFp4Experts, NvFp4Mlp

SMALL = dict(
    vocab_size=4096, hidden_size=512, moe_intermediate_size=256, num_hidden_layers=6, num_attention_heads=8, num_key_value_heads=4,
    head_dim=64, num_experts=32, num_experts_per_tok=4, norm_topk_prob=True, max_position_embeddings=4096,
    bos_token_id=None, eos_token_id=None, pad_token_id=None, architectures=["Qwen3MoeForCausalLM"],
)
LARGEST_E4M3 = 448.0
# Channels that are large: a few, as in trained models. Where small weights meet them, a block of NVFP4, so that those
# share no scale with others.
LARGE_CHANNELS = 4
QUIET_CHANNELS = 16


def write(folder, outliers, quiet):
    """A small model with random weights, whose logits spread as widely as those of a model that knows something. In the first
    of its channels tokens that come to MLPs and experts are larger by `outliers`, as a few are in trained models; if `quiet`,
    in more of them, and the weights that they meet are smaller by as much, so that these count as much as any others."""
    large = QUIET_CHANNELS if quiet else LARGE_CHANNELS
    config = transformers.Qwen3MoeConfig(**SMALL)
    settings = {**config.to_dict(), "dtype": "bfloat16", "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}
    (folder / "config.json").write_text(json.dumps(settings))
    with torch.device("meta"):
        shapes = {name: parameter.shape for name, parameter in transformers.AutoModelForCausalLM.from_config(config).named_parameters()}
    torch.manual_seed(0)
    tensors = {}

    def met(weights):
        """Weights that meet the tokens which come to MLPs and experts."""
        if quiet:
            weights[:, :large] /= outliers
        return weights

    def matrix(stem, n, k):
        # What is added to a token at every layer is small beside the token, as after training.
        added = (2 * SMALL["num_hidden_layers"]) ** -0.5 if stem.endswith(("o_proj", "down_proj")) else 1.0
        weights = torch.randn(n, k) * added / k**0.5
        packed = hammerhead.quantize(met(weights) if stem.endswith(("gate_proj", "up_proj")) else weights)
        tensors[f"{stem}.weight"] = torch.as_tensor(packed.codes).view(torch.uint8)
        tensors[f"{stem}.weight_scale"] = torch.as_tensor(packed.scales).view(torch.float8_e4m3fn)
        tensors[f"{stem}.weight_scale_2"] = torch.tensor(float(packed.global_scale))

    for name, shape in shapes.items():
        if name.endswith(".gate_up_proj"):
            stem, (experts, rows, k) = name.removesuffix(".gate_up_proj"), shape
            for expert in range(experts):
                for part, size in (("gate_proj", (rows // 2, k)), ("up_proj", (rows // 2, k)), ("down_proj", (k, rows // 2))):
                    matrix(f"{stem}.{expert}.{part}", *size)
        elif len(shape) == 2 and "_proj" in name:
            matrix(name.removesuffix(".weight"), *shape)
        elif len(shape) < 3:
            spread = 3 * shape[-1] ** -0.5 if "lm_head" in name else 1.0
            values = torch.randn(shape) * spread if len(shape) == 2 else torch.ones(shape)
            if name.endswith("mlp.gate.weight"):
                values = met(values)
            if "post_attention_layernorm" in name:
                values[:large] = outliers
            tensors[name] = values.to(torch.bfloat16)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def prompt(model, text, tokens):
    """The text's first tokens; random ones where there is no text or no tokenizer."""
    vocabulary = transformers.AutoConfig.from_pretrained(model).get_text_config().vocab_size
    if text is not None:
        found = transformers.AutoTokenizer.from_pretrained(model)(text.read_text(), return_tensors="pt").input_ids
        if found.numel() > 0:
            return found[:, :tokens]
    return torch.randint(vocabulary, (1, tokens), generator=torch.Generator().manual_seed(1))


def as_nvfp4(x):
    """Tokens rounded to NVFP4."""
    rows = hammerhead.quantize(x.reshape(-1, x.shape[-1]).float()).dequantize()
    return torch.as_tensor(rows).to(x.device, x.dtype).reshape(x.shape)


def as_e4m3(x, together):
    """Tokens rounded to e4m3 after the largest power of two that as many numbers of a row as are `together` bear."""
    parts = x.double().reshape(-1, min(together, x.shape[-1]))
    largest = parts.abs().amax(-1, keepdim=True).clamp_min(2.0**-120)
    factors = torch.exp2(torch.floor(torch.log2(LARGEST_E4M3 / largest)))
    return ((parts * factors).to(torch.float8_e4m3fn).double() / factors).to(x.dtype).reshape(x.shape)


# The tokens' type, what is asked of us, and what is done to tokens before they come to gated MLPs and experts.
WAYS = {
    "W4A16": (torch.bfloat16, {}, None),
    "FP8": (torch.bfloat16, {"precision": "fp8"}, None),
    "W4A4": (torch.bfloat16, {"intermediate": "nvfp4"}, as_nvfp4),
    "e4m3 by rows": (torch.bfloat16, {}, lambda x: as_e4m3(x, x.shape[-1])),
    "e4m3 by 128": (torch.bfloat16, {}, lambda x: as_e4m3(x, 128)),
}


@torch.no_grad()
def probabilities(model, device, tokens, dtype, asked, rounding):
    """The logarithms of the next token's probabilities, at every place."""
    where = {} if device == "cpu" else {"device_map": device}
    loaded = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=dtype, quantization_config=NvFp4Config(**asked), **where)
    if rounding is not None:
        for module in loaded.modules():
            if isinstance(module, (NvFp4Mlp, NvFp4Experts)):
                module.register_forward_pre_hook(lambda _, arguments: (rounding(arguments[0]), *arguments[1:]))
    return loaded(tokens.to(device)).logits[0].double().log_softmax(-1).cpu()


def measured(model, options):
    tokens = prompt(model, options.text, options.tokens)
    exact = probabilities(model, options.device, tokens, torch.float32, {}, None)
    found = {}
    for way, (dtype, asked, rounding) in WAYS.items():
        try:
            ours = probabilities(model, options.device, tokens, dtype, asked, rounding)
        except ValueError as refusal:
            print(f"| {way} | not here: {refusal} | | |")
            continue
        divergence = (exact.exp() * (exact - ours)).sum(-1)
        agreement = float((exact.argmax(-1) == ours.argmax(-1)).double().mean())
        found[way] = {"kl": float(divergence.mean()), "largest": float(divergence.max()), "agreement": agreement}
        print(f"| {way} | {divergence.mean():.2e} | {divergence.max():.2e} | {100 * agreement:.1f} % |", flush=True)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--device", default="cpu", help="cpu, cuda, …")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--outliers", type=float, default=1.0, help="how much larger four channels of the small model's tokens are")
    parser.add_argument("--quiet", action="store_true", help="sixteen channels instead, and the weights that they meet are smaller by as much")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        if not options.models:
            write(Path(folder), options.outliers, options.quiet)
        for model in options.models or [Path(folder)]:
            name = model.name if options.models else "random weights"
            print(f"{name}, {options.tokens} tokens, {options.device}\n\n| | mean KL | largest | same first token |\n|---|---|---|---|")
            results[name] = measured(model, options)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
