"""Memory that the referee lends on a GPU, and the latch that runs are queued behind: what a program in Python needs there beside its own kernels.

docs/protocol.md describes both. Nothing but NVIDIA's driver is needed; a context must be current in the thread, as it is wherever kernels can be launched.
"""

import contextlib
import ctypes

# Where the second word of a latch is, in bytes from the first.
DONE = 256


class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]


class Lent:
    """What was lent so far. The same handle comes again and stays open."""

    def __init__(self):
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.driver.cuIpcOpenMemHandle_v2.argtypes = [ctypes.c_void_p, Handle, ctypes.c_uint]
        for name in ("cuStreamWaitValue32_v2", "cuStreamWriteValue32_v2"):
            getattr(self.driver, name).argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint]
        self.opened = {}

    def call(self, name, *arguments):
        status = getattr(self.driver, name)(*arguments)
        if status:
            raise SystemExit(f"{name} failed with status {status}")

    def address(self, piece):
        """Where a piece of `memory` is in this process."""
        if piece["handle"] not in self.opened:
            handle, address = Handle(), ctypes.c_uint64()
            handle.bytes[:] = bytes.fromhex(piece["handle"])
            self.call("cuIpcOpenMemHandle_v2", ctypes.byref(address), handle, 1)
            self.opened[piece["handle"]] = address.value
        return self.opened[piece["handle"]]

    def wait(self, stream, address, value):
        """Has a stream wait until a word holds a value."""
        self.call("cuStreamWaitValue32_v2", stream, address, value, 1)

    def write(self, stream, address, value):
        """Has a stream write a word when all that was queued before is done."""
        self.call("cuStreamWriteValue32_v2", stream, address, value, 0)

    @contextlib.contextmanager
    def latch(self, stream, piece, value):
        """What is queued inside waits until the referee opens the latch; the referee sees when it is done."""
        words = self.address(piece)
        self.wait(stream, words, value)
        yield
        self.write(stream, words + DONE, value)
