"""What the tests compare with: NVFP4 decoded from its definition and the operation in float64, sharing no code with
ours."""

import json

import numpy as np

import hammerhead

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def e4m3(byte):
    """One e4m3 byte: sign, four bits of exponent (bias 7), three of mantissa, no infinity."""
    exponent, mantissa = byte >> 3 & 15, byte & 7
    magnitude = mantissa * 2.0**-9 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return -magnitude if byte & 128 else magnitude


E4M3 = np.array([e4m3(byte) for byte in range(256)])


def f32_tensors(path):
    """The float32 tensors of a safetensors file."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header, data = json.loads(raw[8 : 8 + length]), raw[8 + length :]
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            tensors[name] = np.frombuffer(data[start:end], dtype="<f4").reshape(entry["shape"])
    return tensors


def decode(matrix):
    """An NVFP4 or MXFP4 matrix in float64, whatever library its arrays are of."""
    codes, scales = np.asarray(matrix.codes), np.asarray(matrix.scales)
    values = np.stack([E2M1[codes & 15], E2M1[codes >> 4]], axis=-1).reshape(codes.shape[0], -1)
    if isinstance(matrix, hammerhead.MxFp4):
        factors = np.repeat(np.exp2(scales.astype(np.float64) - 127), 32, axis=1)
    else:
        factors = np.repeat(E4M3[scales], 16, axis=1)
    return values * factors * matrix.global_scale


GATES = {
    "silu": lambda g, u: g / (1 + np.exp(-g)) * u,
    "gelu-tanh": lambda g, u: 0.5 * g * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g**3))) * u,
    "gpt-oss": lambda g, u: np.minimum(g, 7) / (1 + np.exp(-1.702 * np.minimum(g, 7))) * (np.clip(u, -7, 7) + 1),
    "none": lambda g, u: g,
}

# The rounding of each output type, with room for the sums' own in float32.
ROUNDING = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-18}


def expect_close(result, a, b1, b2=None, gate="silu"):
    """Holds a result to the operation in float64 on the same operands."""
    a = decode(a) if isinstance(a, hammerhead.NvFp4) else np.asarray(a).astype(np.float64)
    g = a @ decode(b1).T
    expected = GATES[gate](g, a @ decode(b2).T if b2 is not None else None)
    assert result.shape == expected.shape
    element = str(result.dtype).removeprefix("torch.")
    if element == "bfloat16" and hasattr(result, "numpy"):
        result = result.float()
    found = np.asarray(result).astype(np.float64)
    scale = np.abs(expected).max(initial=0)
    np.testing.assert_allclose(found, expected, rtol=ROUNDING[element], atol=scale * ROUNDING[element] / 4)
