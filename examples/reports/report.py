"""Findings in public kernels, made again: compiles each kernel without a GPU, and runs it in the simulator; DeepGEMM's
once more with the remedy put in.

    python report.py triton
    python report.py deepgemm-sm90  NVCC DEEPGEMM CUTLASS
    python report.py deepgemm-sm100 NVCC DEEPGEMM CUTLASS

The last two are an nvcc (`pip install nvidia-cuda-nvcc nvidia-cuda-runtime nvidia-cuda-crt nvidia-nvvm
nvidia-cuda-cccl` brings one) and clones of the two projects. docs/reports.md says what is found and why.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy

from hammerhead import sim

SIDE = 256
# Tiles of 128 × 128 × 64 on pairs of blocks that share an operand; the rest is as DeepGEMM's own heuristics leave it.
SHAPES = {
    "sm90": "0, 256, 256, 1, 128, 128, 64, 128, 128, 128, 6, 128, 256, 2, false, 132, GemmType::Normal, false, cutlass::bfloat16_t",
    "sm100": "0, 256, 256, 128, 128, 64, 1, 128, 128, 128, 6, 128, 128, 2, false, 148, 128, false, false, GemmType::Normal, false, "
    "cutlass::bfloat16_t, 100",
}


def deepgemm(arch, nvcc, deepgemm_folder, cutlass_folder):
    """DeepGEMM's product of two bf16 matrices, as its own launcher would instantiate it."""
    major = "cute::UMMA::Major::K"
    source = f"""#include <deep_gemm/impls/{arch}_bf16_gemm.cuh>
using namespace deep_gemm;
auto kernel = &{arch}_bf16_gemm_impl<{major}, {major}, {SHAPES[arch]}>;
"""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        (path / "kernel.cu").write_text(source)
        include = [f"-I{deepgemm_folder}/deep_gemm/include", f"-I{cutlass_folder}/include"]
        options = ["-std=c++20", "-lineinfo", f"-arch={arch.replace('sm', 'sm_')}a", "--expt-relaxed-constexpr", "--expt-extended-lambda"]
        subprocess.run([nvcc, "-ptx", *options, *include, path / "kernel.cu", "-o", path / "kernel.ptx"], check=True)
        return (path / "kernel.ptx").read_text()


def product(text, arch):
    """One launch of it by the letter, on matrices of small numbers."""
    rng = numpy.random.default_rng(1)
    numbers = (rng.integers(-8, 8, (3, SIDE, SIDE)) / 8).astype(numpy.float32)
    # bfloat16 is the upper half of such a number.
    a, b, c = (numbers.view(numpy.uint32) >> 16).astype(numpy.uint16)
    rows = 128 if arch == "sm90" else 64
    maps = [sim.TensorMap(array, (side, 64), 128, "bf16") for array, side in ((a, 128), (b, rows), (c, 128))]
    blocks, threads = (132, 384) if arch == "sm90" else (148, 256)
    return sim.launch(
        text, blocks, [0, SIDE, SIDE, SIDE, *maps], block=threads, cluster=2, shared=231_424, rules="letter", schedules=4
    )


def triton():
    """A product by descriptors for sm_100."""
    sys.path.insert(0, str(Path(__file__).parent))
    import product_by_descriptors as kernels
    from triton.tools.tensor_descriptor import TensorDescriptor

    a, b, c = (numpy.zeros((128, 128), dtype=numpy.float16) for _ in range(3))
    maps = [TensorDescriptor.from_tensor(sim.Tensor(array), [128, 64]) for array in (a, b)]
    maps.append(TensorDescriptor.from_tensor(sim.Tensor(c), [128, 128]))
    return sim.check(kernels.product[(1,)], *maps, 128, BLOCK=128, STEP=64, num_warps=8, sim_arch=100)


def show(title, report):
    print(f"== {title}")
    for found in report.findings:
        print(f"{found.grade}: {found.rule}, line {found.line}" + (f" after line {found.other_line}" if found.other_line else ""))
        print("   ", found.message.splitlines()[0].split(": ", 1)[1])
        print("   ", *(part for part in (found.source or "").split("/")[1:]))
    if not report.findings:
        print("nothing found")


def main(name=None, *arguments):
    if name not in ("triton", "deepgemm-sm90", "deepgemm-sm100") or len(arguments) != (0 if name == "triton" else 3):
        sys.exit(__doc__)
    if name == "triton":
        show("as Triton compiles it", triton())
        return
    arch = name.split("-")[1]
    text = deepgemm(arch, *arguments)
    show("as it is", product(text, arch))
    if arch == "sm90":
        mended = re.sub(r"(cp\.async\.bulk\.commit_group;)", r"\1\n\tcp.async.bulk.wait_group.read 0;", text)
    else:
        mended = text.replace("barrier.cluster.arrive.relaxed.aligned", "barrier.cluster.arrive.release.aligned")
    show("with the remedy", product(mended, arch))


if __name__ == "__main__":
    main(*sys.argv[1:])
