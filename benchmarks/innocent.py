#!/usr/bin/env python3
"""Honest programs on a machine under load: how many does the referee convict?

    benchmarks/innocent.py HAMMERHEAD [--plays 200] [--load 4] [--at-a-time 2] [--seconds 600]

Starts processes that keep processors busy, and plays the suite's honest contestants (`hammerhead tank exploits --play`)
in turn beside them, again and again. Prints who was blamed and for what, and the number of plays. None should be.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import time

BUSY = "x = 1\nwhile True: x = x * 3 % 1000003"


def habits(hammerhead):
    listed = subprocess.run([hammerhead, "tank", "exploits"], check=True, capture_output=True, text=True).stdout
    return listed.rsplit("honest: ", 1)[1].strip().split(", ")


def played(hammerhead, name):
    """Why it was blamed, if it was; or what went wrong with the play itself."""
    done = subprocess.run([hammerhead, "tank", "exploits", "--play", "--only", name, "--json"], capture_output=True, text=True)
    try:
        fate = json.loads(done.stdout)[0]["ours"]
    except (ValueError, IndexError, KeyError):
        return f"no answer: {done.stderr[-200:]}"
    return fate.get("caught") or fate.get("fooled")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("hammerhead", type=pathlib.Path)
    parser.add_argument("--plays", type=int, default=200)
    parser.add_argument("--load", type=int, default=2 * (os.cpu_count() or 1))
    parser.add_argument("--at-a-time", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3600.0)
    args = parser.parse_args()
    names, began = habits(args.hammerhead.resolve()), time.time()
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(args.load)]
    found = collections.Counter()

    def one(number):
        if time.time() - began > args.seconds:
            return
        name = names[number % len(names)]
        blamed = played(args.hammerhead.resolve(), name)
        found["plays"] += 1
        if blamed:
            found["blamed"] += 1
            print(f"{name}: {blamed}", flush=True)
        if found["plays"] % 20 == 0:
            print(f"{found['plays']} plays after {time.time() - began:.0f} s", flush=True)

    try:
        with concurrent.futures.ThreadPoolExecutor(args.at_a_time) as pool:
            list(pool.map(one, range(args.plays)))
    finally:
        for process in busy:
            process.kill()
    load = f"{args.load} busy processes and {args.at_a_time} plays at a time on {len(os.sched_getaffinity(0))} processors"
    print(f"{found['plays']} honest plays beside {load}: {found['blamed']} blamed, in {time.time() - began:.0f} s")


main()
