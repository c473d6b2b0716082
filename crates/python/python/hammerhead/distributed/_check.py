"""A prediction held against processes on this machine. In a module of its own, since a process that is spawned imports
what it runs."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import hammerhead
from hammerhead.distributed import Experts, Layer, Network, measure_layer, predict, shares


def described(layer: Layer) -> str:
    parts = (f"{name} {value * 1e6:.1f} µs" for name, value in
             [("a call", layer.fixed), ("an expert", layer.stream), ("a row", layer.row)])  # fmt: skip
    return ", ".join(parts)


def check(options: argparse.Namespace) -> None:
    """Ranks on this machine, each with its part of the cores."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank_main, (options, folder), nprocs=options.check)


def rank_main(rank: int, options: argparse.Namespace, folder: str) -> None:
    ranks = options.check
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // ranks))
    store = dist.FileStore(str(Path(folder) / "store"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=120))
    generator = torch.Generator().manual_seed(rank)

    def some(n: int, k: int) -> Any:
        return hammerhead.quantize(torch.randn(n, k, generator=generator) / k**0.5)

    counts = shares(options.experts, ranks)
    gate, up = ([some(options.intermediate, options.hidden) for _ in range(counts[rank])] for _ in range(2))
    down = [some(options.hidden, options.intermediate) for _ in range(counts[rank])]
    local = hammerhead.Experts.from_arrays(gate, up, down, batch_invariant=True)
    experts = Experts(local, counts)
    x = torch.randn(options.tokens, options.hidden, generator=generator).to(torch.bfloat16)
    ids = torch.rand(options.tokens, options.experts, generator=generator).topk(options.top_k).indices
    weights = torch.full(ids.shape, 1.0 / options.top_k)

    def median(call: Any, rounds: int = 15) -> float:
        times = []
        for _ in range(rounds):
            dist.barrier()
            begun = time.perf_counter()
            call()
            times.append(time.perf_counter() - begun)
        return sorted(times)[rounds // 2]

    def exchange(elements: int) -> None:
        room = torch.empty(elements * ranks)
        dist.all_to_all_single(room, torch.ones(elements * ranks))

    # All ranks measure at once, with as many experts as they have: on one machine they share its memory and its caches.
    sizes = (options.hidden, options.intermediate, options.experts, options.top_k)
    layer = measure_layer(*sizes, sample=max(counts), rounds=15, together=dist.barrier)
    size = 1 << 18
    nothing, much = median(lambda: exchange(1)), median(lambda: exchange(size))
    network = Network(nothing, 4.0 * size * (ranks - 1) / max(much - nothing, 1e-9))
    measured = median(lambda: experts(x, ids, weights))
    if rank == 0:
        cost = predict(layer, network, ranks, options.tokens)
        print(f"measured here: {described(layer)}; an exchange {nothing * 1e3:.2f} ms and {network.bandwidth / 1e9:.2f} GB/s")
        print(
            f"{ranks} ranks: predicted {cost.seconds * 1e3:.2f} ms ({cost.tokens_per_second:.0f} tokens/s), "
            f"measured {measured * 1e3:.2f} ms ({ranks * options.tokens / measured:.0f} tokens/s)"
        )
    dist.destroy_process_group()
