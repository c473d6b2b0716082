"""Whole layers of experts beside what one would use instead, on one NVIDIA GPU, in one run.

    python3 benchmarks/h200/peers_moe.py [--model deepseek-v3] [--tokens 1,16,64,512,4096] [--fp8]
        [--triton FOLDER]... [--vllm LIBRARY] [--json peers_moe.json]

Needs this package and PyTorch with CUDA; `moe_peers.py` says what the peers need. From the router's logits to the
combined result, bfloat16 tokens:

    torch     routing, sorting, torch's grouped GEMM over weights expanded to bfloat16 beforehand (3.6 times the
              memory), the gate, the grouped GEMM, combining
    triton    the package triton_kernels of the Triton project, where it is installed or for each folder that is named
    marlin    vLLM's Marlin layer, by the kernels of its _moe_C library, with the layer's NVFP4 weights
    humming   the package humming_kernels as vLLM calls it, with the layer's NVFP4 weights and with MXFP4 weights
    ours      hammerhead.Experts, one call
    … mxfp4   the same with MXFP4 weights, which are 6 % smaller and what triton and humming's fastest way multiply
    … fp8     with --fp8: tokens and intermediates in e4m3

Before anything is timed, results are held against that of torch: closely where weights and gate are the layer's own,
and loosely where the weights were rounded again, to MXFP4. Triton's are not compared. Each is then captured in a CUDA
graph of ten calls with other tokens and logits, and all take turns: the median time of a graph after a pause, per call,
by the device's clock from its first kernel on. What the host takes to launch the graph is not in it.
"""

import argparse
import json
import statistics
import time

import torch
import triton
from moe_peers import found, mxfp4

import hammerhead

# Experts, experts per token, the widths of the intermediate and of tokens, the gate, the routing.
MODELS = {
    "qwen3-30b-a3b": (128, 8, 768, 2048, "silu", "softmax-renorm"),
    "gpt-oss-120b": (128, 4, 2880, 2880, "gpt-oss", "topk-softmax"),
    "deepseek-v3": (256, 8, 2048, 7168, "silu", "softmax-renorm"),
}
DIFFERENT, TURNS, SAMPLES, REST = 2, 10, 7, 0.06
# Cycles for which the device is busy before the clock starts, some 0.3 ms: longer than the host takes to launch a graph.
BUSY = 500_000
# How far a result may be from torch's, relative to it. Rounding weights to MXFP4 again changes results by a fifth.
ALLOWED = {
    "ours": 0.02,
    "ours fp8": 0.1,
    "ours mxfp4": 0.4,
    "ours mxfp4 fp8": 0.4,
    "marlin": 0.02,
    "humming nvfp4": 0.02,
    "humming mxfp4": 0.4,
    "humming mxfp4 fp8": 0.4,
}
# What an H200 reads and multiplies per second.
BYTES, OPERATIONS = 4.3e12, 790e12


def floors(model, tokens):
    """Microseconds for the weights of the experts that so many tokens reach on average, and for the products."""
    experts, top, n, k, *_ = MODELS[model]
    reached = experts * (1 - (1 - top / experts) ** tokens)
    return reached * 3 * n * k * 9 / 16 / BYTES * 1e6, tokens * top * 6 * n * k / OPERATIONS * 1e6


class Layer:
    """Weights of a model's layer, ours and torch's: a few experts over and over. Gate and up share a global scale."""

    def __init__(self, model, fp8):
        self.experts, self.top, self.n, self.k, self.gate, self.routing = MODELS[model]
        torch.manual_seed(0)
        matrix = lambda n, k: hammerhead.quantize(torch.randn(n, k, device="cuda") / k**0.5)  # noqa: E731
        self.firsts = []
        for _ in range(DIFFERENT):
            both = matrix(2 * self.n, self.k)
            halves = zip(both.codes.split(self.n), both.scales.split(self.n))
            self.firsts.append(
                [*(hammerhead.NvFp4(*half, both.global_scale) for half in halves), matrix(self.k, self.n)]
            )
        self.which = torch.arange(self.experts, device="cuda") % DIFFERENT
        # A bias for every matrix, where the model has them.
        biased = self.gate == "gpt-oss"
        self.biases = [
            torch.randn(self.experts, width, device="cuda") / 8 if biased else None
            for width in (self.n, self.n, self.k)
        ]
        names = dict(zip(("b1_bias", "b2_bias", "down_bias"), (None if b is None else b.cpu() for b in self.biases)))
        parts = [[self.firsts[expert % DIFFERENT][part] for expert in range(self.experts)] for part in range(3)]
        names |= {"gate": self.gate, "routing": self.routing, "top_k": self.top, "backend": "cuda"}
        self.ways = {"ours": hammerhead.Experts.from_arrays(*parts, **names)}
        if fp8:
            self.ways["ours fp8"] = hammerhead.Experts.from_arrays(*parts, **names, precision="fp8")
        own = [[hammerhead.MxFp4(*mxfp4(matrix.dequantize())) for matrix in expert] for expert in self.firsts]
        parts = [[own[expert % DIFFERENT][part] for expert in range(self.experts)] for part in range(3)]
        self.ways["ours mxfp4"] = hammerhead.Experts.from_arrays(*parts, **names)
        if fp8:
            self.ways["ours mxfp4 fp8"] = hammerhead.Experts.from_arrays(*parts, **names, precision="fp8")
        # Expanded, as products take them: of the few, and of all experts.
        expanded = [[m.dequantize().to(torch.bfloat16) for m in expert] for expert in self.firsts]
        self.some_both = torch.stack([torch.cat(expert[:2]) for expert in expanded]).transpose(1, 2)
        self.some_down = torch.stack([expert[2] for expert in expanded]).transpose(1, 2)
        self.both, self.down = (some.mT[self.which].mT for some in (self.some_both, self.some_down))

    def by_torch(self, x, logits):
        """Routing, grouped GEMMs and combining, all on the device and without a wait."""
        if self.routing == "topk-softmax":
            chosen, ids = logits.topk(self.top)
            weights = chosen.softmax(-1)
        else:
            weights, ids = logits.softmax(-1).topk(self.top)
            weights = weights / weights.sum(-1, keepdim=True)
        order = ids.flatten().argsort(stable=True)
        owner = ids.flatten()[order]
        ends = torch.searchsorted(owner, torch.arange(self.experts, device=x.device), right=True).int()
        grouped = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
        both = grouped(x[order // self.top], self.both, offs=ends)
        g, u = both[:, : self.n], both[:, self.n :]
        if self.gate == "gpt-oss":
            g, u = (g + self.biases[0][owner]).clamp(max=7.0), (u + self.biases[1][owner]).clamp(-7.0, 7.0)
            inner = ((u + 1) * g * torch.sigmoid(1.702 * g)).to(torch.bfloat16)
        else:
            inner = torch.nn.functional.silu(g) * u
        out = grouped(inner, self.down, offs=ends).float()
        if self.gate == "gpt-oss":
            out = out + self.biases[2][owner]
        rows = torch.empty_like(out)
        rows[order] = out * weights.flatten()[order, None]
        return rows.view(len(x), self.top, self.k).sum(1).to(x.dtype)


def captured(call, inputs):
    """A graph of one call per input."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            call(*inputs[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [call(*turn) for turn in inputs]
    return graph, kept


def burst(graph):
    """Microseconds per call, after a pause."""
    time.sleep(REST)
    begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
    torch.cuda._sleep(BUSY)
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3 / TURNS


def measured(layer, peers, tokens):
    """Microseconds by name, and by name how far the results that were compared are from torch's."""
    inputs = []
    for _ in range(TURNS):
        x = torch.randn(tokens, layer.k, device="cuda", dtype=torch.bfloat16)
        inputs.append((x, torch.randn(tokens, layer.experts, device="cuda")))
    expected = layer.by_torch(*inputs[0]).double()
    ways = dict(layer.ways)
    for peer in peers:
        ways |= peer.ways(tokens, "ours fp8" in layer.ways)
    graphs, errors = {"torch": captured(layer.by_torch, inputs)}, {}
    for way, call in ways.items():
        try:
            result = call(*inputs[0]).double()
            if way in ALLOWED:
                errors[way] = float((result - expected).norm() / expected.norm())
                assert errors[way] < ALLOWED[way], f"its result and torch's differ by {errors[way]}"
            graphs[way] = captured(call, inputs)
        except Exception as problem:
            # Whatever a peer dies of is its result.
            if way.startswith("ours"):
                raise
            print(f"{way}, {tokens} tokens: {type(problem).__name__}: {str(problem)[:300]}")
    times = {way: [] for way in graphs}
    for _ in range(SAMPLES):
        for way, (graph, _) in graphs.items():
            times[way].append(burst(graph))
    return {way: statistics.median(samples) for way, samples in times.items()}, errors


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, action="append")
    parser.add_argument("--tokens", default="1,16,64,512,4096")
    parser.add_argument(
        "--triton", metavar="FOLDER", action="append", help="a folder that holds a package triton_kernels"
    )
    parser.add_argument(
        "--vllm", metavar="LIBRARY", help="vLLM's _moe_C_stable_libtorch.abi3.so, for marlin and humming"
    )
    parser.add_argument("--fp8", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()
    rows = []
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, µs per layer, bursts")
    for model in options.model or MODELS:
        layer = Layer(model, options.fp8)
        peers = found(layer, options.triton or [""], options.vllm)
        for tokens in map(int, options.tokens.split(",")):
            us, errors = measured(layer, peers, tokens)
            rows.append({"model": model, "tokens": tokens, "us": us, "errors": errors})
            weights, products = floors(model, tokens)
            best = min((way for way in us if not way.startswith("ours") and not way.endswith("fp8")), key=us.get)
            cells = " | ".join(f"{way} {value:.1f}" for way, value in us.items())
            ratio, share = us[best] / us["ours"], 100 * max(weights, products) / us["ours"]
            print(
                f"| {model} | {tokens} | {cells} | {best} ÷ ours {ratio:.2f} | floor ÷ ours {share:.0f} % |", flush=True
            )
            torch.cuda.empty_cache()
            if options.json:
                # After every row, so that a run that is cut short leaves what it has.
                versions = {
                    "torch": torch.__version__,
                    "triton": triton.__version__,
                    "device": torch.cuda.get_device_name(),
                }
                with open(options.json, "w") as file:
                    json.dump(versions | {"rows": rows}, file, indent=1)
        del layer, peers
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
