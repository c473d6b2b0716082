import torch


def generate_input(size, seed):
    made = torch.Generator().manual_seed(seed)
    return torch.rand(size, generator=made), torch.rand(size, generator=made)


def ref_kernel(data):
    return data[0] + data[1]


def check_implementation(data, output):
    expected = ref_kernel(data)
    return "" if torch.allclose(output, expected, atol=1e-6, rtol=1e-6) else "it differs"
