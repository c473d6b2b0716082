"""How fast a layer of experts is on a machine, in three measured numbers: what predictions for several machines, or for
a GPU and its host, are made of."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hammerhead import Experts, NvFp4

SAMPLE_BYTES = 2**30
"""What the experts of a measured layer take at least: more than most caches hold."""

TURNS = 12
"""How many calls take turns among them."""

ONE = 0x38
"""The scale 1 in e4m3."""


@dataclass(frozen=True)
class Layer:
    """A layer's sizes and speeds, on one machine."""

    hidden: int
    experts: int
    top_k: int
    fixed: float
    """Seconds of a call, whatever it computes."""
    stream: float
    """Seconds per expert that has rows."""
    row: float
    """Seconds per token and expert."""
    element_bytes: int = 2
    """Bytes of a token's number."""
    shared: float = 0.0
    """Seconds per token of a shared expert."""

    def seconds(self, rows: float, experts: float) -> float:
        """What so many rows take, over so many experts drawn at random."""
        if rows <= 0 or experts <= 0:
            return 0.0
        active = experts * (1.0 - (1.0 - 1.0 / max(experts, 1.0)) ** rows) if experts > 1 else 1.0
        return self.active_seconds(active, rows)

    def active_seconds(self, active: float, rows: float) -> float:
        """What so many rows take, of so many experts."""
        return self.fixed + active * self.stream + rows * self.row if rows > 0 else 0.0


def measure_layer(
    hidden: int,
    intermediate: int,
    experts: int,
    top_k: int,
    *,
    sample: int | None = None,
    backend: str | None = None,
    batch_invariant: bool = True,
    rounds: int = 5,
    together: Callable[[], object] | None = None,
) -> Layer:
    """Measures a layer of random experts of this size on this machine: speeds per expert and per row.

    ``sample`` of the experts are made, if not given as many as no cache holds, and calls take turns among them.
    ``backend="cuda"`` measures a GPU. ``batch_invariant``: as the layer will be; on a processor it takes up to 1.65
    times as long. ``together``: a barrier of ranks that share the machine and measure at the same time, so that each is
    as slow as the others make it.
    """
    layer = random_layer(hidden, intermediate, experts, sample, backend=backend, batch_invariant=batch_invariant)
    points = []
    for active, rows in itertools.product(sorted({1, min(top_k, layer.num_experts)}), (1, 64)):
        seconds = measure_calls(turns(layer, active, rows), rounds, together)
        points.append((1.0, float(active), float(rows * active), seconds))
    return Layer(hidden, experts, top_k, *_fit(points))


def random_layer(
    hidden: int, intermediate: int, experts: int, sample: int | None = None, **options: Any
) -> Experts:
    """A layer with random weights of as many experts as no cache holds, or ``sample``; never more than there are."""
    each = 3 * hidden * intermediate * 9 // 16
    made = min(experts, sample or max(8, -(-SAMPLE_BYTES // each)))

    def some(n: int, k: int) -> list[NvFp4[torch.Tensor]]:
        codes = torch.randint(0, 256, (made, n, k // 2), dtype=torch.uint8)
        scales = torch.full((n, k // 16), ONE, dtype=torch.uint8)
        return [NvFp4(matrix, scales, k**-0.5 / 4) for matrix in codes]

    gate, up = some(intermediate, hidden), some(intermediate, hidden)
    return Experts.from_arrays(gate, up, some(hidden, intermediate), **options)


def turns(layer: Experts, active: int, rows: int) -> list[Callable[[], torch.Tensor]]:
    """Calls with so many rows for each of some experts, which are others each time."""
    device = "cuda" if "cuda" in layer.backends else "cpu"
    x = torch.randn(rows * active, layer.in_features).to(device, torch.bfloat16)
    weights = torch.ones(rows * active, 1, device=device)

    def call(turn: int) -> Callable[[], torch.Tensor]:
        chosen = (turn * active + torch.arange(active)) % layer.num_experts
        ids = chosen.repeat_interleave(rows)[:, None].to(device)
        return lambda: layer(x, ids, weights)

    return [call(turn) for turn in range(min(TURNS, -(-layer.num_experts // active)))]


def measure_calls(
    calls: Sequence[Callable[[], torch.Tensor]], rounds: int = 5, together: Callable[[], object] | None = None
) -> float:
    """The mean time of calls that take turns in the best of some rounds, or in the median of those that begin with
    other ranks' rounds. On a GPU the calls are one graph, so that what Python takes to queue them is not in it."""
    on_gpu = [call() for call in calls][0].is_cuda
    graph = torch.cuda.CUDAGraph() if on_gpu else None
    if graph is not None:
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            kept = [call() for call in calls]  # noqa: F841: the graph writes there
    times = []
    for _ in range(rounds):
        if together is not None:
            together()
        begun = time.perf_counter()
        if graph is not None:
            graph.replay()
            torch.cuda.synchronize()
        else:
            for call in calls:
                call()
        times.append((time.perf_counter() - begun) / len(calls))
    return min(times) if together is None else statistics.median(times)


def _fit(points: Sequence[tuple[float, float, float, float]]) -> tuple[float, float, float]:
    """Fixed, per expert and per row, with least relative errors; none below zero. What would be is left out of the fit,
    so that the others make up for it."""
    table = torch.tensor(points, dtype=torch.float64)
    table = table / table[:, 3:]
    best, error = (0.0, 0.0, 0.0), float("inf")
    for kept in itertools.product((False, True), repeat=3):
        columns = [column for column, is_kept in enumerate(kept) if is_kept]
        if not columns:
            continue
        found = torch.linalg.lstsq(table[:, columns], table[:, 3:]).solution
        off = (table[:, columns] @ found - table[:, 3:]).square().sum().item()
        if (found >= 0).all() and off < error:
            values = dict(zip(columns, found.reshape(-1).tolist()))
            best, error = (values.get(0, 0.0), values.get(1, 0.0), values.get(2, 0.0)), off
    return best
