"""ModelOpt's NVFP4 checkpoints: ``weight``, ``weight_scale`` and ``weight_scale_2``, which multiplies.

The parameters are registered and loaded by vLLM's own classes, from which these inherit; only what is computed is ours.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.fused_moe import FusedMoEMethodBase
from vllm.model_executor.layers.linear import register_weight_loader_v2_supported_method
from vllm.model_executor.layers.quantization import modelopt, register_quantization_config

from hammerhead.vllm._packed import LocalExperts, MergedLinear, check_loaded, empty, gate_of

ALGORITHMS = ("NVFP4", "W4A16_NVFP4")


@register_weight_loader_v2_supported_method
class ModelOptHammerheadLinearMethod(modelopt.ModelOptLinearMethod):
    """A linear layer, or several merged ones."""

    supports_pre_processed_weights = False

    def create_weights(
        self,
        layer: Any,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        layer.logical_widths = output_partition_sizes
        layer.input_size_per_partition = input_size_per_partition
        layer.output_size_per_partition = sum(output_partition_sizes)
        shapes = modelopt.Shapes(output_partition_sizes, input_size_per_partition, params_dtype)
        loader = extra_weight_attrs.get("weight_loader")
        self.wkey.create_weights(layer, modelopt.WEIGHT, self.ctx, shapes, loader)
        if self.akey:
            self.akey.create_weights(layer, modelopt.ACT, self.ctx, shapes, loader)
        self.fmt.extra_weights(layer, shapes, self.ctx, loader)

    def process_weights_after_loading(self, layer: Any) -> None:
        check_loaded(layer, "weight_scale", layer.weight_scale.data)
        factors = layer.weight_scale_2.tolist()
        self.packed = MergedLinear(layer.weight.data, layer.weight_scale.data, layer.logical_widths, factors)
        empty(layer, "weight", "weight_scale")

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return self.packed(x, bias)


# vLLM's loader of experts goes by the name of this class: it must contain "ModelOpt".
class ModelOptHammerheadExperts(modelopt.ModelOptNvFp4FusedMoE):
    """The experts of a layer."""

    supports_pre_processed_weights = False
    supports_eplb = False

    def __init__(self, quant_config: Any, moe_config: Any) -> None:
        # Not the parent's: it looks for a kernel of vLLM's.
        FusedMoEMethodBase.__init__(self, moe_config)
        self.quant_config = quant_config
        self.use_global_sf = False

    def process_weights_after_loading(self, layer: Any) -> None:
        check_loaded(layer, "w13_weight_scale", layer.w13_weight_scale.data)
        check_loaded(layer, "w2_weight_scale", layer.w2_weight_scale.data)
        self.packed = LocalExperts(
            (layer.w13_weight.data, layer.w13_weight_scale.data, layer.w13_weight_scale_2.tolist()),
            (layer.w2_weight.data, layer.w2_weight_scale.data, layer.w2_weight_scale_2.tolist()),
            gate_of(layer, self.moe),
        )
        empty(layer, "w13_weight", "w13_weight_scale", "w2_weight", "w2_weight_scale")

    def get_fused_moe_quant_config(self, layer: Any) -> None:
        return None

    def apply(
        self,
        layer: Any,
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        shared_experts: Any,
        shared_experts_input: torch.Tensor | None,
    ) -> torch.Tensor:
        # A shared expert is computed by vLLM's runner, before.
        return self.packed(layer, x, topk_weights, topk_ids)


class HammerheadNvFp4Config(modelopt.ModelOptNvFp4Config):
    """vLLM's, with our experts."""

    FusedMoEMethodCls = ModelOptHammerheadExperts

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.half, torch.float32]


def _linear(algorithm: str) -> Any:
    def build(config: Any, prefix: str) -> ModelOptHammerheadLinearMethod:
        return ModelOptHammerheadLinearMethod(*modelopt.resolve(algorithm, config, prefix))

    return build


def register() -> None:
    """Makes these vLLM's choice."""
    register_quantization_config("modelopt_fp4")(HammerheadNvFp4Config)
    for algorithm in ALGORITHMS:
        modelopt.LINEAR_METHOD_BUILDERS[algorithm] = _linear(algorithm)
