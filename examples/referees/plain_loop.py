#!/usr/bin/env python3
"""Another referee for `hammerhead tank exploits --against examples/referees/plain_loop.py`: the timing loop that most
benchmarks of kernels have.

It warms up, compares one result with loose tolerances, and takes the median of some runs on the same data. It is here
to be fooled, and as an example of the calling convention (docs/referee.md): the command is called with the suite's
folder, `exploit` or `honest`, and a name, and prints one JSON object: {"fooled": how}, {"caught": how},
{"gained-nothing": how} or {"not-played": why}.
"""

import json
import os
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import time

ROWS, COLUMNS = 12, 32
WARM_UP, RUNS, FASTER = 3, 200, 0.8
TOLERANCE = 1e-2
# There is no fence here: these would take what is this machine's.
HARMFUL = {"filler", "shouter", "collector", "breeder", "swollen", "meddler", "meddling", "escapist", "climber", "timer-storm", "shouting", "hang"}


class Contestant:
    """A program of the suite, with one set of weights, one input and one output in files."""

    def __init__(self, command, folder, weights, x):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.output = os.path.join(folder, "outputs")
        files = {"constants": weights, "inputs": x, "outputs": [0.0] * 1024}
        for name, values in files.items():
            with open(os.path.join(folder, name), "wb") as file:
                file.write(struct.pack(f"<{len(values)}f", *values))
        self.ask({"type": "hello", "protocol": 2})
        place = lambda *shape: {"type": "f32", "shape": list(shape), "offset": 0}
        self.answer = self.ask({
            "type": "prepare", "id": "0", "operation": "weighted-sums", "problem": {"rows": ROWS, "columns": COLUMNS},
            "files": {name: os.path.join(folder, name) for name in files}, "constants": [{"weights": place(COLUMNS)}],
            "inputs": [{"x": place(ROWS, COLUMNS)}], "outputs": [{"y": place(ROWS)}],
        })

    def ask(self, message):
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise EOFError("it ended")
        return json.loads(line)

    def run(self, number):
        self.ask({"type": "run", "id": str(number), "jobs": [{"layer": 0, "input": 0, "output": 0}]})

    def result(self):
        with open(self.output, "rb") as file:
            return struct.unpack(f"<{ROWS}f", file.read(4 * ROWS))

    def time(self):
        times = []
        for number in range(RUNS):
            began = time.perf_counter()
            self.run(number)
            times.append(time.perf_counter() - began)
        return statistics.median(times)


def played(command, weights, x):
    """The median time of a program, or why it is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        contestant = Contestant(command, folder, weights, x)
        try:
            if contestant.answer["type"] == "unsupported":
                return None, contestant.answer["reason"]
            for number in range(WARM_UP):
                contestant.run(number)
            for row, found in enumerate(contestant.result()):
                expected = sum(a * b for a, b in zip(x[row * COLUMNS : (row + 1) * COLUMNS], weights))
                # No number is larger than the tolerance.
                if abs(found - expected) > TOLERANCE + TOLERANCE * abs(expected):
                    return None, f"element {row} is {found}, should be {expected}"
            return contestant.time(), None
        finally:
            contestant.process.kill()
            contestant.process.wait()


def main(folder, kind, name):
    if kind == "exploit" and name in HARMFUL:
        return {"not-played": "there is no fence here, and it would harm the machine"}
    lots = random.Random(1)
    weights, x = [lots.uniform(-1, 1) for _ in range(COLUMNS)], [lots.uniform(-1, 1) for _ in range(ROWS * COLUMNS)]
    file = {"exploit": "exploits.py", "honest": "honest.py"}[kind]
    command = lambda file, name: [sys.executable, os.path.join(folder, file), name]
    try:
        champion, _ = played(command("honest.py", "plain"), weights, x)
        found, why = played(command(file, name), weights, x)
    except (EOFError, OSError, ValueError, KeyError, struct.error) as error:
        return {"caught": f"{type(error).__name__}: {error}"}
    if why is not None:
        # Who took what is not its own says so in place of an answer.
        return {"caught" if "should be" in why else "fooled": why}
    ratio = champion / found
    return {"fooled" if kind == "exploit" and found < FASTER * champion else "gained-nothing": f"{ratio:.2f}x"}


print(json.dumps(main(*sys.argv[1:4])))
