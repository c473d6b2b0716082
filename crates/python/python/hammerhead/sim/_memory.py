"""Arrays as memory of a simulated device: where they lie, which of them overlap, and the way there and back."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any


class Tensor:
    """An array as Triton takes one, around one of numpy's or torch's.

    numpy's arrays need it inside of :func:`hammerhead.sim.triton`, since Triton asks for a pointer that numpy does not
    give. With ``written=False`` the array counts as never written: to compute with what it holds at first is a finding,
    as it should be of results.
    """

    def __init__(self, array: Any, *, written: bool = True) -> None:
        self.array, self.written = array, written
        self.dtype, self.shape = array.dtype, tuple(array.shape)

    def data_ptr(self) -> int:
        return _address(self.array)

    def stride(self) -> tuple[int, ...]:
        return tuple(step // self.element_size() for step in steps(self.array))

    def element_size(self) -> int:
        return int(self.dtype.itemsize)


def is_array(value: Any) -> bool:
    """Whether it is an array of numpy's or torch's, or one of ours."""
    return isinstance(value, Tensor) or hasattr(value, "__array_interface__") or hasattr(value, "data_ptr")


def _address(array: Any) -> int:
    if hasattr(array, "data_ptr"):
        return int(array.data_ptr())
    return int(array.__array_interface__["data"][0])


def steps(array: Any) -> tuple[int, ...]:
    """Bytes between neighbours along each dimension."""
    if hasattr(array, "data_ptr"):
        return tuple(step * array.element_size() for step in array.stride())
    return tuple(array.strides)


@dataclass
class _Span:
    """Bytes of the host's memory."""

    name: str
    start: int
    end: int
    written: bool
    writable: bool


class Memory:
    """The arrays of a launch. Those that overlap share a buffer."""

    def __init__(self) -> None:
        self._spans: list[_Span] = []
        self._scratch: list[Any] = []

    def add(self, name: str, array: Any) -> int:
        """Adds an array, and gives the address of its first element."""
        written = True
        if isinstance(array, Tensor):
            array, written = array.array, array.written
        device = getattr(array, "device", None)
        if device is not None and str(device) != "cpu":
            raise ValueError(f"{name}: it is on {device}, and the simulator works on the CPU's memory; pass it on with .cpu()")
        start, size = _address(array), int(array.dtype.itemsize)
        if 0 in array.shape:
            return 0
        reach = [(side - 1) * step for side, step in zip(array.shape, steps(array))]
        low, high = sum(min(0, part) for part in reach), sum(max(0, part) for part in reach)
        flags = getattr(array, "flags", None)
        writable = flags is None or bool(flags.writeable)
        self._spans.append(_Span(name, start + low, start + high + size, written, writable))
        return start

    def scratch(self, name: str, size: int) -> int:
        """Adds memory that nobody has written, and gives its address; 0 if there is none."""
        if size == 0:
            return 0
        room = ctypes.create_string_buffer(size + 256)
        self._scratch.append(room)
        start = -(-ctypes.addressof(room) // 256) * 256
        self._spans.append(_Span(name, start, start + size, False, True))
        return start

    def settle(self) -> list[tuple[str, bytes, bool, int]]:
        """Puts arrays that overlap together, and gives all as the native half takes them."""
        merged: list[_Span] = []
        for span in sorted(self._spans, key=lambda span: span.start):
            last = merged[-1] if merged else None
            if last is None or span.start >= last.end:
                merged.append(span)
                continue
            name = last.name if span.name == last.name else f"{last.name}, {span.name}"
            merged[-1] = _Span(
                name, last.start, max(last.end, span.end), last.written or span.written, last.writable and span.writable
            )
        self._spans = merged
        # Code for addresses that are multiples of 16 must meet such ones here.
        return [(s.name, ctypes.string_at(s.start, s.end - s.start), s.written, s.start % 16) for s in merged]

    def place(self, address: int) -> tuple[int, int]:
        """The buffer that an address is in, and the byte there."""
        for number, span in enumerate(self._spans):
            if span.start <= address < span.end:
                return number, address - span.start
        raise ValueError(f"{address:#x} is in none of the arrays")

    def take_back(self, contents: list[bytes | None]) -> None:
        """Writes what the kernel changed to the arrays."""
        for span, changed in zip(self._spans, contents):
            if changed is None:
                continue
            if not span.writable:
                raise ValueError(f"{span.name}: the kernel writes to it, and it is read-only")
            ctypes.memmove(span.start, changed, len(changed))
