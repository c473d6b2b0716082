"""The package as a build of Hugging Face's ``kernels`` library: written, loaded from its folder, and held against the
modules that it stands in for."""

import ast
import subprocess
import sys

import numpy
import pytest

from hammerhead.kernels._exact import NotFourBit, exact

E2M1 = numpy.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=numpy.float32)


def four_bit(*sides, seed=0, least=-9, most=2):
    """Random elements that are 4-bit numbers times a power of two for 32 of a row, as MXFP4 has them."""
    rng = numpy.random.default_rng(seed)
    *rows, k = sides
    scales = numpy.exp2(rng.integers(least, most, (*rows, k // 32, 1))).astype(numpy.float32)
    numbers = rng.choice(numpy.concatenate([E2M1, -E2M1]), (*rows, k // 32, 32))
    return (numbers * scales).reshape(sides)


@pytest.mark.parametrize(("least", "most"), [(-9, 2), (-5, 5), (-120, -110), (100, 110)])
def test_a_matrix_that_is_4_bit_is_found_again_to_the_bit(least, most):
    values = four_bit(48, 96, least=least, most=most)
    values[3] = 0
    found = exact(values).dequantize()
    assert numpy.array_equal(found, values)
    assert numpy.array_equal(numpy.signbit(found), numpy.signbit(values))


@pytest.mark.parametrize(
    ("spoilt", "said"),
    [
        (lambda values: values * numpy.float32(1.3), "no 4-bit numbers"),
        (lambda values: numpy.where(numpy.indices(values.shape).sum(0) == 77, 5, values), "row 14 from column 48 on"),
        (lambda values: numpy.where(numpy.indices(values.shape).sum(0) == 77, 0.75, values), "no 4-bit numbers"),
        (lambda values: values[:, :24], "24 elements"),
        (lambda values: values * numpy.float32("nan"), "not finite"),
        (lambda values: values * numpy.exp2([[-20]] + [[0]] * 15), "further apart"),
    ],
)
def test_a_matrix_that_would_have_to_be_rounded_is_refused(spoilt, said):
    values = four_bit(16, 64, least=0, most=1)
    with pytest.raises(NotFourBit, match=said):
        exact(spoilt(values).astype(numpy.float32))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The build, written by the command."""
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("kernels", reason="the kernels library is not installed: pip install kernels")
    if not transformers.utils.is_kernels_available():
        pytest.skip("transformers does not take the version of the kernels library that is installed")
    folder = tmp_path_factory.mktemp("kernel")
    subprocess.run([sys.executable, "-m", "hammerhead.kernels", folder], check=True)
    return folder


def test_a_build_is_not_written_over_another(folder):
    again = subprocess.run([sys.executable, "-m", "hammerhead.kernels", folder], capture_output=True, text=True)
    assert again.returncode == 1
    assert str(folder) in again.stderr
    assert "Traceback" not in again.stderr


def test_a_build_imports_nothing_from_the_installed_package(folder):
    files = list(folder.glob("build/*/**/*.py"))
    assert files
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [name.name for name in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module]
            assert not [name for name in names if name.split(".")[0] == "hammerhead"], file


def kernelize(model, folder, mode=None, **names):
    import kernels

    mapping = {
        name: {"cpu": kernels.LocalLayerRepository(folder, layer_name=layer)} for name, layer in names.items()
    }
    with kernels.use_kernel_mapping(mapping, inherit_mapping=False):
        return kernels.kernelize(model, mode=mode or kernels.Mode.INFERENCE, device="cpu")


def is_ours(module):
    return type(module).forward is not module.forward.__func__ and module.forward.__module__.startswith("_hammerhead_")


def close(ours, theirs):
    """Each row to the rounding of float32, as twins are held."""
    apart = (ours - theirs).abs().amax(-1) / theirs.abs().amax(-1)
    assert apart.max() <= 3e-5


def gpt_oss(fill):
    import torch
    from transformers import GptOssConfig, GptOssForCausalLM

    torch.manual_seed(0)
    config = GptOssConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        num_local_experts=6,
        num_experts_per_tok=3,
    )
    model = GptOssForCausalLM(config).eval().requires_grad_(False)
    for number, layer in enumerate(model.model.layers):
        experts = layer.mlp.experts
        for name in ("gate_up_proj", "down_proj"):
            weight, bias = getattr(experts, name), getattr(experts, f"{name}_bias")
            # MXFP4's blocks lie along k, which is not the last side here.
            values = torch.from_numpy(fill(*weight.transpose(1, 2).shape, seed=number))
            weight.copy_(values.transpose(1, 2))
            bias.normal_()
        layer.mlp.router.weight.normal_()
    return model


def test_gpt_oss_computes_the_same_with_the_kernel_that_transformers_names(folder):
    import torch

    model = gpt_oss(four_bit)
    tokens = torch.arange(22).reshape(2, 11)
    hidden = torch.randn(2, 11, 64)
    mlp = model.model.layers[1].mlp
    logits, (sums, scores) = model(tokens).logits, mlp(hidden)
    kernelize(model, folder, MegaBlocksMoeMLP="MegaBlocksMoeMLP")
    assert is_ours(mlp)
    ours, its_scores = mlp(hidden)
    close(ours, sums)
    assert torch.equal(its_scores, scores)
    close(model(tokens).logits, logits)
    assert torch.equal(model.generate(tokens, max_new_tokens=4), gpt_oss(four_bit).generate(tokens, max_new_tokens=4))


def test_weights_that_were_changed_are_packed_anew(folder):
    import torch

    mlp = kernelize(gpt_oss(four_bit), folder, MegaBlocksMoeMLP="MegaBlocksMoeMLP").model.layers[0].mlp
    hidden = torch.randn(1, 5, 64)
    before, _ = mlp(hidden)
    mlp.experts.down_proj.mul_(2)
    mlp.experts.down_proj_bias.mul_(2)
    after, _ = mlp(hidden)
    close(after, 2 * before)


def test_weights_that_are_not_4_bit_are_refused_by_name(folder):
    import torch

    def any_number(*sides, seed):
        return numpy.random.default_rng(seed).standard_normal(sides, dtype=numpy.float32)

    mlp = kernelize(gpt_oss(any_number), folder, MegaBlocksMoeMLP="MegaBlocksMoeMLP").model.layers[0].mlp
    with pytest.raises(ValueError, match="GptOssExperts cannot be packed: gate_up_proj has elements that are no 4-bit"):
        mlp(torch.randn(1, 5, 64))


def test_training_is_left_to_the_model(folder):
    import kernels

    model = kernelize(gpt_oss(four_bit), folder, kernels.Mode.TRAINING, MegaBlocksMoeMLP="MegaBlocksMoeMLP")
    assert not is_ours(model.model.layers[0].mlp)


def named(kind, name):
    """A class of transformers' under a name for kernels, which it has none of."""
    import kernels

    ours = type(kind.__name__, (kind,), {})
    kernels.replace_kernel_forward_from_hub(ours, name)
    return ours


def filled(module):
    import torch

    for number, parameter in enumerate(module.requires_grad_(False).parameters()):
        if parameter.dim() > 1:
            parameter.copy_(torch.from_numpy(four_bit(*parameter.shape, seed=number)))
        else:
            parameter.normal_()
    return module


def test_a_gated_mlp_and_a_linear_layer_compute_the_same(folder):
    import torch
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaMLP

    x = torch.randn(3, 7, 64)
    config = LlamaConfig(hidden_size=64, intermediate_size=96, mlp_bias=True)
    for module, layer in (
        (named(LlamaMLP, "AnyMlp")(config), "Mlp"),
        (named(torch.nn.Linear, "AnyLinear")(64, 40), "Linear"),
    ):
        expected = filled(module)(x)
        kernelize(module, folder, AnyMlp="Mlp", AnyLinear="Linear")
        assert is_ours(module), layer
        close(module(x), expected)


def test_experts_of_any_model_compute_the_same(folder):
    import torch
    from transformers import Qwen3MoeConfig
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

    config = Qwen3MoeConfig(hidden_size=64, moe_intermediate_size=96, num_experts=5, num_experts_per_tok=2)
    config._experts_implementation = "eager"
    experts = filled(named(Qwen3MoeExperts, "AnyExperts")(config))
    call = torch.randn(9, 64), torch.randint(5, (9, 2)), torch.rand(9, 2)
    expected = experts(*call)
    kernelize(experts, folder, AnyExperts="Experts")
    assert is_ours(experts)
    close(experts(*call), expected)


def test_a_module_that_computes_something_else_is_refused(folder):
    import torch
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaMLP

    class Halved(LlamaMLP):
        def forward(self, x):
            return 0.5 * super().forward(x)

    module = filled(named(Halved, "AnyMlp")(LlamaConfig(hidden_size=64, intermediate_size=96)))
    kernelize(module, folder, AnyMlp="Mlp")
    with pytest.raises(ValueError, match="Halved computes something else"):
        module(torch.randn(3, 64))


def test_the_build_and_the_installed_package_live_beside_each_other(folder):
    import kernels
    import torch

    import hammerhead

    # Without a name it is the variant for the CUDA that torch was built for.
    builds = kernels.get_local_kernel(folder), kernels.get_local_kernel(folder, backend="cpu")
    assert hammerhead.Linear not in [kernel.Linear for kernel in builds]
    x, weight = torch.randn(3, 64), torch.randn(40, 64)
    layers = [
        package.Linear.from_arrays(package.quantize(times * weight))
        for times, package in enumerate((*builds, hammerhead), start=1)
    ]
    calls = [torch.compile(lambda x, layer=layer: layer(x), backend="eager", fullgraph=True) for layer in layers]
    # The second time each has registered its operation, and must still call its own.
    for _ in range(2):
        for layer, call in zip(layers, calls, strict=True):
            assert torch.equal(call(x), layer(x))
    assert torch.equal(layers[1](x), 2 * layers[0](x))
