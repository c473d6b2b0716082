"""Kernels for the tests of ``hammerhead.sim``. Triton reads their source from this file."""

import triton
import triton.language as tl


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


tuned = triton.autotune([triton.Config({"BLOCK": 256}), triton.Config({"BLOCK": 512})], key=["n"])(add)


@triton.jit
def all_store(out, BLOCK: tl.constexpr):
    """Every program stores its number to the same place."""
    tl.store(out + tl.arange(0, BLOCK), tl.program_id(0))


@triton.jit
def product(a, b, c, k, BLOCK: tl.constexpr, STEP: tl.constexpr):
    """A tile of a · bᵀ, by descriptors."""
    row, column = tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK
    sums = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for at in range(0, k, STEP):
        sums = tl.dot(a.load([row, at]), b.load([column, at]).T, sums)
    c.store([row, column], sums.to(tl.float16))
