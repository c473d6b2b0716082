"""What bounds each kernel, by the counters of Nsight Compute.

    python3 benchmarks/h200/counters.py [--only NAME] [--first N] RESULT.json PROGRAM [ARGUMENT]…

For instance, the products of a layer: `--only dual_gemm --first 2 moe.json hammerhead bench --backend cuda --suite moe
--model qwen3-30b-a3b --tokens 512`, which checks the layer before it times it. Each kernel runs alone and with cold
caches, at whatever clock the device has, so it takes longer than in a graph. A row per kernel: its time, how busy
tensor cores, issue slots, memory and L2 were (percent of their peak), and what a warp waited for, in cycles per
instruction issued.
"""

import argparse
import csv
import io
import json
import subprocess
import sys

SECTIONS = ["SpeedOfLight", "ComputeWorkloadAnalysis", "SchedulerStats", "WarpStateStats"]

# What a row has: its name, the counter, and what that is divided by.
COLUMNS = {
    "µs": ("gpu__time_duration.sum", 1000),
    "GHz": ("gpc__cycles_elapsed.avg.per_second", 1e9),
    "tensor %": ("sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active", 1),
    "issue %": ("smsp__issue_active.avg.pct_of_peak_sustained_active", 1),
    "memory %": ("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", 1),
    "L2 %": ("lts__throughput.avg.pct_of_peak_sustained_elapsed", 1),
}
STALL, PER_ISSUE = "smsp__average_warps_issue_stalled_", "_per_issue_active.ratio"


def profiled(program, only, first):
    """The rows of a program's kernels by the names of the counters: those of a name, the first so many."""
    command = ["ncu", "--clock-control", "none", "--page", "raw", "--csv", "--target-processes", "all"]
    command += ["--kernel-name", f"regex:{only}"] if only else []
    command += ["--launch-count", str(first)] if first else []
    command += [part for section in SECTIONS for part in ("--section", section)]
    run = subprocess.run([*command, *program], capture_output=True, text=True)
    table = run.stdout[run.stdout.find('"ID"') :]
    if not table.startswith('"ID"'):
        sys.exit(f"ncu profiled nothing (exit status {run.returncode}):\n{run.stdout[-2000:]}\n{run.stderr[-2000:]}")
    rows = list(csv.DictReader(io.StringIO(table)))
    return rows[1:]


def number(text):
    return float(text.replace(",", ""))


def summed_up(row):
    """One kernel's figures, and what its warps waited for most."""
    found = {"kernel": row["Kernel Name"], "blocks": row["Grid Size"]}
    for name, (counter, unit) in COLUMNS.items():
        found[name] = number(row[counter]) / unit
    stalls = {}
    for counter, text in row.items():
        if counter.startswith(STALL) and counter.endswith(PER_ISSUE) and "not_issued" not in counter:
            stalls[counter.removeprefix(STALL).removesuffix(PER_ISSUE)] = number(text)
    found["waits"] = dict(sorted(stalls.items(), key=lambda wait: -wait[1])[:4])
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="profile kernels with this in their names")
    parser.add_argument("--first", type=int, help="profile no more kernels than these")
    parser.add_argument("result")
    parser.add_argument("program", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    rows = profiled(options.program, options.only, options.first)
    record = [summed_up(row) for row in rows]
    with open(options.result, "w") as file:
        json.dump({"program": options.program, "kernels": record, "counters": rows}, file)
    print("| kernel | blocks | " + " | ".join(COLUMNS) + " | waits |")
    for row in record:
        figures = " | ".join(f"{row[name]:.3g}" for name in COLUMNS)
        waits = ", ".join(f"{what} {cycles:.2f}" for what, cycles in row["waits"].items())
        print(f"| {row['kernel'][:40]} | {row['blocks']} | {figures} | {waits} |")


if __name__ == "__main__":
    main()
