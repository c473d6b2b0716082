"""A definition with workloads (definition.json, workload.jsonl, as FlashInfer-Bench and SOL-ExecBench write them) as a task: numbers for a workload, the
reference, and a comparison. `hammerhead tank import` wrote this file; the definition and its workloads are as they were."""

import ast
import json
import operator
import pathlib

import torch

import task_tensors

HERE = pathlib.Path(__file__).parent
DEFINITION = json.loads((HERE / "definition.json").read_text())
LINES = [json.loads(line) for line in (HERE / "workload.jsonl").read_text().splitlines() if line.strip()]
WORKLOADS = [line.get("workload") or line for line in LINES]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# As loose as anybody's may be: an element is right within one of the two.
ATOL = RTOL = 1e-2
INTEGERS = {torch.int8: 128, torch.int16: 1024, torch.int32: 1024, torch.int64: 1024, torch.uint8: 256}
OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.Pow: operator.pow, ast.USub: operator.neg, ast.UAdd: operator.pos,
}
CODE, IN_DOUBLE = {"__name__": "definition"}, {}
exec(compile(DEFINITION["reference"], "definition.json", "exec"), CODE)


def value(node, axes):
    """What an expression over axes comes to."""
    if isinstance(node, ast.Name):
        return axes[node.id]
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.UnaryOp):
        return OPERATORS[type(node.op)](value(node.operand, axes))
    if isinstance(node, ast.BinOp):
        return OPERATORS[type(node.op)](value(node.left, axes), value(node.right, axes))
    raise ValueError(f"{ast.dump(node)} is not understood in an expression over axes")


def axes_of(workload):
    axes = {name: axis["value"] for name, axis in DEFINITION["axes"].items() if axis["type"] == "const"}
    axes.update(workload["axes"])
    for name, axis in DEFINITION["axes"].items():
        if axis["type"] == "expr":
            axes[name] = int(value(ast.parse(axis["expression"], mode="eval").body, axes))
    return axes


def kind_of(spec):
    return getattr(torch, spec["dtype"].removeprefix("torch."))


def shape_of(spec, axes):
    return [int(size) if str(size).isdigit() else axes[size] for size in spec["shape"]]


def drawn(shape, kind, like=None):
    """New numbers: of the same mean and spread as others, where there are such."""
    if kind is torch.bool:
        return torch.randint(0, 2, shape, dtype=torch.bool, device=DEVICE)
    if kind in INTEGERS:
        most = INTEGERS[kind]
        return torch.randint(0 if kind is torch.uint8 else -most, most, shape, dtype=kind, device=DEVICE)
    numbers = torch.randn(shape, device=DEVICE)
    if like is not None and like.numel() > 1:
        numbers = numbers * like.float().std().to(DEVICE) + like.float().mean().to(DEVICE)
    return numbers.to(kind) if kind.itemsize > 1 else numbers.clamp(-2.0, 2.0).to(kind)


def stored(asked):
    """A tensor of a file beside this one, and of no other place."""
    from safetensors.torch import load_file

    path = (HERE / asked["path"]).resolve()
    if not path.is_relative_to(HERE.resolve()):
        raise ValueError(f"{asked['path']} does not lie in the problem's folder: copy it there, and name it from there")
    return load_file(str(path))[asked["tensor_key"]]


def generate_input(workload, seed, **_):
    torch.manual_seed(seed)
    chosen = WORKLOADS[workload]
    axes, data = axes_of(chosen), {}
    scalars = {name: asked["value"] for name, asked in chosen["inputs"].items() if asked["type"] == "scalar"}
    custom = any(asked["type"] == "custom" for asked in chosen["inputs"].values())
    made = CODE[DEFINITION["custom_inputs_entrypoint"]]({**axes, **scalars}, DEVICE) if custom else {}
    for name, spec in DEFINITION["inputs"].items():
        asked = chosen["inputs"].get(name, {"type": "random"})
        if name in made:
            data[name] = made[name]
        elif asked["type"] == "scalar":
            data[name] = asked["value"]
        elif asked["type"] == "custom":
            raise ValueError(f"{DEFINITION['custom_inputs_entrypoint']} makes no {name}, which is one of its inputs")
        elif spec["shape"] is None:
            data[name] = axes[name] if name in axes else drawn([], kind_of(spec)).item()
        elif asked["type"] == "safetensors":
            # Whole numbers say how data are laid out, and stay; all others are new in every run, or a result could be remembered.
            found = stored(asked)
            whole = not found.dtype.is_floating_point
            data[name] = found.to(DEVICE) if whole else drawn(list(found.shape), kind_of(spec), found)
        else:
            data[name] = drawn(shape_of(spec, axes), kind_of(spec))
    return data


def results(found):
    """What comes out as a tuple, in the order of the definition's outputs."""
    names = list(DEFINITION["outputs"])
    if isinstance(found, dict):
        return tuple(found[name] for name in names)
    found = tuple(found) if isinstance(found, (tuple, list)) else (found,)
    if len(found) != len(names):
        raise ValueError(f"{len(found)} results came, and {names} are expected")
    return tuple(
        part if isinstance(part, torch.Tensor) else torch.tensor(part, dtype=kind_of(DEFINITION["outputs"][name]), device=DEVICE)
        for name, part in zip(names, found)
    )


def on_its_data(data):
    with torch.no_grad():
        return results(CODE["run"](*data.values()))


def in_double(data, change):
    """The reference in double precision, as far as a change of its source lets it."""
    if change not in IN_DOUBLE:
        IN_DOUBLE[change] = {"__name__": "definition"}
        exec(compile(change(DEFINITION["reference"]), "definition.json", "exec"), IN_DOUBLE[change])
    return results(IN_DOUBLE[change]["run"](*data.values()))


def ref_kernel(data):
    # Some references write to their inputs: they get copies.
    return on_its_data({name: part.clone() if isinstance(part, torch.Tensor) else part for name, part in data.items()})


def empty_outputs(data):
    """Tensors that a solution writes its results to."""
    bound = {}
    for name, spec in DEFINITION["inputs"].items():
        if isinstance(data[name], torch.Tensor) and spec["shape"] is not None:
            bound.update((axis, size) for axis, size in zip(spec["shape"], data[name].shape) if not str(axis).isdigit())
    known = map(axes_of, WORKLOADS)
    axes = next((axes for axes in known if all(axes[name] == size for name, size in bound.items())), bound)
    return [torch.empty(shape_of(spec, axes), dtype=kind_of(spec), device=DEVICE) for spec in DEFINITION["outputs"].values()]


def tolerances(workload):
    """Theirs where they are stricter, and never looser than everybody's."""
    named = workload.get("tolerance") or {}
    told = [named.get(f"max_{name}", named.get(name)) for name in ("atol", "rtol")]
    return [most if mine is None else min(float(mine), most) for mine, most in zip(told, (ATOL, RTOL))]


def differs(name, found, expected, atol, rtol, cap):
    """What is wrong with a result, if anything is. No number is right only where the reference has none either, and no
    error is larger than the cap."""
    if tuple(found.shape) != tuple(expected.shape):
        return f"{name} has the shape {tuple(found.shape)}, not {tuple(expected.shape)}"
    if not expected.dtype.is_floating_point:
        return None if torch.equal(found, expected) else f"{name} differs"
    least = 1e-2 if expected.element_size() < 4 else 1e-4
    found, expected = found.double(), expected.double()
    # What is added for numbers near zero is no more than a part of what numbers here are like: else zeros would be right
    # where all are small.
    atol = min(atol, max(rtol, least) * task_tensors.size(expected))
    same = (found == expected) | (found.isnan() & expected.isnan())
    error = (found - expected).abs()
    wrong = ~same & ~(error <= torch.clamp(rtol * expected.abs(), min=atol).clamp(max=cap))
    if not wrong.any():
        return None
    at = int(wrong.reshape(-1).nonzero()[0])
    return f"{name}: {int(wrong.sum())} of {wrong.numel()} elements are wrong; element {at} is {found.reshape(-1)[at]}, not {expected.reshape(-1)[at]}"


def check_implementation(data, found):
    # Which workload it was is not told; all of a definition are held to the strictest.
    pairs = [tolerances(workload) for workload in WORKLOADS]
    atol, rtol = min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)
    caps = [(workload.get("tolerance") or {}).get("max_error_cap") for workload in WORKLOADS]
    cap = min((float(cap) for cap in caps if cap is not None), default=float("inf"))
    for name, one, expected in zip(DEFINITION["outputs"], results(found), ref_kernel(data)):
        wrong = differs(name, one.to(expected.device), expected, atol, rtol, cap)
        if wrong:
            return False, wrong
    return True, ""
