import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.layer = nn.Linear(size, size)

    def forward(self, x):
        return torch.addmm(self.layer.bias, x, self.layer.weight.t()).clamp_(min=0).mul_(x)
