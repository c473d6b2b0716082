"""What a call of a whole layer costs the host from Python, on tensors of a GPU.

    python3 benchmarks/h200/python_host_time.py

Needs this package and PyTorch with CUDA. Bursts of eight calls, fewer than the queue holds, with a wait between bursts:
microseconds per call, medians, beside operations of torch's own.
"""

import time

import torch

import hammerhead

K, INNER, EXPERTS, TOP, TOKENS = 512, 256, 128, 8, 16
CALLS, ROUNDS = 8, 200


def host_us(call):
    for _ in range(20):
        call()
    times = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(CALLS):
            call()
        times.append((time.perf_counter() - begun) / CALLS * 1e6)
    return sorted(times)[ROUNDS // 2]


def main():
    def matrix(n, k):
        return hammerhead.quantize(torch.randn(n, k) / k**0.5)

    different = [(matrix(INNER, K), matrix(INNER, K), matrix(K, INNER)) for _ in range(2)]
    parts = zip(*(different[expert % 2] for expert in range(EXPERTS)))
    layer = hammerhead.Experts.from_arrays(*map(list, parts), routing="softmax-renorm", top_k=TOP, backend="cuda")
    x = torch.randn(TOKENS, K, device="cuda", dtype=torch.bfloat16)
    logits, out = torch.randn(TOKENS, EXPERTS, device="cuda"), torch.empty_like(x)
    with torch.inference_mode():
        calls = {
            f"{EXPERTS} experts, out=": lambda: layer(x, logits, out=out),
            f"{EXPERTS} experts": lambda: layer(x, logits),
            "torch.mm": lambda: torch.mm(x, x.T),
            "torch.add, out=": lambda: torch.add(x, x, out=out),
        }
        for name, call in calls.items():
            print(f"{name:20} {host_us(call):6.1f} µs")


if __name__ == "__main__":
    main()
