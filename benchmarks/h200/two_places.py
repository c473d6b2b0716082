"""Layers of experts that lie in two places, a GPU's memory and the host's, beside ggml's matrices of experts on the
same host.

    python benchmarks/h200/two_places.py RESULT.json [--ggml FOLDER] [--percent 0,25,50,75,100] [--tokens 1,8,64,512]
    [--models qwen3-30b,qwen3-235b,deepseek-v3]

First, small layers are compared with float64 wherever their experts lie. Then layers are timed with parts of their
experts on the GPU: twelve routings in turn (three with many tokens), events on the stream, and a program that sleeps
while it waits, since one that spins takes a core from the host's experts. Each is timed twice: with the processor
computing experts that are not on the GPU, and with their weights brought over (`stream=1`), whose results must be those
of a layer with all experts on the GPU to the bit, and near those of the processor's.

llama.cpp leaves whole layers' experts to the host (`--cpu-moe`, `--n-cpu-moe`), so of a model with a part p of its
experts on the GPU it computes a part 1 - p of the layers there. Where `--ggml` names a folder with ggml's shared
libraries (as for benchmarks/beside.py), no more is timed than `ggml_mul_mat_id` of gate, up and down with all experts
on the host, NVFP4 in ggml's plain layout: no gate, no copies, no wait for the GPU, and nothing for the layers that the
GPU has. 1 - p times that is less than llama.cpp can take per layer at equal residency.
"""

import argparse
import ctypes
import json
import random
import statistics
import sys
import time
from pathlib import Path

import torch

import hammerhead
from adapters import TOP, matrix, merged, routing

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from beside import GGML_TYPES, Ggml  # noqa: E402

MODELS = {"qwen3-30b": (128, 2048, 768), "qwen3-235b": (128, 4096, 1536), "deepseek-v3": (256, 7168, 2048)}


def layer_of(pool, experts, percent, *, stream=False, **options):
    """A layer of which the GPU holds so much."""
    columns = [list(column) for column in zip(*(pool[expert % len(pool)] for expert in range(experts)))]
    hidden, packed = (int(side) for side in pool[0][2].codes.shape)
    each = 3 * hidden * 2 * packed * 9 // 16 + 24
    places = {} if percent == 100 else {"gpu_bytes": experts * percent // 100 * each + each // 2, "stream": stream}
    return hammerhead.Experts.from_arrays(*columns, backend="cuda", **places, **options)


def pool_of(count, hidden, inner):
    return [(matrix(inner, hidden), matrix(inner, hidden), matrix(hidden, inner)) for _ in range(count)]


def check():
    """Whether layers are right wherever their experts lie, and the same twice."""
    pool, worst = pool_of(4, 512, 256), 0.0
    for percent in (0, 25, 50, 100):
        for stream in (False, 1):
            layer = layer_of(pool, 32, percent, intermediate="f32", stream=stream)
            for tokens in (1, 7, 40):
                x, (ids, weights, _) = torch.randn(tokens, 512, device="cuda"), routing(32, tokens)
                found, again = layer(x, ids, weights), layer(x, ids, weights)
                expected = merged(pool, [], x, ids, weights, [-1] * tokens)
                error = ((found.double() - expected).norm() / expected.norm()).item()
                worst = max(worst, error)
                if not error < 1e-5 or not torch.equal(found, again):
                    sys.exit(f"{percent} %, {tokens} tokens: {error} is off by more than 1e-5, or the second call differs")
    print(f"layers in two places against float64: {worst:.2e}", flush=True)
    return worst


def check_brought(pool, experts, percent, tokens):
    """Whether weights that are brought over give the bits of a layer on the GPU, and nearly those of the processor."""
    x, (ids, weights, _) = torch.randn(tokens, pool[0][2].codes.shape[0], device="cuda").bfloat16(), routing(experts, tokens)
    whole, brought, divided = (layer_of(pool, experts, part, stream=stream)(x, ids, weights) for part, stream in ((100, False), (percent, 1), (percent, False)))
    difference = ((brought.double() - divided.double()).norm() / divided.double().norm()).item()
    if not torch.equal(whole, brought) or not difference < 1e-2:
        sys.exit(f"{percent} %, {tokens} tokens: weights that were brought over give other results; {difference} from the processor's")
    return difference


def seconds_of(layer, experts, hidden, tokens):
    """The median of calls with other experts each."""
    turns = 12 if tokens <= 64 else 3
    calls = [(torch.randn(tokens, hidden, device="cuda").bfloat16(), *routing(experts, tokens)[:2]) for _ in range(turns)]
    rooms = [torch.empty_like(x) for x, *_ in calls]

    def once():
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for (x, ids, weights), room in zip(calls, rooms):
            layer(x, ids, weights, out=room)
        end.record()
        while not end.query():
            time.sleep(50e-6)
        return start.elapsed_time(end) / 1000 / turns

    once()
    return statistics.median(once() for _ in range(5 if tokens <= 64 else 3))


class OnHost(Ggml):
    """Gate, up and down of all experts in ggml."""

    def __init__(self, folder, threads, experts, hidden, inner):
        super().__init__(folder, "amx", threads)
        for name in ("ggml_new_tensor_3d", "ggml_mul_mat_id"):
            getattr(self.base, name).restype = ctypes.c_void_p
        self.experts, self.hidden, self.inner = experts, hidden, inner
        self.context = self.base.ggml_init(self.Parameters(3 * experts * hidden * inner * 5 // 8 + (1 << 26), None, False))
        self.matrices = [self.stacked(k, n) for k, n in ((hidden, inner), (hidden, inner), (inner, hidden))]

    def three(self, context, kind, *sides):
        return self.base.ggml_new_tensor_3d(ctypes.c_void_p(context), kind, *map(ctypes.c_int64, sides))

    def stacked(self, k, n):
        """One row's numbers, and copies of them for the others."""
        kind = GGML_TYPES["ggml nvfp4"]
        tensor = self.three(self.context, kind, k, n, self.experts)
        values = (ctypes.c_float * k)(*(random.uniform(-1, 1) for _ in range(k)))
        start, bytes_of_all = self.data(tensor), self.base.ggml_nbytes(ctypes.c_void_p(tensor))
        rows = (ctypes.c_int64(0), ctypes.c_int64(1), ctypes.c_int64(k))
        self.base.ggml_quantize_chunk(kind, values, ctypes.c_void_p(start), *rows, None)
        done = bytes_of_all // (n * self.experts)
        while done < bytes_of_all:
            more = min(done, bytes_of_all - done)
            ctypes.memmove(start + done, start, more)
            done += more
        return tensor

    def seconds(self, tokens):
        """The median of calls with other experts each."""
        return statistics.median(self.call(tokens, seed) for seed in range(12 if tokens <= 8 else 3 if tokens <= 64 else 2))

    def call(self, tokens, seed):
        """Multiplies tokens with their experts' matrices; the first time once before, for its threads to start."""
        numbers = random.Random(seed)
        chosen = [expert for _ in range(tokens) for expert in numbers.sample(range(self.experts), TOP)]
        floats = tokens * (self.hidden + 3 * TOP * self.inner + TOP * self.hidden)
        context = self.base.ggml_init(self.Parameters(16 * floats + (64 << 20), None, False))
        ids = self.tensor(context, 26, TOP, tokens)
        ctypes.memmove(self.data(ids), (ctypes.c_int32 * len(chosen))(*chosen), 4 * len(chosen))
        x, h = self.three(context, 0, self.hidden, 1, tokens), self.three(context, 0, self.inner, TOP, tokens)
        for tensor in (x, h):
            ctypes.memset(self.data(tensor), 0x3D, self.base.ggml_nbytes(ctypes.c_void_p(tensor)))
        graph = self.base.ggml_new_graph(ctypes.c_void_p(context))
        for weights, rows in zip(self.matrices, (x, x, h)):
            product = self.base.ggml_mul_mat_id(*map(ctypes.c_void_p, (context, weights, rows, ids)))
            self.base.ggml_build_forward_expand(ctypes.c_void_p(graph), ctypes.c_void_p(product))
        for _ in range(2 if seed == 0 else 1):
            begun = time.perf_counter()
            if self.cpu.ggml_graph_compute_with_ctx(ctypes.c_void_p(context), ctypes.c_void_p(graph), self.threads):
                sys.exit("ggml failed")
            taken = time.perf_counter() - begun
        self.base.ggml_free(ctypes.c_void_p(context))
        return taken


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", type=Path)
    parser.add_argument("--ggml", type=Path)
    parser.add_argument("--percent", default="0,25,50,75,100")
    parser.add_argument("--tokens", default="1,8,64,512")
    parser.add_argument("--models", default=",".join(MODELS))
    options = parser.parse_args()
    all_tokens = [int(tokens) for tokens in options.tokens.split(",")]
    torch.manual_seed(2)
    record = {"device": torch.cuda.get_device_name(), "float64": check(), "rows": [], "ggml": {}}
    for name, (experts, hidden, inner) in ((name, MODELS[name]) for name in options.models.split(",")):
        if options.ggml:
            theirs = OnHost(options.ggml, 16, experts, hidden, inner)
            record["ggml"][name] = {tokens: theirs.seconds(tokens) for tokens in all_tokens}
            theirs.base.ggml_free(ctypes.c_void_p(theirs.context))
            print(f"{name}: ggml alone, µs:", {t: round(s * 1e6) for t, s in record["ggml"][name].items()}, flush=True)
        pool = pool_of(2, hidden, inner)
        for percent, stream in [(part, way) for part in map(int, options.percent.split(",")) for way in ((False, 1) if part < 100 else (False,))]:
            begun = time.perf_counter()
            layer = layer_of(pool, experts, percent, stream=stream)
            loaded = time.perf_counter() - begun
            resident = experts if layer.resident is None else len(layer.resident)
            way = "brought over" if stream else "the processor's"
            if stream:
                difference = check_brought(pool, experts, percent, max(all_tokens))
                print(f"{name}: the same bits as on the GPU, {difference:.1e} from the processor's", flush=True)
            for tokens in all_tokens:
                seconds = seconds_of(layer, experts, hidden, tokens)
                row = {"model": name, "resident": resident, "experts": experts, "way": way, "tokens": tokens, "seconds": seconds, "loaded": loaded}
                bound = record["ggml"].get(name, {}).get(tokens, 0.0) * (1 - resident / experts)
                row |= {"ggml": bound, "ratio": bound / seconds}
                record["rows"].append(row)
                print(f"{name} | {resident} of {experts} | {way} | {tokens} | {seconds * 1e6:.0f} µs | {bound * 1e6:.0f} | {row['ratio']:.2f} | {loaded:.1f} s", flush=True)
                options.result.write_text(json.dumps(record, indent=1))
            del layer


if __name__ == "__main__":
    main()
