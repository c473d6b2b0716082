"""Whole layers of experts beside what one would use instead, on one NVIDIA GPU, in one run.

    python3 benchmarks/h200/peers_moe.py [--model deepseek-v3] [--tokens 1,16,64,512,4096] [--triton FOLDER]... [--fp8] [--json peers_moe.json]

Needs this package and PyTorch with CUDA. From the router's logits to the combined result, bfloat16 tokens:

    torch     routing, sorting, torch's grouped GEMM over weights expanded to bfloat16 beforehand (3.6 times the memory), the gate, the grouped GEMM, combining
    triton    the package triton_kernels of the Triton project, where it is installed or for each folder that is named (of tag v3.5.1, v3.7.1): MXFP4 weights,
              its own routing and its fused SwiGLU
    ours      hammerhead.Experts, one call
    … fp8     with --fp8: ours with precision="fp8", triton's with tokens and intermediates that are merely cast to e4m3

Before anything is timed, our result is held against that of torch. Each is then captured in a CUDA graph of ten calls
with other tokens and logits, and the three take turns: the median time of a graph after a pause, per call.
triton_kernels computes MXFP4 and the gate of gpt-oss whatever the model, so its results are not compared.
"""

import argparse
import dataclasses
import json
import pathlib
import statistics
import sys
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

    def __init__(self, model, fp8):
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
        names |= {"gate": self.gate, "routing": self.routing, "top_k": self.top, "backend": "cuda"}
        self.ours = hammerhead.Experts.from_arrays(*parts, **names)
        self.fp8 = hammerhead.Experts.from_arrays(*parts, **names, precision="fp8") if fp8 else None
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
    """The same sizes by the triton_kernels of a folder, with random weights, and with tokens in bf16 or FP8."""

    def __init__(self, layer, tokens, folder):
        # One process holds several versions of the package: each is imported afresh, and keeps what it has imported.
        for name in [name for name in sys.modules if name.split(".")[0] == "triton_kernels"]:
            del sys.modules[name]
        if folder:
            sys.path.insert(0, folder)
        from triton_kernels import swiglu
        from triton_kernels.numerics import InFlexData
        from triton_kernels.numerics_details.mxfp import downcast_to_mxfp
        from triton_kernels.tensor import FP4, convert_layout, wrap_torch_tensor
        from triton_kernels.tensor_details import layout

        try:
            from triton_kernels import matmul as products
        except ImportError:
            from triton_kernels import matmul_ogs as products
        newer = hasattr(products, "matmul")
        warps = 4 if tokens <= 512 else 8
        values, value_options = layout.make_default_matmul_mxfp4_w_layout(mx_axis=1)
        scales, scale_options = layout.make_default_matmul_mxfp4_w_scale_layout(mx_axis=1, num_warps=warps)

        def packed(matrix):
            codes, blocks = downcast_to_mxfp(matrix, torch.uint8, axis=1)
            weights = convert_layout(wrap_torch_tensor(codes, dtype=FP4), values, **value_options)
            blocks = convert_layout(wrap_torch_tensor(blocks), scales, **scale_options)
            flex = products.FlexCtx(rhs_data=InFlexData())
            config = {"b_mx_scale" if newer else "weight_scale": blocks, "out_dtype": torch.bfloat16}
            return weights, products.PrecisionConfig(flex_ctx=flex, **config)

        (both, of_both), (down, of_down) = packed(layer.both.contiguous()), packed(layer.down.contiguous())
        of_both_fp8 = dataclasses.replace(of_both, out_dtype=torch.float8_e4m3fn)
        biases = [torch.zeros(layer.experts, width, device="cuda") for width in (2 * layer.n, layer.k)]
        gate = products.FusedActivation(products.FnSpecs("swiglu", swiglu.swiglu_fn, ("alpha", "limit"), reduction_n=2), (1.702, 7.0)) \
            if newer else products.FusedActivation(products.FnSpecs("swiglu", swiglu.swiglu_fn, ("alpha", "limit")), (1.702, 7.0), 2)

        if newer:
            from triton_kernels.reduce import reduce
            from triton_kernels.tensor import make_ragged_tensor_metadata
            from triton_kernels.topk import topk

            def run(x, logits, of_both=of_both):
                routed = topk(logits.to(torch.bfloat16), layer.top, apply_softmax=True)
                order = routed.mask_metadata.col_sorted_indx
                ragged = make_ragged_tensor_metadata(routed.mask_metadata.col_sum, len(order))
                inner = products.matmul(x, both, biases[0], ragged, gather_indx=order // layer.top, precision_config=of_both, fused_activation=gate)
                weights = routed.vals.flatten()[order]
                out = products.matmul(inner, down, biases[1], ragged, scatter_indx=order, precision_config=of_down, gammas=weights)
                return reduce(out.view(len(x), layer.top, layer.k), dim=1)[0]
        else:
            from triton_kernels.routing import routing

            def run(x, logits, of_both=of_both):
                routed, gather, scatter = routing(logits.to(torch.bfloat16), layer.top)
                inner = products.matmul_ogs(x, both, biases[0], routed, gather_indx=gather, precision_config=of_both, fused_activation=gate)
                return products.matmul_ogs(inner, down, biases[1], routed, scatter_indx=scatter, precision_config=of_down, gammas=routed.gate_scal)

        self.run = run
        self.fp8 = lambda x, logits: run(x.to(torch.float8_e4m3fn), logits, of_both_fp8)


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


def measured(layer, tokens, folders):
    inputs = []
    for _ in range(TURNS):
        x = torch.randn(tokens, layer.k, device="cuda", dtype=torch.bfloat16)
        inputs.append((x, torch.randn(tokens, layer.experts, device="cuda")))
    expected = layer.by_torch(*inputs[0]).double()
    ways = {"torch": layer.by_torch, "ours": layer.ours} | ({"ours fp8": layer.fp8} if layer.fp8 else {})
    for way, allowed in (("ours", 0.02), ("ours fp8", 0.1)):
        if way in ways:
            error = float((ways[way](*inputs[0]).double() - expected).norm() / expected.norm())
            assert error < allowed, f"{way} and torch's differ by {error}"
    for folder in folders:
        name = f"triton {pathlib.Path(folder).name}".strip()
        try:
            peer = Triton(layer, tokens, folder)
            for way, call in ((name, peer.run), *(((f"{name} fp8", peer.fp8),) if layer.fp8 else ())):
                call(*inputs[0])
                ways[way] = call
        except Exception as problem:  # noqa: BLE001  (whatever a peer dies of is its result)
            print(f"{name}: {type(problem).__name__}: {str(problem)[:300]}")
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
    parser.add_argument("--triton", metavar="FOLDER", action="append", help="a folder that holds a package triton_kernels")
    parser.add_argument("--fp8", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()
    rows = []
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, µs per layer, bursts")
    for model in options.model or MODELS:
        layer = Layer(model, options.fp8)
        for tokens in map(int, options.tokens.split(",")):
            us = measured(layer, tokens, options.triton or [""])
            rows.append({"model": model, "tokens": tokens, **us})
            weights, products = floors(model, tokens)
            exact = {way: value for way, value in us.items() if not way.endswith("fp8")}
            best = min(value for way, value in exact.items() if way != "ours") / us["ours"]
            if len(rows) == 1:
                print(f"| model | T | {' | '.join(us)} | best peer ÷ ours | weights | floor ÷ ours |\n|{'---|' * (len(us) + 5)}")
            cells = " | ".join(f"{value:.1f}" for value in us.values())
            print(f"| {model} | {tokens} | {cells} | {best:.2f} | {weights:.1f} µs | {100 * max(weights, products) / us['ours']:.0f} % |", flush=True)
            torch.cuda.empty_cache()
        del layer
        torch.cuda.empty_cache()
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"torch": torch.__version__, "device": torch.cuda.get_device_name(), "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
