"""A product by descriptors, for `report.py triton`."""

import triton
import triton.language as tl


@triton.jit
def product(a, b, c, k, BLOCK: tl.constexpr, STEP: tl.constexpr):
    sums = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for at in range(0, k, STEP):
        sums = tl.dot(a.load([0, at]), b.load([0, at]).T, sums)
    c.store([0, 0], sums.to(tl.float16))
