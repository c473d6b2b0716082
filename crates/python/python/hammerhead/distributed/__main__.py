"""Predicts tokens per second of a layer of experts over ranks, from a layer measured here.

    python -m hammerhead.distributed --hidden 2048 --intermediate 768 --experts 128 --top-k 8 --tokens 64 --ranks 1,2,8,64
    python -m hammerhead.distributed ... --check 2          # 2 processes on this machine, beside what is predicted for them
"""

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--intermediate", type=int, default=768)
    parser.add_argument("--experts", type=int, default=128)
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64, help="of each rank")
    parser.add_argument("--ranks", default="1,2,4,8,64,1000")
    parser.add_argument("--latency-us", type=float, default=100.0, help="of an exchange of nothing")
    parser.add_argument("--message-us", type=float, default=1.0, help="of an exchange, for each other rank")
    parser.add_argument("--bandwidth", type=float, default=10.0, help="GB/s of a rank, each way")
    parser.add_argument("--check", type=int, help="run this many processes here, and compare")
    options = parser.parse_args()
    if options.check:
        check(options)
        return
    sizes = (options.hidden, options.intermediate, options.experts, options.top_k)
    layer = measure_layer(*sizes)
    network = Network(options.latency_us / 1e6, options.bandwidth * 1e9, options.message_us / 1e6)
    print(f"measured here: {described(layer)}")
    print(f"{'ranks':>6} {'tokens/s':>12} {'ms':>9} {'compute':>9} {'exchange':>9} {'imbalance':>10}")
    for ranks in map(int, options.ranks.split(",")):
        cost = predict(layer, network, ranks, options.tokens)
        print(
            f"{ranks:6} {cost.tokens_per_second:12.0f} {cost.seconds * 1e3:9.3f} {cost.compute * 1e3:9.3f} "
            f"{cost.exchange * 1e3:9.3f} {cost.imbalance:10.2f}"
        )


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

    # All ranks measure at once: on one machine they share its memory.
    sizes = (options.hidden, options.intermediate, options.experts, options.top_k)
    layer = measure_layer(*sizes)
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


if __name__ == "__main__":
    main()
