#!/usr/bin/env python3
"""y = 2·x + 1: numbers and what should come out."""

# What lies beside this file comes last when modules are looked for: contestants lie there too, and nothing fences this program.
import sys

sys.path.append(sys.path.pop(0))

import array

import tank


# A few thousand numbers of their own, again and again: Python is slow, and a kernel does not look back.
PERIOD = 4099


def generate(problem, numbers, lots, tensors):
    own = array.array("H", lots.randbytes(2 * PERIOD))
    part = 1 if numbers == "whole" else 3
    values = array.array("f", ((value % 2000 - 1000) / part for value in own))
    x = tensors["x"]
    repeated = values * (len(x) // len(values) + 1)
    x[:] = memoryview(repeated)[: len(x)]


def reference(problem, tensors, outputs):
    x, y = tensors["x"], outputs["y"]
    # What comes again need not be computed again.
    again = len(x) > PERIOD and x[PERIOD:].cast("B") == x[:-PERIOD].cast("B")
    values = array.array("d", (2.0 * value + 1.0 for value in (x[:PERIOD] if again else x)))
    repeated = values * (len(x) // max(1, len(values)) + 1)
    y[:] = memoryview(repeated)[: len(x)]


tank.serve_operation(generate, reference)
