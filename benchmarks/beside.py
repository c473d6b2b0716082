#!/usr/bin/env python3
"""Hammerhead's CPU backends beside torch, numpy's BLAS and ggml, each held to the same instruction set.

    cargo build --release && python3 benchmarks/beside.py --json benchmarks/cpu.json

One gated dual GEMM, cold weights. For each instruction set and number of threads hammerhead and the others take turns,
as often as --rounds says; a ratio compares medians of one such turn. `hammerhead bench --html PAGE --against FILE` and
benchmarks/charts.py show the record that --json writes. The others multiply what their users have:

| who | weights | what is timed |
|---|---|---|
| torch f32, torch bf16 | expanded, 7.1 and 3.6 times the bytes | both products, SiLU and the multiplication |
| numpy f32 | expanded | both products |
| ggml q4_0, ggml nvfp4 | as llama.cpp keeps them, in its plain layout | both products |

ggml is measured where --ggml names a folder with libggml-base.so and libggml-cpu.so, or with one libggml-cpu-NAME.so
per instruction set, as llama.cpp builds them with GGML_CPU_ALL_VARIANTS. Needs torch and numpy, which `pip install
torch numpy` brings; without them ggml is compared alone.
"""

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOKENS = [1, 8, 32, 128, 512]
N = K = 4096
# Weights that are rotated: more than caches hold.
COLD_BYTES = 6e8
# Calls that would take longer are left out: they would not be the fastest, and a comparison would take hours.
LONGEST = 1.5
# What holds each library to an instruction set. OpenBLAS has one name for every AVX-512.
FORCED = {
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "OPENBLAS_CORETYPE": "Haswell"},
    "avx512": {
        "ATEN_CPU_CAPABILITY": "avx512",
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE",
        "MKL_ENABLE_INSTRUCTIONS": "AVX512",
        "OPENBLAS_CORETYPE": "SkylakeX",
    },
    "amx": {},
}
GGML_VARIANTS = {"avx2": ["haswell"], "avx512": ["icelake", "skylakex"], "amx": ["sapphirerapids"]}
GGML_TYPES = {"ggml q4_0": 2, "ggml nvfp4": 40}


def progress(text):
    """A remark beside the table."""
    print(text, file=sys.stderr, flush=True)


def summary(seconds):
    """What `hammerhead bench` keeps of its samples."""
    several = seconds if len(seconds) > 1 else 2 * seconds
    quantile = lambda part: statistics.quantiles(several, n=20, method="inclusive")[round(20 * part) - 1]
    fields = {"median": 0.5, "p10": 0.1, "p25": 0.25, "p75": 0.75, "p90": 0.9}
    return {**{name: quantile(part) for name, part in fields.items()}, "best": min(seconds), "samples": len(seconds)}


def joined(rounds):
    """Several summaries as one: medians of each number, the best of the bests, all samples."""
    one = {name: statistics.median(r[name] for r in rounds) for name in ("median", "p10", "p25", "p75", "p90")}
    return {**one, "best": min(r["best"] for r in rounds), "samples": sum(r["samples"] for r in rounds)}


def timed(runs, seconds):
    """A summary of calls over weights in rotation; the first sets up what is kept, and is not counted. Slow ones count
    once."""
    times, start = [], time.perf_counter()
    while len(times) < 2 or (len(times) < 3 and times[1] < 5 * seconds) or time.perf_counter() - start < seconds:
        run = runs[len(times) % len(runs)]
        clock = time.perf_counter()
        run()
        times.append(time.perf_counter() - clock)
    return summary(times[1:])


def torch_and_numpy(threads):
    """For each of them, a function from a number of tokens to calls over weights in rotation."""
    import numpy
    import torch

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    silu = torch.nn.functional.silu
    first = torch.randn(2, N, K)

    def copies(weights):
        return [tuple(weights.clone()) for _ in range(int(COLD_BYTES / (weights.numel() * weights.element_size())) + 1)]

    def with_torch(layers, m):
        x = torch.randn(m, K).to(layers[0][0].dtype)
        return [lambda g=g, u=u: silu(x @ g.T).mul_(x @ u.T) for g, u in layers]

    def with_numpy(layers, m):
        x = numpy.random.default_rng(0).standard_normal((m, K), dtype=numpy.float32)
        return [lambda g=g.numpy(), u=u.numpy(): (x @ g.T, x @ u.T) for g, u in layers]

    f32, bf16 = copies(first), copies(first.bfloat16())
    yield "torch f32", lambda m: with_torch(f32, m)
    yield "torch bf16", lambda m: with_torch(bf16, m)
    yield "numpy f32", lambda m: with_numpy(f32, m)


class Ggml:
    """The few functions of ggml that multiply matrices."""

    class Parameters(ctypes.Structure):
        _fields_ = [("bytes", ctypes.c_size_t), ("buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]

    def __init__(self, folder, isa, threads):
        names = [f"libggml-cpu-{variant}.so" for variant in GGML_VARIANTS[isa]] + ["libggml-cpu.so"]
        found = next((folder / name for name in names if (folder / name).exists()), None)
        if found is None:
            raise FileNotFoundError(f"{folder} has none of {', '.join(names)}")
        self.base, self.threads = ctypes.CDLL(str(folder / "libggml-base.so"), mode=ctypes.RTLD_GLOBAL), threads
        self.cpu = ctypes.CDLL(str(found), mode=ctypes.RTLD_GLOBAL)
        self.cpu.ggml_cpu_init()
        pointers = ["ggml_init", "ggml_new_tensor_2d", "ggml_get_data", "ggml_mul_mat", "ggml_new_graph"]
        for name in pointers:
            getattr(self.base, name).restype = ctypes.c_void_p
        self.base.ggml_nbytes.restype = self.base.ggml_quantize_chunk.restype = ctypes.c_size_t

    def tensor(self, context, kind, columns, rows):
        make = self.base.ggml_new_tensor_2d
        return make(ctypes.c_void_p(context), kind, ctypes.c_int64(columns), ctypes.c_int64(rows))

    def data(self, tensor):
        return self.base.ggml_get_data(ctypes.c_void_p(tensor))

    def layers(self, kind):
        """Gate and up, often enough: quantised once, and copied."""
        eight = bytes((ctypes.c_float * 8)(0.5, -1.0, 1.5, 3.0, -0.25, 2.0, 0.75, -6.0))
        source = (ctypes.c_float * (N * K)).from_buffer_copy(eight * (N * K // 8))
        packed, copies = None, []
        while not packed or len(copies) * 2 * packed < COLD_BYTES:
            context = self.base.ggml_init(self.Parameters(2 * N * K + (1 << 20), None, False))
            pair = [self.tensor(context, kind, K, N) for _ in range(2)]
            packed = packed or self.base.ggml_nbytes(ctypes.c_void_p(pair[0]))
            for tensor in pair:
                if not copies and tensor == pair[0]:
                    rows = (ctypes.c_int64(0), ctypes.c_int64(N), ctypes.c_int64(K))
                    self.base.ggml_quantize_chunk(kind, source, ctypes.c_void_p(self.data(tensor)), *rows, None)
                    origin = self.data(tensor)
                else:
                    ctypes.memmove(self.data(tensor), origin, packed)
            copies.append(pair)
        return copies

    def products(self, pair, m):
        """A call that multiplies m tokens with both matrices."""
        context = self.base.ggml_init(self.Parameters((m + 1) * (K + 2 * N) * 4 + (64 << 20), None, False))
        tokens = self.tensor(context, 0, K, m)
        ctypes.memset(self.data(tokens), 0x3D, m * K * 4)
        graph = self.base.ggml_new_graph(ctypes.c_void_p(context))
        for weights in pair:
            product = self.base.ggml_mul_mat(*map(ctypes.c_void_p, (context, weights, tokens)))
            self.base.ggml_build_forward_expand(ctypes.c_void_p(graph), ctypes.c_void_p(product))
        compute = self.cpu.ggml_graph_compute_with_ctx
        return lambda: compute(ctypes.c_void_p(context), ctypes.c_void_p(graph), self.threads), context

    def peers(self):
        for who, kind in GGML_TYPES.items():
            layers = self.layers(kind)

            def runs(m, layers=layers):
                # One context for tokens and results, moved from layer to layer, would cost a graph per call as well.
                made = [self.products(pair, m) for pair in layers[: 4 if m > 32 else len(layers)]]
                return [call for call, _ in made]

            yield who, runs


def peers(isa, threads, seconds, ggml):
    """What a process that is held to an instruction set prints: a line per library and number of tokens."""
    found = []
    try:
        found += torch_and_numpy(threads)
    except ImportError as missing:
        progress(f"{missing}: torch and numpy are left out")
    if ggml:
        try:
            found += Ggml(ggml, isa, threads).peers()
        except OSError as missing:
            progress(f"{missing}: ggml is left out")
    for who, runs in found:
        expected = 0
        # The threads of the library before may still spin, waiting for more work.
        time.sleep(1)
        for m, more in zip(TOKENS, TOKENS[1:] + TOKENS[-1:]):
            if expected > LONGEST:
                progress(f"{who} would take {expected:.1f} s for {m} tokens: left out")
                break
            cold = timed(runs(m), seconds)
            expected = cold["median"] * more / m
            print(json.dumps({"who": who, "m": m, "cold": cold}), flush=True)


def peers_apart(isa, threads, options):
    """Those lines, of a process of its own."""
    count = str(threads)
    environment = {**os.environ, **FORCED[isa], "OMP_NUM_THREADS": count, "OPENBLAS_NUM_THREADS": count, "MKL_NUM_THREADS": count}
    command = [sys.executable, __file__, "--peers", isa, "--threads", count, "--seconds", str(options.seconds)]
    command += ["--ggml", options.ggml] if options.ggml else []
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def hammerhead(isa, threads, activation, options):
    """The record of one short benchmark of all numbers of tokens, or nothing where the backend cannot run."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "bench.json"
        command = [options.binary.resolve(), "bench", "--backend", isa, "--threads", str(threads), "--activation", activation]
        command += [f"--shape={m}x{N}x{K}" for m in TOKENS]
        # Half of its seconds go to cold runs.
        command += ["--seconds", str(2 * options.seconds), "--export", report]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            progress(done.stderr.strip())
            return None
        return json.loads(report.read_text(encoding="utf-8"))


def compare(isa, threads, options):
    """All sides at one instruction set and number of threads: what hammerhead says of the machine, and cases."""
    sides, report = {}, None
    for _ in range(options.rounds):
        for activation in options.activations:
            report = hammerhead(isa, threads, activation, options)
            if report is None:
                return None, []
            for m, case in zip(TOKENS, report["cases"]):
                sides.setdefault((m, f"hammerhead {activation}"), []).append(case["cold"])
        for line in peers_apart(isa, threads, options):
            sides.setdefault((line["m"], line["who"]), []).append(line["cold"])
    place = lambda m: {"isa": isa, "threads": threads, "m": m, "problem": f"{m}×{N}×{K}", "config": f"{isa}, {threads} threads"}
    return report, [{**place(m), "who": who, "cold": joined(times)} for (m, who), times in sides.items()]


def table(cases):
    """Lines of a table: GFLOP/s of each, and the time of the best of the others over that of our bf16 tokens."""
    names = list(dict.fromkeys(case["who"] for case in cases))
    yield "| set | threads | M | " + " | ".join(names) + " | best other ÷ ours, bf16 |"
    yield "|---" * (len(names) + 4) + "|"
    for isa, threads, m in dict.fromkeys((case["isa"], case["threads"], case["m"]) for case in cases):
        times = {c["who"]: c["cold"]["median"] for c in cases if (c["isa"], c["threads"], c["m"]) == (isa, threads, m)}
        others = [time for who, time in times.items() if not who.startswith("hammerhead")]
        ratio = f"{min(others) / times['hammerhead bf16']:.2f}×" if others and "hammerhead bf16" in times else ""
        cells = [f"{4 * m * N * K / times[who] / 1e9:.0f}" if who in times else "" for who in names]
        yield f"| {isa} | {threads} | {m} | " + " | ".join(cells) + f" | {ratio} |"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cores = len(os.sched_getaffinity(0))
    words = lambda text: text.split(",")
    parser.add_argument("--isas", type=words, default=list(FORCED), help="instruction sets [default: avx2,avx512,amx]")
    parser.add_argument("--threads", type=words, help="[default: those of 1, 2, 8 and 16 that there are cores for]")
    parser.add_argument("--activations", type=words, default=["bf16", "nvfp4"], help="ours [default: bf16,nvfp4]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.3, help="of each side for each number of tokens [default: 0.3]")
    parser.add_argument("--ggml", type=Path, metavar="FOLDER", help="where ggml's shared libraries are")
    parser.add_argument("--binary", type=Path, default=ROOT / "target" / "release" / "hammerhead")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write a record to this file as well")
    parser.add_argument("--peers", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.threads = [int(t) for t in options.threads or (1, 2, 8, 16) if options.threads or t <= cores]
    unknown = set(options.isas) - set(FORCED)
    if unknown:
        parser.error(f"{', '.join(unknown)}: not among {', '.join(FORCED)}")
    if options.rounds < 1 or options.seconds <= 0:
        parser.error("--rounds and --seconds must be above zero")
    if not options.peers and not options.binary.exists():
        parser.error(f"{options.binary} is not there; run `cargo build --release` first")
    return options


def main():
    options = arguments()
    if options.peers:
        return peers(options.peers, options.threads[0], options.seconds, options.ggml)
    cases, report = [], None
    for isa in options.isas:
        for threads in options.threads:
            progress(f"{isa}, {threads} threads")
            found, some = compare(isa, threads, options)
            report, cases = found or report, cases + some
            if options.json and cases:
                write(options, report, cases)
    if not cases:
        sys.exit("error: none of these instruction sets runs here")
    print("\n".join(table(cases)))
    print(f"\n{report['machine']['cpu']}; N = K = {N}; GFLOP/s by medians of cold runs; rounds: {options.rounds}, of {options.seconds} s each")


def write(options, report, cases):
    """Writes what there is so far, a line per case: a run takes many minutes, and may be ended."""
    record = {"schema": 1, "version": report["version"], "machine": report["machine"], "n": N, "k": K, "rounds": options.rounds}
    record |= {"seconds": options.seconds, "cases": []}
    head = json.dumps(record, ensure_ascii=False)
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    options.json.write_text(f"{head.removesuffix(']}')}\n{lines}\n]}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
