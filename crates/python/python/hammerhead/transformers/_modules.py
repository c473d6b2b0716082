"""Modules in place of a model's own. They have no parameters: their weights are packed, and do not change."""

from __future__ import annotations

from typing import Any

import torch

from hammerhead import Experts, Linear, Mlp


class _Packed(torch.nn.Module):
    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def extra_repr(self) -> str:
        return repr(self.layer)


class NvFp4Linear(_Packed):
    """A linear layer."""

    layer: Linear

    def __init__(self, layer: Linear) -> None:
        super().__init__(layer)
        self.in_features, self.out_features = layer.in_features, layer.out_features

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


class NvFp4Mlp(_Packed):
    """A gated MLP, in place of one with gate_proj, up_proj and down_proj."""

    layer: Mlp

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


class NvFp4Experts(_Packed):
    """The experts of a layer, without their router and without one that sees every token."""

    layer: Experts

    def __init__(self, layer: Experts) -> None:
        super().__init__(layer)
        self.num_experts = layer.num_experts

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        return self.layer(hidden_states, top_k_index, top_k_weights.to(torch.float32))
