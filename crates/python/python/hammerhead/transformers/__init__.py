"""NVFP4 checkpoints in transformers, on the CPU, with weights that stay 4-bit.

    import hammerhead.transformers
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained("folder of a ModelOpt or compressed-tensors checkpoint")

The import registers with transformers: a quantizer for ModelOpt's checkpoints; one for compressed-tensors' that takes
those in the format ``nvfp4-pack-quantized`` and leaves all others to transformers' own; and
``experts_implementation="hammerhead"``. Of a model so loaded, linear layers, gated MLPs and experts are ours;
attention, norms, embeddings and routers are transformers'. Activations are not quantised: a model computes what it
would with its weights expanded, up to the rounding of sums. There are no gradients.
"""

from hammerhead.transformers._experts import register_experts
from hammerhead.transformers._modules import Fp8Linear, NvFp4Experts, NvFp4Linear, NvFp4Mlp, check_host, heat, place_hottest
from hammerhead.transformers._quantizer import NvFp4Config, NvFp4Quantizer
from hammerhead.transformers._register import register_quantizers
from hammerhead.transformers._steps import replay_steps

__all__ = [
    "Fp8Linear",
    "NvFp4Config",
    "NvFp4Experts",
    "NvFp4Linear",
    "NvFp4Mlp",
    "NvFp4Quantizer",
    "check_host",
    "heat",
    "place_hottest",
    "replay_steps",
]

register_quantizers()
register_experts()
