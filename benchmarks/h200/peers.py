"""Hammerhead beside what one would use instead, on one NVIDIA GPU, in one run.

    cargo build --release && python3 benchmarks/h200/peers.py --json peers.json

Needs PyTorch with CUDA, nothing else. C = silu(A·B1ᵀ) ∘ (A·B2ᵀ), half-precision tokens and results. The peers multiply
weights that were expanded to 16 bits beforehand, at 3.6 times the memory:

    two       two half-precision GEMMs (cuBLAS), then silu and the product
    one       one GEMM over both matrices stacked [2N, K], then silu and the product: what serving stacks do without quantisation
    grouped   torch's grouped GEMM in bfloat16 over all groups, stacked, then silu and the product (groups only)

Each is captured in a CUDA graph of at least 20 calls over inputs in rotation beyond the device's cache, and timed after
a pause (burst) and after 300 ms of load (sustained), as `hammerhead bench --backend cuda` does. The two take turns: for
every suite, the peers, then hammerhead, as often as --rounds says; medians are over all rounds.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time

import torch

SUITES = {
    "dual": [([256], 4096, 7168), ([512], 4096, 7168), ([256], 3072, 4096), ([512], 3072, 7168)],
    "group": [
        ([80, 176, 128, 72, 64, 248, 96, 160], 4096, 7168),
        ([40, 76, 168, 72, 164, 148, 196, 160], 7168, 2048),
        ([192, 320], 3072, 4096),
        ([128, 384], 4096, 1536),
    ],
    "decode": [([m], 4096, 7168) for m in (1, 4, 8, 16, 32, 64)],
}
CALLS, SAMPLES, WARM_UP, REST, LOAD = 20, 21, 2, 0.15, 0.3


def name(ms, n, k):
    """A problem as hammerhead writes it."""
    return f"{ms[0]}×{n}×{k}" if len(ms) == 1 else f"[{','.join(map(str, ms))}]×{n}×{k}"


def make_set(ms, n, k):
    """Tokens, stacked weights and a place for results of every group, with numbers of about the size they have in a
    layer."""
    groups = []
    for m in ms:
        tokens = torch.randn(m, k, device="cuda", dtype=torch.float16)
        weights = torch.randn(2 * n, k, device="cuda", dtype=torch.float16) / math.sqrt(k)
        groups.append((tokens, weights, torch.empty(m, n, device="cuda", dtype=torch.float16)))
    return groups


def gated(gate, up, out):
    torch.mul(torch.nn.functional.silu(gate), up, out=out)


def two(groups, n):
    for tokens, weights, out in groups:
        gated(tokens @ weights[:n].T, tokens @ weights[n:].T, out)


def one(groups, n):
    for tokens, weights, out in groups:
        both = tokens @ weights.T
        gated(both[:, :n], both[:, n:], out)


def grouped_mm():
    """The grouped GEMM, by the name that this version of torch has for it."""
    return getattr(torch.nn.functional, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)


def peers(ms, n, k, sets):
    """What takes turns, as functions of the turn."""
    ways = {"two": lambda turn: two(sets[turn % len(sets)], n), "one": lambda turn: one(sets[turn % len(sets)], n)}
    if len(ms) > 1 and grouped_mm():
        ends = torch.tensor(ms, device="cuda").cumsum(0).to(torch.int32)
        stacked = [
            (
                torch.cat([tokens for tokens, _, _ in groups]).bfloat16(),
                torch.stack([weights for _, weights, _ in groups]).bfloat16().transpose(1, 2),
                torch.empty(sum(ms), n, device="cuda", dtype=torch.bfloat16),
            )
            for groups in sets
        ]

        def grouped(turn):
            tokens, weights, out = stacked[turn % len(stacked)]
            both = grouped_mm()(tokens, weights, offs=ends)
            gated(both[:, :n], both[:, n:], out)

        ways["grouped"] = grouped
    return ways


def capture(way, calls):
    """A graph of so many calls."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for turn in range(3):
            way(turn)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for turn in range(calls):
            way(turn)
    return graph


def samples(graph, calls):
    """Microseconds a call, once for each replay; all are queued before the first is looked at."""
    moments = [torch.cuda.Event(enable_timing=True) for _ in range(SAMPLES + 1)]
    moments[0].record()
    for moment in moments[1:]:
        graph.replay()
        moment.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) * 1e3 / calls for a, b in zip(moments, moments[1:])]


def replay(graph, times):
    for _ in range(times):
        graph.replay()
    torch.cuda.synchronize()


def time_peers(suite):
    """Burst and sustained microseconds of every peer on every shape of a suite."""
    cache = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 60 << 20)
    found = {}
    for ms, n, k in SUITES[suite]:
        bytes_of_set = len(ms) * 2 * n * k * 2 + sum(ms) * (k + n) * 2
        sets = [make_set(ms, n, k) for _ in range(max(2, -(-4 * cache // bytes_of_set)))]
        calls = -(-CALLS // len(sets)) * len(sets)
        for way, run in peers(ms, n, k, sets).items():
            graph = capture(run, calls)
            replay(graph, WARM_UP)
            time.sleep(REST)
            replay(graph, WARM_UP)
            burst = samples(graph, calls)
            begun = time.monotonic()
            while time.monotonic() - begun < LOAD:
                replay(graph, WARM_UP)
            found[name(ms, n, k), way] = burst, samples(graph, calls)
            del graph
        del sets
        torch.cuda.empty_cache()
    return found


def time_hammerhead(binary, suite, arguments):
    """The same of hammerhead: a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "bench.json")
        command = [binary, "bench", "--backend", "cuda", "--suite", suite, "--export", report, *arguments]
        # A case that is wrong is reported and not timed; the others are.
        status = subprocess.run(command, stdout=subprocess.DEVNULL).returncode
        if status and not os.path.exists(report):
            sys.exit(f"error: {' '.join(command)} ended with status {status}")
        with open(report, encoding="utf-8") as file:
            return json.load(file)


def ceilings():
    """Operations and bytes per second that this device reaches at the moment."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.float16) for _ in range(2))
    source = torch.empty(1 << 30, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)

    def best(run):
        times = []
        for _ in range(8):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end) / 1e3)
        return min(times[2:])

    return {"flops_per_second": 2 * 8192**3 / best(lambda: a @ b), "bytes_per_second": 2 * (1 << 30) / best(lambda: target.copy_(source))}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/release/hammerhead", help="the hammerhead program")
    parser.add_argument("--suite", action="append", choices=SUITES, help="may be given several times [default: all]")
    parser.add_argument("--rounds", type=int, default=2, help="turns of peers and hammerhead for each suite")
    parser.add_argument("--json", help="write everything that was measured to this file as well")
    options, arguments = parser.parse_known_args()
    if not torch.cuda.is_available():
        sys.exit("error: torch sees no GPU; run this where nvidia-smi lists one")

    # Per shape and way: the medians of all rounds.
    burst, sustained, floors, configs = {}, {}, {}, {}
    for suite in options.suite or SUITES:
        for _ in range(options.rounds):
            for key, (quick, slow) in time_peers(suite).items():
                burst.setdefault(key, []).append(statistics.median(quick))
                sustained.setdefault(key, []).append(statistics.median(slow))
            for case in time_hammerhead(options.binary, suite, arguments)["cases"]:
                key = case["problem"], f"ours {case['activation']}"
                burst.setdefault(key, []).append(case["burst"]["median"] * 1e6)
                sustained.setdefault(key, []).append(case["sustained"]["median"] * 1e6)
                floors[case["problem"]] = case["floor_seconds"] * 1e6
                configs[key] = case["config"]

    measured = ceilings()
    ways = ["two", "one", "grouped", "ours f16", "ours nvfp4"]
    rows = []
    for suite in options.suite or SUITES:
        for shape in (name(*sizes) for sizes in SUITES[suite]):
            row = {"suite": suite, "problem": shape, "floor": floors.get(shape), "config": configs.get((shape, "ours f16"))}
            for label, all_times in (("burst", burst), ("sustained", sustained)):
                times = {way: statistics.median(all_times[shape, way]) for way in ways if (shape, way) in all_times}
                best = min((time for way, time in times.items() if not way.startswith("ours")), default=None)
                ratio = best / times["ours f16"] if best and "ours f16" in times else None
                row[label] = {"microseconds": times, "best_peer": best, "times_faster": ratio}
            rows.append(row)
    report = {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda,
        "ceilings": measured, "rounds": options.rounds, "shapes": rows,
    }
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1, ensure_ascii=False)
    tell(report, ways)


def tell(report, ways):
    """One table, as Markdown has them."""
    rates = report["ceilings"]
    print(f"{report['device']}, torch {report['torch']}, {rates['flops_per_second'] / 1e12:.0f} TFLOP/s (8192³ f16), "
          f"{rates['bytes_per_second'] / 1e12:.2f} TB/s (copy); µs, burst / sustained, medians of {report['rounds']} rounds\n")
    heads = ["m×n×k", *ways, "best peer ÷ ours f16", "floor", "of floor"]
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
    number = lambda value: f"{value:.1f}" if value else ""
    for row in report["shapes"]:
        cells = [row["problem"]]
        for way in ways:
            pair = [row[label]["microseconds"].get(way) for label in ("burst", "sustained")]
            cells.append(" / ".join(map(number, pair)) if pair[0] else "")
        faster = [row[label]["times_faster"] for label in ("burst", "sustained")]
        cells.append(" / ".join(f"{ratio:.2f}" for ratio in faster) if all(faster) else "")
        ours = row["burst"]["microseconds"].get("ours f16")
        cells += [number(row["floor"]), f"{100 * row['floor'] / ours:.0f} %" if ours and row["floor"] else ""]
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
