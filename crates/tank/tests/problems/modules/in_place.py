import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x.mul_(2.0)


def get_inputs():
    return [torch.rand(4, 8)]


def get_init_inputs():
    return []
