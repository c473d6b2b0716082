"""compressed-tensors' NVFP4 checkpoints: ``weight_packed``, ``weight_scale`` and ``weight_global_scale``, which divides."""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.fused_moe import FusedMoEMethodBase, RoutedExperts
from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsConfig
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe.compressed_tensors_moe_w4a4_nvfp4 import (
    CompressedTensorsW4A4Nvfp4MoEMethod,
)
from vllm.model_executor.layers.quantization.compressed_tensors.schemes import CompressedTensorsW4A4Fp4

from hammerhead.vllm._packed import LocalExperts, MergedLinear, check_loaded, empty, gate_of


class _Inputs:
    """What vLLM asks a kernel about its inputs: that they come as they are."""

    def input_quant_key(self) -> None:
        return None


class HammerheadNvFp4Scheme(CompressedTensorsW4A4Fp4):
    """A linear layer, or several merged ones."""

    def __init__(self, use_a16: bool) -> None:
        # Not the parent's: it looks for a kernel of vLLM's.
        self.use_a16, self.group_size, self.kernel = use_a16, 16, _Inputs()

    def process_weights_after_loading(self, layer: Any) -> None:
        check_loaded(layer, "weight_scale", layer.weight_scale.data)
        factors = [1 / divisor for divisor in layer.weight_global_scale.tolist()]
        self.packed = MergedLinear(layer.weight_packed.data, layer.weight_scale.data, layer.logical_widths, factors)
        empty(layer, "weight_packed", "weight_scale")

    def apply_weights(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return self.packed(x, bias)


# vLLM's loader of experts goes by the name of this class: it must contain "CompressedTensors".
class CompressedTensorsHammerheadExperts(CompressedTensorsW4A4Nvfp4MoEMethod):
    """The experts of a layer."""

    supports_eplb = False

    def __init__(self, moe_config: Any) -> None:
        # Not the parent's: it looks for a kernel of vLLM's.
        FusedMoEMethodBase.__init__(self, moe_config)
        self.group_size, self.use_global_sf = 16, False

    def process_weights_after_loading(self, layer: Any) -> None:
        check_loaded(layer, "w13_weight_scale", layer.w13_weight_scale.data)
        check_loaded(layer, "w2_weight_scale", layer.w2_weight_scale.data)
        first = [[1 / divisor for divisor in pair] for pair in layer.w13_weight_global_scale.tolist()]
        down = [1 / divisor for divisor in layer.w2_weight_global_scale.tolist()]
        self.packed = LocalExperts(
            (layer.w13_weight_packed.data, layer.w13_weight_scale.data, first),
            (layer.w2_weight_packed.data, layer.w2_weight_scale.data, down),
            gate_of(layer, self.moe),
        )
        empty(layer, "w13_weight_packed", "w13_weight_scale", "w2_weight_packed", "w2_weight_scale")

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


class HammerheadCompressedTensorsConfig(CompressedTensorsConfig):
    """vLLM's, with our methods where weights are NVFP4."""

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.half, torch.float32]

    def _get_scheme_from_parts(self, weight_quant: Any, input_quant: Any, *args: Any, **kwargs: Any) -> Any:
        if self._is_nvfp4_format(weight_quant):
            return HammerheadNvFp4Scheme(use_a16=input_quant is None)
        return super()._get_scheme_from_parts(weight_quant, input_quant, *args, **kwargs)

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> Any:
        if isinstance(layer, RoutedExperts):
            self._add_fused_moe_to_target_scheme_map()
            projections = (layer.ckpt_gate_proj_name, layer.ckpt_up_proj_name, layer.ckpt_down_proj_name)
            schemes = [self.get_scheme_dict(layer, f"{prefix}.0.{name}") for name in projections if name is not None]
            if all(scheme is not None and self._is_nvfp4_format(scheme.get("weights")) for scheme in schemes):
                return CompressedTensorsHammerheadExperts(layer.moe_config)
        return super().get_quant_method(layer, prefix)


def register() -> None:
    """Makes these vLLM's choice."""
    register_quantization_config("compressed-tensors")(HammerheadCompressedTensorsConfig)
