"""Quantised checkpoints of small models, and the same with their weights expanded.

The quantiser is plain torch, written from the formats' definitions, and shares nothing with the package under test.
It works on the files that ``save_pretrained`` writes, whose names and shapes are those of the hub, and never on
modules: where a model fuses, splits, stacks or permutes what the files have, so must whoever loads them.
"""

import json
import re
import zlib
from dataclasses import dataclass, field

import torch
from safetensors.torch import load_file, save_file

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
MIDDLES = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5])

ROUTERS = re.compile(r"(^|\.)(gate|router|wg|classifier|router\.\w+|shared_expert_gate|gate\.wg)$")
HEADS = re.compile(r"(^|\.)(lm_head|embed_out|output_projection|embed_tokens|proj_out)(\.|$)")
OTHER_TOWERS = re.compile(r"vision|visual|audio|image|speech|encoder|qformer|perceiver|resampler|sam_|vit\b|multi_modal|projector|aligner|conformer|vqmodel")
STACKED = re.compile(r"^(?P<experts>.+\.experts)\.(?P<part>gate_up_proj|gate_proj|up_proj|down_proj)$")
ADDED = re.compile(r"A_log|dt_bias|dt_proj\.bias|\.D$|time_decay|running_mean|lambda_param|log_|alpha|freqs")


def randomise(model):
    """Gives every parameter and every stored buffer values of its own, with spreads that differ from one to the
    next.

    What starts as ones or zeros (norms, biases, corrections, gates) is moved away from there: what a loader drops
    must show. Sinusoidal positions stay, as no file has them.
    """
    made = {id(tensor) for module in model.modules() if "Sinus" in type(module).__name__ for tensor in module.parameters()}
    kinds = {id(module.weight): type(module).__name__ for module in model.modules() if isinstance(getattr(module, "weight", None), torch.nn.Parameter)}
    stored = set(model.state_dict())
    tensors = [*model.named_parameters(), *((name, buffer) for name, buffer in model.named_buffers() if name in stored)]
    with torch.no_grad():
        for number, (name, tensor) in enumerate(tensors):
            if not tensor.is_floating_point() or id(tensor) in made:
                continue
            seeded = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            noise = torch.randn(tensor.shape, generator=seeded)
            spread = 0.6 + 0.15 * (number % 7)
            if "running_var" in name:
                tensor.copy_(0.5 + noise.abs())
            elif tensor.dim() < 2 or not isinstance(tensor, torch.nn.Parameter) or ADDED.search(name):
                tensor.add_(noise, alpha=0.2)
            elif "Embedding" in kinds.get(id(tensor), ""):
                tensor.copy_(noise * spread * 0.5)
            else:
                fan_in = tensor.shape[-1] if tensor.dim() <= 3 and "Conv" not in kinds.get(id(tensor), "") else tensor[0].numel()
                tensor.copy_(noise * spread / fan_in**0.5)


def linear_rows(model):
    """The bytes of every row of every linear layer, of every matrix of stacked experts and of their transposes:
    whatever a file's tensor is called, and however it was cut or permuted, its rows tell that it belongs to one."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    rows = set()

    def add(matrix):
        rows.update(row.numpy().tobytes() for row in matrix.detach().contiguous())

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            if module is not head and id(module.weight) not in embeddings and not ROUTERS.search(name) and not HEADS.search(name):
                add(module.weight)
        elif name.endswith("experts"):
            for parameter in module.parameters(recurse=False):
                for matrix in parameter if parameter.dim() == 3 else ():
                    add(matrix)
    return rows


@dataclass
class Written:
    """A checkpoint while it is made: the quantised tensors, the expanded ones, and which weights were quantised."""

    tensors: dict = field(default_factory=dict)
    expanded: dict = field(default_factory=dict)
    quantised: list = field(default_factory=list)

    def keep(self, name, tensor):
        self.tensors[name] = self.expanded[name] = tensor


def nvfp4(weight, divides=False):
    """Codes, block scales, global scale and the expanded matrix of [..., N, K]. A global scale that divides is
    rounded by itself."""
    peak = weight.abs().amax()
    scale = (6 * 448) / peak if divides else peak / (6 * 448)
    scale = torch.where(torch.isfinite(scale) & (scale > 0), scale, torch.ones(())).float()
    whole = 1 / scale if divides else scale
    blocks = weight.unflatten(-1, (-1, 16))
    scales = (blocks.abs().amax(-1) / 6 / whole).clamp(2**-9, 448).to(torch.float8_e4m3fn)
    unit = scales.float().unsqueeze(-1) * whole
    codes = torch.bucketize((blocks / unit).abs(), MIDDLES) + 8 * (blocks < 0)
    values = E2M1[codes] * scales.float().unsqueeze(-1)
    expanded = (values / scale if divides else values * scale).flatten(-2)
    return packed(codes.flatten(-2)), scales, scale, expanded


def mxfp4(weight):
    """Blocks [..., N, K/32, 16], scales as exponents, and the expanded matrix."""
    blocks = weight.unflatten(-1, (-1, 32))
    exponent = torch.floor(torch.log2(blocks.abs().amax(-1).clamp(min=2**-20))).int() - 2
    unit = torch.exp2(exponent.float()).unsqueeze(-1)
    codes = torch.bucketize((blocks / unit).abs(), MIDDLES) + 8 * (blocks < 0)
    return packed(codes), (exponent + 127).to(torch.uint8), (E2M1[codes] * unit).flatten(-2)


def packed(codes):
    return (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)


def modelopt(written, stem, weight):
    codes, scales, scale, expanded = nvfp4(weight)
    own = {"weight": codes, "weight_scale": scales, "weight_scale_2": scale, "input_scale": torch.tensor(0.01)}
    written.tensors.update((f"{stem}.{part}", tensor) for part, tensor in own.items())
    written.expanded[f"{stem}.weight"] = expanded


def compressed(written, stem, weight):
    codes, scales, scale, expanded = nvfp4(weight, divides=True)
    own = {"weight_packed": codes, "weight_scale": scales, "weight_global_scale": scale.reshape(1), "input_global_scale": torch.tensor([100.0])}
    written.tensors.update((f"{stem}.{part}", tensor) for part, tensor in own.items())
    written.expanded[f"{stem}.weight"] = expanded


def modelopt_stack(written, name, weight, turned, _interleaved):
    """Experts in one tensor, as ModelOpt writes Llama 4's: codes and scales lie as the weight does."""
    codes, scales, scale, expanded = nvfp4(weight.mT.contiguous() if turned else weight)
    as_stored = (lambda tensor: tensor.mT.contiguous()) if turned else (lambda tensor: tensor)
    written.tensors[name] = as_stored(codes)
    # Float8 has no transpose of its own everywhere, so bytes are turned.
    written.tensors[f"{name}_weight_scale"] = as_stored(scales.view(torch.uint8)).view(torch.float8_e4m3fn)
    written.tensors[f"{name}_weight_scale_2"] = scale
    written.tensors[f"{name}_input_scale"] = torch.tensor(0.01)
    written.expanded[name] = as_stored(expanded)


def compressed_stack(written, name, weight, turned, interleaved):
    """Experts one by one, as llm-compressor writes those that a model keeps in one tensor."""
    experts, part = STACKED.match(name).group("experts", "part")
    expanded = []
    for number, matrix in enumerate(weight.mT if turned else weight):
        halves = {part: matrix.contiguous()}
        if part == "gate_up_proj":
            gate, up = (matrix[0::2], matrix[1::2]) if interleaved else matrix.chunk(2)
            halves = {"gate_proj": gate.contiguous(), "up_proj": up.contiguous()}
        one = Written()
        for half, rows in halves.items():
            compressed(one, f"{experts}.{number}.{half}", rows)
        written.tensors.update(one.tensors)
        values = list(one.expanded.values())
        if len(values) == 1:
            expanded += values
        else:
            expanded.append(torch.stack(values, 1).flatten(0, 1) if interleaved else torch.cat(values))
    whole = torch.stack(expanded)
    written.expanded[name] = whole.mT.contiguous() if turned else whole


def compressed_stack_bias(written, name, bias, interleaved):
    experts, part = STACKED.match(name.removesuffix("_bias")).group("experts", "part")
    for number, row in enumerate(bias):
        halves = {part: row}
        if part == "gate_up_proj":
            gate, up = (row[0::2], row[1::2]) if interleaved else row.chunk(2)
            halves = {"gate_proj": gate, "up_proj": up}
        written.tensors.update((f"{experts}.{number}.{half}.bias", rows.contiguous()) for half, rows in halves.items())
    written.expanded[name] = bias


LAYOUTS = {
    "modelopt": (modelopt, modelopt_stack),
    "compressed": (compressed, compressed_stack),
    "partial": (modelopt, modelopt_stack),
}


def in_part(names):
    """What a partly quantised checkpoint has quantised of what could be: the text model or the decoder, or in a
    model of one tower every other layer."""
    text = {name for name in names if OTHER_TOWERS.search(name) is None}
    if 0 < len(text) < len(names):
        return text
    numbers = {name: re.search(r"\.(\d+)\.", name) for name in names}
    return {name for name, number in numbers.items() if number is not None and int(number[1]) % 2 == 1}


def is_turned(name, tensor, files, model):
    """Whether a stack of experts is stored [E, K, N]: gate_up and down have the model's width in common. Where all
    sides are, the module says."""
    experts, part = STACKED.match(name).group("experts", "part")
    other = files.get(f"{experts}.{'down_proj' if part != 'down_proj' else 'gate_up_proj'}")
    common = set(tensor.shape[1:]) & set(other.shape[1:]) if other is not None else set()
    if len(common) == 1:
        return (tensor.shape[1] in common) == (part != "down_proj")
    module = next((m for n, m in model.named_modules() if n.endswith(".experts") and hasattr(m, "is_transposed")), None)
    return bool(module is not None and module.is_transposed)


def quantise(files, model, layout, chosen=None):
    """A checkpoint in one of the layouts, of the tensors of a plain one. ``chosen`` decides by name what to
    quantise."""
    dense, stack = LAYOUTS[layout]
    rows, written = linear_rows(model), Written()
    interleaved = any(getattr(module, "is_concatenated", True) is False for module in model.modules())

    def can_be(name, tensor):
        stem = name.removesuffix(".weight")
        if stem != name and tensor.dim() == 2 and not HEADS.search(stem) and not ROUTERS.search(stem):
            return tensor.shape[1] % 16 == 0 and tensor[0].contiguous().numpy().tobytes() in rows
        return STACKED.match(name) and tensor.dim() == 3 and all(side % 16 == 0 for side in tensor.shape[1:])

    names = {name for name, tensor in files.items() if can_be(name, tensor)}
    if chosen is not None:
        names = set(filter(chosen, names))
    elif layout == "partial":
        names = in_part(names)
    for name, tensor in files.items():
        if name in names and tensor.dim() == 2:
            dense(written, name.removesuffix(".weight"), tensor)
            written.quantised.append(name.removesuffix(".weight"))
        elif name in names:
            stack(written, name, tensor, is_turned(name, tensor, files, model), interleaved)
            written.quantised.append(name)
        elif layout == "compressed" and name.removesuffix("_bias") in names:
            compressed_stack_bias(written, name, tensor, interleaved)
        else:
            written.keep(name, tensor)
    return written


def quantization_config(written, layout):
    """What config.json says, as real exports do."""
    stems = {name.removesuffix(".weight") for name, tensor in written.expanded.items() if name.endswith(".weight") and tensor.dim() == 2}
    ignore = sorted(stems - set(written.quantised))
    weights = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}
    if layout == "compressed":
        weights |= {"scale_dtype": "torch.float8_e4m3fn", "strategy": "tensor_group", "symmetric": True}
        group = {"format": "nvfp4-pack-quantized", "input_activations": weights | {"dynamic": "local"}, "output_activations": None}
        groups = {"group_0": group | {"targets": ["Linear"], "weights": weights}}
        kept = {"format": "nvfp4-pack-quantized", "kv_cache_scheme": None, "quant_method": "compressed-tensors", "quantization_status": "compressed"}
        return {"config_groups": groups, "ignore": ignore, **kept, "version": "0.20.0"}
    groups = {"group_0": {"input_activations": weights, "weights": weights, "targets": ["Linear"]}}
    producer = {"name": "modelopt", "version": "0.47.0"}
    return {"config_groups": groups, "ignore": ignore, "quant_algo": "NVFP4", "producer": producer, "quant_method": "modelopt"}


def read(folder):
    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def write(folder, tensors, config, others):
    """A folder with one file of tensors, a configuration, and other files given as {name: text}."""
    folder.mkdir(parents=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors", {"format": "pt"})
    for name, text in {**others, "config.json": json.dumps(config)}.items():
        (folder / name).write_text(text)
