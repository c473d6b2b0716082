#!/usr/bin/env python3
"""Hammerhead beside torch's bf16 matrix products (oneDNN) on this CPU, taking turns in one run.

    cargo build --release && python3 benchmarks/compare_torch.py [--quick] [--json FILE]

torch runs what a user would run without NVFP4: weights expanded to bf16 (3.6 times the bytes), two products, silu and a
multiplication. Both sides use the same threads and rotate over more than 1.2 GB of weights, so that none are in a cache.
For each number of tokens the two take turns, as often as --rounds says, and the row is printed when it is done: about four
minutes in all, one with --quick. The first call makes a virtual environment under target/ and installs torch and numpy there.

The record that --json writes can be shown by `hammerhead bench --html PAGE --against FILE` and by benchmarks/charts.py.
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
TOKENS = [1, 4, 8, 16, 32, 64, 256, 512]
N, K = 4096, 7168
COLD_BYTES = 1.2e9


def progress(text):
    """A remark beside the table."""
    print(text, file=sys.stderr, flush=True)


def inside_venv():
    """Restarts this script in its own environment, which has torch."""
    python = VENV / "bin" / "python"
    if Path(sys.prefix) == VENV:
        return
    if not python.exists():
        progress(f"making {VENV.relative_to(ROOT)} and installing torch there, once; this takes minutes")
        venv.create(VENV, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "torch", "numpy"], check=True)
    os.execv(python, [python, __file__, *sys.argv[1:]])


def summary(seconds):
    """What `hammerhead bench` keeps of its samples."""
    quantile = lambda part: statistics.quantiles(seconds, n=20, method="inclusive")[round(20 * part) - 1]
    fields = {"median": 0.5, "p10": 0.1, "p25": 0.25, "p75": 0.75, "p90": 0.9}
    return {**{name: quantile(part) for name, part in fields.items()}, "best": min(seconds), "samples": len(seconds)}


def joined(rounds):
    """Several summaries as one: medians of each number, the best of the bests, all samples."""
    one = {name: statistics.median(r[name] for r in rounds) for name in ("median", "p10", "p25", "p75", "p90")}
    return {**one, "best": min(r["best"] for r in rounds), "samples": sum(r["samples"] for r in rounds)}


class Torch:
    """Two bf16 products, silu and a multiplication over weights in rotation."""

    def __init__(self, threads):
        import torch

        self.torch, self.turn = torch, 0
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        copies = int(COLD_BYTES / (2 * N * K * 2)) + 1
        self.layers = [tuple(torch.randn(N, K, dtype=torch.bfloat16) for _ in range(2)) for _ in range(copies)]

    def measure(self, m, slice_seconds):
        """A summary of the runs in one slice of time."""
        tokens = self.torch.randn(m, K, dtype=self.torch.bfloat16)
        times, start = [], time.perf_counter()
        # The first run sets up what is kept, and is not counted.
        while time.perf_counter() - start < slice_seconds or len(times) < 4:
            gate, up = self.layers[self.turn % len(self.layers)]
            self.turn += 1
            clock = time.perf_counter()
            self.torch.nn.functional.silu(tokens @ gate.T).mul_(tokens @ up.T)
            times.append(time.perf_counter() - clock)
        return summary(times[1:])


def hammerhead(binary, threads, m, slice_seconds):
    """The record of one short benchmark."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "bench.json"
        command = [binary, "bench", "--shape", f"{m}x{N}x{K}", "--threads", str(threads)]
        # Half of its seconds go to cold runs.
        command += ["--seconds", str(2 * slice_seconds), "--json", report]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(map(str, command))} ended with status {done.returncode}:\n{done.stderr}")
        return json.loads(report.read_text(encoding="utf-8"))


def compare(torch, options, m):
    """Both sides on one number of tokens, as cases of a record, and what hammerhead says of the machine."""
    theirs, ours = [], []
    for number in range(options.rounds):
        progress(f"M = {m}, round {number + 1} of {options.rounds}")
        theirs.append(torch.measure(m, options.seconds))
        ours.append(hammerhead(options.binary, options.threads, m, options.seconds))
    cases = [found["cases"][0] for found in ours]
    floors = [case["floor_seconds"] for case in cases if case["floor_seconds"]]
    kept = ["problem", "groups", "activation", "gate", "output", "backend", "config"]
    case = {name: cases[-1][name] for name in kept}
    case["floor_seconds"] = statistics.median(floors) if floors else None
    case["cold"] = joined([c["cold"] for c in cases])
    peer = {"who": "torch bf16", "problem": case["problem"], "groups": case["groups"]}
    peer |= {"activation": "bf16", "gate": "silu", "output": "bf16", "cold": joined(theirs)}
    return peer, case, ours[-1]


def row(m, peer, case):
    """A line of the table, in milliseconds."""
    a, b = peer["cold"], case["cold"]
    cell = lambda times: f"{1e3 * times['median']:.2f} ({1e3 * times['best']:.2f})"
    return f"| {m} | {cell(a)} | {cell(b)} | {a['median'] / b['median']:.1f}× | {a['best'] / b['best']:.1f}× |"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, help="turns of both for each number of tokens [default: 3; 1 with --quick]")
    parser.add_argument("--seconds", type=float, help="of each turn [default: 0.5; 0.2 with --quick]")
    parser.add_argument("--quick", action="store_true", help="one short turn each: a look within two minutes, no figure to keep")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--binary", type=Path, default=ROOT / "target" / "release" / "hammerhead")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write a record to this file as well")
    options = parser.parse_args()
    options.rounds = options.rounds or (1 if options.quick else 3)
    options.seconds = options.seconds or (0.2 if options.quick else 0.5)
    if options.rounds < 1 or options.seconds <= 0:
        parser.error("--rounds and --seconds must be above zero")
    if not options.binary.exists():
        parser.error(f"{options.binary} is not there; run `cargo build --release` first")
    if options.json and not options.json.resolve().parent.is_dir():
        parser.error(f"the folder of {options.json} does not exist")
    return options


def main():
    options = arguments()
    inside_venv()
    progress("making more than 1.2 GB of bf16 weights")
    torch = Torch(options.threads)
    version = torch.torch.__version__
    print(f"torch {version} bf16 against hammerhead with NVFP4 tokens and weights: N = {N}, K = {K}, {options.threads} threads,")
    print(f"cold, ms, median (best); rounds: {options.rounds}, of {options.seconds} s each\n")
    print("| M | torch bf16 | hammerhead | ratio of medians | ratio of bests |")
    print("|---|---|---|---|---|", flush=True)
    cases, report = [], {}
    for m in TOKENS:
        peer, case, report = compare(torch, options, m)
        cases += [peer, case]
        print(row(m, peer, case), flush=True)
    print(f"\n{report['machine']['cpu']}, hammerhead {report['version']}")
    if options.json:
        record = {"schema": report["schema"], "version": report["version"], "torch": version, "machine": report["machine"]}
        record |= {"threads": options.threads, "rounds": options.rounds, "seconds": options.seconds, "cases": cases}
        options.json.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
