import torch.nn as nn


class ModelNew(nn.Module):
    """Forgets the gate."""

    def __init__(self, size):
        super().__init__()
        self.layer = nn.Linear(size, size)

    def forward(self, x):
        return self.layer(x).relu()
