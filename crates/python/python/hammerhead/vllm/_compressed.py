"""compressed-tensors' NVFP4: ``weight_packed``, ``weight_scale`` and ``weight_global_scale``, which divides.

Of a checkpoint with several formats, layers that are not NVFP4 are vLLM's, and where it has no kernel for FP8 or MXFP8,
torch multiplies.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.fused_moe import FusedMoEMethodBase, RoutedExperts
from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsConfig
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe import (
    compressed_tensors_moe_w4a4_nvfp4 as moe_nvfp4,
)
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe import (
    compressed_tensors_moe_w8a8_fp8 as moe_fp8,
)
from vllm.model_executor.layers.quantization.compressed_tensors.schemes import (
    CompressedTensorsScheme,
    CompressedTensorsW4A4Fp4,
    CompressedTensorsW8A8Fp8,
    CompressedTensorsW8A8Mxfp8,
    CompressedTensorsW8A16Fp8,
)
from vllm.model_executor.layers.quantization.compressed_tensors.transform.linear import get_linear_transform_schemes

from hammerhead.vllm._calls import Call
from hammerhead.vllm._choice import experts_method, no_kernel, other_experts_method
from hammerhead.vllm._options import Asked
from hammerhead.vllm._packed import (
    LocalExperts,
    MergedLinear,
    check_loaded,
    check_own_product,
    empty,
    gate_of,
    local_ids,
    not_a_number,
)
from hammerhead.vllm._plain import PlainExpertsMethod, PlainLinear, plain, requantised, runs

SCALES = ("w13_weight_scale", "w13_weight_global_scale", "w2_weight_scale", "w2_weight_global_scale")
"""The parameters of experts that hold scales of weights."""

OTHERS = (CompressedTensorsW8A8Fp8, CompressedTensorsW8A16Fp8, CompressedTensorsW8A8Mxfp8)
"""vLLM's schemes for layers that torch multiplies where vLLM cannot."""

FORMAT = "nvfp4-pack-quantized"
"""How compressed-tensors stores NVFP4."""


class _Inputs:
    """What vLLM asks a kernel about its inputs: that they come as they are."""

    def input_quant_key(self) -> None:
        return None


class HammerheadNvFp4Scheme(CompressedTensorsW4A4Fp4):
    """A linear layer, or several merged ones."""

    def __init__(self, prefix: str, use_a16: bool) -> None:
        # Not the parent's: it looks for a kernel of vLLM's.
        self.use_a16, self.group_size, self.kernel = use_a16, 16, _Inputs()
        self.prefix, self.call = prefix, Call(prefix)

    def create_weights(self, layer: Any, *args: Any, **kwargs: Any) -> None:
        super().create_weights(layer, *args, **kwargs)
        not_a_number(layer.weight_scale)
        not_a_number(layer.weight_global_scale)

    def process_weights_after_loading(self, layer: Any) -> None:
        check_loaded(self.prefix, layer, "weight_scale", "weight_global_scale")
        check_own_product(self.prefix, layer)
        factors = [1 / divisor for divisor in layer.weight_global_scale.tolist()]
        packed = MergedLinear(layer.weight_packed.data, layer.weight_scale.data, layer.logical_widths, factors)
        self.call.hold(packed, sum(layer.logical_widths))
        empty(layer, "weight_packed", "weight_scale")

    def apply_weights(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        y = self.call(x)
        return y if bias is None else y + bias


class OtherScheme(CompressedTensorsScheme):
    """A linear layer in FP8 or MXFP8: by a scheme of vLLM's, or where it has no kernel, a product by torch."""

    plain: PlainLinear | None = None

    def __init__(self, prefix: str, scheme: CompressedTensorsScheme) -> None:
        self.prefix, self.scheme, self.has_kernel, self.call = prefix, scheme, True, Call(prefix)
        self.dtype = get_current_vllm_config().model_config.dtype

    def get_min_capability(self) -> int:
        return self.scheme.get_min_capability()

    def create_weights(self, layer: Any, *args: Any, **kwargs: Any) -> None:
        try:
            self.scheme.create_weights(layer, *args, **kwargs)
        except ValueError as error:
            no_kernel(layer, error)
            self.has_kernel = False
        not_a_number(layer.weight_scale)

    def process_weights_after_loading(self, layer: Any) -> None:
        check_loaded(self.prefix, layer, "weight_scale")
        usable = self.has_kernel and runs(getattr(self.scheme, "fp8_linear", None), self.dtype)
        if usable and not requantised(layer, alike=True):
            self.scheme.process_weights_after_loading(layer)
            return
        check_own_product(self.prefix, layer)
        self.plain = plain(self.prefix, layer, self.dtype)
        self.call.hold(self.plain, sum(layer.logical_widths))
        empty(layer, "weight", "weight_scale")

    def apply_weights(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        if self.plain is None:
            return self.scheme.apply_weights(layer, x, bias)
        y = self.call(x)
        return y if bias is None else y + bias


# vLLM's loader of experts goes by the name of this class: it must contain "CompressedTensors".
class CompressedTensorsHammerheadExperts(moe_nvfp4.CompressedTensorsW4A4Nvfp4MoEMethod):
    """The experts of a layer."""

    supports_eplb = False

    def __init__(self, moe_config: Any) -> None:
        # Not the parent's: it looks for a kernel of vLLM's.
        FusedMoEMethodBase.__init__(self, moe_config)
        self.asked = Asked()
        self.group_size, self.use_global_sf = 16, False

    def create_weights(self, layer: Any, *args: Any, **kwargs: Any) -> None:
        with self.asked.place():
            super().create_weights(layer, *args, **kwargs)
        self.call = Call(layer.layer_name, experts=True)
        for name in SCALES:
            not_a_number(getattr(layer, name))

    def process_weights_after_loading(self, layer: Any) -> None:
        check_loaded(layer.layer_name, layer, *SCALES)
        first = [[1 / divisor for divisor in pair] for pair in layer.w13_weight_global_scale.tolist()]
        down = [1 / divisor for divisor in layer.w2_weight_global_scale.tolist()]
        packed = LocalExperts(
            (layer.w13_weight_packed.data, layer.w13_weight_scale.data, first),
            (layer.w2_weight_packed.data, layer.w2_weight_scale.data, down),
            gate_of(self.moe),
            layer.apply_router_weight_on_input,
            self.asked.layer(self.call),
        )
        self.call.hold(packed, layer.hidden_size)
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
        return self.call(x, local_ids(layer.expert_map, topk_ids), topk_weights)


class CompressedTensorsHammerheadFp8Experts(PlainExpertsMethod, moe_fp8.CompressedTensorsW8A8Fp8MoEMethod):
    """Experts in FP8 with a scale per matrix or per row."""

    def __init__(self, weights: Any, inputs: Any, moe_config: Any) -> None:
        # Not the parent's: it looks for a kernel of vLLM's.
        FusedMoEMethodBase.__init__(self, moe_config)
        self.weight_quant, self.input_quant = weights, inputs
        self.weight_block_size, self.block_quant = None, False
        self.static_input_scales = not inputs.dynamic


class HammerheadCompressedTensorsConfig(CompressedTensorsConfig):
    """vLLM's, with our methods where weights are NVFP4."""

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.half, torch.float32]

    def _get_scheme_from_parts(
        self,
        weight_quant: Any,
        input_quant: Any,
        output_quant: Any = None,
        format: str | None = None,
        layer_name: str | None = None,
    ) -> Any:
        name = layer_name or "a layer"
        if self._is_nvfp4_format(weight_quant):
            self._check_format(name, format or self.quant_format)
            return HammerheadNvFp4Scheme(name, use_a16=input_quant is None)
        scheme = super()._get_scheme_from_parts(weight_quant, input_quant, output_quant, format, layer_name)
        # Of checkpoints without NVFP4 everything is vLLM's.
        return OtherScheme(name, scheme) if isinstance(scheme, OTHERS) and self._has_nvfp4() else scheme

    def _has_nvfp4(self) -> bool:
        schemes = self.target_scheme_map.values()
        return any(scheme and self._is_nvfp4_format(scheme.get("weights")) for scheme in schemes)

    @staticmethod
    def _check_format(name: str, stored: str | None) -> None:
        if stored != FORMAT:
            raise NotImplementedError(f"{name}: its NVFP4 weights are stored as {stored!r}, and {FORMAT!r} is expected")

    def _other_experts(self, layer: Any, prefix: str, schemes: list[Any]) -> Any:
        vllms, moe, plain = super().get_quant_method, layer.moe_config, None
        first: dict[str, Any] = schemes[0] or {}
        weights, inputs = first.get("weights"), first.get("input_activations")
        same = all(scheme == schemes[0] for scheme in schemes)
        if weights is not None and same and self._is_fp8_w8a8(weights, inputs) and weights.block_structure is None:
            plain = lambda: CompressedTensorsHammerheadFp8Experts(weights, inputs, moe)  # noqa: E731
        return other_experts_method(prefix, f"not {FORMAT}", moe, plain, lambda: vllms(layer, prefix))

    def _check_transforms(self, name: str) -> None:
        # Transforms may name the class of a layer: before experts were merged, it was this.
        alone = torch.nn.Linear(1, 1, device="meta")
        if any(get_linear_transform_schemes(alone, name, self.transform_config, self.packed_modules_mapping)):
            raise NotImplementedError(f"{name}: the checkpoint rotates what goes through it, which experts here do not")

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> Any:
        vllms = super().get_quant_method
        if isinstance(layer, RoutedExperts):
            self._add_fused_moe_to_target_scheme_map()
            projections = (layer.ckpt_gate_proj_name, layer.ckpt_up_proj_name, layer.ckpt_down_proj_name)
            names = [f"{prefix}.0.{name}" for name in projections if name is not None]
            schemes = [self.get_scheme_dict(layer, name) for name in names]
            if all(scheme is not None and self._is_nvfp4_format(scheme.get("weights")) for scheme in schemes):
                for name, scheme in zip(names, schemes):
                    self._check_format(name, scheme.get("format"))
                    self._check_transforms(name)
                moe = layer.moe_config
                return experts_method(
                    prefix, moe, lambda: CompressedTensorsHammerheadExperts(moe), lambda: vllms(layer, prefix)
                )
            if self._has_nvfp4():
                return self._other_experts(layer, prefix, schemes)
        return vllms(layer, prefix)


def register() -> None:
    """Makes these vLLM's choice."""
    register_quantization_config("compressed-tensors")(HammerheadCompressedTensorsConfig)
