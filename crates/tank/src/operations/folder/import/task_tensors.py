"""Data of a community task as tensors by name, and back: tensors, numbers, and tuples, lists and dictionaries of them.

A leaf is called by its way from the top: `in` if it is all there is, else `in.0`, `in.1.2`, the number of the part at each step. Numbers are tensors of one element,
types that the tank has no name for are their bytes. What data is made of beside tensors and numbers (words, keys, strides) both sides know from a *pattern*: what
the task's own generator makes for the same sizes.
"""

import contextlib
import importlib.util
import inspect
import json
import pathlib
import sys

import torch

import tank

ELEMENTS = {
    torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16",
    torch.int64: "i64", torch.int32: "i32", torch.uint8: "u8",
}
TYPES = {name: kind for kind, name in ELEMENTS.items()}
NUMBERS = {bool: torch.int64, int: torch.int64, float: torch.float64}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    torch.cuda.synchronize = lambda *_, **__: None


HERE = pathlib.Path(__file__).parent


def module(name, path=None, change=str):
    """A file of the task. Where there is no GPU, what it wants on one it gets on the processor."""
    # What a submission brings in a folder of its own comes first for it. The task's folder comes last, since everyone's files may lie there.
    if path and str(pathlib.Path(path).parent) not in sys.path:
        sys.path.insert(0, str(pathlib.Path(path).parent))
    path = pathlib.Path(path or HERE / f"{name}.py")
    text = change(path.read_text())
    if DEVICE == "cpu":
        for quote in "\"'":
            text = text.replace(f"{quote}cuda{quote}", f"{quote}cpu{quote}").replace(f"{quote}cuda:0{quote}", f"{quote}cpu{quote}")
        text = text.replace(".cuda()", "")
    found = importlib.util.module_from_spec(importlib.util.spec_from_file_location(name, path))
    sys.modules[name] = found
    # What it prints is not for the referee.
    with contextlib.redirect_stdout(sys.stderr):
        exec(compile(text, str(path), "exec"), found.__dict__)
    return found


def first_problem():
    """The sizes that the operation's description lists first."""
    import tomllib

    about = tomllib.loads((HERE / "operation.toml").read_text())
    return (about.get("edge") or about["problem"])[0]["sizes"]


def size(numbers):
    """What numbers are like: the root of their mean square, of those that are numbers."""
    known = numbers[numbers.isfinite()]
    return float(known.double().square().mean().sqrt()) if known.numel() else 0.0


def parts(data):
    """The parts of what has some, or nothing."""
    if isinstance(data, dict):
        return list(data.values())
    return list(data) if isinstance(data, (tuple, list)) else None


def leaves(way, data):
    """Every leaf with its name."""
    inner = parts(data)
    if inner is not None:
        for index, part in enumerate(inner):
            yield from leaves(f"{way}.{index}", part)
    elif isinstance(data, torch.Tensor):
        leaf = data.detach().contiguous()
        yield way, leaf if leaf.dtype in ELEMENTS else leaf.reshape(-1).view(torch.uint8)
    elif type(data) in NUMBERS:
        yield way, torch.tensor([data], dtype=NUMBERS[type(data)])


class Like:
    """A tensor without its numbers."""

    def __init__(self, tensor):
        self.dtype, self.shape, self.device = tensor.dtype, tuple(tensor.shape), tensor.device
        self.stride = tensor.stride() if tensor.layout == torch.strided else None

    def holding(self, view):
        """Such a tensor with these numbers, in the same order of memory."""
        flat = torch.frombuffer(bytearray(view.cast("B")), dtype=torch.uint8) if view.nbytes else torch.empty(0, dtype=torch.uint8)
        tensor = flat.view(self.dtype).reshape(self.shape).to(self.device)
        if self.stride in (None, tensor.stride()) or 0 in self.stride:
            return tensor
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device).copy_(tensor)


def pattern(data):
    """Data without its numbers."""
    if isinstance(data, dict):
        return {key: pattern(part) for key, part in data.items()}
    if isinstance(data, (tuple, list)):
        # A tuple with names is made of its parts one by one.
        made = [pattern(part) for part in data]
        return type(data)(*made) if hasattr(data, "_fields") else type(data)(made)
    return Like(data) if isinstance(data, torch.Tensor) else data


def bytes_of(leaf):
    return leaf.cpu().reshape(-1).view(torch.uint8) if leaf.numel() else torch.empty(0, dtype=torch.uint8)


def filled(like, found, made):
    """A pattern with what was found for each of its leaves, in their order."""
    if isinstance(like, dict):
        return {key: filled(part, found, made) for key, part in like.items()}
    if isinstance(like, (tuple, list)):
        inner = [filled(part, found, made) for part in like]
        return type(like)(*inner) if hasattr(like, "_fields") else type(like)(inner)
    if isinstance(like, Like):
        return made(like, next(found))
    if type(like) in NUMBERS:
        number = next(found)
        return type(like)(number.item() if isinstance(number, torch.Tensor) else number[0])
    return like


def named(told):
    """What a problem is told by. TOML has no word for nothing: `{}` stands for it."""
    if isinstance(told, dict):
        return {name: named(part) if part != {} else None for name, part in told.items()}
    return [named(part) if part != {} else None for part in told] if isinstance(told, list) else told


class Patterns:
    """The patterns of a task, made once for each problem."""

    def __init__(self, reference):
        self.reference, self.known = reference, {}
        self.seeded = "seed" in inspect.signature(reference.generate_input).parameters

    def generate(self, problem, seed):
        """Data by the task's own generator. Where it takes no seed, that of torch is set."""
        torch.manual_seed(seed)
        return self.reference.generate_input(**named(problem), **({"seed": seed} if self.seeded else {}))

    def of(self, problem):
        """What is given."""
        return self.remembered("in", problem, lambda data: data)

    def outputs(self, problem):
        """What comes out of it."""
        return self.remembered("out", problem, self.reference.ref_kernel)

    def remembered(self, way, problem, made):
        key = way + json.dumps(problem, sort_keys=True)
        if key not in self.known:
            self.known[key] = pattern(made(self.generate(problem, 1)))
        return self.known[key]


def described(way, like, role):
    def specs(way, like):
        inner = parts(like)
        if inner is not None:
            for index, part in enumerate(inner):
                yield from specs(f"{way}.{index}", part)
        elif isinstance(like, Like):
            plain = like.dtype in ELEMENTS
            bytes_in_all = torch.Size(like.shape).numel() * like.dtype.itemsize
            yield way, ELEMENTS[like.dtype] if plain else "u8", list(like.shape) if plain else [bytes_in_all]
        elif type(like) in NUMBERS:
            yield way, ELEMENTS[NUMBERS[type(like)]], [1]

    return [{"name": name, "role": role, "type": kind, "shape": shape} for name, kind, shape in specs(way, like)]


def write(way, data, places):
    """Writes every leaf to its place."""
    found = dict(leaves(way, data))
    if set(found) != set(places):
        raise ValueError(f"{sorted(found)} were computed, and {sorted(places)} are expected")
    for name, leaf in found.items():
        view, (element, shape) = places[name], tank.DESCRIBED[name]
        if list(leaf.shape) == shape and element in TYPES:
            # Checks of tasks compare numbers, and not what they are stored in.
            leaf = leaf.to(TYPES[element])
        if leaf.numel() * leaf.element_size() != view.nbytes:
            raise ValueError(f"{name} has the shape {tuple(leaf.shape)}, which is another than was asked for")
        view.cast("B")[:] = memoryview(bytes_of(leaf).numpy())


def read(way, like, places):
    """What was written, as the pattern has it."""
    names = [spec["name"] for spec in described(way, like, "")]
    return filled(like, iter([places[name] for name in names]), lambda like, view: like.holding(view))
