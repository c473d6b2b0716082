"""Experts over several processes: the bits of one process, whoever holds the experts and the tokens; and an error where
a rank dies."""

import os
import time
from datetime import timedelta
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402

import hammerhead  # noqa: E402
from hammerhead.distributed import Experts, Layer, Network, predict, shares  # noqa: E402

MODEL = Path(__file__).parent / "data/modelopt_qwen2_moe"
EXPERTS, HIDDEN, TOP = 4, 64, 3
TIMEOUT = 20


def tokens_of(rank, tokens):
    """A rank's tokens and their experts, one of them nobody's."""
    generator = torch.Generator().manual_seed(rank)
    x = torch.randn(tokens, HIDDEN, generator=generator).to(torch.bfloat16)
    ids = torch.rand(tokens, EXPERTS, generator=generator).topk(TOP).indices
    if tokens > 1:
        ids[1, 0] = -1
    return x, ids, torch.rand(tokens, TOP, generator=generator)


def alone(**options):
    return hammerhead.Experts.from_checkpoint(MODEL, 0, batch_invariant=True, **options)


def joined(rank, ranks, folder, over="gloo"):
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder) / "store"), ranks)
    dist.init_process_group(over, store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=TIMEOUT))


def compare(rank, ranks, folder, counts, tokens, over="gloo"):
    device, options = torch.device("cpu"), {}
    if over == "nccl":
        # NCCL refuses two ranks on one GPU of a host: these say that they are on hosts of their own.
        os.environ["NCCL_HOSTID"] = f"rank-{rank}"
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        options = {"backend": f"cuda:{device.index}"}
    joined(rank, ranks, folder, over)
    layer = Experts.from_checkpoint(MODEL, 0, counts=counts, **options)
    expected = alone(**options)
    for number, amount in enumerate(tokens[rank]):
        x, ids, weights = (tensor.to(device) for tensor in tokens_of(rank + 10 * number, amount))
        # Single precision shows in which order results were added, which three of a token's experts can have.
        x = x.float() if number == 0 else x
        y = layer(x, ids, weights)
        assert y.dtype == x.dtype and y.shape == x.shape
        assert torch.equal(y, expected(x, ids, weights)), f"rank {rank}, call {number}"
    dist.destroy_process_group()


LAYOUTS = pytest.mark.parametrize(
    ("ranks", "counts", "tokens"),
    [
        (2, None, [[5, 1], [3, 40]]),
        (2, [4, 0], [[0, 2], [6, 0]]),
        (4, [1, 0, 2, 1], [[3], [4], [0], [7]]),
    ],
    ids=["two even ranks", "a rank without experts, and ranks without tokens", "four uneven ranks"],
)


@LAYOUTS
def test_results_are_those_of_one_process_to_the_bit(tmp_path, ranks, counts, tokens):
    mp.spawn(compare, (ranks, str(tmp_path), counts, tokens), nprocs=ranks)


@pytest.mark.skipif(
    hammerhead.backends().get("cuda", "not built in") is not None or not torch.cuda.is_available(),
    reason="no GPU that this package can use",
)
@LAYOUTS
def test_results_over_nccl_are_those_of_one_gpu_to_the_bit(tmp_path, ranks, counts, tokens):
    mp.spawn(compare, (ranks, str(tmp_path), counts, tokens, "nccl"), nprocs=ranks)


def survive(rank, ranks, folder):
    joined(rank, ranks, folder)
    layer = Experts.from_checkpoint(MODEL, 0)
    layer(*tokens_of(rank, 4))
    if rank == 1:
        os._exit(0)
    begun = time.monotonic()
    with pytest.raises(RuntimeError, match=rf"rank {rank} of {ranks} could not exchange .*; end the group"):
        layer(*tokens_of(rank, 4))
    assert time.monotonic() - begun < 2 * TIMEOUT
    (Path(folder) / f"told-{rank}").touch()
    os._exit(0)


def test_a_rank_that_dies_is_an_error_on_the_others(tmp_path):
    mp.spawn(survive, (3, str(tmp_path)), nprocs=3)
    assert sorted(path.name for path in tmp_path.glob("told-*")) == ["told-0", "told-2"]


def differ(rank, ranks, folder):
    joined(rank, ranks, folder)
    layer = Experts.from_checkpoint(MODEL, 0)
    x, ids, weights = tokens_of(rank, 4 * (rank != 2))
    for mine, match in [
        (x.float() if rank == 1 else x, r"x: it is bfloat16 \[tokens, 64\] on ranks 0, 2; float32 \[tokens, 64\] on rank 1; all ranks"),
        (x[:, :32] if rank == 2 else x, r"x: it is bfloat16 \[tokens, 64\] on ranks 0, 1; bfloat16 \[tokens, 32\] on rank 2"),
        (x.double(), r"x: it is another type \[tokens, 64\] on ranks 0, 1, 2; .*float16, bfloat16, float32"),
    ]:
        with pytest.raises(ValueError, match=match):
            layer(mine, ids, weights)
    assert torch.equal(layer(x, ids, weights), alone()(x, ids, weights)), "the group is still usable"
    (Path(folder) / f"told-{rank}").touch()
    dist.destroy_process_group()


def test_ranks_with_tokens_of_different_kinds_are_told_so_and_can_go_on(tmp_path):
    mp.spawn(differ, (3, str(tmp_path)), nprocs=3)
    assert len(list(tmp_path.glob("told-*"))) == 3


def test_wrong_shares_are_refused(tmp_path):
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        with pytest.raises(ValueError, match="do not share the 4 experts of layer 0 out among 1 ranks"):
            Experts.from_checkpoint(MODEL, 0, counts=[3])
        with pytest.raises(ValueError, match="local: it has 0 experts"):
            Experts(None, [4])
        layer = Experts.from_checkpoint(MODEL, 0)
        x, ids, weights = tokens_of(0, 3)
        assert torch.equal(layer(x, ids, weights), alone()(x, ids, weights)), "one rank is a group, too"
        with pytest.raises(ValueError, match="their shapes are"):
            layer(x, ids[:2], weights)
    finally:
        dist.destroy_process_group()


def test_a_ranks_budget_is_for_its_own_experts(tmp_path, monkeypatch):
    load, said = hammerhead.Experts.from_checkpoint, []

    def noted(*place, **options):
        said.append(options)
        return load(*place, **options)

    monkeypatch.setattr(hammerhead.Experts, "from_checkpoint", noted)
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        Experts.from_checkpoint(MODEL, 0, backend="scalar", gpu_bytes=1000, stream=512)
    finally:
        dist.destroy_process_group()
    own, shared = said
    assert (own["shared"], own["gpu_bytes"], own["stream"]) == (False, 1000, 512)
    assert shared == {"experts": [0], "shared": True, "backend": "scalar", "batch_invariant": True}


def test_shares_are_even():
    assert shares(10, 4) == [3, 3, 2, 2] and shares(2, 3) == [1, 1, 0]


def test_the_model_of_cost_adds_up():
    layer = Layer(hidden=1000, experts=64, top_k=4, fixed=1e-4, stream=1e-5, row=1e-6)
    network = Network(latency=1e-3, bandwidth=1e9)
    one = predict(layer, network, 1, 16)
    assert one.exchange == 0 and one.seconds == layer.seconds(64, 64)
    two = predict(layer, network, 2, 16, imbalance=1.0)
    assert two.compute == layer.seconds(64, 32)
    back = 64 / 2 * 1000 * 4
    assert two.exchange > 4 * 1e-3 + back / 1e9
    assert predict(layer, network, 1000, 16).tokens_per_second > two.tokens_per_second
