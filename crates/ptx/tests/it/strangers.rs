//! Texts of strangers: the fuzzer's corpus, read by the fuzzer's own function; and what is said of texts that are no
//! PTX.

#[path = "../../../../fuzz/src/kernels.rs"]
mod fuzzed;

use std::fs;
use std::path::PathBuf;

use ptx::parse::{Module, Shape};
use ptx::{Error, Kernel, Op};

fn corpus(kind: &str) -> Vec<(String, Vec<u8>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(kind);
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() > 10);
    let named = |path: PathBuf| (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(path).unwrap());
    files.into_iter().map(named).collect()
}

fn seed(name: &str) -> String {
    let found = corpus("ptx").into_iter().find(|(known, _)| known == name);
    String::from_utf8(found.unwrap_or_else(|| panic!("no ptx/{name}")).1).unwrap()
}

/// The kernel `k` of a text.
fn kernel(text: &str) -> Result<Kernel, Error> {
    Module::read(text)?.kernel("k", Shape::default())
}

/// A kernel of these statements.
fn lowered(body: &str) -> Result<Kernel, Error> {
    let registers = ".reg .pred %p<4>; .reg .b16 %h<4>; .reg .b32 %r<16>; .reg .b64 %d<8>;";
    kernel(&format!(".version 9.0\n.target sm_90a\n.entry k(.param .u64 p) .reqntid 32 {{ {registers}\n{body}\n}}"))
}

#[test]
fn the_whole_corpus_is_read_without_a_panic() {
    for (kind, target) in fuzzed::TARGETS {
        for (_, bytes) in corpus(kind) {
            target(&bytes);
        }
    }
}

/// The same numbers every time: a linear congruential generator.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % limit.max(1)
    }
}

#[test]
fn texts_that_are_cut_torn_and_mixed_are_read_without_a_panic() {
    let (corpus, mut random) = (corpus("ptx"), Random(7));
    for _ in 0..4000 {
        let mut bytes = corpus[random.below(corpus.len())].1.clone();
        let other = &corpus[random.below(corpus.len())].1;
        for _ in 0..1 + random.below(4) {
            let at = random.below(bytes.len());
            match random.below(4) {
                0 => bytes.truncate(at),
                1 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = random.below(128) as u8),
                2 => drop(bytes.drain(at..(at + random.below(20)).min(bytes.len()))),
                _ => {
                    let from = random.below(other.len());
                    let piece = &other[from..(from + random.below(60)).min(other.len())];
                    drop(bytes.splice(at..at, piece.iter().copied()));
                }
            }
        }
        fuzzed::ptx(&bytes);
    }
}

#[test]
fn what_is_no_ptx_is_refused_with_its_place() {
    let said = |name: &str| kernel(&seed(name)).unwrap_err().to_string();
    for (name, sentence) in [
        ("deep_blocks", "line 7, column 65: found `{`; expected at most 64 blocks within each other"),
        ("deep_operands", "line 7, column 17: found `{`; expected at most 8 brackets within each other"),
        ("many_registers", "line 7, column 11: found `4294967295 registers`; expected at most 262144 in a function"),
        ("huge_shared", "line 4, column 13: found `s`; expected a variable of at most 1 GiB"),
        (
            "huge_number",
            "line 11, column 14: found `99999999999999999999999`; expected an integer of at most 64 bits, or a float",
        ),
        ("huge_offset", "line 11, column 21: found `9223372036854775807`; expected an offset of 32 bits"),
        ("huge_block", "line 5, column 1: found `reqntid`; expected sides of 1 to 1048576"),
        ("label_twice", "line 7, column 4: found `a`; expected a label that is placed once"),
        ("undeclared", "line 7, column 9: found `%r1`; expected a name that is declared"),
        ("open_comment", "line 4, column 1: found `/*`; expected the end of the comment, */"),
        ("open_string", "line 4, column 9: found `\"`; expected the end of the string, on the same line"),
        ("no_ascii", "line 4, column 1: found `\\u{e9}`; expected PTX, which is plain ASCII"),
        ("nothing", "line 1, column 1: found `k`; expected a text with an .entry"),
    ] {
        assert_eq!(said(name), sentence, "{name}");
    }
}

#[test]
fn an_instruction_that_is_not_understood_keeps_its_words_and_its_line() {
    let kernel =
        lowered("mov.b32 %r1, 0;\n@%p1 tex.2d.v4.f32.f32 {%r1, %r2, %r3, %r4}, [t, {%r5, %r6}];\nret;").unwrap();
    let [_, unknown, _] = &kernel.body[..] else { panic!("{:?}", kernel.body) };
    let Op::Unknown(found) = &unknown.op else { panic!("{unknown:?}") };
    assert_eq!((found.opcode.as_str(), unknown.line, unknown.guard.is_some()), ("tex.2d.v4.f32.f32", Some(5), true));
    assert_eq!(found.text, "tex.2d.v4.f32.f32 {%r1, %r2, %r3, %r4}, [t, {%r5, %r6}]");
    let broken = kernel.check().unwrap_err().to_string();
    assert!(broken.ends_with("tex.2d.v4.f32.f32 is not understood"), "{broken}");
    assert!(lowered("mov.u32 %r1, WARP_SZ; add.u32 %r1, %r1, WARP_SZ; ret;").unwrap().check().is_ok());
    let broken = lowered("mov.b32 %r1, %d1; ret;").unwrap().check().unwrap_err().to_string();
    assert!(broken.ends_with("not understood: expected %d1 to be a register of 32 bits, not of 64"), "{broken}");
}

#[test]
fn variables_of_a_module_have_addresses_and_functions_are_declared() {
    let with_address = |name: &str| {
        let text = seed(name)
            .replace("ret;\n}", "mov.u64 %d1, g; ret;\n}")
            .replace(".reg .b32 r;", ".reg .b32 r; .reg .b64 %d1;");
        kernel(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
    };
    let unknown = |kernel: &ptx::Kernel| kernel.body.iter().any(|instr| matches!(instr.op, Op::Unknown(_)));
    let kernel = with_address("variables");
    assert!(!unknown(&kernel) && unknown(&with_address("functions")));
    let [g, l] = &kernel.variables[..] else { panic!("{:?}", kernel.variables) };
    assert_eq!((g.name.as_str(), g.bytes, &g.initial[..]), ("g", 8, &[1, 0, 0, 0, 255, 0, 0, 0][..]));
    assert_eq!((l.space, l.bytes), (ptx::VariableSpace::Local, 16));
}

#[test]
fn a_name_means_what_its_block_says() {
    let kernel = lowered("mov.b32 %r1, 1; a: { .reg .b32 %r1; mov.b32 %r1, 2; a: bra a; } bra a;").unwrap();
    let writes = |at: usize| {
        let mut written = None;
        kernel.body[at].registers(&mut |reg, _| written = Some(reg.index));
        written
    };
    assert_eq!((writes(0), writes(2)), (Some(1), Some(16)));
    let labels = kernel.labels().unwrap();
    let target = |at: usize| match kernel.body[at].op {
        Op::Control(ptx::instr::Control::Branch { target, .. }) => labels[target.0 as usize],
        ref other => panic!("{other:?}"),
    };
    assert_eq!((target(4), target(5)), (3, 1));
}

#[test]
fn source_lines_are_phases_with_the_calls_around_them() {
    let kernel = kernel(&seed("debug")).unwrap();
    let last = kernel.body.last().unwrap();
    assert_eq!(kernel.phase_path(last.phase), "k/b.py:3/cd ?:43");
}

/// C++ templates have names of thousands of characters, and every finding names the calls around it.
#[test]
fn phases_have_names_that_can_be_read() {
    let long = format!("_Z{}4copyEv", "very_long_".repeat(400));
    let text = format!(
        ".version 8.0 .target sm_80 .address_size 64\n.file 1 \"a.cu\"\n.visible .entry {long}()\n.reqntid 32\n{{ .loc 1 7 0\n ret; }}"
    );
    let kernel = Module::read(&text).unwrap().kernel(&long, Shape::default()).unwrap();
    assert_eq!(kernel.name, long);
    let names: Vec<&str> = kernel.phases.iter().map(|phase| phase.name.as_str()).collect();
    assert!(names.iter().all(|name| name.len() < 100), "{names:?}");
    assert!(names[0].starts_with("_Zvery_long_") && names[0].ends_with("4copyEv"), "{names:?}");
    assert_eq!(names[1], "a.cu:7");
}

/// As Warp writes its files: with the zero that ends a C string.
#[test]
fn zeros_behind_a_text_are_left_out() {
    let text = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry nothing() .reqntid 32 { ret; }\n";
    assert_eq!(Module::read(&format!("{text}\0")).expect("a module").entries(), ["nothing"]);
    assert!(Module::read(&text.replace("ret;", "ret;\0")).is_err());
}
