#!/usr/bin/env python3
"""Hammerhead beside torch's bf16 matrix products (oneDNN) on this CPU, in interleaved rounds of one run.

    cargo build --release && python3 benchmarks/compare_torch.py [--rounds 5] [--json FILE]

torch runs what a user would run without NVFP4: weights expanded to bf16 (3.6 times the bytes), two products, silu and a
multiplication. Both sides use the same threads and rotate over more than 1.2 GB of weights, so that none are in a cache.
The first call makes a virtual environment under target/ and installs torch and numpy there.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / "target" / "compare-torch"
N, K = 4096, 7168
COLD_BYTES = 1.2e9
SLICE_SECONDS = 0.5


def inside_venv():
    """Restarts this script in its own environment, which has torch."""
    python = VENV / "bin" / "python"
    if Path(sys.prefix) == VENV:
        return
    if not python.exists():
        print(f"making {VENV.relative_to(ROOT)} and installing torch there, once", file=sys.stderr)
        venv.create(VENV, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "torch", "numpy"], check=True)
    os.execv(python, [python, __file__, *sys.argv[1:]])


def torch_slice(torch, layers, tokens, turn):
    """Milliseconds of each run in one slice of time."""
    times, start = [], time.perf_counter()
    while time.perf_counter() - start < SLICE_SECONDS or len(times) < 3:
        gate, up = layers[turn % len(layers)]
        turn += 1
        clock = time.perf_counter()
        torch.nn.functional.silu(tokens @ gate.T).mul_(tokens @ up.T)
        times.append(1e3 * (time.perf_counter() - clock))
    return times, turn


def hammerhead_round(binary, threads):
    """One short benchmark: (median, best) of the cold milliseconds by the number of tokens, and the ceilings."""
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        command = [binary, "bench", "--suite", "decode", "--suite", "dual", "--threads", str(threads)]
        command += ["--seconds", str(SLICE_SECONDS), "--json", report.name]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        found = json.load(open(report.name))
    cases = {tuple(case["groups"][0]): case["cold"] for case in found["cases"] if len(case["groups"]) == 1}
    return {m: (1e3 * c["median"], 1e3 * c["best"]) for (m, n, k), c in cases.items() if (n, k) == (N, K)}, found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--binary", type=Path, default=ROOT / "target" / "release" / "hammerhead")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if not arguments.binary.exists():
        sys.exit(f"error: {arguments.binary} is not there; run `cargo build --release` first")
    inside_venv()
    import torch

    torch.set_num_threads(arguments.threads)
    torch.set_grad_enabled(False)
    copies = int(COLD_BYTES / (2 * N * K * 2)) + 1
    layers = [tuple(torch.randn(N, K, dtype=torch.bfloat16) for _ in range(2)) for _ in range(copies)]
    rows = [1, 4, 8, 16, 32, 64, 256, 512]
    tokens = {m: torch.randn(m, K, dtype=torch.bfloat16) for m in rows}
    theirs, ours = {m: [] for m in rows}, {m: [] for m in rows}
    best_theirs, best_ours = dict.fromkeys(rows, 1e9), dict.fromkeys(rows, 1e9)
    turn = 0
    for number in range(arguments.rounds):
        for m in rows:
            times, turn = torch_slice(torch, layers, tokens[m], turn)
            theirs[m].append(statistics.median(times))
            best_theirs[m] = min(best_theirs[m], *times)
        found, report = hammerhead_round(arguments.binary, arguments.threads)
        for m, (median, best) in found.items():
            ours[m].append(median)
            best_ours[m] = min(best_ours[m], best)
        print(f"round {number + 1} of {arguments.rounds} done", file=sys.stderr)

    print(f"{report['machine']['cpu']}, {arguments.threads} threads, N = {N}, K = {K}, cold, ms: median of {arguments.rounds} rounds (best)")
    print(f"torch {torch.__version__} bf16 against hammerhead {report['version']} with NVFP4 tokens and weights\n")
    print("| M | torch bf16 | hammerhead | ratio of medians | ratio of bests |")
    print("|---|---|---|---|---|")
    table = []
    for m in rows:
        a, b = statistics.median(theirs[m]), statistics.median(ours[m])
        table.append({"m": m, "torch": a, "torch_best": best_theirs[m], "hammerhead": b, "hammerhead_best": best_ours[m]})
        print(f"| {m} | {a:.2f} ({best_theirs[m]:.2f}) | {b:.2f} ({best_ours[m]:.2f}) | {a / b:.1f}× | {best_theirs[m] / best_ours[m]:.1f}× |")
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": report["machine"], "torch": torch.__version__, "rows": table}, indent=1))


main()
