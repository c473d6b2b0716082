"""Inputs for a model of any kind, found from its configuration and the signature of its forward."""

import configs
import torch

LENGTH = 12


def words(*shape):
    made = torch.Generator().manual_seed(7)
    return torch.randint(configs.WORDS.start, configs.WORDS.stop, shape, generator=made)


def text(model):
    given = {"input_ids": words(2, LENGTH)}
    if model.config.is_encoder_decoder:
        given["decoder_input_ids"] = words(2, LENGTH + 5)[:, LENGTH:]
    return given


def found(model):
    """Inputs that the model takes, and what they are: text alone, or with images, sounds or video."""
    given = text(model)
    with torch.no_grad():
        model(**given)
    return given, "text"


def logits(output):
    """The first floating-point numbers that a model returns, all of one kind in one tensor."""
    if getattr(output, "logits", None) is not None:
        return output.logits.float()
    return next(value for value in output.values() if isinstance(value, torch.Tensor)).float()


def generated(model, given, count):
    """Tokens of greedy generation; None where the model does not generate from these inputs."""
    given = {name: value for name, value in given.items() if name != "decoder_input_ids"}
    config = getattr(model, "generation_config", None)
    if config is None or not hasattr(model, "generate"):
        return None
    config.eos_token_id = config.forced_eos_token_id = config.forced_bos_token_id = None
    config.pad_token_id = 0
    if model.config.is_encoder_decoder and config.decoder_start_token_id is None:
        config.decoder_start_token_id = 3
    try:
        tokens = model.generate(**given, max_new_tokens=count, min_new_tokens=count, do_sample=False, num_beams=1)
    except Exception:
        return None
    return tokens if isinstance(tokens, torch.Tensor) else None
