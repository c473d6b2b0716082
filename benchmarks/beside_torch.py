"""What a call costs right after an operation of torch's, beside what it costs alone, on threads of our own, in torch's
team, and as is chosen by default.

    python benchmarks/beside_torch.py                 # a quiet machine
    python benchmarks/beside_torch.py --contended     # with another process on one core

torch's threads spin for a while after they have worked, and ours would share their cores with them. For each number of
tokens the ways to call (alone or after torch's operation; own threads, torch's, or either) are timed in turn, over and
over: ratios of medians are what counts.
"""

import argparse
import multiprocessing
import os
import statistics
import time

import torch

import hammerhead

WHOSE = ("own", "openmp", "auto")


def occupy() -> None:
    """Keeps a core busy."""
    while True:
        pass


def timed(call, before=None) -> float:
    if before is not None:
        before()
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--contended", action="store_true", help="let another process have one core")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--shape", default="4096x2048", help="columns by k of each of the two matrices")
    parser.add_argument("--tokens", default="1,8,64,256")
    options = parser.parse_args()
    n, k = map(int, options.shape.split("x"))
    torch.manual_seed(0)
    matrices = [hammerhead.quantize(torch.randn(n, k) / k**0.5) for _ in range(2)]
    weights = hammerhead.DualWeights.from_arrays(*matrices)
    other = torch.randn(1 << 21)
    rival = None
    if options.contended:
        rival = multiprocessing.get_context("spawn").Process(target=occupy, daemon=True)
        rival.start()
        time.sleep(1)
    print(f"{os.cpu_count()} cores, torch {torch.__version__} on {torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}")
    print(f"{'tokens':>6}  {'threads':8} {'alone':>9} {'after torch':>12} {'ratio':>6}   {'p90 alone':>9} {'p90 after':>9}   in ms")
    for rows in map(int, options.tokens.split(",")):
        x, out = torch.randn(rows, k, dtype=torch.bfloat16), torch.empty(rows, n, dtype=torch.bfloat16)
        times = {(whose, after): [] for whose in WHOSE for after in (False, True)}
        for round_ in range(options.rounds + 3):
            for (whose, after), samples in times.items():
                hammerhead.use_threads(whose)
                # torch's threads go to sleep, and ours.
                time.sleep(0.02)
                weights(x, out=out)
                before = (lambda: torch.relu(other)) if after else None
                if not after:
                    time.sleep(0.02)
                    weights(x, out=out)
                sample = timed(lambda: weights(x, out=out), before)
                if round_ >= 3:
                    samples.append(sample * 1e3)
        for whose in WHOSE:
            alone, after = (statistics.median(times[whose, after]) for after in (False, True))
            tails = [statistics.quantiles(times[whose, after], n=10)[8] for after in (False, True)]
            print(f"{rows:6}  {whose:8} {alone:9.3f} {after:12.3f} {after / alone:6.2f}   {tails[0]:9.3f} {tails[1]:9.3f}")
    if rival is not None:
        rival.terminate()


if __name__ == "__main__":
    main()
