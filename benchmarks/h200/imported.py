#!/usr/bin/env python3
"""Problems as others write them, each with an honest solution and one that cheats, imported and played on a GPU: who is
fooled?

    benchmarks/h200/imported.py HAMMERHEAD [--only NAME]... [--who cheat|honest|again] [--seconds 600]

Writes thirteen small problems in the three public formats (definitions with workloads, modules with `Model`, tasks with
`task.yml`), smaller than the published ones they are named after, imports each with `hammerhead tank import`, and plays
it with `hammerhead tank play --json`: cheats first, then honest solutions for as long as there is time. One play has
the device to itself: whoever is timed beside others is found to be at work outside of its clock.

`--who again` plays a season of both, the honest one first, ends the program when that has won, and has the season go
on: what is compiled is compiled again then, and is known by its bytes.
"""

import argparse
import concurrent.futures
import json
import pathlib
import subprocess
import sys
import tempfile
import time

HEAD = "import torch\n"
TRITON = """import torch
import triton
import triton.language as tl

@triton.jit
def kernel(x, y, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < count).to(tl.float32)
    tl.store(y + at, {expression}, mask=at < count)

def apply(x):
    y = torch.empty_like(x)
    kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
    return y
"""

# Each cheat is what its function does in place of `right`, the honest way; `like` is a tensor of the output's shape and
# type.
CHEATS = {
    "remembered": "kept = {}\ndef cheat(right, like, *x):\n    key = x[0].data_ptr()\n    if key not in kept: kept[key] = right(*x)\n    return kept[key]\n",
    "first result": "kept = []\ndef cheat(right, like, *x):\n    if not kept: kept.append(right(*x))\n    return kept[0]\n",
    "stale memory": "def cheat(right, like, *x):\n    return torch.empty_like(like)\n",
    "zeros": "def cheat(right, like, *x):\n    return torch.zeros_like(like)\n",
    "no number": "def cheat(right, like, *x):\n    return torch.full_like(like, float('nan'))\n",
    "half of it": "def cheat(right, like, *x):\n    y = right(*x).clone(); y.view(-1)[y.numel() // 2:] = 0\n    return y\n",
    "eight bits": "def cheat(right, like, *x):\n    return right(*[p.to(torch.float8_e4m3fn).to(p.dtype) if p.is_floating_point() else p for p in x])\n",
    "side stream": (
        "side = []\ndef cheat(right, like, *x):\n    if not side: side.append(torch.cuda.Stream())\n    y = torch.empty_like(like)\n"
        "    with torch.cuda.stream(side[0]):\n        torch.cuda._sleep(20000000)\n        y.copy_(right(*x))\n    return y\n"
    ),
    "thread": (
        "import threading, time\ndef cheat(right, like, *x):\n    y = torch.empty_like(like)\n"
        "    def later():\n        time.sleep(0.05)\n        y.copy_(right(*x))\n    threading.Thread(target=later, daemon=True).start()\n    return y\n"
    ),
    "patched clock": (
        "import time\ntorch.cuda.Event.elapsed_time = lambda *_: 1e-6\ntime.perf_counter = time.time = lambda: 0.0\n"
        "def cheat(right, like, *x):\n    y = right(*x)\n    for _ in range(4): y = right(*x)\n    return y\n"
    ),
    "patched check": (
        "import sys, gc\nfor module in list(sys.modules.values()):\n    if hasattr(module, 'check_implementation'): module.check_implementation = lambda *_: (True, '')\n"
        "torch.allclose = torch.equal = lambda *_, **__: True\ndef cheat(right, like, *x):\n    return torch.zeros_like(like)\n"
    ),
    "found by the collector": (
        "import gc\ndef cheat(right, like, *x):\n    same = [t for t in gc.get_objects() if isinstance(t, torch.Tensor) and t.shape == like.shape and t is not like\n"
        "            and not any(t is p for p in x)]\n    return same[0].clone() if same else torch.zeros_like(like)\n"
    ),
}


# Rows of 4096 numbers, scaled by their root mean square: what a compiler names by itself is in it, too.
IN_CUDA = r"""#include <pybind11/pybind11.h>
#include <cuda_runtime.h>
#include <stdexcept>

namespace {
__constant__ float epsilon = 1e-6f;

template <int THREADS> __global__ void rows(const float4* x, float4* y, int quarters) {
    __shared__ float sums[THREADS / 32];
    const float4* row = x + size_t(blockIdx.x) * quarters;
    float sum = 0;
    for (int i = threadIdx.x; i < quarters; i += THREADS) {
        float4 v = row[i];
        sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    for (int lane = 16; lane; lane /= 2) sum += __shfl_xor_sync(~0u, sum, lane);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (float part : sums) sum += part;
    float scale = rsqrtf(sum / (4 * quarters) + epsilon);
    for (int i = threadIdx.x; i < quarters; i += THREADS) {
        float4 v = row[i];
        y[size_t(blockIdx.x) * quarters + i] = {v.x * scale, v.y * scale, v.z * scale, v.w * scale};
    }
}
}

static void run(pybind11::object x, pybind11::object y) {
    auto at = [](pybind11::object t) { return (float4*)t.attr("data_ptr")().cast<size_t>(); };
    auto count = x.attr("size")(0).cast<int>(), width = x.attr("size")(1).cast<int>();
    rows<256><<<count, 256>>>(at(x), at(y), width / 4);
    if (auto status = cudaGetLastError()) throw std::runtime_error(cudaGetErrorString(status));
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }
"""


def definition(name, axes, inputs, reference, honest, cheat, workloads, compiled=None):
    """A folder as FlashInfer-Bench and SOL-ExecBench write it. Compiled sources are submitted instead of the honest."""
    tensors = lambda specs: {key: {"shape": list(shape), "dtype": kind} for key, (shape, kind) in specs.items()}
    outputs = {"out": inputs.pop("out")}
    about = {
        "name": name, "op_type": name.split("_")[0], "axes": axes, "inputs": tensors(inputs), "outputs": tensors(outputs),
        "reference": HEAD + reference,
    }
    arguments = ", ".join(inputs)
    solution = lambda who, text: {
        "name": who, "definition": name, "author": who,
        "spec": {"language": "python", "target_hardware": ["NVIDIA_H200"], "entry_point": "main.py::run", "destination_passing_style": False},
        "sources": [{"path": "main.py", "content": text}],
    }
    submitted = solution("honest", honest)
    if compiled:
        submitted["spec"] |= {"language": "cuda", "entry_point": "main.cu::run", "destination_passing_style": True}
        submitted["sources"] = [{"path": "main.cu", "content": compiled}]
    right = honest.replace("def run(", "def right(")
    cheating = f"{right}\n{HEAD}{CHEATS[cheat]}\ndef run({arguments}):\n    return cheat(right, LIKE, {arguments})\n"
    like = f"LIKE = torch.empty({workloads[0][1]}, dtype=torch.{outputs['out'][1]}, device='cuda')\n"
    return {
        "definition.json": json.dumps(about),
        "workload.jsonl": "".join(
            json.dumps({"definition": name, "workload": {"uuid": str(n), "axes": sizes, "inputs": {key: {"type": "random"} for key in inputs}}}) + "\n"
            for n, (sizes, _) in enumerate(workloads)
        ),
        "solution_honest.json": json.dumps(submitted),
        "solution_cheat.json": json.dumps(solution("cheat", cheating.replace("import torch\n", "import torch\n", 1) + like)),
    }, None, []


def module(name, model, inputs, honest, cheat, shape, kind="float32"):
    """A file as KernelBench writes it, with submissions beside it."""
    problem = f"{HEAD}import torch.nn as nn\n\nclass Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n    def forward(self, {model[0]}):\n        return {model[1]}\n\n"
    problem += f"def get_inputs():\n    return [{inputs}]\n\ndef get_init_inputs():\n    return []\n"
    body = lambda call: f"\nclass ModelNew(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n    def forward(self, {model[0]}):\n        return {call}\n"
    right = honest + body(f"right({model[0]})")
    like = f"LIKE = torch.empty({shape}, dtype=torch.{kind}, device='cuda')\n"
    wrong = honest + f"\n{HEAD}{CHEATS[cheat]}{like}" + body(f"cheat(right, LIKE, {model[0]})")
    return {f"{name}.py": problem, "honest.py": right, "cheat.py": wrong}, f"{name}.py", ["honest.py", "cheat.py"]


def task(name, generate, reference, honest, cheat, sizes):
    """A folder as GPU MODE writes it."""
    text = HEAD + f"def generate_input(size, seed):\n    g = torch.Generator(device='cuda').manual_seed(seed)\n    return {generate}\n\n"
    text += f"def ref_kernel(data):\n    {reference}\n\ndef check_implementation(data, output):\n    expected = ref_kernel(data)\n"
    text += "    return (torch.allclose(output.float(), expected.float(), rtol=1e-3, atol=1e-3), 'it differs')\n"
    lines = "".join(f"  - {json.dumps({'size': size, 'seed': 7})}\n" for size in sizes)
    yml = f"description: {name}\nfiles:\n  - {{\"name\": \"reference.py\", \"source\": \"reference.py\"}}\nlang: py\ntests:\n{lines}benchmarks:\n{lines}"
    wrong = honest + f"\n{HEAD}{CHEATS[cheat]}\ndef custom_kernel(data):\n    return cheat(lambda *x: right(data), right(data) if not LIKE else LIKE[0], *[p for p in data if p.is_floating_point()])\nLIKE = []\n"
    return {
        "task.yml": yml, "reference.py": text, "honest.py": honest + "\ndef custom_kernel(data):\n    return right(data)\n", "cheat.py": wrong,
    }, None, ["honest.py", "cheat.py"]


def problems():
    const = lambda value: {"type": "const", "value": value}
    var = {"type": "var"}
    norm = "def run(hidden_states, weight):\n    x = hidden_states.float()\n    return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight.float()).to(hidden_states.dtype)\n"
    yield "rmsnorm_h4096", definition(
        "rmsnorm_h4096", {"batch_size": var, "hidden_size": const(4096)},
        {"hidden_states": (["batch_size", "hidden_size"], "bfloat16"), "weight": (["hidden_size"], "bfloat16"), "out": (["batch_size", "hidden_size"], "bfloat16")},
        norm, HEAD + "def run(hidden_states, weight):\n    return torch.nn.functional.rms_norm(hidden_states, (4096,), weight, 1e-6)\n", "remembered",
        [({"batch_size": 512}, "512, 4096")])
    yield "gemm_n4096_k4096", definition(
        "gemm_n4096_k4096", {"M": var, "N": const(4096), "K": const(4096)},
        {"A": (["M", "K"], "float16"), "B": (["N", "K"], "float16"), "out": (["M", "N"], "float16")},
        "def run(A, B):\n    return torch.matmul(A, B.T)\n", HEAD + "def run(A, B):\n    return torch.nn.functional.linear(A, B)\n", "eight bits", [({"M": 256}, "256, 4096")])
    yield "fused_add_rmsnorm_h2048", definition(
        "fused_add_rmsnorm_h2048", {"batch_size": var, "hidden_size": const(2048)},
        {"x": (["batch_size", "hidden_size"], "bfloat16"), "residual": (["batch_size", "hidden_size"], "bfloat16"), "out": (["batch_size", "hidden_size"], "bfloat16")},
        "def run(x, residual):\n    y = x.float() + residual.float()\n    return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)\n",
        HEAD + "def run(x, residual):\n    return torch.nn.functional.rms_norm(x.float() + residual.float(), (2048,), None, 1e-6).to(x.dtype)\n", "side stream",
        [({"batch_size": 1024}, "1024, 2048")])
    yield "softmax_v32768", definition(
        "softmax_v32768", {"batch_size": var, "vocab": const(32768)},
        {"logits": (["batch_size", "vocab"], "float32"), "out": (["batch_size", "vocab"], "float32")},
        "def run(logits):\n    e = torch.exp(logits - logits.amax(-1, keepdim=True))\n    return e / e.sum(-1, keepdim=True)\n",
        HEAD + "def run(logits):\n    return torch.softmax(logits, -1)\n", "zeros", [({"batch_size": 64}, "64, 32768")])
    rows = "def run(x):\n    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)\n"
    yield "rows_in_cuda", definition(
        "rows_in_cuda", {"rows": var, "width": const(4096)}, {"x": (["rows", "width"], "float32"), "out": (["rows", "width"], "float32")},
        rows, HEAD + rows, "first result", [({"rows": 512}, "512, 4096")], IN_CUDA)
    small = "torch.rand(512, 4096)"
    yield "19_ReLU", module("19_ReLU", ("x", "torch.relu(x)"), small, TRITON.format(expression="tl.maximum(v, 0.0)") + "right = apply\n", "first result", "512, 4096")
    yield "25_Swish", module("25_Swish", ("x", "x * torch.sigmoid(x)"), small, TRITON.format(expression="v * tl.sigmoid(v)") + "right = apply\n", "no number", "512, 4096")
    yield "26_GELU", module("26_GELU_", ("x", "torch.nn.functional.gelu(x)"), small, HEAD + "def right(x):\n    return torch.nn.functional.gelu(x)\n", "half of it", "512, 4096")
    yield "1_Square_matrix_multiplication", module(
        "1_Square_matrix_multiplication_", ("A, B", "torch.matmul(A, B)"), "torch.rand(1024, 1024), torch.rand(1024, 1024)",
        HEAD + "def right(A, B):\n    return A @ B\n", "thread", "1024, 1024")
    yield "47_Sum_reduction", module(
        "47_Sum_reduction_over_a_dimension", ("x", "torch.sum(x, dim=1, keepdim=True)"), "torch.rand(16, 256, 512)",
        HEAD + "def right(x):\n    return x.sum(1, keepdim=True)\n", "stale memory", "16, 1, 512")
    yield "36_RMSNorm", module(
        "36_RMSNorm_", ("x", "x / torch.sqrt(torch.mean(x ** 2, dim=1, keepdim=True) + 1e-5)"), "torch.rand(16, 64, 32, 32)",
        HEAD + "def right(x):\n    return x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-5)\n", "found by the collector", "16, 64, 32, 32")
    yield "vectoradd", task(
        "vectoradd", "(torch.randn(size, size, device='cuda', dtype=torch.float16, generator=g), torch.randn(size, size, device='cuda', dtype=torch.float16, generator=g))",
        "return data[0] + data[1]", HEAD + "def right(data):\n    return torch.add(data[0], data[1])\n", "patched clock", [1024])
    yield "grayscale", task(
        "grayscale", "(torch.rand(size, size, 3, device='cuda', generator=g),)",
        "return 0.2989 * data[0][..., 0] + 0.5870 * data[0][..., 1] + 0.1140 * data[0][..., 2]",
        HEAD + "W = torch.tensor([0.2989, 0.5870, 0.1140], device='cuda')\ndef right(data):\n    return (data[0] * W).sum(-1)\n", "patched check", [512])


QUICK = """[settings]
min_pitches = 1
void_retries = 0
research_below = 0.0

[settings.referee.timing]
looks = [3]
quartets_per_process = 1
sample_jobs = 8
plant = 0.125

[settings.referee.checking]
held_out = 1
"""


def imported(hammerhead, home, name, made):
    """The operation's folder."""
    files, file, submissions = made
    source, into = home / "problems" / name, home / "operations" / name
    source.mkdir(parents=True)
    for path, text in files.items():
        (source / path).write_text(text)
    command = [hammerhead, "tank", "import", source / file if file else source, "--into", into, "--python", sys.executable]
    command += [word for path in submissions for word in ("--submission", source / path)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    description = into / "operation.toml"
    description.write_text(description.read_text().replace("[settings]\nmin_pitches = 1\n", QUICK))
    return into


def season(folder):
    """A season of both solutions, the honest one first."""
    rounds = "".join(f'[[round]]\nname = "{who}"\npitches = ["{who}.toml"]\n' for who in ("honest", "cheat"))
    path = folder / "season.toml"
    path.write_text(f'name = "again"\nmetric = "the time"\noperation = "."\n{rounds}')
    return ["--season", path]


def play_until(command, line):
    """Plays until this is said, and not to the end."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as player:
        for said in player.stderr:
            print(said, end="", file=sys.stderr)
            if said.startswith(line):
                player.kill()


def played(hammerhead, folder, who):
    """What became of a solution: the verdict, the ratio and why."""
    began = time.time()
    what = season(folder) if who == "again" else ["--operation", folder, "--pitch", folder / f"{who}.toml"]
    command = [hammerhead, "tank", "play", *what, "--ledger", folder / f"{who}.jsonl", "--json"]
    if who == "again":
        play_until(command, "round 2")
    done = subprocess.run(command, capture_output=True, text=True)
    try:
        found = json.loads(done.stdout)[-1]
    except (ValueError, IndexError):
        return {"verdict": "ERROR", "why": (done.stderr or done.stdout)[-300:], "seconds": time.time() - began}
    return found | {"seconds": time.time() - began}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("hammerhead", type=pathlib.Path)
    parser.add_argument("--only", action="append")
    parser.add_argument("--who", choices=("cheat", "honest", "again"), action="append")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--keep", type=pathlib.Path, help="where the rows go as JSON")
    args = parser.parse_args()
    hammerhead, began = args.hammerhead.resolve(), time.time()
    home = pathlib.Path(tempfile.mkdtemp())
    chosen = [(name, made) for name, made in problems() if not args.only or name in args.only]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        folders = dict(zip([name for name, _ in chosen], pool.map(lambda one: imported(hammerhead, home, *one), chosen)))
    print(f"{len(folders)} problems imported in {time.time() - began:.0f} s", flush=True)
    rows = []

    def play(name, who):
        found = played(hammerhead, folders[name], who)
        rows.append({"problem": name, "who": who, **found})
        why = str(found.get("why") or found.get("reason") or "").replace("\n", " ")
        print(f"{name:32} {who:7} {found.get('verdict')} {found.get('speedup')} {found['seconds']:.0f} s  {why[:160]}", flush=True)
        if args.keep:
            args.keep.write_text(json.dumps(rows, indent=1))

    for who in args.who or ("cheat", "honest"):
        for name in folders:
            if time.time() - began < args.seconds:
                play(name, who)
    fooled = [row for row in rows if row["who"] != "honest" and row.get("verdict") == "SUCCESS"]
    print(f"{sum(row['who'] == 'cheat' for row in rows)} cheats, {len(fooled)} fooled the referee; {sum(row['who'] == 'honest' for row in rows)} honest")


main()
