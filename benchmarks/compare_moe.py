#!/usr/bin/env python3
"""Whole layers of experts beside torch's bf16 products (oneDNN) on this CPU, taking turns in one process.

    python benchmarks/compare_moe.py [--model qwen3-30b-a3b] [--tokens 1,16,64,512] [--json FILE]

needs this package, torch and numpy. torch runs what a user would run without NVFP4: weights expanded to bf16 (3.6 times
the bytes), routing in torch, and a loop over the experts that have tokens, two products, the gate, one product, and an
addition each. Ours is one call with the router's logits. Both take bf16 tokens and the same numbers of threads, choose
other experts in every call, and rotate over more than 1.2 GB of weights. For each number of tokens the two take turns
of some tenths of a second; a turn begins with a pause, since the other side's threads spin for a while. The first thing
is to hold one result against the other.
"""

import argparse
import json
import os
import statistics
import time
from pathlib import Path

import torch

import hammerhead

COLD_BYTES = 1.2e9
ROUTINGS = 16
PAUSE = 0.05
DISTINCT = 8

# Experts, experts per token, the widths of tokens and of the intermediate, the gate.
MODELS = {
    "qwen3-30b-a3b": (128, 8, 2048, 768, "silu"),
    "qwen3-next-80b": (512, 10, 2048, 512, "silu"),
    "gpt-oss-20b": (32, 4, 2880, 2880, "gpt-oss"),
    "mixtral-8x7b": (8, 2, 4096, 14336, "silu"),
    "tiny": (8, 2, 256, 128, "silu"),
}


def gated(gate, both):
    """gate(g, u), in the type of its inputs, as models' own code has it."""
    g, u = both.chunk(2, dim=-1)
    if gate == "silu":
        return torch.nn.functional.silu(g).mul_(u)
    g, u = g.clamp(max=7.0), u.clamp(-7.0, 7.0)
    return (u + 1) * (g * torch.sigmoid(1.702 * g))


class Weights:
    """A layer's matrices: some that differ, over and over."""

    def __init__(self, model, seed):
        self.experts, self.top_k, self.hidden, self.inner, self.gate = model
        generator = torch.Generator().manual_seed(seed)
        random = lambda n, k: torch.randn(n, k, generator=generator) / k**0.5
        some = lambda n, k: [hammerhead.quantize(random(n, k)) for _ in range(min(DISTINCT, self.experts))]
        self.b1, self.b2 = some(self.inner, self.hidden), some(self.inner, self.hidden)
        self.down = some(self.hidden, self.inner)

    def all(self, some):
        return [some[expert % len(some)] for expert in range(self.experts)]


class Torch:
    """A loop over the experts that have tokens."""

    def __init__(self, weights):
        self.weights = weights
        wide = lambda matrices: [matrix.dequantize().bfloat16() for matrix in matrices]
        both = [torch.cat(pair) for pair in zip(wide(weights.b1), wide(weights.b2))]
        down = wide(weights.down)
        one = sum(matrix.numel() * 2 for matrix in (both[0], down[0]))
        self.bytes = one * weights.experts
        copies = int(COLD_BYTES / self.bytes) + 1
        # Each expert in memory of its own, gate and up as one matrix, as models keep them.
        take = lambda some: [[some[e % len(some)].clone() for e in range(weights.experts)] for _ in range(copies)]
        self.layers, self.turn = list(zip(take(both), take(down))), 0

    def __call__(self, x, logits):
        both, down = self.layers[self.turn % len(self.layers)]
        self.turn += 1
        top, ids = torch.topk(logits.softmax(-1), self.weights.top_k)
        top = top / top.sum(-1, keepdim=True)
        order = ids.flatten().argsort(stable=True)
        rows, counts = order // self.weights.top_k, ids.flatten().bincount(minlength=self.weights.experts).tolist()
        scale, out, start = top.flatten()[order, None], torch.zeros(x.shape, dtype=torch.float32), 0
        for expert, count in enumerate(counts):
            if count == 0:
                continue
            own = slice(start, start + count)
            start += count
            hidden = gated(self.weights.gate, x[rows[own]] @ both[expert].T)
            out.index_add_(0, rows[own], (hidden @ down[expert].T).float() * scale[own])
        return out.bfloat16()


class Ours:
    """One call."""

    def __init__(self, weights, threads):
        make = lambda: hammerhead.Experts.from_arrays(
            weights.all(weights.b1), weights.all(weights.b2), weights.all(weights.down),
            gate=weights.gate, routing="softmax-renorm", top_k=weights.top_k, threads=threads,
        )  # fmt: skip
        first = make()
        self.bytes = first.packed_bytes
        self.layers, self.turn = [first, *(make() for _ in range(int(COLD_BYTES / self.bytes)))], 0

    def __call__(self, x, logits):
        self.turn += 1
        return self.layers[self.turn % len(self.layers)](x, logits)


def turn(layer, x, logits, seconds):
    """The times of calls in one slice of time; the first sets up what is kept, and is not counted."""
    time.sleep(PAUSE)
    times, start = [], time.perf_counter()
    while time.perf_counter() - start < seconds or len(times) < 4:
        clock = time.perf_counter()
        layer(x, logits[len(times) % ROUTINGS])
        times.append(time.perf_counter() - clock)
    return times[1:]


def summary(seconds):
    quantile = lambda part: statistics.quantiles(seconds, n=20, method="inclusive")[round(20 * part) - 1]
    fields = {"median": 0.5, "p10": 0.1, "p25": 0.25, "p75": 0.75, "p90": 0.9}
    return {**{name: quantile(part) for name, part in fields.items()}, "best": min(seconds), "samples": len(seconds)}


def compare(name, options):
    """Rows of a model, as cases of a record."""
    weights = Weights(MODELS[name], 0)
    theirs, ours = Torch(weights), Ours(weights, options.threads)
    print(f"\n{name}: {weights.experts} experts, {weights.top_k} per token, {weights.hidden}·{weights.inner}; weights {theirs.bytes / 1e9:.2f} GB in "
          f"torch, {ours.bytes / 1e9:.2f} GB in hammerhead ({theirs.bytes / ours.bytes:.2f}×)\n")  # fmt: skip
    print("| T | torch bf16 | hammerhead | ratio of medians | ratio of bests |\n|---|---|---|---|---|", flush=True)
    cases = []
    for tokens in options.tokens:
        generator = torch.Generator().manual_seed(tokens)
        x = torch.randn(tokens, weights.hidden, generator=generator).bfloat16()
        logits = [torch.randn(tokens, weights.experts, generator=generator) for _ in range(ROUTINGS)]
        a, b = theirs(x, logits[0]).float(), ours(x, logits[0]).float()
        assert (a - b).abs().max() <= 0.05 * a.abs().max(), "the two compute different things"
        times = [], []
        for _ in range(options.rounds):
            times[0].extend(turn(theirs, x, logits, options.seconds))
            times[1].extend(turn(ours, x, logits, options.seconds))
        a, b = map(summary, times)
        cell = lambda t: f"{1e3 * t['median']:.2f} ({1e3 * t['best']:.2f})"
        print(f"| {tokens} | {cell(a)} | {cell(b)} | {a['median'] / b['median']:.1f}× | {a['best'] / b['best']:.1f}× |", flush=True)
        common = {"problem": f"{name}, {tokens} tokens", "activation": "bf16", "gate": weights.gate, "output": "bf16"}
        cases += [{**common, "who": "torch bf16", "cold": a}, {**common, "backend": ", ".join(ours.layers[0].backends), "cold": b}]
    return cases


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=list(MODELS), help="may be given several times [default: qwen3-30b-a3b]")
    parser.add_argument("--tokens", type=lambda text: [int(t) for t in text.split(",")], default=[1, 16, 64, 512])
    parser.add_argument("--rounds", type=int, default=5, help="turns of both for each number of tokens")
    parser.add_argument("--seconds", type=float, default=0.4, help="of each turn")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write a record to this file as well")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    print(f"torch {torch.__version__} bf16 against hammerhead {hammerhead.__version__}, {options.threads} threads, cold, ms, median (best)")
    cases = [case for name in options.model or ["qwen3-30b-a3b"] for case in compare(name, options)]
    if options.json:
        record = {"schema": 1, "version": hammerhead.__version__, "torch": torch.__version__, "threads": options.threads, "cases": cases}
        options.json.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
