"""What a model of cost says, and what becomes of bad input. Whether it is right is measured by benchmarks."""

import json
from dataclasses import replace

import pytest

pytest.importorskip("torch")

import torch
from safetensors.torch import save_file

from hammerhead._cost import Layer, _fit
from hammerhead.budget import Machine, Model, heat_of, main, parsed_bytes, predict

MODEL = Model(layers=10, experts=64, top_k=4, hidden=1024, expert_bytes=10**6, beside_bytes=10**9)
ALL = MODEL.beside_bytes + 640 * 10**6


def machine(**changes):
    host = Layer(hidden=1024, experts=64, top_k=4, fixed=1e-5, stream=1e-5, row=1e-7)
    return replace(Machine(host, replace(host, fixed=1e-6, stream=2e-7), away=5e-5), **changes)


def test_all_experts_on_the_gpu_cost_the_host_nothing():
    step = predict(MODEL, machine(), ALL)
    assert step.resident == step.hit == 1 and step.host == 0
    beside = 10**9 / 10**6 * 2e-7
    assert step.seconds == pytest.approx(10 * (1e-6 + 4 * 2e-7 + 4 * 1e-7) + beside)


def test_none_there_is_the_hosts_time_and_the_way():
    step = predict(MODEL, machine(), MODEL.beside_bytes)
    assert step.resident == 0 and step.host == pytest.approx(10 * (1e-5 + 4 * 1e-5 + 4 * 1e-7))
    assert step.seconds == pytest.approx(step.host + 10 * 5e-5 + 1000 * 2e-7)


def test_the_slower_place_says_how_long_a_layer_takes():
    half = ALL - 320 * 10**6
    step = predict(MODEL, machine(), half)
    assert step.resident == 0.5 and step.host == pytest.approx(10 * (1e-5 + 2 * 1e-5 + 2 * 1e-7))
    slow = predict(MODEL, machine(gpu=replace(machine().gpu, stream=1.0)), half)
    assert slow.seconds > 10 * 2 > step.seconds


def test_whole_layers_go_to_the_host_less_often():
    half = ALL - 320 * 10**6
    step = predict(MODEL, machine(), half, whole_layers=True)
    assert step.resident == step.hit == 0.5 and step.host == pytest.approx(5 * (1e-5 + 4 * 1e-5 + 4 * 1e-7))
    ends = [predict(MODEL, machine(), budget).seconds for budget in (ALL, MODEL.beside_bytes)]
    assert step.seconds == pytest.approx(sum(ends) / 2)
    assert step.seconds < predict(MODEL, machine(), half).seconds
    part = predict(MODEL, machine(), half + 16 * 10**6, whole_layers=True)
    assert part.resident == pytest.approx(0.525)


def test_many_tokens_ask_for_all_experts_once():
    step = predict(MODEL, machine(), MODEL.beside_bytes, tokens=10_000)
    assert step.host == pytest.approx(10 * (1e-5 + 64 * 1e-5 + 40_000 * 1e-7))


def test_hits_beyond_the_even_share_are_faster():
    half = ALL - 320 * 10**6
    times = [predict(MODEL, machine(), half, hit=hit).seconds for hit in (0.5, 0.8, 1.0)]
    assert times == sorted(times, reverse=True) and predict(MODEL, machine(), half, hit=1.0).host == 0


def test_a_long_prompts_weights_cross_the_bus():
    long = {"tokens": 10_000, "stream": True}
    none, half = (predict(MODEL, machine(bus=1e8), budget, **long) for budget in (MODEL.beside_bytes, ALL - 320 * 10**6))
    assert none.host == 0 and none.seconds == pytest.approx(10 * 64 * 10**6 / 1e8 + 1000 * 2e-7)
    assert half.seconds == pytest.approx(10 * 32 * 10**6 / 1e8 + 1000 * 2e-7)
    # Behind a fast bus the GPU's own work is what takes long, with all rows.
    fast = predict(MODEL, machine(bus=1e15), MODEL.beside_bytes, **long)
    assert fast.seconds == pytest.approx(predict(MODEL, machine(), ALL, tokens=10_000).seconds)
    assert predict(MODEL, machine(bus=1e8), ALL, **long) == predict(MODEL, machine(), ALL, tokens=10_000)


def test_experts_that_nobody_asks_for_do_not_cross_the_bus():
    long = {"tokens": 10_000, "stream": True}
    # All tokens ask for the same eight experts: half of them each, and none for the other 56.
    hot = [[0.0] * 28 + [3.0] * 8 + [0.0] * 28] * MODEL.layers
    none = predict(MODEL, machine(bus=1e8), MODEL.beside_bytes, heat=hot, **long)
    assert none.seconds == pytest.approx(10 * 8 * 10**6 / 1e8 + 1000 * 2e-7)
    assert predict(MODEL, machine(bus=1e8), ALL - 320 * 10**6, heat=hot, **long).hit == 1, "they are placed"
    # Few tokens do not ask for all experts, however even routing is.
    few = predict(MODEL, machine(bus=1e8), MODEL.beside_bytes, tokens=20, stream=80)
    assert few.seconds == pytest.approx(10 * 64 * (1 - (1 - 4 / 64) ** 20) * 10**6 / 1e8 + 1000 * 2e-7)


def test_counts_of_an_even_routing_say_what_none_say_and_others_say_how_many_hits_there_are():
    half = ALL - 320 * 10**6
    for case in ({"tokens": 1}, {"tokens": 30}, {"tokens": 10_000, "stream": True}, {"tokens": 8, "whole_layers": True}):
        even = predict(MODEL, machine(), half, heat=[[7.0] * 64] * 10, **case)
        assert even.seconds == pytest.approx(predict(MODEL, machine(), half, **case).seconds)
        assert predict(MODEL, machine(), half, heat=[[0.0] * 64] * 10, **case) == predict(MODEL, machine(), half, **case)
    skewed = predict(MODEL, machine(), half, heat=[[1.0, 3.0] * 32] * 10)
    assert skewed.hit == 0.75 and skewed.host == pytest.approx(10 * (1e-5 + 1e-5 + 1e-7))


def test_counts_of_other_layers_get_a_sentence():
    assert heat_of(MODEL, dict.fromkeys("abcdefghij", [1.0] * 64)) == [[1.0] * 64] * 10
    for counts in ({}, {"a": [1.0] * 64}, dict.fromkeys("abcdefghij", [1.0] * 63)):
        with pytest.raises(ValueError, match="--heat: it has counts of .*, and the model 10 of 64"):
            heat_of(MODEL, counts)


def test_weights_are_brought_from_a_number_of_rows_on():
    def host(tokens, stream):
        return predict(MODEL, machine(), MODEL.beside_bytes, tokens=tokens, stream=stream).host

    # Eight rows for each of 64 experts are those of 128 tokens, of four experts each.
    assert host(127, True) == host(127, False) and host(128, True) == 0 and host(128, None) == host(128, 0) > 0
    assert host(20, 80) == 0 and host(19, 80) > 0


def test_a_fit_is_what_was_measured_and_never_below_zero():
    calls = [(1, 1), (1, 64), (8, 8), (8, 512)]
    assert _fit([(1.0, active, rows, 5 + 3 * active + rows / 2) for active, rows in calls]) == pytest.approx((5, 3, 0.5))
    # By least squares alone a call would cost less than nothing.
    fixed, stream, row = _fit([(1.0, active, rows, 3 * active + rows / 2 - 0.1 * (active == 1)) for active, rows in calls])
    assert fixed == 0 and stream == pytest.approx(3, rel=0.05) and row == pytest.approx(0.5, rel=0.05)


def test_what_a_program_does_around_experts_is_added():
    assert predict(MODEL, machine(rest=1e-3), ALL).seconds == pytest.approx(predict(MODEL, machine(), ALL).seconds + 1e-2)


def folder_of(path, tensors, **config):
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    (path / "config.json").write_text(json.dumps({"model_type": "qwen3_moe", "hidden_size": 64, **config}))
    return str(path)


def expert_tensors(layers, experts):
    tensors = {"model.embed_tokens.weight": torch.zeros(500, 64)}
    for layer in range(layers):
        for expert in range(experts):
            for name, n, k in [("gate_proj", 32, 64), ("up_proj", 32, 64), ("down_proj", 64, 32)]:
                stem = f"model.layers.{layer}.mlp.experts.{expert}.{name}"
                tensors[f"{stem}.weight"] = torch.zeros(n, k // 2, dtype=torch.uint8)
                tensors[f"{stem}.weight_scale"] = torch.ones(n, k // 16).to(torch.float8_e4m3fn)
                tensors[f"{stem}.weight_scale_2"] = torch.tensor(1.0)
    return tensors


def test_sizes_come_from_the_files(tmp_path):
    model = Model.from_checkpoint(folder_of(tmp_path, expert_tensors(3, 5), num_experts_per_tok=2))
    assert (model.layers, model.experts, model.top_k, model.hidden, model.intermediate) == (3, 5, 2, 64, 32)
    assert model.expert_bytes == 3 * 32 * 64 * 9 // 16 and model.beside_bytes > 500 * 64 * 4


def test_the_command_prints_a_table(tmp_path, capsys):
    folder = folder_of(tmp_path, expert_tensors(2, 4), num_experts_per_tok=2)
    main([folder, "--gpu-budget", "1MB,0", "--tokens", "1,8", "--host-bandwidth", "10GB", "--gpu-bandwidth", "1TB"])
    printed = capsys.readouterr().out
    assert printed.startswith("2 layers of 4 experts, 2 for a token")
    assert "too little for what is no expert" in printed and len(printed.splitlines()) == 4 + 4


def test_the_command_predicts_a_prompt(tmp_path, capsys):
    folder = folder_of(tmp_path, expert_tensors(2, 4), num_experts_per_tok=2)
    beside = str(Model.from_checkpoint(folder).beside_bytes)
    asked = [folder, "--gpu-budget", beside, "--prompt", "64", "--host-bandwidth", "10MB", "--gpu-bandwidth", "1TB"]
    prompts = []
    for more in ([], ["--stream"], ["--stream", "--bus-bandwidth", "1MB"]):
        main([*asked, *more])
        *_, heads, row = capsys.readouterr().out.splitlines()
        assert heads.endswith("prompt ms")
        prompts.append(float(row.split()[-1]))
    experts = 2 * 4 * 3 * 32 * 64 * 9 // 16
    assert prompts[1] < prompts[0] < prompts[2] and prompts[2] == pytest.approx(experts / 1e6 * 1e3, abs=0.02)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--gpu-budget", "much", "--host-bandwidth", "1GB", "--gpu-bandwidth", "1GB"], "'much' is no size"),
        (["--host-bandwidth", "1GB"], "give both"),
        (["--host-bandwidth", "0", "--gpu-bandwidth", "1GB"], "more than 0"),
        (["--hit", "70"], "between 0 and 1"),
        (["--hit", "0.7", "--heat", "heat.json"], "give one of the two"),
        (["--prompt", "0"], "--prompt: it is 0"),
        (["--stream"], "give --prompt, too"),
        (["--prompt", "64", "--bus-bandwidth", "0"], "--bus-bandwidth"),
        (["--tokens", "0", "--host-bandwidth", "1GB", "--gpu-bandwidth", "1GB"], "--tokens"),
    ],
)
def test_bad_options_get_a_sentence(tmp_path, arguments, said):
    folder = folder_of(tmp_path, expert_tensors(1, 2), num_experts_per_tok=1)
    with pytest.raises(SystemExit, match=said):
        main([folder, *arguments])


def test_a_folder_that_does_not_say_enough_gets_a_sentence(tmp_path):
    with pytest.raises(SystemExit, match="--top-k"):
        main([folder_of(tmp_path, expert_tensors(1, 2))])
    plain = {name.replace(".experts.0", ""): tensor for name, tensor in expert_tensors(1, 1).items()}
    with pytest.raises(SystemExit, match="no tensor of its files is a 4-bit expert's"):
        main([folder_of(tmp_path, plain)])
    with pytest.raises(SystemExit):
        main([str(tmp_path / "nowhere")])


def test_sizes_are_read_with_units():
    assert parsed_bytes("24.5 GiB") == int(24.5 * 2**30) and parsed_bytes(7) == 7 and parsed_bytes("60gb") == 60 * 10**9
