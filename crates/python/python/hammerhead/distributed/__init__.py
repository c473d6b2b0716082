"""Experts over several processes, on torch.distributed (gloo between CPUs, NCCL between GPUs): each process holds some
experts, and tokens travel.

    import torch.distributed as dist
    from hammerhead.distributed import Experts

    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    layer = Experts.from_checkpoint("folder", layer=0)     # every rank reads its share
    y = layer(x, ids, weights)                             # every rank calls it, with tokens of its own

``python -m hammerhead.distributed`` predicts tokens per second for any number of ranks.
"""

from hammerhead._cost import Layer, measure_layer
from hammerhead.distributed._cost import Cost, Network, predict
from hammerhead.distributed._experts import Experts, shares

__all__ = ["Cost", "Experts", "Layer", "Network", "measure_layer", "predict", "shares"]
