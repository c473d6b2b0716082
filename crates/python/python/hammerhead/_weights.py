"""The operation: weights that were packed once, called on tokens."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from hammerhead import _native
from hammerhead._arrays import NUMBERS, A, Library, element_name, expect_element, library_of
from hammerhead._matrix import Matrix, NvFp4
from hammerhead._native import Checkpoint
from hammerhead._packed import Packed, declared, engine_of, opened

if TYPE_CHECKING:
    from os import PathLike

    from typing_extensions import Self

    from hammerhead._arrays import Dtype


class DualWeights(Packed):
    """The weights of a gated layer, or of all experts of one, packed for this machine.

    Call it on tokens: ``weights(x)`` is ``gate(x @ b1.T) * (x @ b2.T)``. Made by :meth:`from_checkpoint` or
    :meth:`from_arrays`. It may be used by several threads at once; Python's lock is released while it computes. Do not
    write to arrays that a call is still reading.

    Weights of the backend ``cuda`` take tensors on that GPU: the work is queued in torch's current stream like torch's
    own, and the call returns before it is done.

    A token's results are what IEEE arithmetic makes of it: NaN and infinity spoil the results of their own row, and of
    no other.
    """

    _layer: _native.Layer

    def __init__(self) -> None:
        raise TypeError("DualWeights are made by DualWeights.from_checkpoint or DualWeights.from_arrays")

    @classmethod
    def _of(cls, layer: _native.Layer) -> Self:
        weights = cls.__new__(cls)
        weights._layer = layer
        return weights

    @classmethod
    def _from_bytes(cls, data: bytes, options: Any) -> Self:
        return cls._of(_native.Layer.from_bytes(data, options))

    @classmethod
    def from_arrays(
        cls,
        b1: Matrix[A] | Sequence[Matrix[A]],
        b2: Matrix[A] | Sequence[Matrix[A]] | None = None,
        *,
        input_scale: Any = None,
        gate: str = "silu",
        clamp: float | None = None,
        backend: str | None = None,
        threads: int | None = None,
        config: str | None = None,
    ) -> DualWeights:
        """Packs gate weights ``b1`` and up weights ``b2``, ``[n, k]`` each; or a sequence of each, one per expert.
        Matrices are :class:`NvFp4` or :class:`MxFp4`.

        The arrays are copied into the packed layout and not needed afterwards.

        - ``input_scale``: ``k`` numbers that every call multiplies its tokens with first, column by column (AWQ's
          ``pre_quant_scale``); or a sequence with such an array or None for each group. Tokens must not be
          :class:`NvFp4` then.
        - ``gate``: ``"silu"`` (``clamp`` limits gate and up value), ``"gelu-tanh"``, ``"gpt-oss"`` (``clamp`` sets its
          limit, 7 if not given; or ``"gpt-oss:alpha=1.702,beta=1,limit=7"``); or, with ``b1`` alone, ``"relu2"`` or
          ``"none"`` for a plain product.
        - ``backend``: a name from :func:`backends`; if not given, the GPU that the arrays lie on, else what the
          environment's ``HAMMERHEAD_BACKEND`` says, else the best for the CPU.
        - ``threads``: how many to compute on; if not given, as many as this process may run on.
        - ``config``: wishes for how to compute, such as ``"strategy=interleaved,tile=48x16"``; the rest is planned.
        """
        firsts = [b1] if isinstance(b1, Matrix) else list(b1)
        seconds: list[Matrix[A] | None]
        if b2 is None:
            seconds = [None] * len(firsts)
        else:
            seconds = [b2] if isinstance(b2, Matrix) else list(b2)
        if len(firsts) != len(seconds):
            raise ValueError(f"b2: there are {len(seconds)} matrices, and {len(firsts)} in b1; every group needs both")
        engine = engine_of({"backend": backend, "threads": threads, "config": config}, firsts[0] if firsts else None)
        scales: list[Any]
        if input_scale is None:
            scales = [None] * len(firsts)
        else:
            scales = [input_scale] if isinstance(b1, Matrix) else list(input_scale)
        if len(firsts) != len(scales):
            raise ValueError(f"input_scale: there are {len(scales)}, and {len(firsts)} groups; give one or None for each")
        groups = [
            (
                _matrix(first, f"b1 of group {group}"),
                None if second is None else _matrix(second, f"b2 of group {group}"),
                None,
                None if scale is None else _vector(scale, f"input_scale of group {group}"),
            )
            for group, (first, second, scale) in enumerate(zip(firsts, seconds, scales))
        ]
        return cls._of(_native.Layer.pack(groups, gate, clamp, *engine))

    @classmethod
    def from_checkpoint(
        cls,
        model: str | PathLike[str] | Checkpoint,
        layer: int,
        experts: Sequence[int] | Literal["shared"] | None = None,
        *,
        gate: str | None = None,
        clamp: float | None = None,
        backend: str | None = None,
        threads: int | None = None,
        config: str | None = None,
    ) -> DualWeights:
        """Reads a layer of a model on disk: safetensors as ModelOpt, compressed-tensors, torchao or gpt-oss lay them
        out, or GGUF.

        - ``model``: a folder, a file, or an open :class:`Checkpoint`, which saves reading its headers again for every
          layer.
        - ``layer``: the layer's number in the model.
        - ``experts``: the numbers of the experts to read, ``"shared"`` for those that see every token, or None for all
          numbered ones, or for the layer's one pair if it has no experts. Each becomes a group.
        - ``gate``: if not given, as the model declares.

        A model's ``pre_quant_scale`` (AWQ) is applied by every call. The rest is as for :meth:`from_arrays`. What this
        operation does not compute, such as biases, is refused.
        """
        declared(gate, clamp)
        shared = isinstance(experts, str)
        if shared and experts != "shared":
            raise ValueError(f"experts: numbers are expected, or 'shared', not {experts!r}")
        numbers = None if experts is None or shared else [_number(expert, "experts") for expert in experts]
        return cls._of(
            _native.Layer.load(
                opened(model), _number(layer, "layer"), numbers, shared, gate, clamp, backend, threads, config
            )
        )

    def with_precision(self, precision: Literal["exact", "fp8"]) -> DualWeights:
        """The same packed weights, whose calls round dense tokens and weights before they multiply them.

        ``"fp8"`` rounds both to e4m3, which changes results, as docs/fp8.md defines, and doubles the rate of the tensor cores. Hopper GPUs
        compute it (backend ``cuda``); calls elsewhere, and with :class:`NvFp4` tokens, are refused. ``"exact"`` rounds nothing.
        """
        return self._of(self._layer.with_precision(precision))

    @property
    def precision(self) -> str:
        """What calls round dense tokens and weights to: ``"exact"`` or ``"fp8"``."""
        return self._layer.precision

    def __call__(self, x: A | NvFp4[A], *, dtype: Dtype | None = None, out: A | None = None) -> A:
        """Computes one group's tokens, ``[..., k]``, to ``[..., n]``.

        ``x`` is a float16, bfloat16 or float32 array, or :class:`NvFp4`. The result is of the same kind (numpy or
        torch), of type ``dtype`` (if not given: that of ``out``, else that of ``x``, else float16), and in ``out`` if
        that is given. Values beyond what ``dtype`` can hold become infinite, as they do elsewhere.
        """
        if len(self.shapes) != 1:
            raise ValueError(f"these weights have {len(self.shapes)} groups; use grouped() and give tokens for each")
        return self._run([x], dtype, None if out is None else [out])[0]

    @overload
    def grouped(
        self, x: Sequence[A | NvFp4[A]], *, dtype: Dtype | None = None, out: Sequence[A] | None = None
    ) -> list[A]: ...

    @overload
    def grouped(self, x: A, counts: Iterable[int], *, dtype: Dtype | None = None, out: A | None = None) -> A: ...

    def grouped(self, x: Any, counts: Any = None, *, dtype: Dtype | None = None, out: Any = None) -> Any:
        """Computes tokens for every group at once.

        Either ``x`` is a sequence, one array a group (an array may have no rows), and so is the result; or ``x`` is one
        array ``[tokens, k]`` sorted by group, ``counts`` says how many rows each group has, and the result is one array
        ``[tokens, n]``.
        """
        if counts is None:
            if not isinstance(x, Sequence):
                raise TypeError("x: a sequence with one array a group is expected, or one array and counts")
            return self._run(list(x), dtype, None if out is None else list(out))
        library = library_of(x, "x")
        sizes = [operator.index(count) for count in (counts.tolist() if hasattr(counts, "tolist") else counts)]
        if len(x.shape) != 2 or len(sizes) != len(self.shapes) or min(sizes) < 0 or sum(sizes) != x.shape[0]:
            raise ValueError(
                f"counts: {sizes} do not divide x of shape {list(x.shape)} among {len(self.shapes)} groups; give x as "
                "[tokens, k] and one count a group, which together make up its rows"
            )
        if len({n for n, _ in self.shapes}) != 1:
            raise ValueError("counts: the groups have different n, so their results do not fit one array; give a sequence")
        if out is None:
            out = library.empty(x, (x.shape[0], self.shapes[0][0]), _result(dtype, [x], library))
        elif library_of(out, "out") is not library or tuple(out.shape) != (x.shape[0], self.shapes[0][0]):
            raise ValueError(f"out: an array like x of shape {[x.shape[0], self.shapes[0][0]]} is expected")
        self._run(_cut(x, sizes), dtype, _cut(out, sizes))
        return out

    def _run(self, tokens: list[Any], dtype: Dtype | None, outputs: list[Any] | None) -> list[Any]:
        """Lends tokens and outputs to the native half, made for the purpose if they were not given."""
        if len(tokens) != len(self.shapes):
            raise ValueError(f"x: there are tokens for {len(tokens)} groups, and the weights have {len(self.shapes)}")
        arrays = [x.codes if isinstance(x, NvFp4) else x for x in tokens]
        library = library_of(arrays[0], "x")
        if any(library_of(array, "x") is not library for array in arrays):
            raise TypeError("x: all groups must come from the same library")
        shapes = [(*_sides(x), n) for x, (n, _) in zip(tokens, self.shapes)]
        if outputs is None:
            element = _result(dtype, tokens, library)
            outputs = [library.empty(array, shape, element) for array, shape in zip(arrays, shapes)]
        elif len(outputs) != len(tokens):
            raise ValueError(f"out: there are {len(outputs)} outputs for {len(tokens)} groups")
        targets = [_target(out, shape, dtype, library) for out, shape in zip(outputs, shapes)]
        lent = [(library.room(out), element) for out, element in targets]
        with library.at_device_of(arrays[0]):
            self._layer.run([_tokens(x, library) for x in tokens], lent, library.stream(arrays[0]))
        for (out, _), (room, _) in zip(targets, lent):
            library.settle(out, room)
        return outputs

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """``(n, k)`` of every group."""
        return self._layer.columns

    @property
    def input_scales(self) -> list[list[float] | None]:
        """What every call multiplies the tokens of each group with first, column by column, or None."""
        return self._layer.input_scales

    @property
    def checkpoint_bytes(self) -> int:
        """The bytes that the weights took where they came from."""
        return self._layer.checkpoint_bytes

    def __repr__(self) -> str:
        shapes = self.shapes
        n, k = shapes[0] if len(set(shapes)) == 1 else ("various", "various")
        return f"DualWeights(groups={len(shapes)}, n={n}, k={k}, gate={self.gate!r}, backends={self.backends})"


def dual_gemm(
    a: A | NvFp4[A],
    b1: Matrix[A],
    b2: Matrix[A] | None = None,
    *,
    dtype: Dtype | None = None,
    out: A | None = None,
    gate: str = "silu",
    clamp: float | None = None,
    backend: str | None = None,
    threads: int | None = None,
    config: str | None = None,
) -> A:
    """``gate(a @ b1.T) * (a @ b2.T)``, with weights that are used once.

    Packing weights costs about as much as a call: keep :class:`DualWeights` where they are used again. Options are
    those of :meth:`DualWeights.from_arrays` and of its call.
    """
    weights = DualWeights.from_arrays(
        b1, b2, gate=gate, clamp=clamp, backend=backend, threads=threads, config=config
    )
    return weights(a, dtype=dtype, out=out)


def grouped(
    a: Sequence[A | NvFp4[A]],
    b1: Sequence[Matrix[A]],
    b2: Sequence[Matrix[A]] | None = None,
    *,
    dtype: Dtype | None = None,
    out: Sequence[A] | None = None,
    gate: str = "silu",
    clamp: float | None = None,
    backend: str | None = None,
    threads: int | None = None,
    config: str | None = None,
) -> list[A]:
    """:func:`dual_gemm` over groups of any sizes at once: tokens and weights of every group, and a result for each."""
    weights = DualWeights.from_arrays(
        b1, b2, gate=gate, clamp=clamp, backend=backend, threads=threads, config=config
    )
    return weights.grouped(a, dtype=dtype, out=out)


def backends() -> dict[str, str | None]:
    """Every backend by name, best first, with the reason why it cannot run here, or None if it can."""
    return dict(_native.backends())


def _number(value: Any, what: str) -> int:
    number = operator.index(value)
    if number < 0:
        raise ValueError(f"{what}: {number} is negative; they are counted from 0")
    return number


def _vector(numbers: Any, what: str) -> list[float]:
    values = numbers.tolist() if hasattr(numbers, "tolist") else list(numbers)
    if not isinstance(values, list) or any(isinstance(value, list) for value in values):
        raise ValueError(f"{what}: an array of k numbers in one dimension is expected")
    return [float(value) for value in values]


def _matrix(matrix: Any, what: str) -> tuple[Any, Any, float, int]:
    if not isinstance(matrix, Matrix):
        raise TypeError(f"{what}: an NvFp4 or MxFp4 matrix is expected, not {type(matrix).__name__}; quantize() makes one")
    codes, scales, global_scale, block = matrix._parts()
    library = library_of(codes, what)
    return library.on_host(codes), library.on_host(scales), global_scale, block


def _sides(x: Any) -> tuple[int, ...]:
    """The shape of tokens without k."""
    shape = x.codes.shape if isinstance(x, NvFp4) else x.shape
    if len(shape) == 0 or (isinstance(x, NvFp4) and len(shape) != 2):
        raise ValueError(f"x: its shape is {list(shape)}, where tokens by k is expected")
    return tuple(int(side) for side in shape[:-1])


def _tokens(x: Any, library: Library) -> Any:
    """Tokens as the native half takes them: two-dimensional."""
    if isinstance(x, NvFp4):
        return x._parts()
    element = expect_element(x, library, NUMBERS, "x")
    return library.lendable(x if len(x.shape) == 2 else x.reshape(-1, x.shape[-1])), element


def _result(dtype: Dtype | None, tokens: list[Any], library: Library) -> str:
    """The type of results that were not given room: what was asked, else as the tokens."""
    if dtype is not None:
        return element_name(dtype)
    first = tokens[0]
    return "float16" if isinstance(first, NvFp4) else expect_element(first, library, NUMBERS, "x")


def _target(out: Any, shape: tuple[int, ...], dtype: Dtype | None, library: Library) -> tuple[Any, str]:
    """Room for results as the native half takes it."""
    if library_of(out, "out") is not library:
        raise TypeError("out: it must come from the same library as x")
    element = expect_element(out, library, NUMBERS, "out")
    if dtype is not None and element_name(dtype) != element:
        raise ValueError(f"out: its elements are {element}, but dtype asks for {element_name(dtype)}; give one of them")
    if tuple(out.shape) != shape:
        raise ValueError(f"out: its shape is {list(out.shape)}, where {list(shape)} is expected")
    if not library.row_major(out):
        raise ValueError("out: its elements do not follow each other row by row; give a contiguous array")
    return library.writable(out), element


def _cut(array: Any, sizes: list[int]) -> list[Any]:
    """Consecutive rows, as views."""
    parts, start = [], 0
    for size in sizes:
        parts.append(array[start : start + size])
        start += size
    return parts
