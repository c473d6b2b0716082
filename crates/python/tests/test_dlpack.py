"""The native half against odd and hostile lenders: DLPack capsules made by hand."""

import ctypes

import numpy as np
import pytest

from hammerhead import _native
from lending import DELETER, Managed, Tensor, Versioned, new_capsule

class Lender:
    """Lends a [2, 16] float32 array, with whatever is to be wrong about it, and counts how often it came back."""

    def __init__(self, versioned=True, name=None, major=1, flags=0, shape=(2, 16), strides=None, **changes):
        self.array = np.arange(64, dtype=np.float32)
        self.returned, self.versioned = 0, versioned
        sides = None if shape is None else (ctypes.c_int64 * len(shape))(*shape)
        steps = None if strides is None else (ctypes.c_int64 * len(strides))(*strides)
        tensor = {
            "data": self.array.ctypes.data, "device_type": 1, "ndim": 2, "code": 2, "bits": 32, "lanes": 1,
            "shape": sides, "strides": steps,
        }  # fmt: skip
        tensor = Tensor(**(tensor | changes))
        self.deleter = DELETER(self.give_back)
        if versioned:
            self.managed = Versioned(major=major, flags=flags, tensor=tensor, deleter=self.deleter)
        else:
            self.managed = Managed(tensor=tensor, deleter=self.deleter)
        self.name = name or (b"dltensor_versioned" if versioned else b"dltensor")

    def give_back(self, _):
        self.returned += 1

    def __dlpack__(self, **options):
        if not self.versioned and "max_version" in options:
            raise TypeError("an old lender knows no versions")
        return new_capsule(ctypes.addressof(self.managed), self.name, None)


def dequantised(lender):
    """What the native half makes of a loan: quantised to codes that read it all."""
    codes, scales = np.zeros((2, 8), dtype=np.uint8), np.zeros((2, 1), dtype=np.uint8)
    scale = _native.quantize((lender, "float32"), codes, scales, None)
    values = np.zeros((2, 16), dtype=np.float32)
    _native.dequantize((codes, scales, scale, 16), values)
    return values


@pytest.mark.parametrize("versioned", [True, False])
@pytest.mark.parametrize(
    "changes",
    [{}, {"strides": (16, 1)}, {"shape": (2, 16), "device_type": 3}, {"byte_offset": 64}, {"flags": 1}],
    ids=str,
)
def test_a_proper_loan_is_read_and_given_back_once(versioned, changes):
    lender = Lender(versioned=versioned, **changes)
    start = changes.get("byte_offset", 0) // 4
    expected = np.arange(start, start + 32).reshape(2, 16)
    assert np.abs(dequantised(lender) - expected).max() <= 8
    assert lender.returned == 1


@pytest.mark.parametrize("versioned", [True, False])
@pytest.mark.parametrize(
    ("changes", "kind", "match"),
    [
        ({"lanes": 2}, TypeError, "2 lanes"),
        ({"bits": 64}, TypeError, "64 bits"),
        ({"code": 3}, TypeError, "DLPack type 3"),
        ({"code": 1, "bits": 8}, TypeError, "announced as float32"),
        ({"device_type": 10}, ValueError, "DLPack kind 10"),
        ({"device_type": 2}, ValueError, "CUDA device 0"),
        ({"ndim": -1}, ValueError, "-1 dimensions"),
        ({"ndim": 1000}, ValueError, "1000 dimensions"),
        ({"ndim": 1}, ValueError, r"\[rows, columns\]"),
        ({"ndim": 0, "shape": None}, ValueError, r"\[rows, columns\]"),
        ({"shape": None}, ValueError, "shape is missing"),
        ({"shape": (2, -16)}, ValueError, "-16"),
        ({"shape": (2**62, 16)}, ValueError, "larger than memory"),
        ({"shape": (2**40, 2**40)}, ValueError, "larger than memory"),
        ({"strides": (1, 2)}, ValueError, "row-major"),
        ({"strides": (-16, 1)}, ValueError, "row-major"),
        ({"strides": (32, 1)}, ValueError, "row-major"),
        ({"data": None}, ValueError, "no memory"),
        ({"byte_offset": 2}, ValueError, "not aligned"),
        ({"byte_offset": 2**64 - 4}, ValueError, "memory"),
    ],
    ids=str,
)
def test_an_improper_loan_is_refused_and_given_back_once(versioned, changes, kind, match):
    lender = Lender(versioned=versioned, **changes)
    with pytest.raises(kind, match=match):
        dequantised(lender)
    assert lender.returned == 1


def test_another_major_version_is_refused_and_given_back():
    lender = Lender(major=2)
    with pytest.raises(ValueError, match="version 2.0"):
        dequantised(lender)
    assert lender.returned == 1


@pytest.mark.parametrize("name", [b"used_dltensor", b"used_dltensor_versioned", b"something"])
def test_a_capsule_of_another_name_is_refused_and_not_touched(name):
    lender = Lender(name=name)
    with pytest.raises(ValueError, match="used before"):
        dequantised(lender)
    assert lender.returned == 0


def test_a_capsule_is_used_once():
    lender = Lender()
    capsule = lender.__dlpack__()
    lender.__dlpack__ = lambda **_: capsule
    holder = type("Holder", (), {"__dlpack__": lambda self, **_: capsule})()
    dequantised(holder)
    with pytest.raises(ValueError, match="used before"):
        dequantised(holder)
    assert lender.returned == 1


def test_read_only_memory_is_not_written():
    codes, scales = np.zeros((2, 8), dtype=np.uint8), np.zeros((2, 1), dtype=np.uint8)
    for versioned in (True, False):
        lender = Lender(versioned=versioned, flags=1)
        if versioned:
            with pytest.raises(ValueError, match="read-only"):
                _native.dequantize((codes, scales, 1.0, 16), lender)
        else:
            _native.dequantize((codes, scales, 1.0, 16), lender)
        assert lender.returned == 1
        assert lender.array[:32].any() == versioned


def test_lenders_that_are_none_are_refused():
    class Silent:
        def __dlpack__(self, **_):
            return 7

    class Failing:
        def __dlpack__(self, **_):
            raise RuntimeError("not today")

    class Interrupted:
        def __dlpack__(self, **_):
            raise KeyboardInterrupt

    for lender, kind, match in [
        (Silent(), TypeError, "something other than a capsule"),
        (Failing(), ValueError, "not today"),
        (Interrupted(), KeyboardInterrupt, None),
        (object(), TypeError, "does not speak DLPack"),
    ]:
        with pytest.raises(kind, match=match):
            dequantised(lender)
