#!/usr/bin/env python3
"""Other people's kernels, and the museum's, on a GPU: is what the simulator says so there?

    strangers.py compare FOLDER     every NAME.cubin of FOLDER with the launch file NAME.toml (docs/check.md), against the
                                    arrays that `hammerhead check --save FOLDER/sim/NAME` has left there: to the bit
    strangers.py museum FOLDER      every exhibit as NAME_broken.cubin and NAME_fixed.cubin: how many of a thousand launches
                                    go wrong, and what compute-sanitizer says of each
    strangers.py exhibits MUSEUM FOLDER PTXAS
                                    makes that folder from crates/sim/tests/museum, with an assembler; needs no GPU

It needs numpy and the driver, and of the museum compute-sanitizer. What comes out is printed as JSON.
"""

import concurrent.futures
import ctypes
import json
import pathlib
import re
import subprocess
import sys
import tomllib

import numpy

LAUNCHES = 1000
BUFFER = 32 << 10
DTYPES = {"u8": "u1", "i8": "i1", "u16": "u2", "i16": "i2", "u32": "u4", "i32": "i4", "u64": "u8", "i64": "i8",
          "f16": "f2", "bf16": "u2", "f32": "f4", "f64": "f8"}
# CUtensorMapDataType by the launch file's names.
MAP_TYPES = {"u8": 0, "i8": 0, "u16": 1, "i16": 1, "u32": 2, "i32": 3, "f16": 6, "f32": 7, "bf16": 9}


class Driver:
    """The few calls of the driver that a launch takes."""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name, *arguments):
        status = getattr(self.cuda, name)(*arguments)
        if status != 0:
            text = ctypes.c_char_p()
            self.cuda.cuGetErrorName(status, ctypes.byref(text))
            raise RuntimeError(f"{name}: {(text.value or b'?').decode()}")

    def function(self, cubin, name):
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), cubin.read_bytes())
        self.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        return function

    def upload(self, array):
        address = ctypes.c_uint64()
        # Some room beyond, so that an access out of bounds stays in this process.
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(array.nbytes, 1)))
        self.write(address, array)
        return address

    def write(self, address, array):
        self.call("cuMemcpyHtoD_v2", address, array.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(array.nbytes))

    def download(self, address, array):
        found = numpy.empty_like(array)
        self.call("cuMemcpyDtoH_v2", found.ctypes.data_as(ctypes.c_void_p), address, ctypes.c_size_t(array.nbytes))
        return found

    def launch(self, function, grid, block, shared, arguments):
        pointers = (ctypes.c_void_p * len(arguments))(*[ctypes.addressof(argument) for argument in arguments])
        if shared > 48 << 10:
            self.call("cuFuncSetAttribute", function, 8, shared)
        self.call("cuLaunchKernel", function, *grid, *block, shared, None, pointers, None)

    def synchronize(self):
        self.call("cuCtxSynchronize")

    def tensor_map(self, address, said, dtype):
        room = (ctypes.c_uint8 * 192)()
        aligned = (ctypes.addressof(room) + 63) // 64 * 64
        rank = len(said["dims"])
        swizzle = {0: 0, 32: 1, 64: 2, 128: 3}[said.get("swizzle", 0)]
        self.call("cuTensorMapEncodeTiled", ctypes.c_void_p(aligned), MAP_TYPES[said.get("dtype", dtype)], rank, address,
                  (ctypes.c_uint64 * rank)(*said["dims"]), (ctypes.c_uint64 * rank)(*said["strides"], 0),
                  (ctypes.c_uint32 * rank)(*said["box"]), (ctypes.c_uint32 * rank)(*([1] * rank)), 0, swizzle, 0, 0)
        value = (ctypes.c_uint8 * 128).from_address(aligned)
        value.room = room
        return value


def compare(folder):
    """Runs every launch of a folder, and compares what is left in memory with what the simulator left there."""
    driver, rows = Driver(), []
    for cubin in sorted(folder.glob("*.cubin")):
        name = cubin.stem
        try:
            rows.append({"kernel": name} | one(driver, folder, cubin))
        except RuntimeError as error:
            rows.append({"kernel": name, "error": str(error)})
    same = [row for row in rows if row.get("different") == 0]
    print(json.dumps([row for row in rows if row not in same], indent=1))
    print(f"{len(same)} of {len(rows)} the same to the bit")


def one(driver, folder, cubin):
    """One launch: how many elements differ, and the first that does."""
    name = cubin.stem
    said = tomllib.loads((folder / f"{name}.toml").read_text())
    facts = json.loads((folder / f"{name}.json").read_text())
    function = driver.function(cubin, facts["entry"])
    arrays, places = {}, {}
    for buffer, what in said["buffer"].items():
        if "file" in what:
            arrays[buffer] = numpy.load(folder / what["file"])
        else:
            arrays[buffer] = numpy.full(what["shape"], 0, DTYPES[what["dtype"]])
        places[buffer] = driver.upload(arrays[buffer])
    arguments = []
    for argument in said["arg"]:
        (kind, value), = argument.items()
        if kind == "buffer":
            arguments.append(places[value])
        elif kind == "tensor_map":
            dtype = said["buffer"][value["buffer"]].get("dtype", "f16")
            arguments.append(driver.tensor_map(places[value["buffer"]], value, dtype))
        elif kind == "bytes":
            raw = bytes.fromhex(value)
            arguments.append((ctypes.c_uint8 * len(raw))(*raw))
        else:
            types = {"u32": ctypes.c_uint32, "i32": ctypes.c_int32, "u64": ctypes.c_uint64, "i64": ctypes.c_int64,
                     "f32": ctypes.c_float, "f64": ctypes.c_double}
            arguments.append(types[kind](value))
    three = lambda sides: (list(sides) + [1, 1])[:3]
    driver.launch(function, three(said["grid"]), facts["block"], said.get("shared", 0), arguments)
    driver.synchronize()
    different, first, elements = 0, None, 0
    for buffer, array in arrays.items():
        simulated = folder / "sim" / name / f"{buffer}.npy"
        if not simulated.exists():
            continue
        mine = numpy.load(simulated)
        theirs = driver.download(places[buffer], array).reshape(-1)
        unequal = numpy.flatnonzero(mine.view(f"u{mine.itemsize}") != theirs.view(f"u{theirs.itemsize}"))
        different, elements = different + len(unequal), elements + len(mine)
        if len(unequal) and first is None:
            at = int(unequal[0])
            first = {"buffer": buffer, "at": at, "here": str(mine[at]), "there": str(theirs[at])}
    return {"different": different, "of": elements, "first": first}


def exhibits(museum, folder, ptxas):
    """Assembles every exhibit that runs on Hopper and ends, broken and fixed, each under a name of its own."""
    prologue = re.search(r'const PROLOGUE: &str = "(.*?)";', (museum.parent / "museum.rs").read_text(), re.S).group(1)
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(museum.glob("*.ptx")):
        text = path.read_text()
        fact = lambda name, otherwise: (re.search(rf"^// {name}: (.*)$", text, re.M) or [None, otherwise])[1]
        if fact("target", "sm_90a") != "sm_90a":
            continue
        cluster = int(fact("cluster", "1"))
        shape = f".reqnctapercluster {cluster}, 1, 1" if cluster > 1 else ""
        for version, other in (("broken", "// fixed"), ("fixed", "// broken")):
            if version == "broken" and fact("hangs", "no") == "yes":
                continue
            name = f"{path.stem.replace('-', '_')}_{version}"
            body = "\n".join(line for line in text.splitlines() if not line.endswith(other))
            source = (f".version 8.8\n.target sm_90a\n.address_size 64\n.visible .entry {name}(.param .u64 in, .param .u64 out)"
                      f" .reqntid {fact('threads', '1')}, 1, 1 {shape} {{{prologue}{body}\nret; }}\n")
            (folder / f"{name}.ptx").write_text(source)
            subprocess.run([ptxas, "-arch=sm_90a", "-o", folder / f"{name}.cubin", folder / f"{name}.ptx"], check=True)
            facts = {"grid": int(fact("blocks", "1")), "threads": int(fact("threads", "1"))}
            (folder / f"{name}.json").write_text(json.dumps(facts))


def visit(folder, launches, names):
    """Launches exhibits; of each how many launches left other bytes than the fixed one's first."""
    driver = Driver()
    source = numpy.arange(BUFFER // 4, dtype="u4")
    wrong = {}
    for name in names:
        facts = json.loads((folder / f"{name}.json").read_text())
        function = driver.function(folder / f"{name}.cubin", name)
        base, expected = name.rsplit("_", 1)[0], None
        places = [driver.upload(source), driver.upload(numpy.zeros(BUFFER // 4, "u4"))]
        for _ in range(launches):
            driver.write(places[1], numpy.zeros(BUFFER // 4, "u4"))
            driver.launch(function, [facts["grid"], 1, 1], [facts["threads"], 1, 1], 0, places)
            driver.synchronize()
            found = driver.download(places[1], source).tobytes()
            expected = wrong.setdefault(base, {}).setdefault("expected", found)
            wrong[base][name] = wrong[base].get(name, 0) + (found != expected)
    return {name: count for base in wrong.values() for name, count in base.items() if name != "expected"}


def museum(folder):
    """The table: wrong results in a thousand launches, and what the tools of compute-sanitizer say. A process each:
    some end theirs."""
    names = sorted(path.stem for path in folder.glob("*.cubin"))
    pairs = {name.rsplit("_", 1)[0]: [] for name in names}
    for name in sorted(names, reverse=True):
        # The fixed one first, whose result is the right one.
        pairs[name.rsplit("_", 1)[0]].append(name)
    table = {name: {} for name in names}
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for pair, said in zip(pairs.values(), pool.map(lambda pair: apart([], folder, LAUNCHES, pair), pairs.values())):
            counts = json.loads(said) if said.startswith("{") else {}
            for name in pair:
                table[name]["wrong"] = counts.get(name, "a launch failed")
        for tool in ("racecheck", "synccheck", "memcheck"):
            command = ["compute-sanitizer", "--tool", tool, "--print-limit", "1000"]
            for name, said in zip(names, pool.map(lambda name: apart(command, folder, 1, [name]), names)):
                (folder / f"{name}.{tool}.txt").write_text(said)
                summary = re.search(r"(?:ERROR|RACECHECK) SUMMARY: (.*)", said)
                table[name][tool] = summary[1] if summary else said[-80:]
    print(json.dumps(table, indent=1))


def apart(command, folder, launches, names):
    """Visits exhibits in another process, and gives what is printed there."""
    visit = [sys.executable, __file__, "visit", folder, str(launches), *names]
    try:
        done = subprocess.run([*command, *visit], capture_output=True, text=True, timeout=12, check=False)
    except subprocess.TimeoutExpired:
        return "did not end"
    return done.stdout + done.stderr


def main():
    match [sys.argv[1], *map(pathlib.Path, sys.argv[2:])] if len(sys.argv) > 1 else []:
        case ["compare", folder]:
            compare(folder)
        case ["museum", folder]:
            museum(folder)
        case ["visit", folder, launches, *names]:
            print(json.dumps(visit(folder, int(str(launches)), [str(name) for name in names])))
        case ["exhibits", museum_folder, folder, ptxas]:
            exhibits(museum_folder, folder, ptxas)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
