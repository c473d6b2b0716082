#!/usr/bin/env python3
"""Softmax over rows: its numbers, and what should come out of them, in double precision."""

# What lies beside this file comes last when modules are looked for: contestants lie there too, and nothing fences this program.
import sys

sys.path.append(sys.path.pop(0))

import math

import tank


def generate(problem, numbers, lots, tensors):
    x = tensors["x"]
    for index in range(len(x)):
        if numbers == "normal":
            x[index] = lots.gauss(0.0, 1.0)
        elif numbers == "large":
            # Whoever does not subtract the largest of a row first gets infinities.
            x[index] = lots.uniform(-200.0, 200.0)
        else:
            x[index] = 7.25


def reference(problem, tensors, outputs):
    x, y, columns = tensors["x"], outputs["y"], problem["columns"]
    for start in range(0, len(x), columns):
        row = x[start : start + columns]
        largest = max(row)
        powers = [math.exp(value - largest) for value in row]
        whole = math.fsum(powers)
        for index, power in enumerate(powers):
            y[start + index] = power / whole


tank.serve_operation(generate, reference)
