//! `hammerhead check`: what is found in strangers' kernels, what is not, and what cannot be run.

use std::path::Path;
use std::process::Output;

use serde_json::Value;
use tempfile::{TempDir, tempdir};

use crate::common::{hammerhead, page, stderr, stdout};

/// Each thread hands its number to its neighbour through shared memory; the barrier between can be left out.
fn neighbours(barrier: &str) -> String {
    format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.file 1 \"src/hand.cu\"
.visible .entry hand(.param .u64 out, .param .u32 n)
{{
.reg .pred %p<2>; .reg .b32 %r<8>; .reg .b64 %d<4>;
.shared .align 4 .b8 words[256];
mov.u32 %r1, %tid.x; mov.b32 %r2, words; mad.lo.s32 %r3, %r1, 4, %r2;
st.shared.u32 [%r3], %r1;
{barrier}
.loc 1 7 3
xor.b32 %r4, %r1, 32; mad.lo.s32 %r4, %r4, 4, %r2;
ld.shared.u32 %r5, [%r4];
ld.param.u32 %r6, [n]; setp.lt.u32 %p1, %r1, %r6;
ld.param.u64 %d1, [out]; mad.wide.u32 %d2, %r1, 4, %d1;
@%p1 st.global.u32 [%d2], %r5;
ret;
}}
"
    )
}

const LAUNCH: &str =
    "grid = [1]\nblock = [64]\n[buffer.out]\ndtype = \"u32\"\nshape = [64]\nfill = \"poison\"\nexpect = \"out.npy\"
[[arg]]\nbuffer = \"out\"\n[[arg]]\nu32 = 64\n";

/// A folder with what the kernel should leave.
fn folder() -> TempDir {
    let folder = tempdir().unwrap();
    let header = "{'descr': '<u4', 'fortran_order': False, 'shape': (64,), }\n";
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend((0..64u32).flat_map(|thread| (thread ^ 32).to_le_bytes()));
    std::fs::write(folder.path().join("out.npy"), bytes).unwrap();
    folder
}

fn check(folder: &Path, kernel: &str, launch: &str, options: &[&str]) -> Output {
    let (text, toml) = (folder.join("kernel.ptx"), folder.join("launch.toml"));
    std::fs::write(&text, kernel).unwrap();
    std::fs::write(&toml, launch).unwrap();
    let args = ["check", text.to_str().unwrap(), "--launch", toml.to_str().unwrap()];
    hammerhead(args.iter().chain(options).copied())
}

#[test]
fn a_right_kernel_passes_under_every_schedule() {
    let folder = folder();
    let output = check(folder.path(), &neighbours("bar.sync 0;"), LAUNCH, &["--schedules", "5"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).starts_with("hand: nothing found under 5 schedules"), "{}", stdout(&output));
}

#[test]
fn a_missing_barrier_is_a_race_at_its_line() {
    let folder = folder();
    let output = check(folder.path(), &neighbours(""), LAUNCH, &[]);
    assert_eq!(output.status.code(), Some(1));
    let text = stdout(&output);
    for part in [
        "race on 4 bytes of shared memory",
        "words+",
        "hand.cu:7",
        "line 17 of the text: @%p1 st.global.u32 [%d2], %r5;",
    ] {
        assert!(text.contains(part), "no {part:?} in: {text}");
    }
    let output = check(folder.path(), &neighbours(""), LAUNCH, &["--json", "--rules", "letter"]);
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(report["kernel"].as_str(), Some("hand"));
    // Which side comes second is the schedule's to say.
    let findings = report["findings"].as_array().unwrap();
    let race = findings.iter().find(|found| found["rule"] == "race").unwrap();
    assert!(race["line"] == 10 || race["line"] == 14, "{race}");
}

#[test]
fn a_race_has_two_sides_in_json_and_on_the_page() {
    let folder = folder();
    let html = page("race.html");
    let output = check(folder.path(), &neighbours(""), LAUNCH, &["--json", "--html", html.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let findings = report["findings"].as_array().unwrap();
    let race = &findings.iter().find(|found| found["rule"] == "race").unwrap()["race"];
    let lines = ["first", "second"].map(|side| race[side]["line"].as_u64().unwrap());
    assert!(lines == [10, 14] || lines == [14, 10], "{race}");
    assert!(race["place"].as_str().unwrap().contains("words+") && race["remedy"].as_str().unwrap().contains("barrier"));
    let page = std::fs::read_to_string(&html).unwrap();
    for part in [
        "<h1>Check of hand</h1>",
        "<mark>   10  st.shared.u32 [%r3], %r1;</mark>",
        "<mark>   14  ld.shared.u32 %r5, [%r4];</mark>",
        "hand/hand.cu:7",
        "<dt>lacks</dt>",
        "<dt>remedy</dt>",
        "Time is logical",
        "<h3>earliest</h3>",
        "<h3>latest</h3>",
        "<rect class=\"step\"",
    ] {
        assert!(page.contains(part), "no {part:?} in {page}");
    }
    for outside in ["<script", "http://", "https://", "src=", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
}

#[test]
fn a_page_that_cannot_be_written_is_refused_before_anything_runs() {
    let folder = folder();
    let output = check(folder.path(), &neighbours("bar.sync 0;"), LAUNCH, &["--html", "/no such folder/page.html"]);
    assert!(stderr(&output).contains("its folder does not exist") && stdout(&output).is_empty(), "{}", stderr(&output));
}

#[test]
fn a_wrong_result_is_a_finding() {
    let folder = folder();
    let kernel = neighbours("bar.sync 0;").replace("xor.b32 %r4, %r1, 32;", "xor.b32 %r4, %r1, 16;");
    let output = check(folder.path(), &kernel, LAUNCH, &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout(&output).contains("out: 64 of 64 elements differ, first 0: 16, not 32"), "{}", stdout(&output));
    // Nothing was written where something is expected.
    let output = check(folder.path(), &neighbours("bar.sync 0;"), &LAUNCH.replace("u32 = 64", "u32 = 60"), &[]);
    assert!(stdout(&output).contains("out: element 60 was never written"), "{}", stdout(&output));
}

#[test]
fn mistakes_in_a_kernel_are_counted() {
    let folder = folder();
    let right = neighbours("bar.sync 0;");
    let output = check(folder.path(), &right, LAUNCH, &["--mutations", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let mutations = &report["mutations"];
    assert_eq!((mutations["made"].as_u64(), mutations["caught"].as_u64()), (Some(6), Some(5)), "{mutations}");
    let of_barriers =
        mutations["kinds"].as_array().unwrap().iter().find(|kind| kind["mistake"] == "named barrier dropped");
    assert_eq!(of_barriers.unwrap()["caught"], 1);
    // All threads store: whether they are asked makes no difference.
    assert_eq!(mutations["survivors"][0]["mistake"], "guard dropped");
    // Of a kernel that has a finding itself nothing is counted.
    let output = check(folder.path(), &neighbours(""), LAUNCH, &["--mutations", "--json"]);
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!((output.status.code(), report.get("mutations")), (Some(1), None));
}

#[test]
fn what_cannot_be_run_is_said_in_one_line() {
    let folder = folder();
    let right = neighbours("bar.sync 0;");
    let refused = |kernel: &str, launch: &str, parts: &[&str]| {
        let output = check(folder.path(), kernel, launch, &[]);
        let said = stderr(&output);
        assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{said}");
        parts.iter().for_each(|part| assert!(said.contains(part), "no {part:?} in: {said}"));
    };
    refused(
        &right.replace("ret;", "ret"),
        LAUNCH,
        &["kernel.ptx", "line 19, column 1: found `}`; expected an operand"],
    );
    refused(&right.replace("mov.u32 %r1, %tid.x", "mov.u32 %r99, %tid.x"), LAUNCH, &["line 9", "`%r99`"]);
    refused(
        &neighbours("tex.1d.v4.f32.s32 {%r1, %r2, %r3, %r4}, [t, {%r5}];"),
        LAUNCH,
        &["not simulated: line 11: tex.1d"],
    );
    for (old, new, parts) in [
        ("grid = [1]", "grid = [1", &["line 2"][..]),
        ("grid = [1]", "grid = [4294967295, 4294967295]", &["at most 1048576"]),
        ("grid = [1]", "grid = []", &["grid has 0 sides"]),
        ("block = [64]", "blocks = [64]", &["line 2", "blocks"]),
        ("block = [64]\n", "", &["no .reqntid"]),
        ("block = [64]", "block = [64, 64]", &["threads of a block"]),
        ("shape = [64]", "shape = [18446744073709551615, 2]", &["too large"]),
        ("shape = [64]", "shape = [9223372036854775807, 2]", &["too large"]),
        ("fill = \"poison\"", "fill = \"sand\"", &["\"sand\"", "random:SEED"]),
        ("expect = \"out.npy\"", "expect = \"none.npy\"", &["none.npy"]),
        ("expect = \"out.npy\"", "expect = \"kernel.ptx\"", &["does not begin as numpy's files do"]),
        ("shape = [64]", "shape = [65]", &["260 bytes, and 256 are expected"]),
        ("buffer = \"out\"", "buffer = \"in\"", &["there is no buffer \"in\""]),
        ("buffer = \"out\"", "u32 = 1", &["parameter out"]),
        ("u32 = 64", "u32 = 64\ni32 = 64", &["give one of buffer"]),
        ("[[arg]]\nu32 = 64\n", "", &["1 arguments for 2 parameters: out, n"]),
        ("u32 = 64", "bytes = \"0x4\"", &["hexadecimal"]),
    ] {
        refused(&right, &LAUNCH.replace(old, new), parts);
    }
    let output = hammerhead(["check", "nowhere.ptx", "--launch", "nowhere.toml"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}

/// A structure as CUTLASS's kernels take it: a tensor map, a pointer, a count and more, in one parameter. One thread
/// has the copy engine bring 32 words by the map, whose address is made of the parameter's; all double it.
const STRUCTURE: &str = ".version 8.0\n.target sm_90a\n.address_size 64
.visible .entry twice(.param .align 64 .b8 params[256])
{
.reg .pred %p<4>; .reg .b32 %r<12>; .reg .b64 %d<8>;
.shared .align 128 .b8 words[128];
.shared .align 8 .b8 full[8];
mov.b64 %d1, params; cvta.param.u64 %d2, %d1; add.s64 %d3, %d2, 64;
mov.u32 %r1, %tid.x; setp.ne.u32 %p1, %r1, 0; mov.b32 %r2, words; mov.b32 %r3, full;
@%p1 bra WAIT;
prefetch.tensormap [%d3];
mbarrier.init.shared::cta.b64 [%r3], 1;
fence.mbarrier_init.release.cluster;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 128;
mov.u32 %r4, 0;
cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%d3, {%r4, %r4}], [%r3];
WAIT:
bar.sync 0;
mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], 0;
@!%p2 bra WAITS;
bra DONE;
WAITS:
mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], 0;
@!%p2 bra WAITS;
DONE:
mad.lo.s32 %r5, %r1, 4, %r2; ld.shared.u32 %r6, [%r5];
ld.param.u32 %r7, [params+200]; mul.lo.u32 %r6, %r6, %r7;
ld.param.u64 %d4, [params+192]; mad.wide.u32 %d5, %r1, 4, %d4;
st.global.u32 [%d5], %r6;
ret;
}
";

const PARTS: &str = "grid = [1]\nblock = [32]
[buffer.in]\ndtype = \"u32\"\nshape = [32]\nfill = \"arange\"
[buffer.out]\ndtype = \"u32\"\nshape = [32]\nfill = \"poison\"\nexpect = \"twice.npy\"
[[arg]]\nsize = 256
parts = [
  { at = 64, tensor_map = { buffer = \"in\", dims = [8, 4], strides = [32], box = [8, 4] } },
  { at = 192, buffer = \"out\" },
  { at = 200, u32 = 2 },
  { at = 0, bytes = \"00ff\" },
]\n";

#[test]
fn a_structure_is_made_of_parts_and_may_hold_tensor_maps() {
    let folder = folder();
    let header = "{'descr': '<u4', 'fortran_order': False, 'shape': (32,), }\n";
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend((0..32u32).flat_map(|thread| (2 * thread).to_le_bytes()));
    std::fs::write(folder.path().join("twice.npy"), bytes).unwrap();
    let output = check(folder.path(), STRUCTURE, PARTS, &["--rules", "letter"]);
    assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
    let output = check(folder.path(), STRUCTURE, &PARTS.replace("u32 = 2", "u32 = 3"), &[]);
    assert!(stdout(&output).contains("out: 31 of 32 elements differ, first 1: 3, not 2"), "{}", stdout(&output));
    // Where the kernel looks for a map there has to be one.
    let output =
        check(folder.path(), STRUCTURE, &PARTS.replace("at = 64", "at = 0").replace("  { at = 0, b", "#"), &[]);
    assert!(stdout(&output).contains("the address of a tensor map"), "{}", stdout(&output));
    for (old, new, parts) in [
        ("size = 256", "size = 264", &["params: size is 264, and the parameter has 256 bytes"][..]),
        ("at = 64", "at = 72", &["the part at 72", "a multiple of 64 bytes"]),
        ("at = 64", "at = 192", &["the part at 192", "its 128 bytes reach beyond the parameter's 256"]),
        ("at = 192", "at = 18446744073709551615", &["reach beyond the parameter's 256"]),
        ("at = 192", "at = 9223372036854775807", &["reach beyond the parameter's 256"]),
        ("at = 192", "at = 188", &["the part at 64 ends before byte 192, and the part at 188 overlaps it"]),
        ("at = 200", "at = 196", &["the part at 192 ends before byte 200, and the part at 196 overlaps it"]),
        ("{ at = 200, ", "{ ", &["part 2 has no at"]),
        ("u32 = 2", "u32 = 2, i32 = 2", &["the part at 200: give one of buffer"]),
        ("u32 = 2", "size = 4", &["the part at 200: a part has no parts or size"]),
        ("u32 = 2", "parts = []", &["the part at 200: a part has no parts or size"]),
        ("buffer = \"out\" }", "buffer = \"none\" }", &["the part at 192: there is no buffer \"none\""]),
        ("00ff", "00f", &["the part at 0: bytes wants pairs"]),
        ("size = 256", "u32 = 256", &["params: give one of buffer"]),
        ("size = 256", "at = 256", &["at is for the parts of a structure"]),
        ("box = [8, 4]", "box = [8, 4], dtype = \"u5\"", &["dtype is \"u5\"", "and of a tensor map u4"]),
    ] {
        let output = check(folder.path(), STRUCTURE, &PARTS.replacen(old, new, 1), &[]);
        let said = stderr(&output);
        assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{new}: {said}");
        parts.iter().for_each(|part| assert!(said.contains(part), "no {part:?} in: {said}"));
    }
    // A tensor map wants an aligned parameter, too.
    let output = check(folder.path(), &STRUCTURE.replace(".param .align 64", ".param .align 8"), PARTS, &[]);
    assert!(stderr(&output).contains("this one is to 8"), "{}", stderr(&output));
}
