"""A module (`Model`, `get_inputs`, `get_init_inputs`, as KernelBench writes them) as a task: inputs, the reference, and a comparison. `hammerhead tank import`
wrote this file; the module is as it was, and lies beside it as problem.py."""

import copy

import torch

import task_tensors

problem = task_tensors.module("problem")
DEVICE = task_tensors.DEVICE
# What both sides make their weights from: a `ModelNew` whose parameters are those of `Model`, in their order, has the same ones.
SEED = 42
# By what a result is stored in, as KernelBench has them.
TOLERANCES = {torch.float16: 1e-2, torch.bfloat16: 1e-2, torch.float32: 1e-4, torch.float64: 1e-4}
MADE = {}


def on_device(data):
    return [part.to(DEVICE) if isinstance(part, torch.Tensor) else part for part in data]


def built(kind):
    """A model with its weights, made once."""
    if kind not in MADE:
        torch.manual_seed(SEED)
        given = problem.get_init_inputs()
        model = kind(**given) if isinstance(given, dict) else kind(*on_device(given))
        MADE[kind] = model.to(DEVICE) if isinstance(model, torch.nn.Module) else model
    return MADE[kind]


def computed(kind, data):
    with torch.no_grad():
        return built(kind)(*data)


def generate_input(seed, **_):
    torch.manual_seed(seed)
    return tuple(on_device(problem.get_inputs()))


def on_its_data(data):
    return computed(problem.Model, data)


def in_double(data, _change):
    """The same model, its weights and its data in double precision, whatever is asked of its source."""
    if "double" not in MADE:
        MADE["double"] = copy.deepcopy(built(problem.Model)).double()
    return MADE["double"](*data)


def ref_kernel(data):
    # Whatever writes to its inputs writes to copies.
    return on_its_data([part.clone() if isinstance(part, torch.Tensor) else part for part in data])


def check_implementation(data, found):
    pairs = list(zip(dict(task_tensors.leaves("out", found)).items(), dict(task_tensors.leaves("out", ref_kernel(data))).values()))
    for (name, one), expected in pairs:
        if tuple(one.shape) != tuple(expected.shape):
            return False, f"{name} has the shape {tuple(one.shape)}, not {tuple(expected.shape)}"
        most = TOLERANCES.get(expected.dtype, 0.0)
        one, expected = one.to(expected.device).double(), expected.double()
        near_zero = most * min(1.0, task_tensors.size(expected))
        right = (one == expected) | (one.isnan() & expected.isnan()) | ((one - expected).abs() <= near_zero + most * expected.abs())
        if not right.all():
            at = int((~right).reshape(-1).nonzero()[0])
            return False, f"{name}: element {at} is {one.reshape(-1)[at]}, not {expected.reshape(-1)[at]}"
    return True, ""
