#!/usr/bin/env python3
"""y = 2·x + 1: numbers and what should come out."""

import array

import tank


def generate(problem, numbers, lots, tensors):
    # A few thousand numbers of their own, again and again: Python is slow, and a kernel does not look back.
    own = [lots.randrange(-1000, 1000) for _ in range(4099)]
    part = 1 if numbers == "whole" else 3
    values = array.array("f", (value / part for value in own))
    x = tensors["x"]
    repeated = values * (len(x) // len(values) + 1)
    x[:] = memoryview(repeated)[: len(x)]


def reference(problem, tensors, outputs):
    outputs["y"][:] = memoryview(array.array("d", (2.0 * value + 1.0 for value in tensors["x"])))


tank.serve_operation(generate, reference)
