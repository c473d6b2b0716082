"""Predicts tokens per second of a layer of experts over ranks, from a layer measured here.

    python -m hammerhead.distributed --hidden 2048 --intermediate 768 --experts 128 --top-k 8 --tokens 64 --ranks
    1,2,8,64
    python -m hammerhead.distributed ... --check 2          # 2 processes on this machine, beside what is predicted for them
"""

from __future__ import annotations

import argparse

from hammerhead.distributed import Network, measure_layer, predict
from hammerhead.distributed._check import check, described


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m hammerhead.distributed", description=__doc__.splitlines()[0])
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


if __name__ == "__main__":
    main()
