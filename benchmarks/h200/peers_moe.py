"""Whole layers of experts beside what one would use instead, on one NVIDIA GPU, in one run.

    python3 benchmarks/h200/peers_moe.py [--model deepseek-v3] [--tokens 1,16,64,512,4096] [--json peers_moe.json]

Needs this package and PyTorch with CUDA. From the router's logits to the combined result, bfloat16 tokens:

    torch     routing, sorting, torch's grouped GEMM over weights expanded to bfloat16 beforehand (3.6 times the memory), the gate, the grouped GEMM, combining
    triton    the package triton_kernels of the Triton project (tag v3.5.1), where it is installed: MXFP4 weights, its own routing and its fused SwiGLU
    ours      hammerhead.Experts, one call

Before anything is timed, our result is held against that of torch. Each is then captured in a CUDA graph of ten calls
with other tokens and logits, and the three take turns: the median time of a graph after a pause, per call.
triton_kernels computes MXFP4 and the gate of gpt-oss whatever the model, so its results are not compared.
"""

import argparse
import json
import statistics
import time

import torch

import hammerhead

# Experts, experts per token, the widths of the intermediate and of tokens, the gate, the routing.
MODELS = {
    "qwen3-30b-a3b": (128, 8, 768, 2048, "silu", "softmax-renorm"),
    "gpt-oss-120b": (128, 4, 2880, 2880, "gpt-oss", "topk-softmax"),
    "deepseek-v3": (256, 8, 2048, 7168, "silu", "softmax-renorm"),
}
DIFFERENT, TURNS, SAMPLES, REST = 2, 10, 11, 0.1
# What an H200 reads and multiplies per second.
BYTES, OPERATIONS = 4.3e12, 790e12


def floors(model, tokens):
    """Microseconds for the weights of the experts that so many tokens reach on average, and for the products."""
    experts, top, n, k, *_ = MODELS[model]
    reached = experts * (1 - (1 - top / experts) ** tokens)
    return reached * 3 * n * k * 9 / 16 / BYTES * 1e6, tokens * top * 6 * n * k / OPERATIONS * 1e6


class Layer:
    """Weights of a model's layer in all three forms: a few experts that differ, over and over."""

    def __init__(self, model):
        self.experts, self.top, self.n, self.k, self.gate, self.routing = MODELS[model]
        torch.manual_seed(0)
        matrix = lambda n, k: hammerhead.quantize(torch.randn(n, k, device="cuda") / k**0.5)  # noqa: E731
        firsts = [[matrix(self.n, self.k), matrix(self.n, self.k), matrix(self.k, self.n)] for _ in range(DIFFERENT)]
        own = [firsts[expert % DIFFERENT] for expert in range(self.experts)]
        # A bias for every matrix, where the model has them.
        biased = self.gate == "gpt-oss"
        self.biases = [torch.randn(self.experts, width, device="cuda") / 8 if biased else None for width in (self.n, self.n, self.k)]
        names = dict(zip(("b1_bias", "b2_bias", "down_bias"), (None if b is None else b.cpu() for b in self.biases)))
        parts = [[expert[part] for expert in own] for part in range(3)]
        self.ours = hammerhead.Experts.from_arrays(*parts, **names, gate=self.gate, routing=self.routing, top_k=self.top, backend="cuda")
        expanded = [[m.dequantize().to(torch.bfloat16).cuda() for m in expert] for expert in firsts]
        each = [expanded[expert % DIFFERENT] for expert in range(self.experts)]
        self.both = torch.stack([torch.cat(expert[:2]) for expert in each]).transpose(1, 2)
        self.down = torch.stack([expert[2] for expert in each]).transpose(1, 2)

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


class Triton:
    """The same sizes by triton_kernels, with random weights."""

    def __init__(self, layer, tokens):
        from triton_kernels import swiglu
        from triton_kernels.matmul_ogs import FlexCtx, FnSpecs, FusedActivation, PrecisionConfig, matmul_ogs
        from triton_kernels.numerics import InFlexData
        from triton_kernels.numerics_details.mxfp import downcast_to_mxfp
        from triton_kernels.routing import routing
        from triton_kernels.tensor import FP4, convert_layout, wrap_torch_tensor
        from triton_kernels.tensor_details import layout

        warps = 4 if tokens <= 512 else 8
        values, value_options = layout.make_default_matmul_mxfp4_w_layout(mx_axis=1)
        scales, scale_options = layout.make_default_matmul_mxfp4_w_scale_layout(mx_axis=1, num_warps=warps)

        def packed(matrix):
            codes, blocks = downcast_to_mxfp(matrix, torch.uint8, axis=1)
            weights = convert_layout(wrap_torch_tensor(codes, dtype=FP4), values, **value_options)
            blocks = convert_layout(wrap_torch_tensor(blocks), scales, **scale_options)
            return weights, PrecisionConfig(flex_ctx=FlexCtx(rhs_data=InFlexData()), weight_scale=blocks)

        (both, of_both), (down, of_down) = packed(layer.both.contiguous()), packed(layer.down.contiguous())
        biases = [torch.zeros(layer.experts, width, device="cuda") for width in (2 * layer.n, layer.k)]
        gate = FusedActivation(FnSpecs("swiglu", swiglu.swiglu_fn, ("alpha", "limit")), (1.702, 7.0), 2)

        def run(x, logits):
            routed, gather, scatter = routing(logits.to(torch.bfloat16), layer.top)
            inner = matmul_ogs(x, both, biases[0], routed, gather_indx=gather, precision_config=of_both, fused_activation=gate)
            return matmul_ogs(inner, down, biases[1], routed, scatter_indx=scatter, precision_config=of_down, gammas=routed.gate_scal)

        self.run = run


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
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3 / TURNS


def measured(layer, tokens):
    inputs = []
    for _ in range(TURNS):
        x = torch.randn(tokens, layer.k, device="cuda", dtype=torch.bfloat16)
        inputs.append((x, torch.randn(tokens, layer.experts, device="cuda")))
    ours, theirs = (call(*inputs[0]).double() for call in (layer.ours, layer.by_torch))
    error = float((ours - theirs).norm() / theirs.norm())
    assert error < 0.02, f"ours and torch's differ by {error}"
    ways = {"torch": layer.by_torch, "ours": layer.ours}
    try:
        ways["triton"] = Triton(layer, tokens).run
        ways["triton"](*inputs[0])
    except Exception as problem:  # noqa: BLE001  (whatever a peer dies of is its result)
        ways.pop("triton", None)
        print(f"triton_kernels: {type(problem).__name__}: {str(problem)[:200]}")
    graphs = {way: captured(call, inputs) for way, call in ways.items()}
    times = {way: [] for way in graphs}
    for _ in range(SAMPLES):
        for way, (graph, _) in graphs.items():
            times[way].append(burst(graph))
    return {way: statistics.median(samples) for way, samples in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, action="append")
    parser.add_argument("--tokens", default="1,16,64,512,4096")
    parser.add_argument("--json")
    options = parser.parse_args()
    rows = []
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, µs per layer, bursts")
    print("| model | T | torch | triton | ours | best peer ÷ ours | weights | floor ÷ ours |\n|---|---|---|---|---|---|---|---|")
    for model in options.model or MODELS:
        layer = Layer(model)
        for tokens in map(int, options.tokens.split(",")):
            us = measured(layer, tokens)
            rows.append({"model": model, "tokens": tokens, **us})
            best = min(value for way, value in us.items() if way != "ours")
            triton = f"{us['triton']:.1f}" if "triton" in us else ""
            weights, products = floors(model, tokens)
            of_floor = f"{weights:.1f} µs | {100 * max(weights, products) / us['ours']:.0f} %"
            print(f"| {model} | {tokens} | {us['torch']:.0f} | {triton} | **{us['ours']:.1f}** | {best / us['ours']:.2f} | {of_floor} |", flush=True)
            torch.cuda.empty_cache()
        del layer
        torch.cuda.empty_cache()
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"torch": torch.__version__, "device": torch.cuda.get_device_name(), "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
