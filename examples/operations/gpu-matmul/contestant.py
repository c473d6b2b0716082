#!/usr/bin/env python3
"""A matrix product on tensors in a GPU's memory, written from docs/protocol.md: the referee's memory becomes torch tensors, and Triton or cuBLAS computes.

`contestant.py tiles` is the baseline: Triton with large tiles. `square` has smaller ones, of which more are on their way at a time, and `small` the smallest, one step at a time.
`cublas` is torch.
"""

import json
import os
import pathlib
import shutil
import sys
import tempfile

# What `contestant.py build` has compiled is here for every process that begins; each has a copy, since it may write nowhere else.
BUILT = pathlib.Path(__file__).parent / "built"
os.environ["TRITON_CACHE_DIR"] = str(BUILT if sys.argv[1] == "build" else pathlib.Path(tempfile.gettempdir()) / "built")
if sys.argv[1] != "build" and BUILT.is_dir():
    shutil.copytree(BUILT, os.environ["TRITON_CACHE_DIR"], dirs_exist_ok=True)

import torch
import triton
import triton.language as tl

from lent import Lent

# Of each way the tile, the warps that share one, and how many steps along K are on their way at a time.
WAYS = {
    "tiles": {"TILE_M": 128, "TILE_N": 256, "TILE_K": 64, "num_warps": 8, "num_stages": 3},
    "square": {"TILE_M": 128, "TILE_N": 128, "TILE_K": 64, "num_warps": 4, "num_stages": 4},
    "small": {"TILE_M": 64, "TILE_N": 64, "TILE_K": 32, "num_warps": 4, "num_stages": 1},
}


@triton.jit
def product(a, b, c, m, n, k, TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr):
    # Blocks that read the same rows of B follow each other, so that B comes from L2 once.
    tiles_m = tl.cdiv(m, TILE_M)
    tile = tl.program_id(0)
    rows = (tile % tiles_m) * TILE_M + tl.arange(0, TILE_M)
    cols = (tile // tiles_m) * TILE_N + tl.arange(0, TILE_N)
    steps = tl.arange(0, TILE_K)
    sums = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    for start in range(0, k, TILE_K):
        along = start + steps
        left = tl.load(a + rows[:, None] * k + along[None, :], mask=(rows[:, None] < m) & (along[None, :] < k), other=0.0)
        right = tl.load(b + cols[None, :] * k + along[:, None], mask=(cols[None, :] < n) & (along[:, None] < k), other=0.0)
        sums = tl.dot(left, right, sums)
    tl.store(c + rows[:, None] * n + cols[None, :], sums.to(tl.float16), mask=(rows[:, None] < m) & (cols[None, :] < n))


class View:
    """Numbers of half precision at an address, as every library for GPUs in Python understands it."""

    def __init__(self, address, shape):
        self.__cuda_array_interface__ = {"data": (address, False), "shape": tuple(shape), "typestr": "<f2", "version": 3}


def multiply(way, a, b, c):
    if way == "cublas":
        torch.matmul(a, b.T, out=c)
        return
    (m, k), n = a.shape, b.shape[0]
    tile = WAYS[way]
    product[(triton.cdiv(m, tile["TILE_M"]) * triton.cdiv(n, tile["TILE_N"]),)](a, b, c, m, n, k, **tile)


def prepare(lent, way, asked):
    """All tensors by role and number, and a product beforehand on memory of our own, in which kernels are compiled."""

    def tensor(role, place):
        return torch.as_tensor(View(lent.address(asked["memory"][role]) + place["offset"], place["shape"]), device="cuda")

    at = {role: [{name: tensor(role, place) for name, place in places.items()} for places in asked[role]] for role in ("constants", "inputs", "outputs")}
    sizes = asked["problem"]
    own = [torch.zeros(sizes[rows], sizes[cols], dtype=torch.float16, device="cuda") for rows, cols in ("mk", "nk", "mn")]
    multiply(way, *own)
    torch.cuda.synchronize()
    return at


def run(way, at, jobs):
    for job in jobs:
        a, b, c = at["inputs"][job["input"]]["a"], at["constants"][job["layer"]]["b"], at["outputs"][job["output"]]["c"]
        multiply(way, a, b, c)


def build():
    """Compiles for sizes that are whole tiles; for others the first product does."""
    for way in WAYS:
        multiply(way, *(torch.zeros(512, 512, dtype=torch.float16, device="cuda") for _ in "abc"))
    torch.cuda.synchronize()


def main(way):
    if way == "build":
        build()
        return
    # A stream of our own: what waits for the latch is to hold nothing else up.
    torch.cuda.set_stream(torch.cuda.Stream())
    stream = torch.cuda.current_stream()
    lent, at, latch = Lent(), None, None
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["type"] == "hello":
            answer = {"type": "hello", "protocol": 2, "name": way, "deterministic": True, "memory": "cuda", "queues": True}
        elif asked["type"] == "prepare":
            at, latch = prepare(lent, way, asked), asked["memory"].get("latch")
            answer = {"type": "ready", "id": asked["id"]}
        elif asked["type"] == "run" and "latch" in asked:
            with lent.latch(stream.cuda_stream, latch, asked["latch"]):
                run(way, at, asked["jobs"])
            answer = {"type": "queued", "id": asked["id"]}
        elif asked["type"] == "run":
            run(way, at, asked["jobs"])
            torch.cuda.synchronize()
            answer = {"type": "done", "id": asked["id"]}
        else:
            return
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


main(sys.argv[1])
