#!/usr/bin/env python3
"""A matrix product on tensors in a GPU's memory, written from docs/protocol.md: the referee's memory becomes torch tensors, and Triton or cuBLAS computes.

`contestant.py plain` is the baseline: Triton with small tiles, each loaded when the one before is multiplied. `tiles` has larger ones and loads ahead. `cublas` is torch.
"""

import ctypes
import json
import sys

import torch
import triton
import triton.language as tl

# Of each way the tile, the warps that share one, and how many steps along K are on their way at a time.
WAYS = {
    "plain": {"TILE_M": 64, "TILE_N": 64, "TILE_K": 32, "num_warps": 4, "num_stages": 1},
    "tiles": {"TILE_M": 128, "TILE_N": 256, "TILE_K": 64, "num_warps": 8, "num_stages": 3},
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


class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]


class Lent:
    """The referee's memory, opened by its handle; the same comes again and stays open."""

    def __init__(self):
        torch.cuda.init()
        torch.cuda.current_stream().synchronize()
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.driver.cuIpcOpenMemHandle_v2.argtypes = [ctypes.c_void_p, Handle, ctypes.c_uint]
        self.opened = {}

    def address(self, piece):
        if piece["handle"] not in self.opened:
            handle, address = Handle(), ctypes.c_uint64()
            handle.bytes[:] = bytes.fromhex(piece["handle"])
            status = self.driver.cuIpcOpenMemHandle_v2(ctypes.byref(address), handle, 1)
            if status:
                raise SystemExit(f"cuIpcOpenMemHandle failed with status {status}")
            self.opened[piece["handle"]] = address.value
        return self.opened[piece["handle"]]

    def tensor(self, piece, place):
        """A tensor of half precision as torch sees it."""
        address = self.address(piece) + place["offset"]
        return torch.as_tensor(View(address, place["shape"]), device="cuda")


class View:
    """Memory at an address, as every library for GPUs in Python understands it."""

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
    at = {
        role: [{name: lent.tensor(asked["memory"][role], place) for name, place in places.items()} for places in asked[role]]
        for role in ("constants", "inputs", "outputs")
    }
    sizes = asked["problem"]
    own = [torch.zeros(sizes[rows], sizes[cols], dtype=torch.float16, device="cuda") for rows, cols in ("mk", "nk", "mn")]
    multiply(way, *own)
    torch.cuda.synchronize()
    return at


def main(way):
    lent, at = Lent(), None
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["type"] == "hello":
            answer = {"type": "hello", "protocol": 2, "name": way, "deterministic": True, "memory": "cuda"}
        elif asked["type"] == "prepare":
            at = prepare(lent, way, asked)
            answer = {"type": "ready", "id": asked["id"]}
        elif asked["type"] == "run":
            for job in asked["jobs"]:
                a, b, c = at["inputs"][job["input"]]["a"], at["constants"][job["layer"]]["b"], at["outputs"][job["output"]]["c"]
                multiply(way, a, b, c)
            torch.cuda.synchronize()
            answer = {"type": "done", "id": asked["id"]}
        else:
            return
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


main(sys.argv[1])
