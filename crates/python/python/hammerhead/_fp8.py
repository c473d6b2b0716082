"""FP8 linear layers: what stands beside NVFP4 ones in mixed models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hammerhead import _native
from hammerhead._arrays import EXPONENTS, NUMBERS, SCALES, A, Library, expect_element, library_of
from hammerhead._layers import PackedLayer
from hammerhead._packed import EngineOptions, engine_of, opened
from hammerhead._weights import _vector

if TYPE_CHECKING:
    from os import PathLike

    from typing_extensions import Self, Unpack

    from hammerhead._arrays import Dtype
    from hammerhead._native import Checkpoint

SIDES = (128, 32)
"""The sides of blocks that models have, where nothing else is said."""


class Fp8Linear(PackedLayer):
    """One FP8 matrix: ``x @ (weight * scale).T + bias``, computed from the weight's e4m3 numbers, which are exact.
    Tensors on a GPU are computed there, in torch's current stream, by layers of the backend ``cuda``."""

    _layer: _native.Fp8Layer

    @classmethod
    def _of(cls, layer: _native.Fp8Layer) -> Self:
        linear = cls.__new__(cls)
        n, k = layer.shape
        linear._hold(layer, k, n)
        return linear

    def __reduce__(self) -> Any:
        return _unpickled, (type(self), self._layer.parts(), self._layer.options)

    @classmethod
    def from_arrays(
        cls,
        weight: A,
        scale: Any,
        *,
        block: tuple[int, int] | None = None,
        bias: Any = None,
        **options: Unpack[EngineOptions],
    ) -> Fp8Linear:
        """Packs a weight ``[n, k]`` of float8_e4m3fn, or of its bytes.

        - ``scale`` multiplies: one number, one per row (``[n]`` or ``[n, 1]``), one per block (``[⌈n/a⌉, ⌈k/b⌉]``), or
          exponents per 32 elements (MXFP8: uint8 or float8_e8m0fnu, ``[n, k/32]``).
        - ``block``: the sides of blocks. If not given, 128 or 32 where that makes as many blocks, else what divides the
          sides, if no larger power of two makes as many.
        - ``bias``: n numbers.

        The arrays are not needed afterwards. ``backend`` and ``threads`` are as for :meth:`DualWeights.from_arrays`:
        without one, a weight on a GPU stays there.
        """
        library = library_of(weight, "weight")
        expect_element(weight, library, SCALES, "weight")
        if len(weight.shape) != 2:
            raise ValueError(f"weight: its shape is {list(weight.shape)}, where [n, k] is expected")
        codes = library.on_host(library.as_bytes(library.lendable(weight)))
        scales, sides = _scales(scale, [int(side) for side in weight.shape], library, block)
        numbers = None if bias is None else _vector(bias, "bias")
        backend, threads, config = engine_of(options)
        backend = library.backend(weight) if backend is None else backend
        return cls._of(_native.Fp8Layer.pack(codes, scales, sides, numbers, backend, threads, config))

    @classmethod
    def from_checkpoint(
        cls, model: str | PathLike[str] | Checkpoint, name: str, **options: Unpack[EngineOptions]
    ) -> Fp8Linear:
        """Reads one FP8 weight of a model, with its bias, by the name of its module, such as
        ``"model.layers.0.self_attn.q_proj"``."""
        return cls._of(_native.Fp8Layer.load(opened(model), name, *engine_of(options)))

    def __call__(self, x: A, *, dtype: Dtype | None = None, out: A | None = None) -> A:
        """Computes tokens ``[..., k]`` to ``[..., n]``, of the type of ``x`` unless ``dtype`` or ``out`` says
        otherwise."""
        return self._call(x, (), False, dtype, out)

    def _run(
        self, library: Library, tokens: Any, routing: tuple[Any, ...], on_input: bool, room: Any, adapted: Any = None
    ) -> None:
        (x, element), (out, kind) = tokens, room
        with library.at_device_of(x):
            self._layer.run((library.loan(x), element), (library.loan(out), kind), library.stream(x))

    def __repr__(self) -> str:
        return f"Fp8Linear(in_features={self.in_features}, out_features={self.out_features}, backends={self.backends})"


def _unpickled(cls: type[Fp8Linear], parts: Any, options: Any) -> Fp8Linear:
    return cls._of(_native.Fp8Layer.from_parts(parts, options))


def _scales(
    scale: Any, shape: list[int], library: Library, block: tuple[int, int] | None
) -> tuple[tuple[Any, str], tuple[int, int] | None]:
    """Scales as the native half takes them, and the sides of their blocks."""
    if isinstance(scale, (int, float)):
        import numpy

        return (numpy.array([scale], dtype="float32"), "float32"), None
    if library_of(scale, "scale") is not library:
        raise TypeError("scale: it belongs to another library than the weight")
    element = expect_element(scale, library, (*EXPONENTS, *NUMBERS), "scale")
    found = [int(side) for side in scale.shape]
    flat = library.on_host(library.lendable(scale)).reshape(-1)
    if element in EXPONENTS:
        if found != [shape[0], shape[1] // 32] or shape[1] % 32 != 0:
            raise ValueError(f"scale: its shape is {found}, where MXFP8 of {shape} needs [n, k/32], k a multiple of 32")
        return (library.as_bytes(flat), "uint8"), None
    numbers = (library.widened(flat), "float32")
    if int(flat.shape[0]) == 1 and block is None or found in ([shape[0]], [shape[0], 1]):
        return numbers, None
    sides = block if block is not None else _sides(shape, found)
    if sides is None:
        raise ValueError(
            f"scale: its shape is {found}, which does not scale a weight of shape {shape}; give one number, one per row, or "
            "one per block, with block= where that is not of 128 by 128"
        )
    return numbers, sides


def _sides(shape: list[int], blocks: list[int]) -> tuple[int, int] | None:
    """The sides of so many blocks."""
    if len(blocks) != 2 or 0 in blocks:
        return None
    sides = [block_side(length, count) for length, count in zip(shape, blocks)]
    return None if None in sides else (sides[0] or 0, sides[1] or 0)


def block_side(length: int, blocks: int) -> int | None:
    """The side of so many blocks along a length: 128 or 32 where that makes as many, else what divides it. Where blocks
    of a larger power of two are as many, the last of them smaller, nothing tells which are meant."""
    usual = next((side for side in SIDES if -(-length // side) == blocks), None)
    if usual is not None or length % blocks != 0:
        return usual
    side = length // blocks
    larger = 1 << (side - 1).bit_length()
    return side if blocks == 1 or larger == side or -(-length // larger) != blocks else None
