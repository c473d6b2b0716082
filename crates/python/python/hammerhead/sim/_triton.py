"""Triton's kernels in the simulator.

Triton launches through a driver. Ours says that the device is of some architecture, takes what the compiler made of a
kernel, and runs its PTX in the simulator with the arguments that it was called with. So binding, specialisation,
heuristics and options are Triton's own, and the text that runs is the one that a GPU would get.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from hammerhead.sim._launch import Argument, Map, Pointer, run
from hammerhead.sim._memory import Memory, Tensor, is_array
from hammerhead.sim._report import FindingsError, Report

# Bytes of shared memory that a block may have.
SHARED = {80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448, 100: 232_448, 103: 232_448, 120: 101_376, 121: 101_376}
# Element types of tensor maps, by the code that the compiler leaves.
ELEMENTS = {0: "u8", 1: "u16", 2: "u32", 3: "u32", 6: "f16", 7: "f32", 8: "f32", 10: "bf16", 13: "u4x16"}
SWIZZLES = {0: 0, 1: 32, 2: 64, 3: 128}
# How scalars are passed.
FORMATS = {
    "i1": "b", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "u1": "B", "u8": "B", "u16": "H", "u32": "I", "u64": "Q",
    "fp16": "e", "fp32": "f", "f32": "f", "fp64": "d",
}  # fmt: skip


@contextmanager
def triton(arch: int = 90, *, rules: str = "practice", schedules: int = 10) -> Iterator[list[Report]]:
    """Inside of it Triton's kernels run in the simulator, compiled for an architecture (80, 90, 100, 120, …).

    >>> with sim.triton(90):                                     # doctest: +SKIP
    ...     add_kernel[(4,)](x, y, out, n, BLOCK=1024)           # tensors of torch on the CPU, or sim.Tensor around numpy's

    Tensors hold what the first schedule left in them. The list that it gives has a :class:`Report` for each launch. On
    leaving, findings raise :class:`FindingsError`, which is an ``AssertionError``. A kernel that is autotuned runs in
    each of its configurations, and keeps the first.
    """
    driver = _drivers()
    before, ours = driver._active, _Driver(arch, rules, schedules)
    driver.set_active(ours)
    try:
        yield ours.reports
    finally:
        driver._active = before
    found = [report for report in ours.reports if report.findings]
    if found:
        raise FindingsError(found)


def check(
    kernel: Callable[..., Any],
    *args: Any,
    sim_arch: int = 90,
    sim_rules: str = "practice",
    sim_schedules: int = 10,
    **options: Any,
) -> Report:
    """Runs one launch of a Triton kernel in the simulator, and says what came of it.

    >>> report = sim.check(add_kernel[(4,)], x, y, out, n, BLOCK=1024)     # doctest: +SKIP
    >>> assert not report.findings, report                                # doctest: +SKIP

    ``kernel`` is anything that launches one when it is called with the rest: a kernel with its grid, or a function
    around that. Arrays of numpy's are taken as they are. Of several launches the worst report is given.
    """
    wrapped = [_wrapped(arg) for arg in args]
    try:
        with triton(sim_arch, rules=sim_rules, schedules=sim_schedules) as reports:
            kernel(*wrapped, **{name: _wrapped(value) for name, value in options.items()})
    except FindingsError as error:
        return error.reports[0]
    if not reports:
        raise ValueError("no kernel was launched; give a kernel with its grid, as in sim.check(kernel[(4,)], x, y)")
    return reports[0]


def _wrapped(value: Any) -> Any:
    """numpy's arrays as Triton takes them."""
    return Tensor(value) if is_array(value) and not hasattr(value, "data_ptr") else value


def _drivers() -> Any:
    try:
        from triton.runtime.driver import driver
    except ImportError as error:
        raise ImportError("Triton's compiler is not there: pip install triton (no GPU is needed)") from error
    return driver


class _Utils:
    """What Triton asks of a device's driver."""

    def __init__(self, arch: int) -> None:
        self.arch = arch

    def load_binary(self, name: str, kernel: bytes, shared: int, device: Any) -> tuple[None, str, int, int, int]:
        # No module, so nothing to unload; then the function, registers, spills, and threads that a block may have.
        return None, name, 0, 0, 1024

    def unload_module(self, module: Any) -> None:
        """There is none."""

    def get_device_properties(self, device: Any) -> dict[str, int]:
        shared = SHARED.get(self.arch, SHARED[80])
        count = 148 if self.arch in (100, 103) else 132
        return {"max_shared_mem": shared, "multiprocessor_count": count, "warpSize": 32, "max_num_regs": 65_536}


class _Driver:
    """A device of some architecture that is simulated."""

    def __init__(self, arch: int, rules: str, schedules: int) -> None:
        self.arch, self.rules, self.schedules = arch, rules, schedules
        self.reports: list[Report] = []
        self.utils = _Utils(arch)

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        ptx = _text(metadata.hash, source.name)

        # A compiled kernel keeps its launcher, and may outlive this driver: what counts is who is active when it is
        # called.
        def launch(x: int, y: int, z: int, stream: Any, function: Any, *rest: Any) -> None:
            active = _drivers().active
            if not isinstance(active, _Driver):
                raise RuntimeError(f"{metadata.name} was compiled inside of sim.triton(), and can be launched there alone")
            # Before the arguments: packed metadata, metadata of the launch, and the hooks around it.
            active.launch(ptx, source, metadata, (x, y, z), rest[4:])

        return launch

    def launch(
        self, ptx: str, source: Any, metadata: Any, grid: tuple[int, int, int], values: Sequence[Any]
    ) -> None:
        memory, args = Memory(), _Arguments(getattr(metadata, "tensordesc_meta", None) or [])
        for (name, kind), value in zip(source.signature.items(), values):
            args.add(memory, name if isinstance(name, str) else source.fn.arg_names[name], kind, value)
        ctas = getattr(metadata, "num_ctas", 1)
        blocks = grid[0] * grid[1] * grid[2] * ctas
        scratches = [size for size in ("global_scratch_size", "profile_scratch_size") if hasattr(metadata, size)]
        args.all += [Pointer(memory.scratch(name, blocks * getattr(metadata, name))) for name in scratches]
        block = None if ".reqntid" in ptx else (32 * metadata.num_warps, 1, 1)
        grid = (grid[0] * ctas, grid[1], grid[2])
        cluster = (ctas, 1, 1) if ctas > 1 else None
        # Older ones have no such launches.
        cooperative = getattr(metadata, "launch_cooperative_grid", False)
        report = run(
            ptx, grid, args.all, memory, block, cluster, metadata.shared, cooperative, metadata.name, self.rules, self.schedules
        )
        self.reports.append(report)

    # What Triton and its users ask of any driver. The device has a name of its own, so that kernels that are compiled
    # for it stay apart from those for a GPU.

    def get_current_device(self) -> tuple[str, int]:
        return "hammerhead.sim", self.arch

    def set_current_device(self, device: Any) -> None:
        """There is one."""

    def get_current_stream(self, device: Any) -> int:
        return 0

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.arch, 32)

    def get_device_capability(self, device: Any = None) -> tuple[int, int]:
        return self.arch // 10, self.arch % 10

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cpu")

    def get_benchmarker(self) -> Callable[..., list[float]]:
        def once(call: Callable[[], Any], quantiles: Sequence[float] = (0.5,), **options: Any) -> list[float]:
            call()
            return [0.0 for _ in quantiles]

        return once


@cache
def _text(digest: str, name: str) -> str:
    """The PTX of a compiled kernel, which the compiler keeps in its cache under a shortened name. Triton asks for a
    launcher at every launch."""
    from triton.runtime.cache import get_cache_manager

    group = get_cache_manager(digest).get_group(f"{name[:150]}.json") or {}
    for file, path in group.items():
        if file.endswith(".ptx"):
            return Path(path).read_text()
    raise RuntimeError(f"{name}: the compiler has kept no PTX in its cache; is TRITON_CACHE_DIR writable?")


class _Arguments:
    """Arguments as the kernel's parameters: constants left out, tuples and descriptors taken apart."""

    def __init__(self, descriptors: Sequence[dict[str, Any]]) -> None:
        self.all: list[Argument] = []
        self.descriptors = list(descriptors)
        self.maps = iter(self.descriptors)

    def add(self, memory: Memory, name: str, kind: Any, value: Any) -> None:
        if isinstance(kind, tuple):
            for number, (inner, part) in enumerate(zip(kind, value)):
                self.add(memory, f"{name}[{number}]", inner, part)
        elif kind == "constexpr":
            return
        elif kind.startswith("tensordesc"):
            self._describe(memory, name, value)
        elif kind.startswith("*"):
            self.all.append(Pointer(memory.add(name, value) if is_array(value) else int(value or 0)))
        elif kind == "bf16":
            self.all.append(struct.pack("<f", value)[2:])
        elif kind in FORMATS:
            self.all.append(struct.pack("<" + FORMATS[kind], value))
        else:
            raise TypeError(f"{name}: arguments of type {kind} are not known to hammerhead.sim")

    def _describe(self, memory: Memory, name: str, descriptor: Any) -> None:
        """A descriptor of the host's: its map, or what one is made of, and its sides again."""
        shape, strides = [int(side) for side in descriptor.shape], [int(step) for step in descriptor.strides]
        address = memory.add(name, descriptor.base)
        nan, tf32 = descriptor.padding == "nan", bool(getattr(descriptor, "round_f32_to_tf32", False))
        if not self.descriptors:
            flags = [struct.pack("<b", nan), struct.pack("<b", tf32)]
            self.all += [Pointer(address), *_packed("q", shape + strides), *flags]
        else:
            about = next(self.maps)
            element = ELEMENTS.get(about["elem_type"])
            if element is None or about["fp4_padded"] or about.get("is_im2col") or nan or tf32:
                raise NotImplementedError(f"{name}: tensor maps that pad, round or gather pixels are not simulated")
            size = about["elem_size"]
            self.all.append(
                Map(
                    address,
                    element,
                    shape[::-1],
                    [step * size for step in strides[-2::-1]],
                    [int(side) for side in about["block_size"]][::-1],
                    SWIZZLES[about["swizzle"]],
                )
            )
        self.all += [*_packed("i", shape), *_packed("q", strides)]


def _packed(form: str, numbers: Sequence[int]) -> list[Argument]:
    return [struct.pack("<" + form, number) for number in numbers]
