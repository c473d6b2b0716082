"""A community submission whose data lie in a GPU's memory: what it launches is queued behind the referee's latch, and the device's clock times it.

Everything is queued in the device's default stream, where kernels without a stream of their own go too. Behind the latch nothing may wait for the device, since the latch opens only when all
is queued. Who has to wait (`torch.tensor([…], device="cuda")` does, and `.item()`) is tried once before `hello`, does not queue, and the host's clock times it.
"""

import contextlib
import json
import sys

import torch

import tank
import task_tensors
from lent import Lent

# What waits for the device in so many words; what does so unasked, torch itself finds.
WAITING = [(torch.cuda, "synchronize"), (torch.cuda.Stream, "synchronize"), (torch.cuda.Event, "synchronize")]


class Unsupported(Exception):
    """Why a problem cannot be queued."""

    def __init__(self, what):
        super().__init__(f"{what}, so that it cannot be queued: add --by-host to the commands of this task's baseline and pitches")


class Bytes:
    """Memory of a GPU as every library in Python understands it."""

    def __init__(self, address, count):
        self.__cuda_array_interface__ = {"data": (address, False), "shape": (count,), "typestr": "|u1", "version": 3}


def tensor_at(address, like):
    """The lent memory at an address as a tensor of a kind, contiguous."""
    count = torch.Size(like.shape).numel() * like.dtype.itemsize
    flat = torch.as_tensor(Bytes(address, count), device="cuda") if count else torch.empty(0, dtype=torch.uint8, device="cuda")
    return flat.view(like.dtype).reshape(like.shape)


def leaves_of(data):
    """What data, or a pattern of them, is made of: tensors and numbers, in their order."""
    inner = task_tensors.parts(data)
    if inner is not None:
        return [found for part in inner for found in leaves_of(part)]
    return [data] if isinstance(data, (torch.Tensor, task_tensors.Like)) or is_number(data) else []


def is_number(leaf):
    return type(leaf) in task_tensors.NUMBERS


def bytes_of(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def check(given, computed, again):
    """Refuses data that cannot be queued. `again` are further data for the same problem."""
    numbers = [leaf for leaf in leaves_of(given) if is_number(leaf)]
    if any(is_number(leaf) or leaf.device.type != "cuda" for leaf in leaves_of(computed)):
        raise Unsupported("what it computes is in the host's memory")
    if any(leaf.device.type != "cuda" for leaf in leaves_of(given) if not is_number(leaf)):
        raise Unsupported("some of its data are in the host's memory")
    if [leaf for leaf in leaves_of(again) if is_number(leaf)] != numbers:
        raise Unsupported("its data have numbers that change from one to the next")


class Buffers:
    """Which tensors are given to be written to, and whether the task looks at what is in them.

    They are what its own reference returns them in, or else the last ones of the same type and size as what it returns.
    """

    def __init__(self, patterns, problem):
        data, again = patterns.generate(problem, 2), patterns.generate(problem, 2)
        given = [None if is_number(leaf) else leaf for leaf in leaves_of(data)]
        storages = [None if leaf is None else leaf.untyped_storage().data_ptr() for leaf in given]
        found = leaves_of(patterns.reference.ref_kernel(data))
        # For each leaf of what is given, the leaf of what is computed that it is for.
        self.holds = [None] * len(given)
        for index, leaf in enumerate(found):
            alike = [at for at, other in enumerate(given) if other is not None and (other.dtype, other.numel()) == (leaf.dtype, leaf.numel())]
            same = [at for at in alike if storages[at] == leaf.untyped_storage().data_ptr()]
            for at in (same or alike)[-1:]:
                self.holds[at] = index
        for leaf, index in zip(leaves_of(again), self.holds):
            if index is not None:
                leaf.copy_(torch.full_like(bytes_of(leaf), 0xFF).view(leaf.dtype).reshape(leaf.shape))
        overwritten = leaves_of(patterns.reference.ref_kernel(again))
        self.looked_at = not all(torch.equal(bytes_of(one), bytes_of(other)) for one, other in zip(found, overwritten))


class Problem:
    """A problem that was prepared: where its tensors are."""

    def __init__(self, lent, patterns, asked):
        problem, memory = asked["problem"], asked["memory"]
        self.given, self.latch = patterns.of(problem), memory.get("latch")
        computed = patterns.outputs(problem)
        check(self.given, computed, patterns.generate(problem, 2))
        self.buffers = Buffers(patterns, problem)
        inputs, outputs = lent.address(memory["inputs"]), lent.address(memory["outputs"])
        self.inputs = [list(self.placed("in", self.given, inputs, places).values()) for places in asked["inputs"]]
        self.outputs = [self.placed("out", computed, outputs, places) for places in asked["outputs"]]

    @staticmethod
    def placed(way, like, base, places):
        """The leaves of a pattern by name: lent tensors, and numbers as they always are."""
        names = [spec["name"] for spec in task_tensors.described(way, like, "")]
        found = zip(names, leaves_of(like))
        return {name: [leaf] if is_number(leaf) else tensor_at(base + places[name]["offset"], leaf) for name, leaf in found}

    def run(self, kernel, job):
        """One job. What is lent is given as it lies there. What is given to be written to is the place of the result, or a copy where the task looks at what is in it."""
        outputs = self.outputs[job["output"]]
        results = list(outputs.values())

        def given(like, found):
            tensor, holds = found
            strides = tensor.stride() if like.stride is None or 0 in like.stride else like.stride
            plain = strides == tensor.stride()
            if holds is not None and plain and not self.buffers.looked_at:
                return results[holds].view(like.shape)
            if holds is None and plain:
                return tensor
            return torch.empty_strided(like.shape, strides, dtype=like.dtype, device="cuda").copy_(tensor)

        lent = zip(self.inputs[job["input"]], self.buffers.holds)
        lent = (leaf if isinstance(leaf, list) else (leaf, holds) for leaf, holds in lent)
        found = dict(task_tensors.leaves("out", kernel(task_tensors.filled(self.given, lent, given))))
        if set(found) != set(outputs):
            raise ValueError(f"{sorted(found)} were computed, and {sorted(outputs)} are expected")
        for name, leaf in found.items():
            place = outputs[name]
            # A type that the tank has no name for came as its bytes.
            place = place if place.dtype in task_tensors.ELEMENTS else place.reshape(-1).view(torch.uint8)
            if leaf.numel() != place.numel():
                raise ValueError(f"{name} has the shape {tuple(leaf.shape)}, which is another than was asked for")
            leaf = leaf.reshape(place.shape)
            if (leaf.data_ptr(), leaf.dtype) != (place.data_ptr(), place.dtype):
                place.copy_(leaf)


@contextlib.contextmanager
def nothing_waits():
    """Whatever would wait for the device inside of this ends the run instead, and says why."""

    def waits(*_, **__):
        raise Unsupported("it waits for the device in its run")

    kept = [getattr(holder, name) for holder, name in WAITING]
    for holder, name in WAITING:
        setattr(holder, name, waits)
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    except RuntimeError as error:
        if "synchronizing" in str(error):
            raise Unsupported("it waits for the device in its run") from error
        raise
    finally:
        torch.cuda.set_sync_debug_mode("default")
        for (holder, name), function in zip(WAITING, kept):
            setattr(holder, name, function)


def can_queue(kernel, patterns):
    """Whether a submission can be queued, by the first problem that the operation's description lists. Where that cannot be read, or the submission fails, the referee will say."""
    try:
        problem = task_tensors.first_problem()
        # What it prints is not for the referee.
        with contextlib.redirect_stdout(sys.stderr):
            check(patterns.of(problem), patterns.outputs(problem), patterns.generate(problem, 2))
            kernel(patterns.generate(problem, 1))
            data = patterns.generate(problem, 2)
            torch.cuda.synchronize()
            with nothing_waits():
                kernel(data)
    except Unsupported:
        return False
    except Exception:
        pass
    torch.cuda.synchronize()
    return True


def serve(name, kernel, patterns):
    """Answers as a contestant."""
    tank.keep_channel()
    lent, at = Lent(), None
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["type"] == "hello":
            # What a GPU computes need not come out the same to the last bit.
            answer = {"type": "hello", "protocol": 2, "name": name, "deterministic": False, "memory": "cuda", "queues": True}
        elif asked["type"] == "prepare":
            try:
                at, answer = Problem(lent, patterns, asked), {"type": "ready", "id": asked["id"]}
            except Unsupported as why:
                answer = {"type": "unsupported", "id": asked["id"], "reason": str(why)}
            torch.cuda.synchronize()
        elif asked["type"] == "run" and "latch" in asked:
            with lent.latch(0, at.latch, asked["latch"]), nothing_waits():
                for job in asked["jobs"]:
                    at.run(kernel, job)
            answer = {"type": "queued", "id": asked["id"]}
        elif asked["type"] == "run":
            for job in asked["jobs"]:
                at.run(kernel, job)
            torch.cuda.synchronize()
            answer = {"type": "done", "id": asked["id"]}
        else:
            return
        tank.say(**answer)
