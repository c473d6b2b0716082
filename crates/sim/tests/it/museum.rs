//! A museum of bugs that were found in public kernels, each reduced to a few instructions, broken and fixed.
//!
//! A file has one exhibit: a head that says whose bug it was and what it is, and the instructions between a common
//! prologue and `ret`. Lines that end with `// broken` belong to the broken kernel alone, those that end with `//
//! fixed` to the fixed one.

use std::fmt::Write as _;
use std::path::PathBuf;

use ptx::parse::{Module, Shape};
use ptx::{Feature, Kernel};
use sim::{Gpu, Grade, Invocation, Limits, Rules, Schedule, Survey};

/// Bytes of the input and of the output.
const BUFFER: usize = 32 << 10;

/// What the exhibits are given: registers, shared memory, and where a thread's own words are.
const PROLOGUE: &str = "
    .reg .b32 %r<16>; .reg .b64 %d<8>; .reg .f32 %f<16>; .reg .pred %p<16>, %lead;
    .reg .b64 %in, %out, %i, %o; .reg .b32 %t, %t4, %s, %m, %b;
    .shared .align 1024 .b8 data[8192]; .shared .align 8 .b64 bars[4];
    ld.param.u64 %in, [in]; cvta.to.global.u64 %in, %in; ld.param.u64 %out, [out]; cvta.to.global.u64 %out, %out;
    mov.u32 %t, %tid.x; shl.b32 %t4, %t, 2; cvt.u64.u32 %d0, %t4; add.u64 %i, %in, %d0; add.u64 %o, %out, %d0;
    mov.u32 %s, data; add.u32 %m, %s, %t4; mov.u32 %b, bars; setp.eq.u32 %lead, %t, 0;
";

struct Exhibit {
    name: String,
    text: String,
}

impl Exhibit {
    /// What the head says of something.
    fn fact(&self, name: &str) -> Option<&str> {
        let begin = format!("// {name}: ");
        self.text.lines().find_map(|line| line.strip_prefix(&begin))
    }

    fn number(&self, name: &str) -> u32 {
        self.fact(name).map_or(1, |number| number.parse().expect("a number"))
    }

    fn kernel(&self, broken: bool) -> Kernel {
        let other = if broken { "// fixed" } else { "// broken" };
        let body: String =
            self.text.lines().filter(|line| !line.ends_with(other)).fold(String::new(), |mut body, line| {
                let _ = writeln!(body, "{line}");
                body
            });
        let target = self.fact("target").unwrap_or("sm_90a");
        let (threads, cluster) = (self.number("threads"), self.number("cluster"));
        let cluster = if cluster > 1 { format!(".reqnctapercluster {cluster}, 1, 1") } else { String::new() };
        let text = format!(
            ".version 8.8\n.target {target}\n.address_size 64\n.visible .entry exhibit(.param .u64 in, .param .u64 out) \
             .reqntid {threads}, 1, 1 {cluster} {{{PROLOGUE}{body}\nret; }}"
        );
        let module = Module::read(&text).unwrap_or_else(|error| panic!("{}: {error}", self.name));
        module.kernel("exhibit", Shape::default()).unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }

    fn survey(&self, broken: bool, rules: Rules) -> Survey {
        let kernel = self.kernel(broken);
        let limits = if kernel.target.has(Feature::Tcgen05) { Limits::b200() } else { Limits::h200() };
        let prepare = || {
            let mut gpu = Gpu::new(limits);
            let words: Vec<u8> = (0..BUFFER as u32 / 4).flat_map(u32::to_le_bytes).collect();
            let (input, output) = (gpu.upload("in", &words), gpu.upload("out", &[0; BUFFER]));
            if self.fact("awaits") == Some("in") {
                gpu.await_predecessor(input);
            }
            (gpu, Invocation { grid: [self.number("blocks"), 1, 1], args: vec![input.into(), output.into()] })
        };
        sim::survey(&kernel, &Schedule::several(8), rules, prepare, |_| Vec::new())
    }
}

fn exhibits() -> Vec<Exhibit> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/museum");
    let mut files: Vec<PathBuf> =
        folder.read_dir().expect("the museum").map(|entry| entry.expect("a file").path()).collect();
    files.sort();
    let read = |path: PathBuf| Exhibit {
        name: path.file_stem().expect("a name").to_string_lossy().into_owned(),
        text: std::fs::read_to_string(&path).expect("an exhibit"),
    };
    files.into_iter().map(read).collect()
}

/// Those that practice lets pass, with the reason.
const LET_PASS: [(&str, &str); 4] = [
    ("ao-4278", "the ISA has the fence anywhere on the way from the write to the copy"),
    ("cutlass-3654", "lanes of a warp that wait for one phase pass together here"),
    ("flashkda-24-init", "of the letter: no hardware is known to mind"),
    ("llama-28475", "of the letter: cooperative groups count on the order of lanes that meet in a shuffle"),
];

#[test]
fn public_bugs_are_found_and_their_fixes_are_not() {
    let (mut wrong, mut found) = (Vec::new(), 0);
    let exhibits = exhibits();
    for exhibit in &exhibits {
        let (broken, fixed) = (exhibit.survey(true, Rules::Practice), exhibit.survey(false, Rules::Practice));
        let let_pass = LET_PASS.iter().any(|(name, _)| *name == exhibit.name);
        if broken.findings.is_empty() != let_pass {
            let findings: Vec<&str> = broken.findings.iter().map(|graded| graded.finding.name()).collect();
            wrong.push(format!("{}: broken, and found {findings:?}", exhibit.name));
        }
        if let Some(graded) = fixed.findings.first() {
            wrong.push(format!("{}: fixed, and yet: {}", exhibit.name, graded.finding));
        }
        found += usize::from(!broken.findings.is_empty());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(exhibits.len() >= 30 && found * 10 >= exhibits.len() * 9, "{found} of {} are found", exhibits.len());
}

#[test]
fn a_missing_fence_between_reads_and_a_copy_was_seen_to_fail_and_that_of_a_barrier_was_not() {
    let grades = |name: &str, rules: Rules| {
        let exhibit = exhibits().into_iter().find(|exhibit| exhibit.name == name).expect("an exhibit");
        exhibit.survey(true, rules).findings.iter().map(|graded| graded.grade.name()).collect::<Vec<_>>()
    };
    assert_eq!(grades("deepep-621", Rules::Practice), ["seen"]);
    assert_eq!(grades("flashkda-24-init", Rules::Practice), [""; 0]);
    assert_eq!(grades("flashkda-24-init", Rules::Letter), ["letter"]);
    assert!(grades("flashkda-24-store", Rules::Letter).contains(&"broken"));
    assert!(Grade::Broken > Grade::Seen("a report") && Grade::Seen("a report") > Grade::Letter);
}

#[test]
fn the_table_of_the_book_says_what_is_found() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/museum.md");
    let book = std::fs::read_to_string(path).expect("docs/museum.md");
    let mut wrong = Vec::new();
    for exhibit in exhibits() {
        let survey = exhibit.survey(true, Rules::Letter);
        let first = survey.findings.first();
        let found =
            first.map_or("nothing".to_owned(), |first| format!("{}: {}", first.grade.name(), first.finding.name()));
        let begin = format!("| {} (`{}`) |", exhibit.fact("project").unwrap_or_default(), exhibit.name);
        let row = book.lines().find_map(|line| line.strip_prefix(&begin));
        let said = row.and_then(|row| row.split(" | ").nth(1));
        if said != Some(&found) {
            wrong.push(format!("{begin} … | {found} |, and the book says {said:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
