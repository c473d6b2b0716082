"""Ordinary matrices that are 4-bit already: weights which another program expanded from MXFP4.

Expanding MXFP4 loses nothing: an element is a 4-bit number times a power of two, and bfloat16 holds that. So the codes
can be found again, and packing them rounds nothing. Whether a matrix is such a one is not asked of its checkpoint but
seen in its elements, all of them. Weights expanded from NVFP4 are not found: their scales are not powers of two, and
bfloat16 rounds the products.
"""

from __future__ import annotations

from typing import Any

import numpy

from hammerhead._matrix import BLOCK, NvFp4

_NO_CODE = 255
_CODES = numpy.full(13, _NO_CODE, dtype=numpy.uint8)
"""Codes by twice the magnitude that they stand for: e2m1 has 0, 0.5, 1, 1.5, 2, 3, 4 and 6."""
_CODES[[0, 1, 2, 3, 4, 6, 8, 12]] = range(8)

_LEAST, _GREATEST = -9, 8
"""The powers of two among e4m3's numbers."""


class NotFourBit(ValueError):
    """A matrix has elements that 4 bits and a power of two per block do not hold. The message says which, and begins
    with a verb."""


def exact(values: numpy.ndarray[Any, Any]) -> NvFp4[Any]:
    """The NVFP4 matrix with exactly these elements, float32 ``[rows, K]``, or ``NotFourBit``."""
    rows, k = values.shape
    if k % BLOCK:
        raise NotFourBit(f"has rows of {k} elements, which are not blocks of {BLOCK}")
    blocks = values.reshape(rows, k // BLOCK, BLOCK)
    largest = numpy.abs(blocks).max(-1)
    if not numpy.isfinite(largest).all():
        raise NotFourBit("has elements that are not finite")
    # Of the powers of two with which the largest element is at most 6, the least is the only one to try: up to that
    # element it has every number that the greater ones have.
    fraction, exponent = numpy.frexp(largest / 6)
    exponent = exponent - (fraction == 0.5)
    twice = numpy.ldexp(blocks, 1 - exponent[..., None])
    magnitude = numpy.abs(twice)
    codes = _CODES[magnitude.astype(numpy.uint8)]
    other = (codes == _NO_CODE) | (magnitude != numpy.rint(magnitude))
    if other.any():
        row, block, _ = numpy.argwhere(other)[0]
        seen = ", ".join(f"{value:.6g}" for value in blocks[row, block][:4])
        raise NotFourBit(
            f"has elements that are no 4-bit numbers times one power of two: {seen}, … in row {row} from column "
            f"{block * BLOCK} on"
        )
    codes |= numpy.signbit(blocks).astype(numpy.uint8) << 3
    held = exponent[largest > 0]
    shift = int(held.max()) - _GREATEST if held.size else 0
    if held.size and held.min() - shift < _LEAST:
        raise NotFourBit(f"has blocks whose scales are further apart than 2^{_GREATEST - _LEAST}")
    power = numpy.where(largest > 0, exponent - shift, 0)
    scales = numpy.where(power >= -6, (power + 7) << 3, 1 << numpy.clip(power + 9, 0, 2)).astype(numpy.uint8)
    pairs = codes.reshape(rows, k // 2, 2)
    return NvFp4(pairs[..., 0] | (pairs[..., 1] << 4), scales, 2.0**shift)
