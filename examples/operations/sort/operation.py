#!/usr/bin/env python3
"""Sorting numbers: what is to be sorted, and sorted."""

# What lies beside this file comes last when modules are looked for: contestants lie there too, and nothing fences this program.
import sys

sys.path.append(sys.path.pop(0))

import tank


def generate(problem, numbers, lots, tensors):
    keys = tensors["keys"]
    for index in range(len(keys)):
        if numbers == "sorted":
            keys[index] = index
        elif numbers == "few":
            keys[index] = lots.randrange(4)
        else:
            keys[index] = lots.uniform(-1e6, 1e6)


def reference(problem, tensors, outputs):
    outputs["sorted"][:] = memoryview(tank.array.array("d", sorted(tensors["keys"])))


tank.serve_operation(generate, reference)
