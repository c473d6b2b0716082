#!/usr/bin/env python3
"""C = A·Bᵀ: numbers, and what should come out, in double precision. The product is the device's, since it is asked for after every timed run."""

# What lies beside this file comes last when modules are looked for: contestants lie there too, and nothing fences this program.
import sys

sys.path.append(sys.path.pop(0))

import numpy
import torch

import tank

# 256 numbers of a normal distribution, by their places in it, and 256 whole ones: a byte draws one, which is fast.
PLACES = torch.linspace(0.5 / 256, 1 - 0.5 / 256, 256, dtype=torch.float64)
KINDS = {"normal": torch.special.ndtri(PLACES).numpy().astype(numpy.float16), "whole": (numpy.arange(256) % 9 - 4).astype(numpy.float16)}


def generate(problem, numbers, lots, tensors):
    drawn = numpy.random.default_rng(lots.getrandbits(64))
    for name in sorted(tensors):
        bits = numpy.frombuffer(tensors[name], dtype=numpy.uint16)
        values = KINDS[numbers][drawn.integers(0, 256, bits.size, dtype=numpy.uint8)]
        if name == "b":
            # So that results are about as large as their operands.
            values = values * numpy.float16(problem["k"] ** -0.5)
        bits[:] = values.view(numpy.uint16)


def reference(problem, tensors, outputs):
    def of(name, rows):
        halves = numpy.frombuffer(tensors[name], dtype=numpy.float16).reshape(rows, problem["k"])
        return torch.from_numpy(halves).to("cuda").double()

    product = of("a", problem["m"]) @ of("b", problem["n"]).T
    numpy.frombuffer(outputs["c"], dtype=numpy.float64)[:] = product.cpu().numpy().reshape(-1)


tank.serve_operation(generate, reference)
