"""What a layer of experts costs over R ranks: a model of few numbers, of which each can be measured.

A rank's layer takes ``fixed + active · stream + rows · row`` seconds: calling it, reading the weights of the experts that have rows, and multiplying. An exchange takes
``latency + (ranks − 1) · message + bytes / bandwidth``. A call waits for the rank with most rows. What it leaves out: links that are shared by several
ranks, and slow ranks.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

import hammerhead


@dataclass(frozen=True)
class Layer:
    """A layer's sizes and speeds, on one rank."""

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
        return self.fixed + active * self.stream + rows * self.row


@dataclass(frozen=True)
class Network:
    """What exchanging takes."""

    latency: float
    """Seconds of an exchange of nothing."""
    bandwidth: float
    """Bytes per second that a rank sends while it receives as many."""
    message: float = 0.0
    """Seconds per other rank."""

    def seconds(self, ranks: int, sent: float) -> float:
        """An exchange in which every rank sends so many bytes to others."""
        return 0.0 if ranks == 1 else self.latency + (ranks - 1) * self.message + sent / self.bandwidth


@dataclass(frozen=True)
class Cost:
    """A call's parts in seconds, and what comes of it."""

    ranks: int
    tokens: int
    """Of one rank."""
    compute: float
    exchange: float
    imbalance: float
    """The rows of the rank with most of them, over the mean."""

    @property
    def seconds(self) -> float:
        """The whole call."""
        return self.compute + self.exchange

    @property
    def tokens_per_second(self) -> float:
        """Over all ranks."""
        return self.ranks * self.tokens / self.seconds


def predict(
    layer: Layer, network: Network, ranks: int, tokens: int, *, imbalance: float | None = None
) -> Cost:
    """What a call costs with so many tokens on each of so many ranks.

    ``imbalance``: most rows of a rank over the mean; if not given, what is expected of routing at random.
    """
    rows = float(tokens * layer.top_k)
    if imbalance is None:
        imbalance = 1.0 if ranks == 1 else 1.0 + math.sqrt(2.0 * math.log(ranks) / rows)
    away = (ranks - 1) / ranks
    # A token goes to a rank once, however many of its experts are there.
    copies = ranks * (1.0 - (1.0 - 1.0 / ranks) ** layer.top_k)
    there = tokens * copies * away * imbalance * layer.hidden * layer.element_bytes + rows * away * imbalance * 16
    back = rows * away * imbalance * layer.hidden * 4
    sending = network.seconds(ranks, 16) + network.seconds(ranks, there) + network.seconds(ranks, 0)
    # The shared expert is computed while tokens travel.
    exchange = max(sending, layer.shared * tokens) + network.seconds(ranks, back)
    compute = layer.seconds(rows * imbalance, layer.experts / ranks)
    return Cost(ranks, tokens, compute, exchange, imbalance)


def measure_layer(
    hidden: int,
    intermediate: int,
    experts: int,
    top_k: int,
    *,
    sample: int = 8,
    rounds: int = 5,
    together: Callable[[], object] | None = None,
) -> Layer:
    """Measures a layer of random experts of this size on this machine. ``sample`` of them are made, and speeds are per expert and per row.

    ``together``: a barrier of ranks that share the machine and measure at the same time, so that each is as slow as the others make it.
    """
    sample = min(sample, experts)
    generator = torch.Generator().manual_seed(0)

    def some(n: int, k: int) -> hammerhead.NvFp4[torch.Tensor]:
        return hammerhead.quantize(torch.randn(n, k, generator=generator) / k**0.5)

    first, second = ([some(intermediate, hidden) for _ in range(sample)] for _ in range(2))
    layer = hammerhead.Experts.from_arrays(
        first, second, [some(hidden, intermediate) for _ in range(sample)], batch_invariant=True
    )
    points = []
    for active, rows in [(1, 1), (sample, 1), (1, 64), (sample, 64)]:
        x = torch.randn(rows * active, hidden, generator=generator).to(torch.bfloat16)
        ids = torch.arange(active).repeat_interleave(rows)[:, None]
        weights = torch.ones(ids.shape)
        seconds = _seconds(lambda: layer(x, ids, weights), rounds, together)
        points.append((1.0, float(active), float(rows * active), seconds))
    return Layer(hidden, experts, top_k, *_fit(points))


def _seconds(call: Callable[[], object], rounds: int, together: Callable[[], object] | None) -> float:
    """The least time of a call, or the median of those that begin with other ranks' calls."""
    call()
    times = []
    for _ in range(rounds):
        if together is not None:
            together()
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return min(times) if together is None else statistics.median(times)


def _fit(points: Sequence[tuple[float, float, float, float]]) -> tuple[float, float, float]:
    """Fixed, per expert and per row, with least relative errors; none below zero."""
    table = torch.tensor(points, dtype=torch.float64)
    table = table / table[:, 3:]
    found = torch.linalg.lstsq(table[:, :3], table[:, 3:]).solution.reshape(-1).clamp_min(0.0).tolist()
    return found[0], found[1], found[2]
