"""vLLM's LoRA on our experts: ``lora_request`` per request, any mix of them in a batch.

Linear layers need nothing here: vLLM adds to what they make. Experts it wraps in :class:`FusedMoEWithLoRA`, which hands
adapters to vLLM's own kernels. This one takes its place before our experts: it keeps vLLM's stacks of adapters, which
vLLM's manager fills and empties, and our experts add what they say, beside each token its slot.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.lora import utils
from vllm.lora.layers import fused_moe
from vllm.lora.layers.base import BaseLayerWithLoRA
from vllm.lora.layers.utils import _get_lora_device

from hammerhead import Adapter, LowRank
from hammerhead.vllm._packed import LocalExperts

MOST_RANK = 64
"""The largest rank that layers take."""


# vLLM's manager goes by the name of this class.
class FusedMoEWithLoRA(fused_moe.FusedMoEWithLoRA):
    """A layer of our experts with adapters in slots."""

    def __init__(self, base_layer: Any) -> None:
        # Not the parent's: it looks for a kernel of vLLM's.
        BaseLayerWithLoRA.__init__(self)
        self.base_layer, self.moe_config = base_layer, base_layer.moe_config
        self._shared_experts = base_layer._shared_experts
        self._ep_check()
        base_layer.routed_experts.lora_base_layer_prefix = "base_layer."
        parallel = self.moe_config.moe_parallel_config
        self.tp_size, self.tp_rank = parallel.tp_size, parallel.tp_rank
        self.device = _get_lora_device(base_layer)
        self._w13_slices = 2 if self.moe_config.is_act_and_mul else 1
        self.enable_moe_shared_loras = False
        self.n_slices = self.local_num_experts * (self._w13_slices + 1)

    @property
    def experts(self) -> LocalExperts:
        """Our experts, packed."""
        return self.base_layer.routed_experts.quant_method.call.run

    def create_lora_weights(self, max_loras: int, lora_config: Any, model_config: Any = None) -> None:
        if lora_config.fully_sharded_loras or lora_config.enable_moe_shared_loras:
            raise NotImplementedError(
                "hammerhead's experts take adapters that are whole and of every expert; start vLLM without "
                "fully_sharded_loras and enable_moe_shared_loras"
            )
        super().create_lora_weights(max_loras, lora_config, model_config)
        self.ranks = [0] * max_loras
        self.adapters: Any = None

    def reset_lora(self, index: int) -> None:
        super().reset_lora(index)
        self.ranks[index], self.adapters = 0, None

    def set_lora(self, index: int, lora_a: Any, lora_b: Any) -> None:
        rank = max((int(each.shape[1]) for each in lora_a if each is not None), default=0)
        if rank == 0:
            self.reset_lora(index)
            return
        if rank > MOST_RANK:
            raise NotImplementedError(f"an adapter of hammerhead's experts has rank {rank}, and {MOST_RANK} is the most")
        super().set_lora(index, lora_a, lora_b)
        self.ranks[index], self.adapters = rank, None

    def set_mapping(self, punica_wrapper: Any) -> None:
        BaseLayerWithLoRA.set_mapping(self, punica_wrapper)
        self.experts.adapted = self.adapted

    def adapted(self, x: torch.Tensor) -> dict[str, Any]:
        """The adapters of a call, and each token's: its slot, or -1."""
        count = self.punica_wrapper.indices_len[0]
        if count is None or not any(self.ranks):
            return {}
        if self.adapters is None:
            self.adapters = self.experts.experts.adapters([self._slot(index) for index in range(self.max_loras)])
        ids = torch.full((len(x),), -1, dtype=torch.int32, device=x.device)
        known = self.punica_wrapper.token_lora_indices[: len(x)]
        ids[: len(known)] = known.int()
        return {"adapters": self.adapters, "adapter_ids": ids}

    def _slot(self, index: int) -> Adapter[torch.Tensor]:
        """A slot's adapter. vLLM has multiplied B with its scaling."""
        rank, nothing = self.ranks[index], (None, None, None)
        if rank == 0:
            return Adapter(1.0, [nothing] * self.local_num_experts)

        def pair(a: torch.Tensor, b: torch.Tensor, expert: int) -> LowRank[torch.Tensor]:
            return LowRank(a[index, expert, :rank].contiguous(), b[index, expert, :, :rank].contiguous())

        first = list(zip(self.w13_lora_a_stacked, self.w13_lora_b_stacked))
        down = self.w2_lora_a_stacked[0], self.w2_lora_b_stacked[0]

        def expert(number: int) -> Any:
            up = pair(*first[1], number) if len(first) == 2 else None
            return pair(*first[0], number), up, pair(*down, number)

        return Adapter(1.0, [expert(number) for number in range(self.local_num_experts)])

    @classmethod
    def can_replace_layer(
        cls, source_layer: Any, lora_config: Any, packed_modules_list: list[str], model_config: Any = None
    ) -> bool:
        """Whether a layer's experts are ours."""
        runner = isinstance(source_layer, fused_moe.maybe_get_oot_by_class(fused_moe.MoERunner))
        call = getattr(source_layer.routed_experts.quant_method, "call", None) if runner else None
        if call is None or not isinstance(getattr(call, "run", None), LocalExperts):
            return False
        if len(packed_modules_list) != 2:
            raise NotImplementedError(
                f"{call.name}: vLLM stacks gate and up of this model's adapters, which hammerhead's experts do not take; "
                "start vLLM with enable_mixed_moe_lora_format"
            )
        return True


def register() -> None:
    """Puts it before vLLM's."""
    if FusedMoEWithLoRA not in utils._all_lora_classes:
        utils._all_lora_classes = (FusedMoEWithLoRA, *utils._all_lora_classes)
