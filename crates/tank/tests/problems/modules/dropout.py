import torch
import torch.nn as nn


class Model(nn.Module):
    """In training, as a module is that nobody has told otherwise."""

    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        return self.dropout(x)


def get_inputs():
    return [torch.rand(5, 24)]


def get_init_inputs():
    return []
