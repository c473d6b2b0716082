"""Makes a launch file of `hammerhead check` for one of the GEMMs of gemm.h, with inputs and expected results.

    python launch.py NAME PARAMS M N K FOLDER [--alpha 1] [--beta 0.5] [--multiprocessors 8]

PARAMS is the program that params.cu becomes. Needs numpy and ml_dtypes. Inputs are small whole numbers (of NVFP4 its
codes, with scales that are powers of two), so that sums are exact and results are compared to the bit.
"""

import argparse
import json
import re
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np

MARK, BUFFERS = 0x7A7A7A7A, 0x7B00
"""How params.cu marks a tensor map, and how it numbers buffers: in the upper half of eight bytes."""
WORKSPACE = 7
ELEMENTS = {0: "u8", 1: "u16", 2: "u32", 6: "f16", 7: "f32", 9: "bf16", 13: "u4"}
SWIZZLES = {0: "0", 1: "32", 2: "64", 3: "128", 4: "128, pieces = 32"}
CODES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def e4m3(numbers):
    return numbers.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)


def scales_as_cutlass_has_them(scales):
    """Scales of rows × blocks of sixteen: 128 rows × 4 blocks together, 32 rows after each other, four of them side by
    side."""
    rows, blocks = scales.shape
    padded = np.zeros((-(-rows // 128) * 128, -(-blocks // 4) * 4), np.float32)
    padded[:rows, :blocks] = scales
    tiles = padded.reshape(padded.shape[0] // 128, 4, 32, padded.shape[1] // 4, 4)
    return e4m3(tiles.transpose(0, 3, 2, 1, 4).reshape(-1))


def problem(name, m, n, k, alpha, beta):
    """Buffers by the number that params.cu has for each: name, type, array."""
    random = np.random.default_rng(m + 3 * n + 7 * k)
    whole = lambda rows, columns, most: random.integers(-most, most + 1, (rows, columns)).astype(np.float32)
    c, scales = whole(m, n, 8), {}
    if name.endswith("nvfp4"):
        codes = [random.integers(0, 16, (rows, k)) for rows in (m, n)]
        of_blocks = [2.0 ** random.integers(-1, 2, (rows, k // 16)) for rows in (m, n)]
        a, b = (CODES[code] * np.repeat(scale, 16, 1) for code, scale in zip(codes, of_blocks, strict=True))
        packed = [(code[:, ::2] | code[:, 1::2] << 4).astype(np.uint8) for code in codes]
        scales = {number: (label, "u8", scales_as_cutlass_has_them(of)) for number, label, of in zip((5, 6), ("sfa", "sfb"), of_blocks)}
        operands = [("u8", array) for array in packed]
        result = ("bf16", lambda x: x.astype(np.float32).astype(ml_dtypes.bfloat16).view(np.uint16))
    else:
        a, b = whole(m, k, 3), whole(n, k, 3)
        store = (lambda x: ("u8", e4m3(x))) if name.endswith("fp8") else (lambda x: ("f16", x.astype(np.float16)))
        operands = [store(a), store(b)]
        result = ("f32", lambda x: np.ascontiguousarray(x.astype(np.float32).T)) if name == "sm100_f16" else ("f16", lambda x: x.astype(np.float16))
    d = alpha * (a.astype(np.float64) @ b.T.astype(np.float64)) + beta * c
    return {1: ("a", *operands[0]), 2: ("b", *operands[1]), 3: ("c", result[0], result[1](c)), 4: ("d", result[0], result[1](d)), **scales}


def parts(launch, buffers):
    """The parts of Params: tensor maps, pointers, and what else is not zero."""
    raw, taken, found = bytes.fromhex(launch["bytes"]), set(), []
    for at in range(0, len(raw) - 7, 8):
        word = int.from_bytes(raw[at : at + 8], "little")
        number = (word >> 32) - BUFFERS
        if at in taken:
            continue
        if word >> 32 == MARK:
            note = launch["maps"][word & 0xFFFFFFFF]
            if note["interleave"] or note["fill"] or set(note["steps"]) != {1}:
                raise SystemExit(f"a tensor map that is not simulated: {note}")
            buffer = buffers[(note["address"] >> 32) - BUFFERS][0]
            lists = ", ".join(f"{key} = {note[key]}" for key in ("dims", "strides", "box"))
            dtype, swizzle = ELEMENTS[note["dtype"]], SWIZZLES[note["swizzle"]]
            found.append((at, f'tensor_map = {{ buffer = "{buffer}", dtype = "{dtype}", {lists}, swizzle = {swizzle} }}'))
            taken.update(range(at, at + 128))
        elif word & 0xFFFFFFFF == 0 and number in {*buffers, WORKSPACE}:
            # A workspace without bytes is nobody's.
            found += [(at, f'buffer = "{buffers[number][0]}"')] if number in buffers else []
            taken.update(range(at, at + 8))
    rest = bytes(0 if at in taken else byte for at, byte in enumerate(raw))
    found += [(each.start(), f'bytes = "{each.group().hex()}"') for each in re.finditer(rb"[^\0](?:\0{0,7}[^\0])*", rest)]
    return len(raw), sorted(found)


def main():
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("name", help="such as sm90_f16")
    asked.add_argument("params", type=Path)
    for side in "mnk":
        asked.add_argument(side, type=int)
    asked.add_argument("folder", type=Path)
    asked.add_argument("--alpha", type=float, default=1.0)
    asked.add_argument("--beta", type=float, default=0.5)
    asked.add_argument("--multiprocessors", type=int, default=8)
    given = asked.parse_args()
    sides = (given.m, given.n, given.k)
    numbers = [*sides, given.alpha, given.beta, given.multiprocessors]
    printed = subprocess.run([given.params.resolve(), *map(str, numbers)], capture_output=True, text=True, check=True)
    launch = json.loads(printed.stdout)
    buffers = problem(given.name, *sides, given.alpha, given.beta)
    given.folder.mkdir(parents=True, exist_ok=True)
    text = [f"{key} = {launch[key]}" for key in ("grid", "block", "cluster", "shared")]
    for label, dtype, array in buffers.values():
        np.save(given.folder / f"{label}.npy", array)
        text += ["", f"[buffer.{label}]", f'dtype = "{dtype}"']
        text += [f"shape = {list(array.shape)}", 'fill = "poison"', 'expect = "d.npy"'] if label == "d" else [f'file = "{label}.npy"']
    if launch["workspace"]:
        text += ["", "[buffer.work]", 'dtype = "u8"', f"shape = [{launch['workspace']}]", 'fill = "zeros"']
        buffers[WORKSPACE] = ("work",)
    size, listed = parts(launch, buffers)
    text += ["", "[[arg]]", f"size = {size}", "parts = [", *(f"  {{ at = {at}, {part} }}," for at, part in listed), "]"]
    (given.folder / "launch.toml").write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
