"""What a layer of experts costs over R ranks: a model of few numbers, of which each can be measured.

A rank's layer takes ``fixed + active · stream + rows · row`` seconds: calling it, reading the weights of the experts
that have rows, and multiplying. An exchange takes ``latency + (ranks − 1) · message + bytes / bandwidth``. A call waits
for the rank with most rows. What it leaves out: links that are shared by several ranks, and slow ranks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hammerhead._cost import Layer


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
