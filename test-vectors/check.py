#!/usr/bin/env python3
"""Checks nvfp4.json from the definitions alone: nothing here is shared with the program that wrote it.

Usage: python3 check.py [nvfp4.json]        Needs Python 3.8 or newer and nothing else.
"""
import json, math, os, struct, sys
from fractions import Fraction

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
checks = 0

def check(ok, *what):
    global checks
    checks += 1
    if not ok:
        sys.exit("wrong: " + " ".join(map(str, what)))

def f32(bits):
    return struct.unpack(">f", bytes.fromhex(bits))[0]

def bits(x):
    return struct.pack(">f", x).hex()

def e2m1(code):
    return -E2M1[code & 7] if code & 8 else E2M1[code & 7]

def e4m3(byte):
    exponent, mantissa = byte >> 3 & 15, byte & 7
    value = mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
    return math.nan if byte & 0x7F == 0x7F else -value if byte & 0x80 else value

def nearest(x, values):
    """The index of the value nearest to x; of two equally near ones the even index."""
    return min(range(len(values)), key=lambda i: (abs(Fraction(values[i]) - x), i % 2))

def quantise(rows, k, x, given):
    amax = max(map(abs, x))
    derived = max(f32(bits(amax / (6 * 448))), 2.0**-126) if amax else 1.0
    unit, codes, scales = derived if given is None else f32(given), [], []
    for start in range(0, rows * k, 16):
        block = x[start : start + 16]
        wanted = min(max(max(map(abs, block)) / (6 * unit), 2.0**-9), 448.0)
        scales.append(nearest(Fraction(wanted), [e4m3(byte) for byte in range(0x7F)]))
        step = Fraction(e4m3(scales[-1])) * Fraction(unit)
        codes += [nearest(abs(Fraction(v)) / step, E2M1) | (8 if math.copysign(1, v) < 0 else 0) for v in block]
    return unit, bytes(low | high << 4 for low, high in zip(codes[::2], codes[1::2])), bytes(scales)

def rows_of(operand, k):
    """An operand's rows, without its global scale: code times block scale."""
    if "values" in operand:
        values = [f32(v) for v in operand["values"]]
    else:
        codes = [c for byte in bytes.fromhex(operand["codes"]) for c in (byte & 15, byte >> 4)]
        scales = bytes.fromhex(operand["scales"])
        values = [e2m1(code) * e4m3(scales[i // 16]) for i, code in enumerate(codes)]
    return [values[i : i + k] for i in range(0, len(values), k)]

def sigmoid(y):
    return 1 / (1 + math.exp(-y)) if y >= 0 else math.exp(y) / (1 + math.exp(y))

GATES = {
    "silu": lambda g, u: g * sigmoid(g) * u,
    "gelu-tanh": lambda g, u: 0.5 * g * (1 + math.tanh(math.sqrt(2 / math.pi) * (g + 0.044715 * g**3))) * u,
    "gpt-oss": lambda g, u: min(g, 7) * sigmoid(1.702 * min(g, 7)) * (max(-7, min(u, 7)) + 1),
    "silu:limit=10": lambda g, u: min(g, 10) * sigmoid(min(g, 10)) * max(-10, min(u, 10)),
    "relu2": lambda g, u: max(g, 0) ** 2,
    "none": lambda g, u: g,
}

path = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "nvfp4.json")
vectors = json.load(open(path))
check([v["code"] for v in vectors["e2m1"]] == list(range(16)), "e2m1 lists every code")
check([v["byte"] for v in vectors["e4m3"]] == list(range(256)), "e4m3 lists every byte")
for v in vectors["e2m1"]:
    check(bits(e2m1(v["code"])) == v["value"], "e2m1", v)
for v in vectors["e4m3"]:
    value = e4m3(v["byte"])
    check("nan" == v["value"] if math.isnan(value) else bits(value) == v["value"], "e4m3", v)
for v in vectors["quantize"]:
    unit, codes, scales = quantise(v["rows"], v["k"], [f32(x) for x in v["input"]], v["given_global"])
    check((bits(unit), codes.hex(), scales.hex()) == (v["global"], v["codes"], v["scales"]), "quantize", v["why"])
for v in vectors["blocked_scales"]:
    along = -(-v["blocks"] // 4)
    check(v["bytes"] == 512 * along * -(-v["rows"] // 128), "blocked bytes", v["rows"], v["blocks"])
    for r, b, offset in v["offsets"]:
        tile = r // 128 * along + b // 4
        check(offset == 512 * tile + 16 * (r % 32) + 4 * (r % 128 // 32) + b % 4, "blocked offset", r, b, offset)
for v in vectors["problems"]:
    a, b1, b2 = (rows_of(v[name], v["k"]) for name in ("a", "b1", "b2"))
    alphas = [f32(v["a"]["global"]) * f32(v[name]["global"]) for name in ("b1", "b2")]
    for gate, function in GATES.items():
        check(len(v["c"][gate]) == v["m"] * v["n"], "length of", gate, v["why"])
        for i, c in enumerate(v["c"][gate]):
            row, column = divmod(i, v["n"])
            g, u = (alpha * math.fsum(x * y for x, y in zip(a[row], b[column])) for alpha, b in zip(alphas, (b1, b2)))
            # 1 + tanh cancels in GELU's left tail, so its relative precision is lost there.
            slack = 1e-12 if gate == "gelu-tanh" else 0.0
            check(math.isclose(function(g, u), float(c), rel_tol=1e-10, abs_tol=slack), v["why"], gate, row, column, c)
print(f"{checks} checks passed")
