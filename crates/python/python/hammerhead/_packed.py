"""What everything that was packed has in common, and what may be asked when it is."""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from hammerhead._arrays import library_of
from hammerhead._matrix import Matrix
from hammerhead._native import Checkpoint

if TYPE_CHECKING:
    from os import PathLike

    from typing_extensions import Self


class Packed:
    """Weights that were packed for this machine. They may be used by several threads at once; Python's lock is released
    while they are computed with. Ctrl-C ends a call on a CPU within about a tenth of a second; what it has written of
    its results is not to be used, and the layer is as before.

    They are pickled as they are packed, with the options that they were made with, unless they lie on a GPU. Copies
    share them.
    """

    _layer: Any

    def __reduce__(self) -> Any:
        return _unpickled, (type(self), self._layer.to_bytes(), self._layer.options)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        # Weights do not change: copies of a model share them.
        return self

    @classmethod
    def _from_bytes(cls, data: bytes, options: Any) -> Self:
        raise NotImplementedError

    @property
    def backends(self) -> list[str]:
        """The backends that every call chooses among, best first."""
        return self._layer.backends

    @property
    def threads(self) -> int:
        """How many threads compute."""
        return self._layer.threads

    @property
    def packed_bytes(self) -> int:
        """The bytes that the weights take in memory."""
        return self._layer.packed_bytes

    @property
    def gate(self) -> str:
        """The name of the gate."""
        return self._layer.gate


def _unpickled(cls: type[Packed], data: bytes, options: Any) -> Packed:
    return cls._from_bytes(data, options)


class EngineOptions(TypedDict, total=False):
    """Where to compute: as for :meth:`DualWeights.from_arrays`."""

    backend: str | None
    threads: int | None
    config: str | None


class MlpOptions(EngineOptions, total=False):
    """How a whole layer is computed."""

    intermediate: Literal["tokens", "f32", "nvfp4"]
    """What stands between the two products: the type of the tokens (if not given), ``"f32"``, or ``"nvfp4"`` with ``intermediate_scale``."""

    precision: Literal["exact", "fp8"]
    """What the operands of both products are rounded to: nothing (if not given), or ``"fp8"``, which changes results as
    docs/fp8.md defines, and is computed by Hopper GPUs alone."""

    batch_invariant: bool
    """Whether a token's result may depend on nothing but that token and the weights, to the bit."""

    workspace_bytes: int | None
    """What the rows that are computed at a time may take, 512 MiB if not given."""

    gpu_bytes: int | None
    """What the weights may take of a GPU's memory, all that there is if not given: experts beyond it stay in the host's memory, and the
    processor computes them while the GPU computes the others."""


class LayerOptions(MlpOptions, total=False):
    """How a layer of experts is computed."""

    stream: bool | int | None
    """Whether the GPU computes experts beyond ``gpu_bytes`` itself in calls with many rows (tokens times experts of
    each), with weights that it brings over for the while: never (if not given, ``False``, ``None`` or 0), from eight
    rows per expert on (``True``), or from so many rows on. What it brings takes as much of the host's memory again as
    all experts do, page-locked."""


def engine_of(
    options: EngineOptions, first: Any = None, known: type[Any] = EngineOptions
) -> tuple[str | None, int | None, str | None]:
    """What is asked of an engine; without a backend, the GPU that the first matrix lies on."""
    unknown = options.keys() - known.__annotations__.keys()
    if unknown:
        raise TypeError(f"{min(unknown)}: there is no such option; there are {', '.join(sorted(known.__annotations__))}")
    backend = options.get("backend")
    if backend is None and isinstance(first, Matrix):
        backend = library_of(first.codes, "the weights").backend(first.codes)
    return backend, options.get("threads"), options.get("config")


def streaming(stream: Any) -> tuple[bool, int | None]:
    """Whether weights are brought over, and from how many rows on where that is said."""
    if stream is None or isinstance(stream, bool):
        return bool(stream), None
    try:
        rows = index(stream)
    except TypeError:
        rows = -1
    if not 0 <= rows < 2**63:
        raise ValueError(f"stream: it is {stream!r}; give True, a number of rows, or False, None or 0 for never")
    return rows > 0, rows or None


def asked(
    options: LayerOptions | MlpOptions, first: Any = None, known: type[Any] = LayerOptions
) -> tuple[str, str, bool, int | None, int | None, tuple[bool, int | None], str | None, int | None, str | None]:
    """What is asked of a whole layer, as the native half takes it."""
    engine = engine_of(options, first, known)
    between, precision = options.get("intermediate", "tokens"), options.get("precision", "exact")
    invariant = options.get("batch_invariant", False)
    gpu_bytes, stream = options.get("gpu_bytes"), streaming(options.get("stream"))
    if stream[0] and gpu_bytes is None:
        raise ValueError("stream: it is for experts beyond gpu_bytes, which was not given; give both")
    return between, precision, invariant, options.get("workspace_bytes"), gpu_bytes, stream, *engine


def opened(model: str | PathLike[str] | Checkpoint) -> Checkpoint:
    """An open model."""
    return model if isinstance(model, Checkpoint) else Checkpoint(model)


def declared(gate: str | None, clamp: float | None) -> tuple[str, float | None] | None:
    """A gate that was asked for, if one was: else a model declares it."""
    if clamp is not None and gate is None:
        raise ValueError("clamp: it was given without a gate; give gate='gpt-oss' with it")
    return None if gate is None else (gate, clamp)
