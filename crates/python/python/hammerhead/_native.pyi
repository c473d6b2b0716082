"""The native half of the package: what the Python half asks of it. Not an interface for users."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, final

__all__ = ["Adapters", "Checkpoint", "FeedForward", "Fp8Layer", "Layer", "__version__", "backends", "dequantize", "quantize", "serve_trials", "simulate", "use_threads"]
__version__: str

# An NVFP4 matrix: codes and scales as objects that speak DLPack (uint8), and the global scale.
_Matrix = tuple[Any, Any, float]
# Numbers: an object that speaks DLPack, and the name its owner has for the type of its elements.
_Numbers = tuple[Any, str]
# The weights of one product: one matrix or two, a bias per matrix, and what tokens are multiplied with first.
_Weights = tuple[_Matrix, _Matrix | None, list[list[float]] | None, list[float] | None]
# An MLP: gate and up (or up alone), down, and the global scale of an NVFP4 intermediate.
_Mlp = tuple[_Weights, _Weights, float]
# A projection by name: the stem of its tensor, its number in the stack, and which rows; an MLP of such.
_Projection = tuple[str, int, str]
_NamedMlp = tuple[_Projection, _Projection | None, _Projection]
# A gate's name and its limit.
_Gate = tuple[str, float | None]
# Backend, threads and configuration.
_EngineOptions = tuple[str | None, int | None, str | None]
# What stands between the products, whether results are batch-invariant, and the bytes that rows may take; then backend, threads and
# configuration.
_Options = tuple[str, str, bool, int | None, int | None, tuple[bool, int | None], str | None, int | None, str | None]
# FP8 numbers and k; the exponents of MXFP8, or else scales and the sides of their blocks; and the bias.
_Fp8Parts = tuple[bytes, int, bytes | None, list[float] | None, list[int] | None, list[float] | None]
# A and B of a projection; an adapter: its scaling, and those of gate, up and down of every expert.
_Pair = tuple[_Numbers, _Numbers] | None
_Expert = tuple[_Pair, _Pair, _Pair]
_Adapter = tuple[float, list[_Expert], _Expert | None]
# Scoring, experts per token, correction, groups and how many are looked into, scaling.
_Router = tuple[str, int, list[float] | None, tuple[int, int] | None, float]

# A grid, a block or a cluster.
_Sides = tuple[int, int, int]
# A kernel's argument: buffer and byte; buffer, byte, element, dimensions, strides, box and swizzle of a tensor map; a
# number; or bytes.
_Map = tuple[int, int, str, list[int], list[int], list[int], int]
_Part = tuple[int, int] | _Map | bytes
_Argument = tuple[int, int] | _Map | tuple[list[tuple[int, _Part]]] | int | float | bytes

def quantize(values: _Numbers, codes: Any, scales: Any, global_scale: float | None) -> float: ...
def dequantize(matrix: _Matrix, values: Any) -> None: ...
def backends() -> list[tuple[str, str | None]]: ...
def serve_trials(device: int) -> None: ...
def simulate(
    text: str,
    launch: tuple[str | None, _Sides, _Sides | None, _Sides | None, int, bool],
    buffers: list[tuple[str, bytes, bool, int]],
    args: list[_Argument],
    rules: str,
    schedules: int,
) -> tuple[str, list[dict[str, Any]], list[str], list[str], list[bytes | None]]: ...
def use_threads(whose: str) -> None: ...
@final
class Adapters:
    def __len__(self) -> int: ...
    @property
    def rank(self) -> int: ...
@final
class Checkpoint:
    def __new__(
        cls,
        path: str | PathLike[str],
        *,
        format: str | None = None,
        gate_up_order: str | None = None,
        tower: str | None = None,
    ) -> Checkpoint: ...
    @staticmethod
    def by_name(path: str | PathLike[str]) -> Checkpoint: ...
    def __deepcopy__(self, _memo: Any, /) -> Checkpoint: ...
    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]: ...
    def stored(self) -> list[tuple[str, str, list[str], int | None, int, int, bool]]: ...
    def expand(self, stem: str, member: int, values: Any) -> None: ...
    @property
    def path(self) -> Path: ...
    @property
    def model_type(self) -> str | None: ...
    @property
    def gate(self) -> str: ...
    @property
    def layers(self) -> list[int]: ...
    def experts(self, layer: int) -> tuple[int, int]: ...

@final
class Fp8Layer:
    @staticmethod
    def pack(
        codes: Any,
        scales: _Numbers,
        block: tuple[int, int] | None,
        bias: list[float] | None,
        backend: str | None,
        threads: int | None,
        config: str | None,
    ) -> Fp8Layer: ...
    @staticmethod
    def load(model: Checkpoint, name: str, backend: str | None, threads: int | None, config: str | None) -> Fp8Layer: ...
    def parts(self) -> _Fp8Parts: ...
    @staticmethod
    def from_parts(parts: _Fp8Parts, options: _EngineOptions) -> Fp8Layer: ...
    @property
    def options(self) -> _EngineOptions: ...
    def run(self, x: _Numbers, out: _Numbers, stream: int | None) -> None: ...
    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def gate(self) -> str: ...
    @property
    def packed_bytes(self) -> int: ...
    @property
    def backends(self) -> list[str]: ...
    @property
    def threads(self) -> int: ...
@final
class Layer:
    @staticmethod
    def pack(
        groups: Sequence[_Weights],
        gate: str,
        clamp: float | None,
        backend: str | None,
        threads: int | None,
        config: str | None,
    ) -> Layer: ...
    @staticmethod
    def load(
        model: Checkpoint,
        layer: int,
        experts: list[int] | None,
        shared: bool,
        gate: str | None,
        clamp: float | None,
        backend: str | None,
        threads: int | None,
        config: str | None,
    ) -> Layer: ...
    @staticmethod
    def load_linear(
        model: Checkpoint, name: str, backend: str | None, threads: int | None, config: str | None
    ) -> Layer: ...
    def with_precision(self, precision: str) -> Layer: ...
    @property
    def precision(self) -> str: ...
    def to_bytes(self) -> bytes: ...
    @staticmethod
    def from_bytes(bytes: bytes, options: _EngineOptions) -> Layer: ...
    @property
    def options(self) -> _EngineOptions: ...
    def run(self, tokens: list[_Matrix | _Numbers], outputs: list[_Numbers], stream: int | None) -> None: ...
    @property
    def columns(self) -> list[tuple[int, int]]: ...
    @property
    def input_scales(self) -> list[list[float] | None]: ...
    @property
    def gate(self) -> str: ...
    @property
    def packed_bytes(self) -> int: ...
    @property
    def checkpoint_bytes(self) -> int: ...
    @property
    def backends(self) -> list[str]: ...
    @property
    def threads(self) -> int: ...

@final
class FeedForward:
    @staticmethod
    def pack_mlp(weights: _Mlp, gate: _Gate, options: _Options) -> FeedForward: ...
    @staticmethod
    def load_mlp(
        model: Checkpoint, layer: int, expert: int | None, shared: bool, gate: _Gate | None, options: _Options
    ) -> FeedForward: ...
    @staticmethod
    def load_named(
        model: Checkpoint, mlps: list[_NamedMlp], experts: bool, gate: _Gate, options: _Options
    ) -> FeedForward: ...
    @staticmethod
    def open_mlp(path: str | PathLike[str], options: _Options) -> FeedForward: ...
    @staticmethod
    def pack_experts(
        experts: list[_Mlp],
        shared: _Mlp | None,
        shared_gate: list[float] | None,
        router: _Router | None,
        gate: _Gate,
        options: _Options,
    ) -> FeedForward: ...
    @staticmethod
    def load_experts(
        model: Checkpoint,
        layer: int,
        numbers: list[int] | None,
        shared: bool,
        router: _Router | None,
        gate: _Gate | None,
        options: _Options,
    ) -> FeedForward: ...
    @staticmethod
    def open_experts(path: str | PathLike[str], options: _Options) -> FeedForward: ...
    def to_bytes(self) -> bytes: ...
    @staticmethod
    def mlp_from_bytes(bytes: bytes, options: _Options) -> FeedForward: ...
    @staticmethod
    def experts_from_bytes(bytes: bytes, options: _Options) -> FeedForward: ...
    @property
    def options(self) -> _Options: ...
    def save(self, path: str | PathLike[str]) -> None: ...
    def adapters(self, parts: list[_Adapter]) -> Adapters: ...
    def run(
        self,
        x: _Numbers,
        routing: list[Any],
        on_input: bool,
        out: _Numbers,
        stream: int | None,
        adapted: tuple[Adapters, Any] | None = None,
    ) -> None: ...
    @property
    def count(self) -> int: ...
    @property
    def is_mlp(self) -> bool: ...
    @property
    def has_shared(self) -> bool: ...
    @property
    def streams_from(self) -> tuple[int | None, str | None]: ...
    @property
    def resident(self) -> list[int] | None: ...
    @property
    def asked(self) -> list[int] | None: ...
    def check_host(self) -> None: ...
    def host_failure(self) -> str | None: ...
    def place(self, experts: list[int], device: int, stream: int) -> None: ...
    @property
    def routing(self) -> tuple[str, int] | None: ...
    @property
    def widths(self) -> list[int]: ...
    @property
    def gate(self) -> str: ...
    @property
    def packed_bytes(self) -> int: ...
    @property
    def backends(self) -> list[str]: ...
    @property
    def threads(self) -> int: ...
