"""Inputs for a model of any kind, found by trying: from the fields of its configuration, the signature of its
forward, and what it says when they do not fit.

No processor is at hand, so images and sounds are noise in the shapes that processors give them. How many tokens
stand for an image the model says itself: it counts them, and names both numbers when they differ. An input is kept
only if the logits depend on it.
"""

import inspect
import re

import configs
import torch

LENGTH = 12
FEATURES = re.compile(r"features:?\s*\(?(\d+)")


def noise(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(11))


def words(*shape):
    return torch.randint(configs.WORDS.start, configs.WORDS.stop, shape, generator=torch.Generator().manual_seed(7))


def field(config, *names, default=None):
    """The first of these fields that a configuration, or a part of it, has."""
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, (list, tuple)) and value:
            value = value[0]
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return value
    return default


def part(config, *names):
    return next((getattr(config, name) for name in names if getattr(config, name, None) is not None), config)


def images(config, accepts):
    """Shapes that processors give to images."""
    vision = part(config, "vision_config", "visual", "image_config", "encoder")
    side = int(field(vision, "image_size", default=32))
    patch = int(field(vision, "patch_size", default=8))
    channels = int(field(vision, "num_channels", "in_channels", "in_chans", default=3))
    merge = int(field(vision, "spatial_merge_size", "merge_size", default=2))
    frames = int(field(vision, "temporal_patch_size", "patch_temporal", default=1))
    mask = {"pixel_attention_mask": torch.ones(1, 1, side, side, dtype=torch.long)} if "pixel_attention_mask" in accepts else {}
    size = {"image_sizes": torch.tensor([[side, side]])} if "image_sizes" in accepts else {}
    grid = torch.tensor([[1, 2 * merge, 2 * merge]])
    count = int(grid.prod())
    if "image_grid_thw" in accepts:
        yield {"pixel_values": noise(count, channels * frames * patch * patch), "image_grid_thw": grid}
        yield {"pixel_values": noise(count, channels, patch, patch), "image_grid_thw": grid}
        yield {"pixel_values": noise(count, channels * patch * patch), "image_grid_thw": grid}
    if "grid_thws" in accepts:
        yield {"pixel_values": noise(count, channels, patch, patch), "grid_thws": grid}
    if "image_position_ids" in accepts:
        at = torch.cartesian_prod(torch.arange(6), torch.arange(6)).unsqueeze(0)
        yield {"pixel_values": noise(1, 36, channels * patch * patch), "image_position_ids": at}
    if "spatial_shapes" in accepts:
        shapes = {"spatial_shapes": torch.tensor([[4, 4]]), "pixel_attention_mask": torch.ones(1, 16, dtype=torch.long)}
        yield {"pixel_values": noise(1, 16, channels * patch * patch), **shapes}
    if "aspect_ratio_ids" in accepts:
        tiles = int(field(vision, "max_num_tiles", default=1))
        asked = {"aspect_ratio_ids": torch.ones(1, 1, dtype=torch.long), "aspect_ratio_mask": torch.ones(1, 1, tiles, dtype=torch.long)}
        seen = torch.ones(1, 2 * (LENGTH // 2), 1, tiles, dtype=torch.long)
        yield {"pixel_values": noise(1, 1, tiles, channels, side, side), **asked, "cross_attention_mask": seen}
    if "flattened_patches" in accepts:
        rows = torch.arange(1.0, 5).repeat(2)
        at = torch.stack([rows, rows.flip(0)], -1).unsqueeze(0)
        wide = int(field(vision, "patch_embed_hidden_size", default=768))
        yield {"flattened_patches": torch.cat([at, noise(1, 8, wide)], -1), "attention_mask": torch.ones(1, 8)}
    for shape in ((1, channels, side, side), (1, 1, channels, side, side), (1, 2, channels, side, side), (1, 4, channels, side, side)):
        yield {"pixel_values": noise(*shape), **size, **mask}
        if size or mask:
            yield {"pixel_values": noise(*shape)}


def sounds(config, accepts):
    """Shapes that processors give to sounds: mel bins by frames, the other way round, and waves."""
    audio = part(config, "audio_config", "encoder_config", "audio_encoder_config")
    bins = int(field(audio, "num_mel_bins", "input_feat_size", "input_size", "feature_size", "input_dim", "mel_bins", default=128))
    bins *= int(field(audio, "num_stacked_frames", default=1))
    name = next((one for one in ("input_features", "audio_values", "input_values", "input_audio_embeds") if one in accepts), None)
    if name is None:
        return
    for frames in (2 * int(field(audio, "max_source_positions", default=64)), 64, 256):
        masks = ("input_features_mask", "feature_attention_mask", "audio_attention_mask", "audio_embed_mask")
        mask = {one: torch.ones(1, frames, dtype=torch.bool) for one in masks if one in accepts}
        sizes = {"audio_embed_sizes": torch.tensor([frames // 8])} if "audio_embed_sizes" in accepts else {}
        for shape in ((1, bins, frames), (1, frames, bins)):
            yield {name: noise(*shape), **mask, **sizes}
            if mask:
                yield {name: noise(*shape), **{one: value.long() for one, value in mask.items()}, **sizes}
                yield {name: noise(*shape), **sizes}
    for shape in ((1, 1, 4096), (1, 3840)):
        yield {name: noise(*shape)}


MODALITIES = {
    "image": (images, ("pixel_values", "flattened_patches"), ("image_token_id", "image_token_index", "media_placeholder_token_id", "image_patch_id", "video_token_index")),
    "audio": (sounds, ("input_features", "audio_values", "input_values", "input_audio_embeds"), ("audio_token_id", "audio_token_index")),
}

# What single models ask for besides, from their inputs so far.
BESIDES = {
    "instructblip": lambda ids: {"qformer_input_ids": words(1, 4)},
    "instructblipvideo": lambda ids: {"qformer_input_ids": words(1, 4)},
    "udop": lambda ids: {"bbox": torch.arange(ids.shape[1]).reshape(1, -1, 1) * torch.tensor([0.01, 0.01, 0.02, 0.02]) + 0.1},
    "kosmos-2": lambda ids: {"image_embeds_position_mask": (torch.arange(ids.shape[1]) % 7 < 4).where(torch.arange(ids.shape[1]) < 7, False).reshape(1, -1)},
    "kyutai_speech_to_text": lambda ids: {"input_ids": words(1, LENGTH, 3)},
    "musicgen_decoder": lambda ids: {"input_ids": words(4, LENGTH)},
    "musicgen_melody_decoder": lambda ids: {"input_ids": words(4, LENGTH)},
    "idefics": lambda ids: {"image_attention_mask": torch.ones(1, ids.shape[1], 1, dtype=torch.long)},
}


def sequence(model, pieces, extra):
    """All inputs: words around the placeholders of ``pieces``, and what else there is."""
    half = LENGTH // 2
    ids = torch.cat([words(1, half), *(torch.full((1, count), token) for token, count in pieces), words(1, 2 * half)[:, half:]], 1)
    given = {"input_ids": ids, **extra, **BESIDES.get(model.config.model_type, lambda ids: {})(ids)}
    accepts = inspect.signature(model.forward).parameters
    if pieces and "mm_token_type_ids" in accepts:
        given["mm_token_type_ids"] = torch.isin(ids, torch.tensor([token for token, _ in pieces])).long()
    if pieces and "token_type_ids" in accepts:
        given["token_type_ids"] = torch.isin(ids, torch.tensor([token for token, _ in pieces])).long()
    if "flattened_patches" in given:
        given = {"decoder_input_ids": given.pop("input_ids"), **given}
    elif model.config.is_encoder_decoder:
        given["decoder_input_ids"] = words(1, 5)
    return {name: value for name, value in given.items() if name in accepts or "kwargs" in accepts}


def tried(model, pieces, token, extra):
    """Inputs with as many placeholders as the model counts, and their logits; None if nothing fits."""
    # What the model names is not always the number of features, so some are tried besides.
    counts = [0] if token is None else [1, 4, 16, 27, 0]
    for count in counts:
        for _ in range(2):
            given = sequence(model, [*pieces, (token, count)] if count else pieces, extra)
            try:
                return given, run(model, given), count
            except Exception as error:
                named = FEATURES.search(str(error))
                if token is None or named is None or not 0 < int(named[1]) <= 256 or int(named[1]) == count:
                    break
                count = int(named[1])
    return None


def found(model):
    """Inputs that the model takes, and what they are: text, and images or sounds where they can be had."""
    config, accepts = model.config, inspect.signature(model.forward).parameters
    pieces, extra, kinds, best = [], {}, [], None
    for kind, (candidates, names, tokens) in MODALITIES.items():
        if not any(name in accepts for name in names):
            continue
        token = field(config, *tokens)
        for candidate in candidates(config, accepts):
            result = tried(model, pieces, token, {**extra, **candidate})
            if result is not None and matters(model, *result[:2], next(iter(candidate))):
                best, _, count = result
                pieces, extra = [*pieces, (token, count)] if count else pieces, {**extra, **candidate}
                kinds.append(kind)
                break
    if best is not None:
        return best, "+".join(["text", *kinds])
    given = {"input_ids": words(2, LENGTH)}
    if config.is_encoder_decoder:
        given["decoder_input_ids"] = words(2, LENGTH + 5)[:, LENGTH:]
    try:
        run(model, given)
    except Exception:
        given = sequence(model, [], {})
        run(model, given)
    return given, "text"


def matters(model, given, before, name):
    """Whether logits change with an input."""
    after = run(model, {**given, name: given[name] * 0.5 + 0.25})
    return after.shape == before.shape and bool((after - before).abs().max() > 1e-4 * before.abs().max())


def copies(given):
    return {name: value.clone() for name, value in given.items()}


def run(model, given):
    """The logits, or of a model that has none its first tensor. Some models sample, so they all get the same seed;
    some write into their inputs, so they get copies."""
    torch.manual_seed(0)
    with torch.no_grad():
        output = model(**copies(given))
    if getattr(output, "logits", None) is not None:
        return output.logits.float()
    return next(value for value in output.values() if isinstance(value, torch.Tensor)).float()


def generated(model, given, count):
    """Tokens of greedy generation; None where the model does not generate from these inputs."""
    given = {name: value for name, value in copies(given).items() if name != "decoder_input_ids"}
    config = getattr(model, "generation_config", None)
    if config is None or not hasattr(model, "generate"):
        return None
    config.eos_token_id = config.forced_eos_token_id = config.forced_bos_token_id = None
    config.pad_token_id = 0
    if model.config.is_encoder_decoder and config.decoder_start_token_id is None:
        config.decoder_start_token_id = 3
    torch.manual_seed(0)
    try:
        tokens = model.generate(**given, max_new_tokens=count, min_new_tokens=count, do_sample=False, num_beams=1)
    except Exception:
        return None
    return tokens if isinstance(tokens, torch.Tensor) else None
