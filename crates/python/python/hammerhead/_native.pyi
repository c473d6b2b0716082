"""The native half of the package: what the Python half asks of it. Not an interface for users."""

from os import PathLike
from pathlib import Path
from typing import Any, final

__all__ = ["Checkpoint", "Layer", "__version__", "backends", "dequantize", "quantize"]
__version__: str

# An NVFP4 matrix: codes and scales as objects that speak DLPack (uint8), and the global scale.
_Matrix = tuple[Any, Any, float]
# Numbers: an object that speaks DLPack, and the name its owner has for the type of its elements.
_Numbers = tuple[Any, str]

def quantize(values: _Numbers, codes: Any, scales: Any, global_scale: float | None) -> float: ...
def dequantize(matrix: _Matrix, values: Any) -> None: ...
def backends() -> list[tuple[str, str | None]]: ...
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
    @property
    def path(self) -> Path: ...
    @property
    def model_type(self) -> str | None: ...
    @property
    def gate(self) -> str: ...
    @property
    def layers(self) -> list[int]: ...

@final
class Layer:
    @staticmethod
    def pack(
        groups: list[tuple[_Matrix, _Matrix | None, list[float] | None]],
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
