"""FP8 linear layers with their weights kept 8-bit, beside torch's bf16 product with the same weights expanded.

    python benchmarks/h200/fp8_linear.py RESULT.json [--tokens 1,16,64,512] [--shapes 4096x4096,7168x2048]

Shapes are columns of C by K. First every kind of scales is compared with float64 on the GPU, also from a graph that is
launched again with other tokens. Then each is timed in CUDA graphs over as many layers in turn as no cache holds, each
graph twice.
"""

import argparse
import json
import statistics
import sys

import torch

import hammerhead

HELD = 160 << 20
"""Bytes of 8-bit weights that take turns: more than twice an H200's L2."""


def weights(kind, n, k):
    """Bytes, scales as a layer takes them, options, and the weight in float64."""
    codes = torch.randint(0, 256, (n, k), dtype=torch.uint8, device="cuda")
    codes = torch.where(codes & 0x7F == 0x7F, torch.zeros_like(codes), codes).view(torch.float8_e4m3fn)
    numbers = codes.float().double()
    if kind == "matrix":
        return codes, 0.0123, {}, numbers * float(torch.tensor(0.0123, dtype=torch.float32))
    if kind == "rows":
        scales = torch.rand(n, device="cuda") * 0.02 + 1e-3
        return codes, scales, {}, numbers * scales.double()[:, None]
    if kind == "blocks":
        scales = torch.rand(-(-n // 128), -(-k // 128), device="cuda") * 0.02 + 1e-3
        wide = scales.double().repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k]
        return codes, scales, {"block": (128, 128)}, numbers * wide
    scales = torch.randint(110, 130, (n, k // 32), dtype=torch.uint8, device="cuda")
    return codes, scales, {}, numbers * torch.exp2(scales.double() - 127).repeat_interleave(32, 1)


KINDS = ("matrix", "rows", "blocks", "mx")


def layer_of(kind, n, k):
    codes, scales, options, exact = weights(kind, n, k)
    return hammerhead.Fp8Linear.from_arrays(codes, scales, **options), exact


def graph_of(calls):
    """A graph of some calls, each made once before."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for call in calls:
            call()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        for call in calls:
            call()
    return graph


def off(found, expected):
    """How far results are off, of their largest."""
    return ((found.double() - expected).abs().max() / expected.abs().max()).item()


def check():
    worst = {}
    for kind in KINDS:
        for dtype, limit in ((torch.float32, 1e-5), (torch.bfloat16, 4.1e-3), (torch.float16, 6e-4)):
            # The cases of results in f16 would overflow with numbers of 448.
            n, k, tokens = 1000, 1536, 37
            layer, exact = layer_of(kind, n, k)
            x = (torch.randn(tokens, k, device="cuda") * 1e-3).to(dtype)
            out = torch.full((tokens, n), torch.nan, dtype=dtype, device="cuda")
            layer(x, out=out)
            found = [off(out, x.double() @ exact.T)]
            graph = graph_of([lambda: layer(x, out=out)])  # noqa: B023
            x.copy_(torch.randn(tokens, k, device="cuda") * 1e-3)
            out.fill_(torch.nan)
            graph.replay()
            found.append(off(out, x.double() @ exact.T))
            name = f"{kind}, {dtype}"
            worst[name] = max(found)
            assert worst[name] < limit, f"{name}: {worst[name]} of the largest, where {limit} is allowed"
    return worst


def seconds(graph, calls):
    """The median of some launches, per call, in µs."""
    times = []
    for _ in range(3):
        graph.replay()
    for _ in range(15):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / calls)
    return statistics.median(times)


def timed(n, k, counts):
    turns = max(2, -(-HELD // (n * k)))
    rows = []
    expanded = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) for _ in range(turns)]
    layers = {kind: [layer_of(kind, n, k)[0] for _ in range(turns)] for kind in ("rows", "blocks", "mx")}
    for tokens in counts:
        x = torch.randn(tokens, k, device="cuda", dtype=torch.bfloat16)
        out = torch.empty(tokens, n, device="cuda", dtype=torch.bfloat16)
        graphs = {"torch": graph_of([lambda w=w: torch.matmul(x, w.T, out=out) for w in expanded])}  # noqa: B023
        for kind, each in layers.items():
            graphs[kind] = graph_of([lambda layer=layer: layer(x, out=out) for layer in each])  # noqa: B023
        found = {name: [seconds(graph, turns) for _ in range(2)] for name, graph in graphs.items()}
        rows.append({"n": n, "k": k, "tokens": tokens, "microseconds": found})
        print(rows[-1], flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("result")
    parser.add_argument("--tokens", default="1,16,64,512")
    parser.add_argument("--shapes", default="4096x4096,7168x2048")
    asked = parser.parse_args()
    torch.manual_seed(1)
    counts = [int(count) for count in asked.tokens.split(",")]
    report = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "off": check(), "times": []}
    print(report["off"], flush=True)
    for shape in asked.shapes.split(","):
        n, k = (int(side) for side in shape.split("x"))
        report["times"] += timed(n, k, counts)
    with open(asked.result, "w") as file:
        json.dump(report, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
