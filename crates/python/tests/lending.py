"""DLPack's structures by ctypes: arrays lent by hand, in the CPU's memory or in a GPU's."""

import ctypes

DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Managed(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", DELETER)]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype, new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


KINDS = {"float32": (2, 32), "float16": (2, 16), "bfloat16": (4, 16), "int32": (0, 32), "int64": (0, 64), "uint8": (1, 8)}
"""DLPack's code and bits of a type."""


class Lent:
    """Memory at an address as an array: of a GPU's if a device is given, else of the CPU's. What owns it must outlive
    the loan."""

    def __init__(self, address, shape, element, device=None, owner=None):
        self.owner = owner
        self.sides = (ctypes.c_int64 * len(shape))(*shape)
        self.deleter = DELETER(lambda _: None)
        code, bits = KINDS[element]
        place = {"device_type": 1} if device is None else {"device_type": 2, "device_id": device}
        tensor = Tensor(data=address, ndim=len(shape), code=code, bits=bits, lanes=1, shape=self.sides, **place)
        self.managed = Versioned(major=1, tensor=tensor, deleter=self.deleter)

    def __dlpack__(self, **_):
        return new_capsule(ctypes.addressof(self.managed), b"dltensor_versioned", None)
