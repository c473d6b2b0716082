"""What is known here about numpy and torch, and nowhere else.

The native half takes any array that speaks DLPack. This module brings an array into a state in which it can be lent
(row-major, without gaps, of a type that DLPack has a name for) and makes outputs of the same kind as the inputs.
Neither library is imported here: whoever passes an array has imported its library.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, Union

if TYPE_CHECKING:
    import numpy
    import torch

    Dtype = Union[str, "numpy.dtype[Any]", type["numpy.generic"], "torch.dtype"]
    """An element type: numpy's, torch's, or its name (``"bfloat16"``, or short ``"bf16"``)."""

A = TypeVar("A", "numpy.ndarray[Any, Any]", "torch.Tensor")
"""An array: the results are of the kind of the inputs."""

NUMBERS = ("float16", "bfloat16", "float32")
SHORT = {"f16": "float16", "bf16": "bfloat16", "f32": "float32"}
CODES = ("uint8", "float4_e2m1fn_x2")
SCALES = ("uint8", "float8_e4m3fn")
EXPONENTS = ("uint8", "float8_e8m0fnu")


class Library(Protocol):
    """What an array library must be able to do."""

    def element(self, array: Any) -> str:
        """The name of the array's element type."""

    def lendable(self, array: Any) -> Any:
        """The array, or a copy of it, as something that can be lent to be read."""

    def writable(self, array: Any) -> Any:
        """The same memory, as something that can be lent to be written."""

    def room(self, out: Any) -> Any:
        """Memory that every kernel can write results to: the array, or one like it where its address does not suit."""

    def settle(self, out: Any, room: Any) -> None:
        """Brings results from the room that was made for an array to the array."""

    def loan(self, array: Any) -> Any:
        """What the native half takes once: the array, or a capsule of it where that takes less time."""

    def as_bytes(self, array: Any) -> Any:
        """The array's one-byte elements as plain bytes."""

    def widened(self, array: Any) -> Any:
        """Numbers as float32."""

    def empty(self, like: Any, shape: tuple[int, ...], element: str) -> Any:
        """A new array where the other one lies."""

    def row_major(self, array: Any) -> bool:
        """Whether the elements follow each other row by row."""

    def on_host(self, array: Any) -> Any:
        """The array in the CPU's memory."""

    def beside(self, like: Any, array: Any) -> Any:
        """The array where the other one lies."""

    def backend(self, array: Any) -> str | None:
        """The backend that computes where the array lies, if that is not the CPU."""

    def stream(self, array: Any) -> int | None:
        """The handle of the stream in which work on the array is queued now, if it is on a GPU."""

    def at_device_of(self, array: Any) -> AbstractContextManager[Any]:
        """Makes the array's device the current one, where a library has such a thing."""


class Numpy:
    """numpy, whose types beyond its own (bfloat16, float8_e4m3fn) come from ml_dtypes."""

    def element(self, array: Any) -> str:
        return str(array.dtype.name) if array.dtype.isnative else f"{array.dtype.name} of the other byte order"

    def lendable(self, array: Any) -> Any:
        import numpy

        array = self._named(numpy.require(array, requirements=("C", "A")))
        # Before 2.1 numpy lends nothing that is read-only.
        old = int(numpy.__version__.split(".")[0]) < 2 or numpy.__version__.startswith("2.0.")
        return array.copy() if old and not array.flags.writeable else array

    def writable(self, array: Any) -> Any:
        if not array.flags.writeable:
            raise ValueError("out: it is read-only, and results are written to it")
        return self._named(array)

    def _named(self, array: Any) -> Any:
        """DLPack as numpy speaks it has no bfloat16: lent as uint16, and told apart by name."""
        return array.view("uint16") if array.dtype.name == "bfloat16" else array

    def room(self, out: Any) -> Any:
        return out

    def settle(self, out: Any, room: Any) -> None:
        """Nothing is left to do: the room is the array."""

    def loan(self, array: Any) -> Any:
        return array

    def as_bytes(self, array: Any) -> Any:
        return array.view("uint8")

    def widened(self, array: Any) -> Any:
        return array if array.dtype == "float32" else array.astype("float32")

    def empty(self, like: Any, shape: tuple[int, ...], element: str) -> Any:
        import numpy

        if element != "bfloat16":
            return numpy.empty(shape, dtype=element)
        try:
            import ml_dtypes
        except ImportError as error:
            raise ImportError("bfloat16 arrays of numpy need ml_dtypes: pip install ml_dtypes") from error
        return numpy.empty(shape, dtype=ml_dtypes.bfloat16)

    def row_major(self, array: Any) -> bool:
        return bool(array.flags.c_contiguous)

    def on_host(self, array: Any) -> Any:
        return array

    def beside(self, like: Any, array: Any) -> Any:
        return array

    def backend(self, array: Any) -> str | None:
        return None

    def stream(self, array: Any) -> int | None:
        return None

    def at_device_of(self, array: Any) -> AbstractContextManager[Any]:
        return nullcontext()


class Torch:
    """torch, whose module is given: to import it again takes a third of a microsecond, and a call has ten occasions."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        # A stream's handle without an object around it, which takes 6 µs, where this torch has it.
        self.raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)

    def element(self, array: Any) -> str:
        name = _TORCH_NAMES.get(array.dtype)
        if name is None:
            name = _TORCH_NAMES[array.dtype] = str(array.dtype).removeprefix("torch.")
        return name

    def lendable(self, array: Any) -> Any:
        if array.layout is not self.torch.strided:
            raise TypeError(f"a tensor is {array.layout}; make it dense with .to_dense()")
        # Every step costs the caller a microsecond, and most tensors need none.
        if array.requires_grad:
            if self.torch.is_grad_enabled():
                raise ValueError(
                    "a tensor requires a gradient, and this operation has none: call it under torch.inference_mode(), "
                    "or pass tensor.detach()"
                )
            array = array.detach()
        return array if array.is_contiguous() else array.contiguous()

    def writable(self, array: Any) -> Any:
        return array.detach() if array.requires_grad else array

    def room(self, out: Any) -> Any:
        # Rows of a multiple of 16 bytes may be stored 16 bytes at a time, others never are.
        if not out.is_cuda or out.data_ptr() % 16 == 0 or out.shape[-1] * out.element_size() % 16 != 0:
            return out
        return self.torch.empty_like(out)

    def settle(self, out: Any, room: Any) -> None:
        if room is not out:
            out.copy_(room)

    def loan(self, array: Any) -> Any:
        # A tensor's own __dlpack__ takes 5 µs, most of them for streams: what is lent is used in the tensor's own.
        return self.torch.utils.dlpack.to_dlpack(array)

    def as_bytes(self, array: Any) -> Any:
        return array.view(self.torch.uint8)

    def widened(self, array: Any) -> Any:
        return array if array.dtype is self.torch.float32 else array.float()

    def empty(self, like: Any, shape: tuple[int, ...], element: str) -> Any:
        return self.torch.empty(shape, dtype=getattr(self.torch, element), device=like.device)

    def row_major(self, array: Any) -> bool:
        return bool(array.is_contiguous())

    def on_host(self, array: Any) -> Any:
        return array.cpu()

    def beside(self, like: Any, array: Any) -> Any:
        return array.to(like.device)

    def backend(self, array: Any) -> str | None:
        if not array.is_cuda:
            return None
        return "cuda" if not array.device.index else f"cuda:{array.device.index}"

    def stream(self, array: Any) -> int | None:
        if not array.is_cuda:
            return None
        if self.raw_stream is not None:
            return int(self.raw_stream(array.get_device()))
        return int(self.torch.cuda.current_stream(array.device).cuda_stream)

    def at_device_of(self, array: Any) -> AbstractContextManager[Any]:
        # torch lends nothing of another device than the current one.
        return self.torch.cuda.device(array.device) if array.is_cuda else nullcontext()


_TORCH_NAMES: dict[Any, str] = {}
"""Names of torch's types that were asked for: to make one takes longer than to find it."""
_LIBRARIES: dict[type[Any], Library] = {}
"""The libraries of arrays that were seen, by their types."""


def library_of(array: Any, what: str) -> Library:
    """The library that an array belongs to."""
    library = _LIBRARIES.get(type(array))
    if library is None:
        library = _LIBRARIES[type(array)] = _library_of(array, what)
    return library


def _library_of(array: Any, what: str) -> Library:
    # An instance can only exist if its library was imported.
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and isinstance(array, numpy.ndarray):
        return _found(Numpy) or Numpy()
    if torch is not None and isinstance(array, torch.Tensor):
        return _found(Torch) or Torch(torch)
    raise TypeError(f"{what}: a numpy array or a torch tensor is expected, not {type(array).__name__}")


def _found(kind: type[Any]) -> Library | None:
    """The one of a kind: arrays of one library are told by it, whatever class of their own they are of."""
    return next((library for library in _LIBRARIES.values() if isinstance(library, kind)), None)


def element_name(dtype: Dtype) -> str:
    """The name of an element type that results can have."""
    if isinstance(dtype, str):
        name = SHORT.get(dtype, dtype)
    elif str(dtype).startswith("torch."):
        name = str(dtype).removeprefix("torch.")
    else:
        import numpy

        name = numpy.dtype(dtype).name
    if name not in NUMBERS:
        raise TypeError(f"dtype: results can be {', '.join(NUMBERS)}, not {name}")
    return name


def expect_element(array: Any, library: Library, known: tuple[str, ...], what: str) -> str:
    """The name of an array's element type, if it is one of these."""
    element = library.element(array)
    if element not in known:
        raise TypeError(f"{what}: its elements are {element}, where {' or '.join(known)} is expected; convert it first")
    return element
