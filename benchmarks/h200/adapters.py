"""What low-rank adapters cost beside a packed layer of experts: layers of Qwen3-30B and DeepSeek-V3, bf16 adapters of
every expert.

    python benchmarks/h200/adapters.py RESULT.json [--ranks 16,64] [--tokens 1,8,64,512]

First, adapters are compared with merged weights in float64 on the GPU: single precision to 1e-5, 16 bits to what rounding
the intermediate takes. One and two tokens, which take launches of their own, are compared with larger pairs of matrices,
too, and however their experts are found. Then layers are timed in CUDA graphs, without adapters and with, each of twelve routings in turn
so that no cache holds the next one's experts. Of the tokens, three in four have one of two adapters, and none of them in one more
graph.
"""

import argparse
import json
import statistics
import sys

import torch

import hammerhead

MODELS = {"qwen3-30b": (128, 2048, 768), "deepseek-v3": (256, 7168, 2048)}
TOP, TURNS = 8, 12


def matrix(n, k):
    codes = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8)
    scales = torch.randint(0x30, 0x40, (n, k // 16), dtype=torch.uint8)
    return hammerhead.NvFp4(codes, scales, 0.5 / k**0.5)


def layer_of(experts, hidden, inner, **options):
    pool = [(matrix(inner, hidden), matrix(inner, hidden), matrix(hidden, inner)) for _ in range(4)]
    chosen = [pool[expert % 4] for expert in range(experts)]
    columns = [list(column) for column in zip(*chosen)]
    return hammerhead.Experts.from_arrays(*columns, backend="cuda", **options), pool


def adapters_of(experts, hidden, inner, rank, dtype=torch.bfloat16):
    def pair(n, k):
        a = (torch.randn(rank, k) / k**0.5).to(dtype)
        return hammerhead.LowRank(a, (torch.randn(n, rank) / 2).to(dtype))

    def adapter():
        pool = [(pair(inner, hidden), pair(inner, hidden), pair(hidden, inner)) for _ in range(4)]
        return hammerhead.Adapter(2.0, [pool[expert % 4] for expert in range(experts)])

    return [adapter() for _ in range(2)]


def merged(pool, adapters, x, ids, weights, which):
    """The layer with adapters folded into its weights, in float64, an expert after another."""
    out = torch.zeros(x.shape, dtype=torch.float64, device="cuda")
    dense = [[part.dequantize().cuda().double() for part in parts] for parts in pool]
    for token, (row, numbers, factors) in enumerate(zip(x.double(), ids.tolist(), weights.double())):
        for expert, factor in zip(numbers, factors):
            full = list(dense[expert % 4])
            if which[token] >= 0:
                adapter = adapters[which[token]]
                for place, pair in enumerate(adapter.experts[expert]):
                    full[place] = full[place] + adapter.scaling * pair.b.cuda().double() @ pair.a.cuda().double()
            gate, up, down = full
            h = torch.nn.functional.silu(gate @ row) * (up @ row)
            out[token] += factor * (down @ h)
    return out


def routing(experts, tokens):
    ids = torch.stack([torch.randperm(experts, device="cuda")[:TOP] for _ in range(tokens)]).int()
    weights = torch.softmax(torch.randn(tokens, TOP, device="cuda"), -1)
    which = torch.randint(0, 4, (tokens,), device="cuda", dtype=torch.int32) % 3
    return ids, weights, torch.where(torch.rand(tokens, device="cuda") < 0.25, -1, which % 2).int()


def check():
    """Whether adapters beside the weights are adapters in the weights."""
    worst = {}
    for name, options, dtype, limit in (
        ("single precision", {"intermediate": "f32"}, torch.float32, 1e-5),
        ("bfloat16", {}, torch.bfloat16, 5e-3),
    ):
        for rank in (3, 16, 64):
            layer, pool = layer_of(32, 512, 256, **options)
            arrays = adapters_of(32, 512, 256, rank, torch.float32 if rank == 3 else torch.bfloat16)
            adapters = layer.adapters(arrays)
            for tokens in (1, 5, 70, 150):
                x = torch.randn(tokens, 512, device="cuda", dtype=dtype)
                ids, weights, which = routing(32, tokens)
                found = layer(x, ids, weights, adapters=adapters, adapter_ids=which, dtype=torch.float32)
                expected = merged(pool, arrays, x, ids, weights, which.tolist())
                error = ((found.double() - expected).norm() / expected.norm()).item()
                worst[name] = max(worst.get(name, 0.0), error)
                if not error < limit:
                    sys.exit(f"{name}, rank {rank}, {tokens} tokens: {error} is off by more than {limit}")
                without = layer(x, ids, weights, dtype=torch.float32)
                nobody = layer(x, ids, weights, adapters=adapters, adapter_ids=torch.full_like(which, -1), dtype=torch.float32)
                if ((without - nobody).double().norm() / without.double().norm()).item() > limit:
                    sys.exit(f"{name}, rank {rank}, {tokens} tokens: -1 is not no adapter")
    worst["few tokens"] = check_few()
    print("adapters against merged weights in float64:", {name: f"{error:.2e}" for name, error in worst.items()}, flush=True)
    return worst


def check_few():
    """The same of one and two tokens with larger pairs of matrices: by ids of both widths and by logits. Of a token
    without an adapter, and of a second call, the bits are the same."""
    worst, experts, hidden, inner = 0.0, 32, 4096, 512
    layer, pool = layer_of(experts, hidden, inner, routing="softmax-renorm", top_k=TOP)
    for dtype in (torch.float16, torch.bfloat16):
        for rank in (8, 16, 64):
            # Of one rank the adapters' type is another one than the tokens'.
            arrays = adapters_of(experts, hidden, inner, rank, torch.float32 if rank == 8 else dtype)
            adapters = layer.adapters(arrays)
            for tokens, which in ((1, [1]), (2, [0, 1]), (2, [-1, 0])):
                x = torch.randn(tokens, hidden, device="cuda", dtype=dtype)
                logits = torch.randn(tokens, experts, device="cuda")
                chosen, ids = logits.topk(TOP, -1)
                weights = torch.softmax(chosen, -1)
                expected = merged(pool, arrays, x, ids, weights, which)
                adapter_ids = torch.tensor(which, device="cuda", dtype=torch.int32)
                for how, routed in (("int32", (ids.int(), weights)), ("int64", (ids, weights)), ("logits", (logits,))):
                    def call(numbers):
                        return layer(x, *routed, adapters=adapters, adapter_ids=numbers, dtype=torch.float32)

                    found = call(adapter_ids)
                    error = ((found.double() - expected).norm() / expected.norm()).item()
                    worst = max(worst, error)
                    what = f"{tokens} tokens of {dtype}, rank {rank}, adapters {which}, by {how}"
                    if not error < 5e-3:
                        sys.exit(f"{what}: {error} is off by more than 5e-3")
                    if not torch.equal(found, call(adapter_ids)):
                        sys.exit(f"{what}: a second call has other bits")
                    if not torch.equal(layer(x, *routed, dtype=torch.float32), call(torch.full_like(adapter_ids, -1))):
                        sys.exit(f"{what}: -1 has other bits than no adapter")
    return worst


def graph_of(calls):
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def microseconds(graph, calls):
    times = []
    for _ in range(15):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1000 / calls)
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result")
    parser.add_argument("--ranks", default="16,64")
    parser.add_argument("--tokens", default="1,8,64,512")
    options = parser.parse_args()
    torch.manual_seed(1)
    record = {"device": torch.cuda.get_device_name(), "merged": check(), "rows": []}
    for name, (experts, hidden, inner) in MODELS.items():
        layer, _ = layer_of(experts, hidden, inner)
        made = {int(rank): layer.adapters(adapters_of(experts, hidden, inner, int(rank))) for rank in options.ranks.split(",")}
        for tokens in map(int, options.tokens.split(",")):
            turns = [(torch.randn(tokens, hidden, device="cuda").bfloat16(), *routing(experts, tokens)) for _ in range(TURNS)]
            rooms = [torch.empty_like(x) for x, *_ in turns]
            plain = graph_of([lambda t=t, o=o: layer(*t[:3], out=o) for t, o in zip(turns, rooms)])
            graphs = {
                rank: graph_of([lambda t=t, o=o, a=a: layer(*t[:3], adapters=a, adapter_ids=t[3], out=o) for t, o in zip(turns, rooms)])
                for rank, a in made.items()
            }
            row = {"model": name, "tokens": tokens, "plain": microseconds(plain, TURNS)}
            for rank, graph in graphs.items():
                row[f"rank {rank}"] = microseconds(graph, TURNS)
            none = [torch.full_like(t[3], -1) for t in turns]
            first = next(iter(made.values()))
            nobody = graph_of([lambda t=t, o=o, n=n: layer(*t[:3], adapters=first, adapter_ids=n, out=o) for t, o, n in zip(turns, rooms, none)])
            row["nobody"] = microseconds(nobody, TURNS)
            row["plain again"] = microseconds(plain, TURNS)
            record["rows"].append(row)
            print(" | ".join(f"{key} {value if isinstance(value, (str, int)) else round(value, 1)}" for key, value in row.items()), flush=True)
            with open(options.result, "w") as file:
                json.dump(record, file, indent=1)


if __name__ == "__main__":
    main()
