"""Whole layers on tensors in a GPU's memory: against double precision, in a captured graph, and what a call costs the
host.

Needs a Hopper GPU and nothing else: memory comes from the driver by ctypes, and arrays are lent by hand. Without
pytest: `python crates/python/tests/test_cuda_layers.py`, with the package on the path. Skipped where there is no such
GPU.
"""

import array
import ctypes
import math
import random
import struct
import sys
import time

from lending import Lent

import hammerhead
from hammerhead import _native

AVAILABLE = hammerhead.backends().get("cuda", "not built in") is None
if "pytest" in sys.modules:
    import pytest

    pytestmark = pytest.mark.skipif(not AVAILABLE, reason="no GPU that this package can use")

VALUES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
OPTIONS = ("tokens", "exact", False, None, None, (False, None), "cuda", None, None)


class Gpu:
    """The driver, as far as it is needed here. The package has made the device's context."""

    def __init__(self):
        self.driver = ctypes.CDLL("libcuda.so.1")
        context, device = ctypes.c_void_p(), ctypes.c_int()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self.stream = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(self.stream), 1)

    def call(self, name, *arguments):
        status = getattr(self.driver, name)(*arguments)
        assert status == 0, f"{name} says {status}"

    def place(self, content):
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(len(content), 16)))
        self.write(address.value, content)
        return address.value

    def write(self, address, content):
        self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), bytes(content), ctypes.c_size_t(len(content)))

    def read(self, address, count):
        content = ctypes.create_string_buffer(count)
        self.call("cuMemcpyDtoH_v2", content, ctypes.c_uint64(address), ctypes.c_size_t(count))
        return content.raw

    def wait(self):
        self.call("cuStreamSynchronize", self.stream)


def bf16(values):
    """Numbers as bfloat16, rounded towards zero, and what they are then."""
    halves = [struct.unpack("<I", struct.pack("<f", value))[0] >> 16 for value in values]
    return struct.pack(f"<{len(halves)}H", *halves), floats(struct.pack(f"<{len(halves)}H", *halves))


def floats(content):
    halves = struct.unpack(f"<{len(content) // 2}H", content)
    return [struct.unpack("<f", struct.pack("<I", half << 16))[0] for half in halves]


class Matrix:
    """Random codes under scales of one or two, and their values."""

    def __init__(self, rng, rows, k):
        self.codes = bytearray(rng.randrange(256) for _ in range(rows * k // 2))
        self.scales = bytearray(rng.choice((0x38, 0x40)) for _ in range(rows * k // 16))
        self.rows, self.k, self.scale = rows, k, 1.0 / k

    def parts(self):
        lend = lambda content, columns: Lent(address_of(content), (self.rows, columns), "uint8", owner=content)
        return lend(self.codes, self.k // 2), lend(self.scales, self.k // 16), self.scale, 16

    def times(self, x):
        def value(at):
            code = self.codes[at // 2] >> (4 * (at % 2)) & 15
            scale = 1.0 if self.scales[at // 16] == 0x38 else 2.0
            return VALUES[code & 7] * (-scale if code & 8 else scale)

        return [
            self.scale * sum(value(row * self.k + column) * x[column] for column in range(self.k))
            for row in range(self.rows)
        ]


def address_of(content):
    return ctypes.addressof((ctypes.c_char * len(content)).from_buffer(content))


class Network:
    """An MLP's matrices, and what their inputs are multiplied with first if that is asked for."""

    def __init__(self, rng, hidden, inner, scaled=False):
        self.gate, self.up = Matrix(rng, inner, hidden), Matrix(rng, inner, hidden)
        self.down = Matrix(rng, hidden, inner)
        self.scales = [[rng.choice((0.5, 0.75, 1.25)) for _ in range(k)] if scaled else None for k in (hidden, inner)]

    def parts(self):
        first, second = self.scales
        return (self.gate.parts(), self.up.parts(), None, first), (self.down.parts(), None, None, second), 1.0

    def compute(self, x):
        scaled = lambda x, scale: [a * b for a, b in zip(x, scale)] if scale else x
        x = scaled(x, self.scales[0])
        gate, up = self.gate.times(x), self.up.times(x)
        between = [g / (1 + math.exp(-g)) * u for g, u in zip(gate, up)]
        return self.down.times(scaled(bf16_nearest(between), self.scales[1]))


def bf16_nearest(values):
    bits = [struct.unpack("<I", struct.pack("<f", value))[0] for value in values]
    return [struct.unpack("<f", struct.pack("<I", (b + 0x7FFF + (b >> 16 & 1)) & 0xFFFF0000))[0] for b in bits]


def close(found, expected):
    largest = max(map(abs, expected))
    off = max(abs(a - b) for a, b in zip(found, expected))
    assert off <= 2.0**-7 * largest, (off, largest)


def packed(networks, top, shared=None, v=None, options=OPTIONS):
    """A layer of the native half, without the arrays of a library."""
    experts, router = [network.parts() for network in networks], ("softmax-renorm", top, None, None, 1.0)
    shared = shared.parts() if shared else None
    return _native.FeedForward.pack_experts(experts, shared, v, router, ("silu", None), options)


class Case:
    """Experts on a GPU, with tokens, logits and room for results beside them."""

    def __init__(
        self, gpu, experts, top, hidden, inner, tokens, shared=False, different=None, v=None, scaled=False, options=OPTIONS
    ):
        rng = random.Random(5)
        self.gpu, self.top, self.hidden, self.tokens, self.experts = gpu, top, hidden, tokens, experts
        some = [Network(rng, hidden, inner, scaled) for _ in range(different or experts)]
        self.networks = [some[expert % len(some)] for expert in range(experts)]
        self.shared, self.v = Network(rng, hidden, 2 * inner) if shared else None, v
        self.layer = packed(self.networks, top, self.shared, v, options)
        self.x_at, self.out_at = gpu.place(bytes(2 * tokens * hidden)), gpu.place(bytes(2 * tokens * hidden))
        self.logits_at = gpu.place(bytes(4 * tokens * experts))
        self.fill(1)

    def fill(self, seed):
        """Other tokens and logits in the same places."""
        rng = random.Random(seed)
        content, self.x = bf16([rng.uniform(-1, 1) for _ in range(self.tokens * self.hidden)])
        self.gpu.write(self.x_at, content)
        self.logits = [rng.uniform(-2, 2) for _ in range(self.tokens * self.experts)]
        self.gpu.write(self.logits_at, array.array("f", self.logits).tobytes())

    def lent(self, address, columns, element):
        return Lent(address, (self.tokens, columns), element, device=0)

    def run(self, routing=None, on_input=False):
        routing = routing or [self.lent(self.logits_at, self.experts, "float32")]
        x = (self.lent(self.x_at, self.hidden, "bfloat16"), "bfloat16")
        out = (self.lent(self.out_at, self.hidden, "bfloat16"), "bfloat16")
        self.layer.run(x, routing, on_input, out, self.gpu.stream.value)

    def chosen(self, token):
        row = self.logits[token * self.experts : (token + 1) * self.experts]
        best = sorted(range(self.experts), key=lambda expert: (-row[expert], expert))[: self.top]
        powers = [math.exp(row[expert]) for expert in best]
        return [(expert, power / sum(powers)) for expert, power in zip(best, powers)]

    def check(self, tokens=None, chosen=None):
        self.gpu.wait()
        found = floats(self.gpu.read(self.out_at, 2 * self.tokens * self.hidden))
        for token in tokens or range(self.tokens):
            x = self.x[token * self.hidden : (token + 1) * self.hidden]
            terms = [(w, self.networks[e].compute(x)) for e, w in (chosen or self.chosen)(token)]
            if self.shared:
                weight = 1 / (1 + math.exp(-sum(a * b for a, b in zip(x, self.v)))) if self.v else 1.0
                terms.append((weight, self.shared.compute(x)))
            expected = [sum(w * y[column] for w, y in terms) for column in range(self.hidden)]
            close(found[token * self.hidden : (token + 1) * self.hidden], expected or [0.0])


def test_experts_are_chosen_on_the_gpu():
    case = Case(Gpu(), experts=4, top=2, hidden=64, inner=32, tokens=3)
    case.run()
    case.check()


def test_ids_and_weights_on_the_gpu_are_used_as_they_are():
    gpu = Gpu()
    case = Case(gpu, experts=4, top=2, hidden=64, inner=32, tokens=3)
    ids, weights = [1, 3, 2, 9, 0, -1], [0.5, 0.25, 1.0, 8.0, 0.75, 8.0]
    for kind, code in (("int32", "i"), ("int64", "q")):
        places = [gpu.place(array.array(code, ids).tobytes()), gpu.place(array.array("f", weights).tobytes())]
        gpu.write(case.out_at, bytes(2 * 3 * 64))
        case.run([case.lent(places[0], 2, kind), case.lent(places[1], 2, "float32")])
        entries = list(zip(ids, weights))
        case.check(chosen=lambda token: [(e, w) for e, w in entries[2 * token : 2 * token + 2] if 0 <= e < 4])


def test_a_shared_expert_computes_every_token():
    case = Case(Gpu(), experts=4, top=2, hidden=64, inner=32, tokens=3, shared=True)
    case.run()
    case.check()


def test_a_shared_expert_may_have_a_gate_of_its_own():
    v = [0.25 - column / 128 for column in range(64)]
    case = Case(Gpu(), experts=4, top=2, hidden=64, inner=32, tokens=3, shared=True, v=v)
    case.run()
    case.check()


def test_input_scales_are_part_of_the_layer():
    case = Case(Gpu(), experts=4, top=2, hidden=64, inner=32, tokens=3, scaled=True)
    case.run()
    case.check()


def test_a_batch_invariant_token_has_the_same_bits_alone_and_among_others():
    gpu, options = Gpu(), (*OPTIONS[:2], True, *OPTIONS[3:])
    alone, among = (
        Case(gpu, experts=4, top=2, hidden=256, inner=128, tokens=tokens, options=options) for tokens in (1, 300)
    )
    # The first token is the same one already.
    gpu.write(among.logits_at, array.array("f", alone.logits).tobytes())
    for case in (alone, among):
        case.run()
    gpu.wait()
    assert gpu.read(alone.out_at, 2 * 256) == gpu.read(among.out_at, 2 * 256)


def test_experts_in_two_places_move_between_calls_and_serve_a_graph():
    gpu = Gpu()
    sizes = {"experts": 4, "top": 2, "hidden": 64, "inner": 32, "tokens": 9, "shared": True}
    bytes_of_all = Case(gpu, **sizes).layer.packed_bytes
    case = Case(gpu, **sizes, options=(*OPTIONS[:4], bytes_of_all * 2 // 3, *OPTIONS[5:]))
    held = case.layer.resident
    assert held == [0, 1, 2][: len(held)] and 0 < len(held) < 4
    case.run()
    case.check()
    graph, launchable = ctypes.c_void_p(), ctypes.c_void_p()
    gpu.call("cuStreamBeginCapture_v2", gpu.stream, 2)
    case.run()
    gpu.call("cuStreamEndCapture", gpu.stream, ctypes.byref(graph))
    gpu.call("cuGraphInstantiateWithFlags", ctypes.byref(launchable), graph, ctypes.c_ulonglong(0))
    for seed in (7, 8, 9):
        case.fill(seed)
        held = [(expert + 1) % 4 for expert in held]
        case.layer.place(held, 0, gpu.stream.value)
        gpu.call("cuGraphLaunch", launchable, gpu.stream)
        case.check()
        assert sorted(case.layer.resident) == sorted(held)
    assert sum(case.layer.asked) == 4 * 9 * 2
    gpu.call("cuGraphExecDestroy", launchable)
    gpu.call("cuGraphDestroy", graph)


def test_an_mlp_is_a_layer_of_one():
    gpu, rng = Gpu(), random.Random(2)
    network = Network(rng, 64, 32)
    layer = _native.FeedForward.pack_mlp(network.parts(), ("silu", None), OPTIONS)
    content, x = bf16([rng.uniform(-1, 1) for _ in range(3 * 64)])
    x_at, out_at = gpu.place(content), gpu.place(bytes(2 * 3 * 64))
    lent = [(Lent(at, (3, 64), "bfloat16", device=0), "bfloat16") for at in (x_at, out_at)]
    layer.run(lent[0], [], False, lent[1], gpu.stream.value)
    gpu.wait()
    found = floats(gpu.read(out_at, 2 * 3 * 64))
    for token in range(3):
        close(found[64 * token : 64 * token + 64], network.compute(x[64 * token : 64 * token + 64]))


def test_results_of_any_width_follow_each_other_in_one_array():
    gpu, rng, counts, k = Gpu(), random.Random(3), [1, 3, 0, 2], 64
    starts = [sum(counts[:group]) for group in range(len(counts))]
    lend = lambda at, columns: [
        (Lent(at + 2 * columns * start, (count, columns), "bfloat16", device=0), "bfloat16")
        for start, count in zip(starts, counts)
    ]
    for n in (1, 7, 33, 36, 40):
        pairs = [[Matrix(rng, n, k) for _ in range(2)] for _ in counts]
        groups = [(gate.parts(), up.parts(), None, None) for gate, up in pairs]
        layer = _native.Layer.pack(groups, "silu", None, "cuda", None, None)
        content, x = bf16([rng.uniform(-1, 1) for _ in range(sum(counts) * k)])
        x_at, out_at = gpu.place(content), gpu.place(bytes(2 * sum(counts) * n))
        layer.run(lend(x_at, k), lend(out_at, n), gpu.stream.value)
        gpu.wait()
        found = floats(gpu.read(out_at, 2 * sum(counts) * n))
        for (gate, up), start, count in zip(pairs, starts, counts):
            for token in range(start, start + count):
                sums = zip(*(matrix.times(x[token * k : (token + 1) * k]) for matrix in (gate, up)))
                close(found[token * n : (token + 1) * n], [g / (1 + math.exp(-g)) * u for g, u in sums])


def test_a_captured_graph_serves_every_routing_and_other_places():
    gpu = Gpu()
    case = Case(gpu, experts=4, top=2, hidden=64, inner=32, tokens=3)
    case.run()
    gpu.wait()
    # Results go elsewhere than in the call that prepared this one, as a graph's pool of memory has it.
    case.out_at = gpu.place(bytes(2 * 3 * 64))
    graph, launchable = ctypes.c_void_p(), ctypes.c_void_p()
    gpu.call("cuStreamBeginCapture_v2", gpu.stream, 2)
    case.run()
    gpu.call("cuStreamEndCapture", gpu.stream, ctypes.byref(graph))
    gpu.call("cuGraphInstantiateWithFlags", ctypes.byref(launchable), graph, ctypes.c_ulonglong(0))
    for seed in (7, 8):
        case.fill(seed)
        gpu.call("cuGraphLaunch", launchable, gpu.stream)
        case.check()
    gpu.call("cuGraphExecDestroy", launchable)
    gpu.call("cuGraphDestroy", graph)


def test_a_layer_that_goes_leaves_nothing_behind():
    gpu = Gpu()

    def free():
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        gpu.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def use():
        case = Case(gpu, experts=64, top=2, hidden=512, inner=512, tokens=1, different=1)
        case.run()

    use()
    before = free()
    for _ in range(4):
        use()
    assert before - free() < 16 << 20, "less than one of the layers, which take 28 MB each"


def host_time():
    """Microseconds of the native half for a call with 128 experts: the median."""
    case = Case(Gpu(), experts=128, top=8, hidden=256, inner=128, tokens=4, different=1)
    case.run()
    x = (case.lent(case.x_at, case.hidden, "bfloat16"), "bfloat16")
    out = (case.lent(case.out_at, case.hidden, "bfloat16"), "bfloat16")
    routing, stream = [case.lent(case.logits_at, case.experts, "float32")], case.gpu.stream.value
    times = []
    for _ in range(300):
        begun = time.perf_counter()
        case.layer.run(x, routing, False, out, stream)
        times.append(time.perf_counter() - begun)
        case.gpu.wait()
    return sorted(times)[len(times) // 2] * 1e6


if __name__ == "__main__":
    if not AVAILABLE:
        sys.exit(f"no GPU: {hammerhead.backends().get('cuda')}")
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print("ok", name)
    print(f"the native half of a call with 128 experts takes the host {host_time():.1f} µs")
