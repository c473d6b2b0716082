"""NVFP4 and MXFP4 matrices, and how the former are made of ordinary ones."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Generic

from hammerhead import _native
from hammerhead._arrays import CODES, EXPONENTS, NUMBERS, SCALES, A, expect_element, library_of

BLOCK = 16
"""How many consecutive elements of a row of NVFP4 share one scale."""

_TOO_LARGE = 2.0**128 - 2.0**103
"""The least number that rounds to infinity in float32."""


@dataclass(frozen=True, eq=False)
class Matrix(Generic[A]):
    """What :class:`NvFp4` and :class:`MxFp4` have in common.

    Libraries, element types and shapes of the arrays are checked when it is made, and that the global scale is finite
    in float32 (it may be zero or negative). The arrays are neither copied nor read: a block scale that is NaN is found
    by whatever takes the matrix.
    """

    _BLOCK: ClassVar[int]
    _SCALES: ClassVar[tuple[str, ...]]

    codes: A
    """Two e2m1 codes a byte, the even k in the low nibble: uint8 ``[rows, K/2]`` (or torch's float4_e2m1fn_x2)."""

    scales: A
    """One byte for each block of consecutive elements of a row: row-major, not blocked."""

    global_scale: float = 1.0
    """The scale of the whole matrix. It multiplies; if your checkpoint's divides, give its reciprocal as a Python float
    (``1 / float(g)``): that says exactly "divides by g", where a reciprocal in float32 would be rounded."""

    def __post_init__(self) -> None:
        library = library_of(self.codes, "codes")
        if library is not library_of(self.scales, "scales"):
            raise TypeError("scales: they belong to another library than the codes")
        expect_element(self.codes, library, CODES, "codes")
        expect_element(self.scales, library, self._SCALES, "scales")
        self._check_shapes([int(side) for side in self.codes.shape], [int(side) for side in self.scales.shape])
        # A scalar array will do: what is kept is its number.
        object.__setattr__(self, "global_scale", _usable(self.global_scale))

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and K."""
        rows, packed = self.codes.shape
        return int(rows), 2 * int(packed)

    def dequantize(self) -> A:
        """The matrix as float32 ``[rows, K]``."""
        library = library_of(self.codes, "codes")
        codes, scales, global_scale, block = self._parts()
        codes, scales = library.on_host(codes), library.on_host(scales)
        values = library.empty(codes, self.shape, "float32")
        _native.dequantize((codes, scales, global_scale, block), values)
        return library.beside(self.codes, values)

    def _parts(self) -> tuple[Any, Any, float, int]:
        """The matrix as the native half takes it."""
        library = library_of(self.codes, "codes")
        codes, scales = (library.as_bytes(library.lendable(part)) for part in (self.codes, self.scales))
        return codes, scales, self.global_scale, self._BLOCK

    def _check_shapes(self, codes: list[int], scales: list[int]) -> None:
        if len(codes) != 2:
            raise ValueError(f"codes: their shape is {codes}, where [rows, K/2] is expected")
        rows, packed = codes
        block = self._BLOCK
        if packed == 0 or packed % (block // 2) != 0:
            raise ValueError(
                f"codes: their shape is {codes}, so K is {2 * packed}, and blocks of {block} do not make that up; pad K to a multiple of {block}"
            )
        expected = [rows, 2 * packed // block]
        if scales != expected:
            raise ValueError(f"scales: their shape is {scales}, where codes of {codes} need {expected}, row-major and not blocked")


class NvFp4(Matrix[A]):
    """An NVFP4 matrix of shape ``[rows, K]``: ``element = e2m1(code) * e4m3(scale) * global_scale``, with one scale for
    16 consecutive elements. ``scales`` are uint8 or float8_e4m3fn ``[rows, K/16]``."""

    _BLOCK = BLOCK
    _SCALES = SCALES


class MxFp4(Matrix[A]):
    """An MXFP4 matrix of shape ``[rows, K]``: ``element = e2m1(code) * 2 ** (scale - 127) * global_scale``, with one
    scale for 32 consecutive elements. ``scales`` are uint8 or float8_e8m0fnu ``[rows, K/32]``.

    For weights, which CPUs and NVIDIA's GPUs before Blackwell compute with these scales; Blackwell's have them widened
    to those of NVFP4, as has a layer in which other matrices are :class:`NvFp4`.

    >>> import numpy
    >>> codes, scales = numpy.full((1, 16), 0x22, numpy.uint8), numpy.full((1, 1), 130, numpy.uint8)
    >>> float(MxFp4(codes, scales).dequantize()[0, 0])
    8.0
    """

    _BLOCK = 32
    _SCALES = EXPONENTS


def _usable(global_scale: Any) -> float:
    try:
        value = float(global_scale)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"global_scale: one number is expected, not {type(global_scale).__name__} ({error})") from error
    if not math.isfinite(value) or abs(value) >= _TOO_LARGE:
        raise ValueError(f"global_scale: it is {value}, and must be finite in float32")
    return value


def quantize(array: A, global_scale: float | None = None) -> NvFp4[A]:
    """Quantises a float16, bfloat16 or float32 matrix ``[rows, K]`` to NVFP4; K must be a multiple of 16.

    Without a ``global_scale`` the common recipe's is used, ``amax / (6 * 448)``. With one, blocks whose scale would
    leave what e4m3 can hold get the nearest it can.

    >>> import numpy
    >>> q = quantize(numpy.ones((2, 32), dtype=numpy.float32))
    >>> q.codes.shape, q.scales.shape, float(q.dequantize()[0, 0])
    ((2, 16), (2, 2), 1.0)
    """
    library = library_of(array, "the array to quantise")
    element = expect_element(array, library, NUMBERS, "the array to quantise")
    if len(array.shape) != 2:
        raise ValueError(f"the array to quantise: its shape is {list(array.shape)}, where [rows, K] is expected")
    rows, k = (int(side) for side in array.shape)
    values = library.on_host(library.lendable(array))
    codes = library.empty(values, (rows, k // 2), "uint8")
    scales = library.empty(values, (rows, k // BLOCK), "uint8")
    scale = _native.quantize((values, element), codes, scales, global_scale)
    return NvFp4(library.beside(array, codes), library.beside(array, scales), scale)
