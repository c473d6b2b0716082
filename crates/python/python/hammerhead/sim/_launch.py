"""A kernel's text, a grid and arguments: one launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hammerhead import _native
from hammerhead.sim._memory import Memory, is_array, steps
from hammerhead.sim._report import Finding, Report

Sides = int | Sequence[int]
"""One to three sides of a grid, a block or a cluster."""


@dataclass(frozen=True)
class Pointer:
    """An address in the host's memory."""

    address: int


@dataclass(frozen=True)
class Map:
    """A tensor map: every list from the innermost dimension outwards, strides in bytes."""

    address: int
    element: str
    dims: list[int]
    strides: list[int]
    box: list[int]
    swizzle: int


@dataclass(frozen=True)
class TensorMap:
    """A tensor map over an array, for kernels that copy tiles by the copy engine.

    ``box`` has a side for each dimension of the array, outermost first, as its shape has; ``swizzle`` is 0, 32, 64 or
    128; ``element`` says better what the array's numbers are, such as ``"bf16"`` for one of uint16.
    """

    array: Any
    box: Sequence[int]
    swizzle: int = 0
    element: str | None = None

    def placed(self, name: str, memory: Memory) -> Map:
        """The map, with its array in memory."""
        known = str(self.array.dtype).removeprefix("torch.")
        element = self.element or ELEMENTS.get(known)
        if element is None:
            raise TypeError(f"{name}: tensor maps of {known} are not simulated; known are {', '.join(ELEMENTS)}")
        *outer, inner = steps(self.array)
        if inner != self.array.dtype.itemsize or len(self.box) != len(self.array.shape):
            raise ValueError(f"{name}: a tensor map wants an innermost dimension without gaps, and a box with as many sides")
        dims, box = [int(side) for side in self.array.shape[::-1]], [int(side) for side in self.box[::-1]]
        return Map(memory.add(name, self.array), element, dims, outer[::-1], box, self.swizzle)


@dataclass(frozen=True)
class Parts:
    """A structure that a kernel takes by value, such as CUTLASS's ``Params``: values by the byte that each begins at.

    They are arrays (for pointers), :class:`TensorMap`, bytes, and numbers that say how wide they are, such as
    ``numpy.uint32(64)``. Bytes that no part covers are zero.
    """

    values: Mapping[int, Any]

    def placed(self, name: str, memory: Memory) -> Structure:
        """The structure, with its arrays in memory."""
        return Structure([(at, _part(f"{name}, the part at {at}", value, memory)) for at, value in self.values.items()])


@dataclass(frozen=True)
class Structure:
    """Parts whose arrays are in memory."""

    parts: list[tuple[int, Pointer | Map | bytes]]


def _part(name: str, value: Any, memory: Memory) -> Pointer | Map | bytes:
    if isinstance(value, TensorMap):
        return value.placed(name, memory)
    if isinstance(value, bytes):
        return value
    if hasattr(value, "tobytes") and getattr(value, "shape", None) == ():
        return bytes(value.tobytes())
    if is_array(value):
        return Pointer(memory.add(name, value))
    raise TypeError(f"{name} is a {type(value).__name__}; give an array, a tensor map, bytes, or a number like numpy.uint32(64)")


ELEMENTS = {
    "uint8": "u8", "int8": "u8", "uint16": "u16", "int16": "u16", "uint32": "u32", "int32": "u32",
    "float16": "f16", "bfloat16": "bf16", "float32": "f32",
}  # fmt: skip

Argument = Pointer | Map | Structure | int | float | bytes


def launch(
    ptx: str,
    grid: Sides,
    args: Sequence[Any],
    *,
    block: Sides | None = None,
    cluster: Sides | None = None,
    shared: int = 0,
    cooperative: bool = False,
    entry: str | None = None,
    rules: str = "practice",
    schedules: int = 10,
) -> Report:
    """Runs a kernel's text in the simulator, under so many schedules.

    ``args`` has one value for each parameter: arrays of numpy's or torch's (or :class:`Tensor`) for pointers,
    :class:`TensorMap`, numbers, and bytes or :class:`Parts` for structures. Arrays hold afterwards what the first schedule left in them.
    ``block`` and ``cluster`` may be left out where the text says them, ``entry`` where there is one; ``shared`` is the
    dynamic part. In a ``cooperative`` launch all blocks run at the same time, and may wait for each other. ``rules`` are ``"practice"`` or ``"letter"``.
    """
    memory = Memory()
    given: list[Argument] = []
    for number, value in enumerate(args):
        if isinstance(value, (TensorMap, Parts)):
            given.append(value.placed(f"argument {number}", memory))
        elif is_array(value):
            given.append(Pointer(memory.add(f"argument {number}", value)))
        elif isinstance(value, (int, float, bytes)):
            given.append(value)
        elif hasattr(value, "tobytes") and getattr(value, "shape", None) == ():
            given.append(value.tobytes())
        else:
            raise TypeError(f"argument {number} is a {type(value).__name__}; give an array, a tensor map, a number, bytes or parts")
    return run(ptx, grid, given, memory, block, cluster, shared, cooperative, entry, rules, schedules)


def run(
    ptx: str,
    grid: Sides,
    args: list[Argument],
    memory: Memory,
    block: Sides | None,
    cluster: Sides | None,
    shared: int,
    cooperative: bool,
    entry: str | None,
    rules: str,
    schedules: int,
) -> Report:
    """The same, for arguments whose arrays are in ``memory`` already."""
    buffers = memory.settle()
    optional = [None if given is None else sides(what, given) for what, given in (("block", block), ("cluster", cluster))]
    shape = (entry, sides("grid", grid), optional[0], optional[1], shared, cooperative)
    kernel, found, differs, profile, left = _native.simulate(
        ptx, shape, buffers, [_placed(arg, memory) for arg in args], rules, schedules
    )
    memory.take_back(left)
    return Report(kernel, ptx, max(schedules, 2), [Finding(**each) for each in found], differs, profile)


def _placed(arg: Argument, memory: Memory) -> Any:
    if isinstance(arg, Pointer):
        return memory.place(arg.address) if arg.address else 0
    if isinstance(arg, Structure):
        return ([(at, _placed(part, memory)) for at, part in arg.parts],)
    if isinstance(arg, Map):
        return (*memory.place(arg.address), arg.element, arg.dims, arg.strides, arg.box, arg.swizzle)
    return arg


def sides(what: str, given: Sides) -> tuple[int, int, int]:
    """Three sides of one to three."""
    listed = [given] if isinstance(given, int) else [int(side) for side in given]
    if not 1 <= len(listed) <= 3 or any(side < 1 for side in listed):
        raise ValueError(f"{what} is {given!r}; give one to three positive sides")
    x, y, z = [*listed, 1, 1][:3]
    return x, y, z
