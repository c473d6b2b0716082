//! The GPU's side of the command: its kernels as text, the simulator as a backend and as an adversary, and what is said
//! where there is no GPU.

use std::process::Command;

use crate::common::{
    Operand, Random, assert_refused, command, hammerhead, page, stderr, stdout, succeed, write_problem,
};
use hammerhead::Backend;
use ptx::assemble::{Assembler, VARIABLE};
use serde_json::Value;

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&succeed(args)).unwrap()
}

const CONFIG: &str = "strategy=two-pass,tile=64x128,depth=64,stages=3,epilogue=direct,schedule=tile";

#[test]
fn ptx_is_one_module_with_every_kernel_and_what_it_takes() {
    let text = succeed(["ptx", "--arch", "sm_90a", "--shape", "64x200x320", "--config", CONFIG]);
    assert!(text.is_ascii(), "the assembler takes nothing else");
    assert_eq!(text.matches(".target sm_90a").count(), 1);
    for part in [
        &format!("// 64x200x320, gate silu, result f16: {CONFIG}\n"),
        ".visible .entry nvfp4_dual_gemm(",
        ".visible .entry join(",
        "nvfp4_dual_gemm: 384 threads per block, 38448 bytes of shared memory",
        "join: 256 threads per block, 0 bytes of shared memory",
        "declares registers",
    ] {
        assert!(text.contains(part), "no {part:?} in:\n{}", &text[..2000]);
    }
}

#[test]
fn ptx_of_a_group_says_its_sizes_in_ascii() {
    let text = succeed(["ptx", "--shape", "64,16x200x320"]);
    assert!(text.is_ascii() && text.starts_with("// [64,16]x200x320, gate silu"), "{}", &text[..200]);
}

#[test]
fn the_gate_and_the_output_type_change_the_kernels() {
    let text = |gate, out| succeed(["ptx", "--gate", gate, "--result", out]);
    assert!(text("silu", "bf16").contains("cvt.rn.bf16") && !text("silu", "f32").contains("cvt.rn.bf16"));
    let body = |gate| text(gate, "f32").split_once(".version").unwrap().1.to_owned();
    assert_ne!(body("silu"), body("gelu-tanh"));
}

#[test]
fn ptx_goes_to_a_file_and_the_assembler_takes_the_module() {
    let folder = tempfile::tempdir().unwrap();
    let (path, cubin) = (folder.path().join("kernels.ptx"), folder.path().join("kernels.cubin"));
    assert_eq!(succeed(["ptx".as_ref(), "--output".as_ref(), path.as_os_str()]), "");
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text, succeed(["ptx"]));
    match Assembler::find(None) {
        Ok(assembler) => {
            let output = Command::new(assembler.path()).args(["-arch", "sm_90a", "-o"]).arg(cubin).arg(path).output();
            let output = output.unwrap();
            assert!(output.status.success(), "{}", stdout(&output) + &stderr(&output));
            assert!(text.contains("nvfp4_dual_gemm assembled: ") && text.contains("no spills"));
        }
        Err(error) => {
            assert!(std::env::var("HAMMERHEAD_REQUIRE_PTXAS").is_err(), "{error}");
            eprintln!("NOT ASSEMBLED: {error}");
        }
    }
}

#[test]
fn kernels_for_desktop_blackwell_multiply_codes_by_codes() {
    for arch in ["sm_120a", "sm_120f", "sm120"] {
        let text = succeed(["ptx", "--arch", arch, "--activation", "nvfp4"]);
        assert!(text.contains(".target sm_120f") && text.contains("m16n8k64"), "{text}");
        assert!(text.contains("kind::mxf4nvf4.block_scale") && !text.contains("m16n8k16"), "{text}");
    }
    let text = succeed(["ptx", "--arch", "sm_120a"]);
    assert!(text.contains("m16n8k16") && !text.contains("m16n8k64"), "{text}");
}

#[test]
fn kernels_for_every_gpu_since_ampere_are_printed_for_a_device_by_name() {
    const REQUEST: &str = "strategy=interleaved,tile=64x128,depth=128,stages=4,epilogue=direct,schedule=tile";
    let text = succeed(["ptx", "--arch", "sm_80", "--device", "rtx4090"]);
    assert!(text.contains(".target sm_80") && text.contains("mma.sync.aligned.m16n8k16"), "{text}");
    assert!(!text.contains("griddepcontrol") && !text.contains("shared::cta"));
    let bytes = |device| {
        let text = succeed(["ptx", "--arch", "sm_80", "--device", device]);
        let (before, _) = text.split_once(" bytes of shared memory").unwrap();
        before.rsplit(' ').next().unwrap().parse::<u32>().unwrap()
    };
    assert!(bytes("rtx3090") <= 99 << 10 && bytes("a100") <= 163 << 10);
    assert_refused(&hammerhead(["ptx", "--arch", "sm_80", "--device", "v100"]), &["v100", "rtx4090"]);
    assert_refused(
        &hammerhead(["ptx", "--arch", "sm_80", "--device", "rtx4090", "--config", REQUEST]),
        &["rtx4090", "shared memory"],
    );
}

#[test]
fn without_an_assembler_the_kernels_are_printed_and_the_way_to_get_one() {
    let output = command().arg("ptx").env(VARIABLE, "/no such assembler").output().unwrap();
    assert!(output.status.success() && stderr(&output).is_empty());
    let text = stdout(&output);
    assert!(text.contains("// not assembled: ") && text.contains("pip install nvidia-cuda-nvcc"));
    assert!(text.contains(".visible .entry nvfp4_dual_gemm("));
}

#[test]
fn a_kernel_that_cannot_be_built_is_refused_with_the_reason() {
    assert_refused(&hammerhead(["ptx", "--config", "tile=12x64"]), &["12", "multiple of 8"]);
    assert_refused(&hammerhead(["ptx", "--config", "strategy=sequential,tile=64x32"]), &["64, 128, 192 or 256"]);
    assert_refused(&hammerhead(["ptx", "--output", "/no such folder/k.ptx"]), &["/no such folder"]);
}

#[test]
fn the_simulator_runs_the_cases_it_accepts_and_counts_those_it_does_not() {
    let report = json(&["verify", "--backend", "sim", "--suite", "dual", "--json", "--seed", "4"]);
    let (refused, passed) = (report["refused"].as_u64().unwrap(), report["passed"].as_u64().unwrap());
    assert!(refused > 0 && passed > 0 && report["failed"] == 0, "{report}");
    assert!(report["refusal"].as_str().unwrap().contains("make the problem smaller"), "{report}");
    let text = succeed(["verify", "--backend", "sim", "--suite", "dual", "--config", "stages=2"]);
    assert!(text.contains(&format!("not tried: {refused} cases")), "{text}");
    assert_refused(
        &hammerhead(["verify", "--backend", "sim", "--suite", "decode"]),
        &["nothing was checked", "at most 1024"],
    );
}

#[test]
fn verify_leaves_the_simulator_out_unless_it_is_asked_for() {
    let report = json(&["verify", "--suite", "edge", "--json", "--threads", "2"]);
    assert!(!report["backends"].as_array().unwrap().contains(&"sim".into()), "{report}");
    assert!(report["skipped"].as_array().unwrap().iter().any(|why| why.as_str().unwrap().contains("--backend sim")));
}

#[test]
fn a_problem_too_large_for_the_simulator_is_refused_with_what_to_do() {
    assert_refused(&hammerhead(["run", "--backend", "sim", "--suite", "dual"]), &["sim", "make the problem smaller"]);
}

#[test]
fn the_kernel_passes_in_the_simulator_and_every_mutation_of_it_is_caught() {
    let text = succeed(["sim", "--seeds", "1"]);
    assert!(text.contains("passes under 3 schedules") && text.contains("bank conflicts"), "{text}");
    assert_refused(&hammerhead(["sim", "--arch", "sm_80", "--way", "9"]), &["--way 9", "1 to"]);
    let report = json(&["sim", "--mutations", "--way", "1", "--seeds", "3", "--json"]);
    assert_eq!(report["missed"], 0, "{report}");
    let rows = report["ways"][0]["mutations"].as_array().unwrap();
    let caught: Vec<&Value> = rows.iter().filter(|row| row["schedule"].is_string()).collect();
    assert!(caught.len() >= 100 && caught.len() as u64 == report["caught"].as_u64().unwrap());
    for fault in ["deadlock", "race", "out of bounds", "uninitialised read", "wrong result", "register in flight"] {
        assert!(caught.iter().any(|row| row["caught_by"] == fault), "nothing was caught by {fault}");
    }
    let excused = rows.iter().filter(|row| row["schedule"].is_null());
    assert!(excused.clone().count() > 0 && excused.clone().all(|row| row["reason"].is_string()), "{report}");
}

#[test]
fn a_kernel_s_timeline_is_a_page() {
    let html = page("timeline.html");
    succeed(["sim", "--way", "1", "--seeds", "1", "--html", html.to_str().unwrap()]);
    let page = std::fs::read_to_string(html).unwrap();
    for part in [
        "Time is logical",
        "<div>copies</div>",
        "<div>tensor cores</div>",
        "<rect class=\"work stage0\"",
        "<line class=\"arrow\"",
        "<h3>latest</h3>",
        "random (seed 1)",
    ] {
        assert!(page.contains(part), "no {part:?}");
    }
    assert_eq!(hammerhead(["sim", "--html", "all.html"]).status.code(), Some(2), "a page is of one way");
}

#[test]
fn info_tells_of_cuda_and_sim_and_why_one_is_not_there() {
    let report = json(&["info", "--json"]);
    let backend = |name: &str| report["backends"].as_array().unwrap().iter().find(|b| b["name"] == name).unwrap();
    assert_eq!(backend("sim")["available"], true);
    match gpu::Cuda::FIRST.available() {
        Ok(()) => assert_eq!(backend("cuda")["available"], true),
        Err(error) => assert_eq!(backend("cuda")["reason"], error.to_string()),
    }
    assert!(!report["auto"].as_array().unwrap().contains(&"sim".into()));
}

#[test]
fn without_a_gpu_the_backend_cuda_is_refused_with_the_reason_and_the_remedy() {
    if gpu::Cuda::FIRST.available().is_ok() {
        eprintln!("NOT RUN: this machine has a GPU");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("p"), folder.path().join("c"));
    let random = &mut Random(8);
    let (a, b1) = (Operand::quantised(random, 3, 32, None), Operand::quantised(random, 5, 32, None));
    write_problem(&input, &[crate::common::Group { a, b1, b2: None }], true);
    let (input, output_name) = (input.to_str().unwrap(), output.to_str().unwrap());
    for args in [
        &["run", "--backend", "cuda"][..],
        &["run", "--backend", "cuda", "--input", input, "--output", output_name],
        &["verify", "--backend", "cuda", "--suite", "edge"],
        &["bench", "--backend", "cuda"],
    ] {
        assert_refused(&hammerhead(args), &["'cuda' is not available: ", "; "]);
    }
    assert!(!output.exists());
    let output = command().arg("run").env("HAMMERHEAD_BACKEND", "cuda").output().unwrap();
    assert_refused(&output, &["'cuda' is not available"]);
}

#[test]
fn ptx_for_blackwell_is_printed_for_its_family_with_the_kernel_that_arranges_tokens() {
    for arch in ["sm_100a", "sm_100f"] {
        let text = succeed(["ptx", "--arch", arch, "--shape", "40x200x320"]);
        for part in [
            ".target sm_100f",
            ".entry arrange",
            ".entry nvfp4_dual_gemm_tcgen05",
            "kind::mxf4nvf4.block_scale.block16",
        ] {
            assert!(text.contains(part), "{part} is missing");
        }
    }
    let text = succeed(["ptx", "--arch", "sm_100a", "--shape", "40x200x320", "--activation", "bf16"]);
    assert!(text.contains("kind::f16") && !text.contains(".entry arrange"));
    let refused = hammerhead(["ptx", "--arch", "sm_100a", "--config", "tile=64x64"]);
    assert_refused(&refused, &["no multiplication of 64 rows", "128 tokens"]);
}

#[test]
fn a_gpu_that_is_not_there_is_predicted_phase_by_phase() {
    let report = json(&["run", "--suite", "dual", "--activation", "nvfp4", "--explain", "--device", "b200", "--json"]);
    let first = &report[0];
    assert_eq!((&first["family"], &first["measured"]), (&"sm100".into(), &false.into()), "{first}");
    let phases = first["phases"].as_array().unwrap();
    let sum: f64 = phases.iter().map(|phase| phase["seconds"].as_f64().unwrap()).sum();
    assert!((sum / first["predicted_seconds"].as_f64().unwrap() - 1.0).abs() < 1e-9, "{first}");
    assert!(phases.iter().any(|phase| phase["phase"] == "products"), "{first}");
    let text = succeed(["run", "--shape", "256x4096x7168", "--activation", "f16", "--explain", "--device", "h200"]);
    assert!(
        text.contains("kernels of family sm90\n") && text.contains("by the model that plans are made by"),
        "{text}"
    );
    let layers = ["run", "--suite", "moe", "--model", "qwen3-30b-a3b", "--explain", "--device"];
    for (device, family) in [("h200", "sm90"), ("a100", "sm80"), ("b200", "sm100"), ("rtx5090", "sm120")] {
        let text = succeed(layers.iter().chain(&[device]));
        let words =
            ["512 tokens, 8 of 128 experts, 2048→768→2048", "gate and up", "each token's results summed", family];
        assert!(words.iter().all(|word| text.contains(word)), "{device}: {text}");
    }
    let html = page("explain.html");
    let html = html.to_str().unwrap();
    let both =
        ["run", "--suite", "dual", "--activation", "nvfp4", "--explain", "--device", "b200,h200", "--html", html];
    let text = succeed(both);
    assert!(
        text.contains("on b200") && text.contains("on h200") && text.contains("bound by device memory: reading"),
        "{text}"
    );
    let page = std::fs::read_to_string(html).unwrap();
    assert_eq!(
        page.matches("<svg class=\"waterfall\"").count(),
        2 * page.matches("<h3>").count(),
        "two GPUs per problem"
    );
    assert!(page.contains("nothing was measured") && page.contains("last tile to C"));
    assert_refused(&hammerhead(["run", "--suite", "moe"]), &["verify or bench", "--explain and --device"]);
    assert_refused(&hammerhead(["run", "--explain", "--device", "v100"]), &["v100", "h200"]);
    assert_eq!(
        hammerhead(["run", "--device", "b200"]).status.code(),
        Some(2),
        "only what is explained can be of another GPU"
    );
    assert_eq!(
        hammerhead(["run", "--checkpoint", "model", "--layer", "0", "--explain", "--device", "b200"]).status.code(),
        Some(2),
        "a layer of a checkpoint is computed here"
    );
}

#[test]
fn a_device_goes_only_with_a_backend_that_computes_on_it() {
    let explain =
        |backend| hammerhead(["run", "--shape", "64x200x320", "--explain", "--device", "h200", "--backend", backend]);
    for backend in ["avx2", "scalar", "sim", "foretold:b200"] {
        assert_refused(&explain(backend), &[backend, "h200", "leave out --backend"]);
    }
    for backend in ["auto", "cuda", "cuda:1", "foretold:h200"] {
        assert!(explain(backend).status.success(), "{backend}: {}", stderr(&explain(backend)));
    }
}

#[test]
fn kernels_are_printed_only_for_a_device_that_runs_them() {
    let ptx = |arch, device| hammerhead(["ptx", "--arch", arch, "--device", device]);
    for (arch, device, fitting) in [
        ("sm_100a", "h100", "--arch sm_80 or sm_90a"),
        ("sm_90a", "b200", "--arch sm_80 or sm_100a"),
        ("sm_120a", "a100", "--arch sm_80"),
        ("sm_90a", "rtx5090", "--arch sm_80 or sm_120a"),
    ] {
        assert_refused(&ptx(arch, device), &[arch, device, fitting]);
    }
    for (arch, device) in [("sm_80", "b200"), ("sm_90a", "h100"), ("sm_100a", "b200"), ("sm_120f", "dgx-spark")] {
        assert!(ptx(arch, device).status.success(), "{arch} on {device}");
    }
}

#[test]
fn first_contact_without_a_gpu_that_can_be_used_is_a_sentence_and_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let [json, html] = ["a.json", "a.html"].map(|name| folder.path().join(name));
    let mut refused = command();
    refused.arg("first-contact").arg("--report").arg(&json).arg("--html").arg(&html);
    // Where there is a GPU, this is what it is refused for.
    let output = refused.env("HAMMERHEAD_FAMILY", "sm70").output().unwrap();
    assert_refused(&output, &["backend 'cuda'"]);
    assert!(!json.exists() && !html.exists());
    let output = hammerhead(["first-contact", "--report", "one", "--html", "one"]);
    assert_refused(&output, &["two results would go to", "one"]);
}

#[test]
fn a_process_that_tries_ways_says_first_why_it_cannot() {
    let output = command().args(["trial", "7"]).env("HAMMERHEAD_FAMILY", "sm70").output().unwrap();
    assert_eq!((output.status.code(), stdout(&output).lines().count()), (Some(0), 1));
    assert!(stdout(&output).contains("cuda"), "{}", stdout(&output));
}
