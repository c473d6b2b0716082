"""ModelOpt's NVFP4 checkpoints: ``weight``, ``weight_scale`` and ``weight_scale_2``, which multiplies.

The parameters are registered and loaded by vLLM's own classes, from which these inherit; only what is computed is ours.
Checkpoints of mixed precision name the algorithm of each layer. Layers that are not NVFP4 are vLLM's, and where it has
no kernel for FP8 or MXFP8, torch multiplies.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.fused_moe import FusedMoEMethodBase, RoutedExperts
from vllm.model_executor.layers.linear import LinearBase, register_weight_loader_v2_supported_method
from vllm.model_executor.layers.quantization import modelopt, register_quantization_config
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

from hammerhead.vllm._calls import Call
from hammerhead.vllm._choice import experts_method, no_kernel, other_experts_method
from hammerhead.vllm._options import Asked
from hammerhead.vllm._packed import (
    GROUP,
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

ALGORITHMS = ("NVFP4", "W4A16_NVFP4")


@register_weight_loader_v2_supported_method
class ModelOptHammerheadLinearMethod(modelopt.ModelOptLinearMethod):
    """A linear layer, or several merged ones."""

    supports_pre_processed_weights = False

    def __init__(self, prefix: str, spec: Any, ctx: Any, format_scheme: Any) -> None:
        super().__init__(spec, ctx, format_scheme)
        _check_group(prefix, ctx.group_size)
        self.prefix, self.call = prefix, Call(prefix)

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
        not_a_number(layer.weight_scale_2)

    def process_weights_after_loading(self, layer: Any) -> None:
        check_loaded(self.prefix, layer, "weight_scale", "weight_scale_2")
        check_own_product(self.prefix, layer)
        factors = layer.weight_scale_2.tolist()
        packed = MergedLinear(layer.weight.data, layer.weight_scale.data, layer.logical_widths, factors)
        self.call.hold(packed, sum(layer.logical_widths))
        empty(layer, "weight", "weight_scale")

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        y = self.call(x)
        return y if bias is None else y + bias


@register_weight_loader_v2_supported_method
class ModelOptHammerheadOtherLinearMethod(modelopt.ModelOptLinearMethod):
    """A linear layer in FP8 or MXFP8: vLLM's, or where it has no kernel, a product by torch."""

    plain: PlainLinear | None = None

    def __init__(self, prefix: str, spec: Any, ctx: Any, format_scheme: Any) -> None:
        super().__init__(spec, ctx, format_scheme)
        self.prefix, self.call = prefix, Call(prefix)

    def create_weights(self, layer: Any, *args: Any, **kwargs: Any) -> None:
        try:
            super().create_weights(layer, *args, **kwargs)
        except ValueError as error:
            no_kernel(layer, error)
        not_a_number(layer.weight_scale)

    def process_weights_after_loading(self, layer: Any) -> None:
        check_loaded(self.prefix, layer, "weight_scale")
        usable = self.kernel is not None and runs(self.kernel, self.input_dtype)
        if usable and not requantised(layer, alike=False):
            super().process_weights_after_loading(layer)
            return
        check_own_product(self.prefix, layer)
        self.plain = plain(self.prefix, layer, self.input_dtype)
        self.call.hold(self.plain, sum(layer.logical_widths))
        empty(layer, "weight", "weight_scale")

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        if self.plain is None:
            return super().apply(layer, x, bias)
        y = self.call(x)
        return y if bias is None else y + bias


# vLLM's loader of experts goes by the name of this class: it must contain "ModelOpt".
class ModelOptHammerheadExperts(modelopt.ModelOptNvFp4FusedMoE):
    """The experts of a layer."""

    supports_pre_processed_weights = False
    supports_eplb = False

    def __init__(self, quant_config: Any, moe_config: Any) -> None:
        # Not the parent's: it looks for a kernel of vLLM's.
        FusedMoEMethodBase.__init__(self, moe_config)
        self.asked = Asked()
        self.quant_config = quant_config
        self.use_global_sf = False

    def create_weights(self, layer: Any, *args: Any, **kwargs: Any) -> None:
        with self.asked.place():
            super().create_weights(layer, *args, **kwargs)
        self.call = Call(layer.layer_name, experts=True)
        for name in ("w13_weight_scale", "w13_weight_scale_2", "w2_weight_scale", "w2_weight_scale_2"):
            not_a_number(getattr(layer, name))

    def process_weights_after_loading(self, layer: Any) -> None:
        check_loaded(
            layer.layer_name, layer, "w13_weight_scale", "w13_weight_scale_2", "w2_weight_scale", "w2_weight_scale_2"
        )
        packed = LocalExperts(
            (layer.w13_weight.data, layer.w13_weight_scale.data, layer.w13_weight_scale_2.tolist()),
            (layer.w2_weight.data, layer.w2_weight_scale.data, layer.w2_weight_scale_2.tolist()),
            gate_of(self.moe),
            layer.apply_router_weight_on_input,
            self.asked.layer(self.call),
        )
        self.call.hold(packed, layer.hidden_size)
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
        return self.call(x, local_ids(layer.expert_map, topk_ids), topk_weights)


class ModelOptHammerheadFp8Experts(PlainExpertsMethod, modelopt.ModelOptFp8MoEMethod):
    """Experts in FP8 with a scale per matrix."""

    def __init__(self, quant_config: Any, moe_config: Any) -> None:
        # Not the parent's: it looks for a kernel of vLLM's.
        FusedMoEMethodBase.__init__(self, moe_config)
        self.quant_config = quant_config


class ModelOptHammerheadMxFp8Experts(PlainExpertsMethod, modelopt.ModelOptMxFp8FusedMoE):
    """Experts in MXFP8."""

    def __init__(self, quant_config: Any, moe_config: Any) -> None:
        # Not the parent's: it looks for a kernel of vLLM's.
        FusedMoEMethodBase.__init__(self, moe_config)
        self.quant_config = quant_config


PLAIN_EXPERTS = {"FP8": ModelOptHammerheadFp8Experts, "MXFP8": ModelOptHammerheadMxFp8Experts}
"""Methods for experts that vLLM cannot compute on CPUs, by ModelOpt's names of algorithms."""


def _check_group(prefix: str, size: int) -> None:
    if size != GROUP:
        raise NotImplementedError(f"{prefix}: {size} weights share a scale, and in NVFP4 {GROUP} do")


def _experts(config: Any, layer: Any, prefix: str) -> Any:
    _check_group(prefix, config.group_size)
    moe = layer.moe_config
    return experts_method(
        prefix,
        moe,
        lambda: ModelOptHammerheadExperts(config, moe),
        lambda: modelopt.ModelOptNvFp4FusedMoE(quant_config=config, moe_config=moe),
    )


class HammerheadNvFp4Config(modelopt.ModelOptNvFp4Config):
    """vLLM's, with our experts."""

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.half, torch.float32]

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> Any:
        if isinstance(layer, RoutedExperts) and not self.is_layer_excluded(prefix):
            return _experts(self, layer, prefix)
        return super().get_quant_method(layer, prefix)


class HammerheadMixedPrecisionConfig(modelopt.ModelOptMixedPrecisionConfig):
    """vLLM's, with our methods where weights are NVFP4."""

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.half, torch.float32]

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> Any:
        known = isinstance(layer, (LinearBase, ParallelLMHead, RoutedExperts)) and self._has_nvfp4()
        algorithm = self._resolve_quant_algo(prefix) if known and not self.is_layer_excluded(prefix) else None
        if algorithm is None:
            return super().get_quant_method(layer, prefix)
        vllms = super().get_quant_method
        if isinstance(layer, RoutedExperts):
            self._check_alike(prefix)
            if algorithm in ALGORITHMS:
                return _experts(getattr(self, modelopt.LINEAR_ALGOS[algorithm][1]), layer, prefix)
            return self._other_experts(algorithm, layer, prefix)
        elif algorithm in modelopt.LINEAR_ALGOS and algorithm not in ALGORITHMS:
            config = getattr(self, modelopt.LINEAR_ALGOS[algorithm][1])
            return ModelOptHammerheadOtherLinearMethod(prefix, *modelopt.resolve(algorithm, config, prefix))
        elif algorithm not in modelopt.LINEAR_ALGOS and algorithm.lower() not in modelopt.B12X_BLOCK_CODECS:
            # vLLM would take the layer for one that is not quantised.
            raise NotImplementedError(f"{prefix}: neither vLLM nor hammerhead knows its quantisation, {algorithm}")
        return vllms(layer, prefix)

    def _has_nvfp4(self) -> bool:
        """Of checkpoints without NVFP4 everything is vLLM's."""
        return any(info["quant_algo"].upper() in ALGORITHMS for info in self.quantized_layers.values())

    def _other_experts(self, algorithm: str, layer: Any, prefix: str) -> Any:
        moe, method = layer.moe_config, PLAIN_EXPERTS.get(algorithm)
        config = getattr(self, modelopt.LINEAR_ALGOS[algorithm][1]) if method is not None else None
        theirs = super().get_quant_method
        plain = None if method is None else lambda: method(config, moe)
        return other_experts_method(prefix, algorithm, moe, plain, lambda: theirs(layer, prefix))

    def _check_alike(self, prefix: str) -> None:
        """Refuses experts that are quantised in several ways: vLLM goes by the first that it finds."""
        parents = tuple(f"{candidate}." for candidate in self._quantized_layer_prefix_candidates(prefix))
        found = {info["quant_algo"].upper() for key, info in self.quantized_layers.items() if key.startswith(parents)}
        if len(found) > 1:
            raise NotImplementedError(f"{prefix}: its experts are {' and '.join(sorted(found))}; one is expected")


def _linear(algorithm: str) -> Any:
    def build(config: Any, prefix: str) -> ModelOptHammerheadLinearMethod:
        return ModelOptHammerheadLinearMethod(prefix, *modelopt.resolve(algorithm, config, prefix))

    return build


def register() -> None:
    """Makes these vLLM's choice."""
    register_quantization_config("modelopt_fp4")(HammerheadNvFp4Config)
    register_quantization_config("modelopt_mixed")(HammerheadMixedPrecisionConfig)
    for algorithm in ALGORITHMS:
        modelopt.LINEAR_METHOD_BUILDERS[algorithm] = _linear(algorithm)
