#!/usr/bin/env python3
"""A contestant whose tensors are in a GPU's memory, written from docs/protocol.md: Python, and NVIDIA's driver by ctypes.

`contestant.py plain` is the baseline; `wide` and `narrow` are honest challengers. The others cheat, each in its way, and get nowhere: they are here so that
whoever has a GPU can see that.
"""

import ctypes
import json
import math
import sys
import threading
import time

from lent import DONE, Lent

# One element per thread, or four; rounded to half precision on the way; a kernel that does nothing for some time, and one that does nothing until its input
# changes, or for as long at most.
PTX = """
.version 7.0
.target sm_80
.address_size 64
.visible .entry scale(.param .u64 x, .param .u64 y, .param .u32 count) {
    .reg .pred %p; .reg .u32 %r<8>; .reg .u64 %a<4>; .reg .f32 %f<2>;
    ld.param.u64 %a0, [x]; ld.param.u64 %a1, [y]; ld.param.u32 %r0, [count];
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.u32 %r4, %r1, %r2, %r3;
    setp.ge.u32 %p, %r4, %r0; @%p ret;
    mul.wide.u32 %a2, %r4, 4; add.u64 %a0, %a0, %a2; add.u64 %a1, %a1, %a2;
    ld.global.f32 %f0, [%a0]; fma.rn.f32 %f0, %f0, 0f40000000, 0f3F800000; st.global.f32 [%a1], %f0; ret;
}
.visible .entry wide(.param .u64 x, .param .u64 y, .param .u32 count) {
    .reg .pred %p; .reg .u32 %r<8>; .reg .u64 %a<4>; .reg .f32 %f<4>;
    ld.param.u64 %a0, [x]; ld.param.u64 %a1, [y]; ld.param.u32 %r0, [count];
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.u32 %r4, %r1, %r2, %r3; shl.b32 %r4, %r4, 2;
    setp.ge.u32 %p, %r4, %r0; @%p ret;
    mul.wide.u32 %a2, %r4, 4; add.u64 %a0, %a0, %a2; add.u64 %a1, %a1, %a2;
    add.u32 %r5, %r4, 4; setp.gt.u32 %p, %r5, %r0; @%p bra slow;
    ld.global.v4.f32 {%f0, %f1, %f2, %f3}, [%a0];
    fma.rn.f32 %f0, %f0, 0f40000000, 0f3F800000; fma.rn.f32 %f1, %f1, 0f40000000, 0f3F800000;
    fma.rn.f32 %f2, %f2, 0f40000000, 0f3F800000; fma.rn.f32 %f3, %f3, 0f40000000, 0f3F800000;
    st.global.v4.f32 [%a1], {%f0, %f1, %f2, %f3}; ret;
slow:
    ld.global.f32 %f0, [%a0]; fma.rn.f32 %f0, %f0, 0f40000000, 0f3F800000; st.global.f32 [%a1], %f0;
    add.u64 %a0, %a0, 4; add.u64 %a1, %a1, 4; add.u32 %r4, %r4, 1; setp.lt.u32 %p, %r4, %r0; @%p bra slow; ret;
}
.visible .entry half(.param .u64 x, .param .u64 y, .param .u32 count) {
    .reg .pred %p; .reg .u32 %r<8>; .reg .u64 %a<4>; .reg .f32 %f<2>; .reg .b16 %h;
    ld.param.u64 %a0, [x]; ld.param.u64 %a1, [y]; ld.param.u32 %r0, [count];
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.u32 %r4, %r1, %r2, %r3;
    setp.ge.u32 %p, %r4, %r0; @%p ret;
    mul.wide.u32 %a2, %r4, 4; add.u64 %a0, %a0, %a2; add.u64 %a1, %a1, %a2;
    ld.global.f32 %f0, [%a0]; fma.rn.f32 %f0, %f0, 0f40000000, 0f3F800000; cvt.rn.f16.f32 %h, %f0; cvt.f32.f16 %f0, %h;
    st.global.f32 [%a1], %f0; ret;
}
.visible .entry idle(.param .u64 x, .param .u64 y, .param .u32 count) {
    .reg .pred %p; .reg .u64 %a<4>;
    mov.u64 %a0, %clock64; add.u64 %a0, %a0, 100000000;
wait:
    mov.u64 %a1, %clock64; setp.lt.u64 %p, %a1, %a0; @%p bra wait; ret;
}
.visible .entry watch(.param .u64 x, .param .u64 y, .param .u32 count) {
    .reg .pred %p<2>; .reg .u32 %r<2>; .reg .u64 %a<3>;
    ld.param.u64 %a0, [x]; ld.volatile.global.u32 %r0, [%a0]; mov.u64 %a1, %clock64; add.u64 %a1, %a1, 100000000;
wait:
    mov.u64 %a2, %clock64; setp.ge.u64 %p1, %a2, %a1; @%p1 ret;
    ld.volatile.global.u32 %r1, [%a0]; setp.eq.u32 %p0, %r0, %r1; @%p0 bra wait; ret;
}
"""
# Kernels of a single thread.
ALONE = ("idle", "watch")
# The kernel of each way, the elements per thread, and the threads per block.
KERNELS = {"plain": ("scale", 1, 256), "wide": ("wide", 4, 256), "narrow": ("scale", 1, 32), "half": ("half", 1, 256)}


class Window(ctypes.Structure):
    """The driver's CUaccessPolicyWindow, with room for whatever else that attribute of a stream may be."""

    _fields_ = [
        ("start", ctypes.c_uint64), ("bytes", ctypes.c_size_t), ("ratio", ctypes.c_float), ("hit", ctypes.c_int), ("miss", ctypes.c_int),
        ("rest", ctypes.c_char * 64),
    ]


class Gpu(Lent):
    """The few functions of the driver that this takes."""

    def __init__(self):
        super().__init__()
        self.call("cuInit", 0)
        context, module = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        self.context = context
        self.call("cuModuleLoadData", ctypes.byref(module), PTX.encode())
        self.functions = {}
        for name in ["scale", "wide", "half", *ALONE]:
            function = ctypes.c_void_p()
            self.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
            self.functions[name] = function
        self.streams = [ctypes.c_void_p(), ctypes.c_void_p()]
        for stream in self.streams:
            self.call("cuStreamCreate", ctypes.byref(stream), 1)

    def launch(self, kernel, x, y, count, stream=0):
        name, per_thread, threads = KERNELS.get(kernel, (kernel, 1, 1))
        blocks = max(1, math.ceil(count / (threads * per_thread)))
        values = [ctypes.c_uint64(x), ctypes.c_uint64(y), ctypes.c_uint32(count)]
        pointers = (ctypes.c_void_p * 3)(*[ctypes.cast(ctypes.byref(value), ctypes.c_void_p) for value in values])
        grid = (1, 1, 1, 1, 1, 1) if name in ALONE else (blocks, 1, 1, threads, 1, 1)
        self.call("cuLaunchKernel", self.functions[name], *grid, 0, self.streams[stream], pointers, None)

    def persist(self, start, length):
        """Sets as much of L2 aside as may be, and has lines of these bytes stay there."""
        device, most, window = 0, ctypes.c_int(), ctypes.c_int()
        # MAX_PERSISTING_L2_CACHE_SIZE and MAX_ACCESS_POLICY_WINDOW_SIZE; LIMIT_PERSISTING_L2_CACHE_SIZE.
        self.call("cuDeviceGetAttribute", ctypes.byref(most), 108, device)
        self.call("cuDeviceGetAttribute", ctypes.byref(window), 109, device)
        self.call("cuCtxSetLimit", 6, ctypes.c_size_t(most.value))
        length = min(length, window.value)
        policy = Window(start, length, min(1.0, most.value / max(length, 1)), 2, 0)
        # ACCESS_POLICY_WINDOW; 2 above is PERSISTING.
        for stream in self.streams:
            self.call("cuStreamSetAttribute", stream, 1, ctypes.byref(policy))

    def finish(self):
        self.call("cuStreamSynchronize", self.streams[0])


def swim(gpu, way, remembered, x, y, count):
    """One job in its way."""
    if way == "side-stream":
        # The result is queued where nobody waits for it, behind something long.
        gpu.launch("idle", x, y, count, stream=1)
        gpu.launch("plain", x, y, count, stream=1)
    elif way == "after-done":

        def later():
            time.sleep(0.05)
            gpu.call("cuCtxSetCurrent", gpu.context)
            gpu.launch("plain", x, y, count)

        threading.Thread(target=later, daemon=True).start()
    elif way == "cached" and count in remembered:
        gpu.call("cuMemcpyDtoDAsync_v2", ctypes.c_uint64(y), remembered[count], ctypes.c_size_t(4 * count), gpu.streams[0])
    elif way == "cached":
        kept = ctypes.c_uint64()
        gpu.call("cuMemAlloc_v2", ctypes.byref(kept), ctypes.c_size_t(4 * count))
        gpu.launch("plain", x, y, count)
        gpu.launch("plain", x, kept.value, count)
        remembered[count] = kept
    else:
        gpu.launch(way if way in KERNELS else "plain", x, y, count)


def begin_early(gpu, words, value, jobs):
    """Jobs behind their inputs, not behind the latch, and without a kernel that runs meanwhile: the stream waits for a word of each input to be no poison any more. The
    latch is waited for last, with a kernel that does nothing behind it, so that it looks like a run."""
    first = gpu.streams[0]
    last = [x + 4 * (count - 1) for x, _, count in jobs]
    for word in last:
        gpu.write(first, word, 0xFFFFFFFF)
    for word, (x, y, count) in zip(last, jobs):
        # Until some bit of it is zero.
        gpu.call("cuStreamWaitValue32_v2", first, word, 0, 3)
        gpu.launch("plain", x, y, count)
    gpu.wait(first, words, value)
    gpu.launch("plain", words, words, 0)
    gpu.write(first, words + DONE, value)


def queue(gpu, way, remembered, words, value, jobs):
    """Jobs behind the latch: a word to wait for, and one to write when all is done."""
    first, second = gpu.streams
    if way == "early" and jobs:
        begin_early(gpu, words, value, jobs)
        return
    if way == "side-stream":
        # The end is told where nothing is queued; the work waits for the same latch.
        gpu.wait(second, words, value)
    if way == "peek" and jobs:
        # Not the latch is waited for, but the first input: when it is there, the first job can begin.
        gpu.launch("watch", *jobs[0])
    else:
        gpu.wait(first, words, value)
    for job in jobs:
        swim(gpu, way, remembered, *job)
    gpu.write(first, words + DONE, value)
    if way == "left-behind" and jobs:
        # The other side is to find a device that is at work.
        gpu.launch("idle", *jobs[0])


def main():
    way, gpu, prepared, remembered = sys.argv[1], Gpu(), None, {}
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["type"] == "hello":
            answer = {"type": "hello", "protocol": 2, "name": way, "deterministic": True, "memory": "cuda", "queues": True}
        elif asked["type"] == "prepare":
            prepared = asked
            memory = {name: gpu.address(piece) for name, piece in asked["memory"].items()}
            if way == "persisting":
                places = [(place["x"]["offset"], 4 * place["x"]["shape"][0]) for place in asked["inputs"]]
                first = min(offset for offset, _ in places)
                gpu.persist(memory["inputs"] + first, max(offset + length for offset, length in places) - first)
            answer = {"type": "ready", "id": asked["id"]}
        elif asked["type"] == "run":
            jobs = []
            for job in asked["jobs"]:
                x, y = prepared["inputs"][job["input"]]["x"], prepared["outputs"][job["output"]]["y"]
                jobs.append((memory["inputs"] + x["offset"], memory["outputs"] + y["offset"], x["shape"][0]))
            if "latch" in asked:
                queue(gpu, way, remembered, memory["latch"], asked["latch"], jobs)
                answer = {"type": "queued", "id": asked["id"]}
            else:
                for job in jobs:
                    swim(gpu, way, remembered, *job)
                gpu.finish()
                answer = {"type": "done", "id": asked["id"]}
        else:
            return
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


main()
