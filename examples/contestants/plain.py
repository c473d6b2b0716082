#!/usr/bin/env python3
"""A contestant in plain Python: the whole protocol, and the operation as simply as it can be written.

It is right and it is slow. Copy it, keep `serve`, and replace `compute`. numpy is used where it is installed.
The protocol is described in docs/protocol.md.
"""

import json
import math
import mmap
import struct
import sys

try:
    import numpy
except ImportError:
    numpy = None

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
E2M1 += [-value for value in E2M1]


def e4m3(byte):
    """The value of an e4m3 byte; 0x7F and 0xFF are NaN and do not occur."""
    sign = -1.0 if byte & 0x80 else 1.0
    exponent, mantissa = byte >> 3 & 15, byte & 7
    return sign * (mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10))


E4M3 = [e4m3(byte) for byte in range(256)]


def read_rows(file, rows, k, tensors, name):
    """An NVFP4 matrix as rows of floats: code times block scale, without the global scale."""
    matrix = []
    codes_at, scales_at = tensors[f"{name}.codes"]["offset"], tensors[f"{name}.scales"]["offset"]
    for row in range(rows):
        codes = file[codes_at + row * k // 2 :][: k // 2]
        scales = file[scales_at + row * k // 16 :][: k // 16]
        values = []
        for byte in codes:
            values += [E2M1[byte & 15], E2M1[byte >> 4]]
        matrix.append([value * E4M3[scales[index // 16]] for index, value in enumerate(values)])
    return matrix


def read_dense(file, rows, k, tensor):
    """Dense tokens as rows of floats."""
    element = tensor["type"]
    width = 4 if element == "f32" else 2
    data = file[tensor["offset"] :][: rows * k * width]
    if element == "bf16":
        data = b"".join(b"\0\0" + data[i : i + 2] for i in range(0, len(data), 2))
    values = struct.unpack(f"<{rows * k}{'e' if element == 'f16' else 'f'}", data)
    return [values[row * k : (row + 1) * k] for row in range(rows)]


def sigmoid(x):
    return 1.0 / (1.0 + math.exp(-x)) if x > -700.0 else 0.0


def join(problem, gate, up):
    """The gate function, and its product with the up value."""
    kind, _, parameters = problem["gate"].partition(":")
    parameters = {key: float(value) for key, _, value in (entry.partition("=") for entry in parameters.split(",") if entry)}
    if kind == "none":
        return gate
    if kind == "relu2":
        return max(gate, 0.0) ** 2
    if "clamp" in problem:
        gate, up = min(gate, problem["clamp"]), max(-problem["clamp"], min(up, problem["clamp"]))
    if kind == "silu":
        return gate * sigmoid(gate) * up
    if kind == "gelu-tanh":
        return gate * sigmoid(1.5957691216057308 * (gate + 0.044715 * gate**3)) * up
    return gate * sigmoid(parameters.get("alpha", 1.702) * gate) * (up + parameters.get("beta", 1.0))


def pack(values, element):
    """Floats as the bytes of the output type, rounded to nearest, ties to even; too large becomes infinite."""
    if element == "f32":
        return b"".join(struct.pack("<f", to_f32(value)) for value in values)
    if element == "f16":
        return b"".join(struct.pack("<e", math.copysign(math.inf, v) if abs(v) >= 65520.0 else v) for v in values)
    rounded = []
    for value in values:
        bits = struct.unpack("<I", struct.pack("<f", to_f32(value)))[0]
        rounded.append(struct.pack("<H", min(bits + 0x7FFF + (bits >> 16 & 1), 0xFFFFFFFF) >> 16))
    return b"".join(rounded)


def to_f32(value):
    return math.copysign(math.inf, value) if abs(value) >= 2.0**128 * (1 - 2.0**-25) else value


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


def compute(problem, group, weights, tokens):
    """C of one group, row by row, as floats."""
    m, n, _ = problem["groups"][group]
    (gate, gate_global), up = weights[0], weights[1] if len(weights) > 1 else None
    rows, token_global = tokens
    if numpy is not None and m:
        rows = numpy.array(rows)
        gates = (rows @ numpy.array(gate).T * (token_global * gate_global)).ravel().tolist()
        ups = (rows @ numpy.array(up[0]).T * (token_global * up[1])).ravel().tolist() if up else gates
        return [join(problem, g, u) for g, u in zip(gates, ups)]
    result = []
    for row in range(m):
        for column in range(n):
            g = dot(rows[row], gate[column]) * token_global * gate_global
            u = dot(rows[row], up[0][column]) * token_global * up[1] if up else 0.0
            result.append(join(problem, g, u))
    return result


def map_file(path, writable):
    with open(path, "r+b" if writable else "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)


class Contestant:
    """Keeps what `prepare` brought, and does jobs."""

    name = "plain Python"

    def prepare(self, message):
        self.problem, self.message = message["problem"], message
        files = message["files"]
        self.tokens, self.outputs = map_file(files["inputs"], False), map_file(files["outputs"], True)
        weights = map_file(files["constants"], False)
        self.layers = []
        for tensors in message["constants"]:
            groups = []
            for group, (_, n, k) in enumerate(self.problem["groups"]):
                names = [f"{matrix}.{group}" for matrix in ("gate", "up") if f"{matrix}.{group}.codes" in tensors]
                scales = [struct.unpack_from("<d", weights, tensors[f"{name}.global"]["offset"])[0] for name in names]
                groups.append([(read_rows(weights, n, k, tensors, name), scale) for name, scale in zip(names, scales)])
            self.layers.append(groups)

    def read_tokens(self, job, group):
        m, _, k = self.problem["groups"][group]
        tensors, name = self.message["inputs"][job["input"]], f"a.{group}"
        if name in tensors:
            return read_dense(self.tokens, m, k, tensors[name]), self.problem["globals"][group]
        return read_rows(self.tokens, m, k, tensors, name), self.problem["globals"][group]

    def write(self, job, group, values):
        data = pack(values, self.problem["output"])
        place = self.message["outputs"][job["output"]][f"c.{group}"]["offset"]
        self.outputs[place : place + len(data)] = data

    def run(self, jobs):
        for job in jobs:
            for group in range(len(self.problem["groups"])):
                tokens = self.read_tokens(job, group)
                self.write(job, group, compute(self.problem, group, self.layers[job["layer"]][group], tokens))


def say(message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def serve(contestant):
    for line in sys.stdin:
        message = json.loads(line)
        kind = message["type"]
        if kind == "hello":
            say({"type": "hello", "protocol": 2, "name": contestant.name, "deterministic": True})
        elif kind == "prepare":
            reason = contestant.prepare(message)
            if reason:
                say({"type": "unsupported", "id": message["id"], "reason": reason})
            else:
                say({"type": "ready", "id": message["id"]})
        elif kind == "run":
            contestant.run(message["jobs"])
            say({"type": "done", "id": message["id"]})
        elif kind == "bye":
            return


if __name__ == "__main__":
    serve(Contestant())
