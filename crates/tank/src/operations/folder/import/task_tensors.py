"""Data of a community task as tensors by name, and back: tensors, numbers, and tuples or lists of them.

A leaf is called by its way from the top: `in` if it is all there is, else `in.0`, `in.1.2`. Whole and real numbers are tensors of one element whose names end
in `int`, `bool` or `float`.
"""

import importlib.util
import pathlib
import sys

import torch

import tank

ELEMENTS = {
    torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16",
    torch.int64: "i64", torch.int32: "i32", torch.uint8: "u8",
}
TYPES = {name: kind for kind, name in ELEMENTS.items()}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def module(name, path=None):
    """A file of the task. Where there is no GPU, what it wants on one it gets on the processor."""
    path = pathlib.Path(path or pathlib.Path(__file__).parent / f"{name}.py")
    sys.path.insert(0, str(path.parent))
    text = path.read_text()
    if DEVICE == "cpu":
        text = text.replace('"cuda"', '"cpu"').replace("'cuda'", "'cpu'").replace(".cuda()", "")
    found = importlib.util.module_from_spec(importlib.util.spec_from_file_location(name, path))
    sys.modules[name] = found
    exec(compile(text, str(path), "exec"), found.__dict__)
    return found


def leaves(way, data):
    """Every leaf with its name."""
    if isinstance(data, (tuple, list)):
        for index, part in enumerate(data):
            yield from leaves(f"{way}.{index}", part)
    elif isinstance(data, torch.Tensor):
        if data.dtype not in ELEMENTS:
            sys.exit(f"{way} is of type {data.dtype}, which the tank has no name for")
        yield way, data.detach().contiguous()
    elif isinstance(data, bool):
        yield way + ".bool", torch.tensor([int(data)])
    elif isinstance(data, int):
        yield way + ".int", torch.tensor([data])
    elif isinstance(data, float):
        yield way + ".float", torch.tensor([data], dtype=torch.float64)
    elif data is not None:
        sys.exit(f"{way} is a {type(data).__name__}: only tensors, numbers and tuples of them can be given to contestants")


def copied(data):
    """The same again, for whoever writes to what it is given."""
    if isinstance(data, (tuple, list)):
        return type(data)(copied(part) for part in data)
    return data.clone() if isinstance(data, torch.Tensor) else data


def described(way, data, role):
    return [
        {"name": name, "role": role, "type": ELEMENTS[leaf.dtype], "shape": list(leaf.shape)} for name, leaf in leaves(way, data)
    ]


def write(way, data, places):
    """Writes every leaf to its place."""
    found = dict(leaves(way, data))
    if set(found) != set(places):
        raise ValueError(f"{sorted(found)} were computed, and {sorted(places)} are expected")
    for name, leaf in found.items():
        view = places[name]
        bytes_of = leaf.cpu().reshape(-1).view(torch.uint8) if leaf.numel() else leaf.cpu()
        if leaf.numel() * leaf.element_size() != view.nbytes:
            raise ValueError(f"{name} has the shape {tuple(leaf.shape)}, which is another than was asked for")
        view.cast("B")[:] = memoryview(bytes_of.numpy())


def read(way, places):
    """What was written, as it was: tuples of tensors on the device."""
    whole = {}
    for name, view in places.items():
        element, shape = tank.DESCRIBED[name]
        kind = TYPES[element]
        leaf = torch.frombuffer(bytearray(view.cast("B")), dtype=kind).reshape(shape) if view.nbytes else torch.empty(shape, dtype=kind)
        *path, last = name.split(".")[1:] or [""]
        if last in ("int", "bool", "float"):
            value = {"int": int, "bool": bool, "float": float}[last](leaf.item())
        else:
            path, value = path + ([last] if last else []), leaf.to(DEVICE)
        place = whole
        for step in path[:-1]:
            place = place.setdefault(int(step), {})
        if not path:
            return value
        place[int(path[-1])] = value

    def tupled(part):
        return tuple(tupled(part[index]) for index in sorted(part)) if isinstance(part, dict) else part

    return tupled(whole)
