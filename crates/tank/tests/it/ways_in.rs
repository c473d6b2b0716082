//! Ways in, each as a program that gets through if the way is open: it says so in its next answer, or answers from what
//! it should not know.
//!
//! Where this machine's kernel lacks a guard, a way may be open; the record then says which, and these tests would fail
//! here.

use std::cell::{Cell, RefCell};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use crate::common::{
    Steady, Watched, asked, case, cheat, examined, fault_in_a_sitting, honest, is_gone, limits, quick, scalar, suite,
};
use referee::contestant::{Contestant, Fault, Job, Limits, Program};
use referee::{Pool, Terms, examine, sit};
use tank::operations::dual_gemm::tasks;
use testkit::cases::Inputs;

/// A cheat that is told of paths.
fn told(trick: &str, paths: &[&Path]) -> Program {
    let mut program = cheat(trick);
    program.command.extend(paths.iter().map(|path| format!("at:{}", path.display())));
    program
}

/// What a cheat says that got through; nothing where it did not and computed everything instead.
fn boast(program: &Program) -> Option<String> {
    let found = examined(program);
    assert!(found.fault.is_none() && found.wrong.is_empty(), "{found:?}");
    found.unsupported.first().cloned()
}

#[test]
fn inputs_that_are_to_be_timed_are_not_there_before_the_clock_runs() {
    let fault = fault_in_a_sitting(&cheat("early-bird"));
    assert!(matches!(&fault, Fault::Wrong { what, .. } if what.contains("timed output")), "{fault}");
}

#[test]
fn whoever_rests_rests() {
    let folder = tempfile::tempdir().unwrap();
    let (sign, rests) = (folder.path().join("rest"), Rc::new(Cell::new(0)));
    // Runs are staged while a contestant is stopped. The sign stands for as long as nothing of it may run.
    let (stands, counted) = (sign.clone(), Rc::clone(&rests));
    let staged = Rc::new(move |_: &[Job]| {
        if counted.replace(counted.get() + 1) < 4 {
            fs::write(&stands, "").unwrap();
            std::thread::sleep(Duration::from_millis(30));
            fs::remove_file(&stands).unwrap();
        }
    });
    let found = examined(&Watched { staged, ..Watched::new(told("rest-burner", &[&sign])) });
    assert!(rests.get() > 1 && found.unsupported.is_empty(), "{} rests, {:?}", rests.get(), found.unsupported);
    // Where there is no freezer it can wake itself, and is found by what it consumed.
    let found_out = |fault: &Fault| matches!(fault, Fault::Tampering { what } if what.contains("its rest"));
    assert!(found.fault.as_ref().is_none_or(found_out), "{found:?}");
}

/// GPU drivers do not start where they cannot name their threads in /proc, so that a part of it is open.
#[test]
fn what_is_not_ones_own_in_proc_is_out_of_reach() {
    assert_eq!(boast(&cheat("meddler")), None);
}

#[test]
fn nothing_can_be_written_but_ones_own_scratch() {
    let folder = tempfile::tempdir().unwrap();
    let victims = ["rival.py", "ledger.jsonl", "tuning.json"].map(|name| folder.path().join(name));
    victims.iter().for_each(|path| fs::write(path, "theirs").unwrap());
    let paths: Vec<&Path> = victims.iter().map(|path| path.as_path()).collect();
    assert_eq!(boast(&told("vandal", &paths)), None);
    assert!(victims.iter().all(|path| fs::read(path).is_ok_and(|bytes| bytes == b"theirs")));
}

#[test]
fn secrets_of_the_environment_of_the_home_folder_and_of_shared_memory_are_not_to_be_seen() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    fs::write(&secret, "the password is swordfish").unwrap();
    let home = Path::new(&std::env::var("HOME").unwrap()).join(".bashrc");
    assert_eq!(boast(&told("spy", &[&secret, &home, Path::new("/etc/shadow")])), None);
    let [_, found] = examine([&honest(), &told("spy", &[])], &asked(6), 6).unwrap();
    assert_eq!(found.correctness.unsupported, Vec::<String>::new(), "beside another's lots");
}

#[test]
fn no_socket_of_any_family_can_be_opened() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("helper");
    let _listener = UnixListener::bind(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
    assert_eq!(boast(&told("caller", &[&path])), None);
}

#[test]
fn memory_is_counted_over_all_processes_of_a_contestant() {
    let mut crowd = cheat("crowd");
    crowd.limits = Limits { memory_bytes: 1 << 30, ..crowd.limits };
    let found = examined(&crowd);
    assert!(found.unsupported.is_empty(), "{:?}", found.unsupported);
    assert!(matches!(&found.fault, Some(Fault::Excess { what }) if what.contains("1024 may be taken")), "{found:?}");
}

#[test]
fn no_disk_can_be_filled() {
    let mut filler = cheat("filler");
    filler.limits = Limits { file_bytes: 1 << 20, scratch_bytes: 2 << 20, ..filler.limits };
    assert_eq!(boast(&filler), None);
}

#[test]
fn what_is_written_to_standard_error_and_to_the_files_of_tensors_is_counted_too() {
    for (trick, taken) in [("shouter", "standard error"), ("swollen", "files of its tensors")] {
        let mut program = cheat(trick);
        program.limits.scratch_bytes = 8 << 20;
        let found = examined(&program);
        assert!(matches!(&found.fault, Some(Fault::Excess { what }) if what.contains(taken)), "{trick}: {found:?}");
    }
    assert_eq!(boast(&cheat("collector")), None);
}

#[test]
fn processes_are_counted() {
    let mut breeder = cheat("breeder");
    breeder.limits = Limits { processes: 32, ..breeder.limits };
    let found = examined(&breeder);
    assert!(found.unsupported.is_empty(), "{:?}", found.unsupported);
    // The kernel refuses the next one, except to root, whom the referee counts.
    let counted = |fault: &Fault| matches!(fault, Fault::Excess { what } if what.contains("32 may be started"));
    assert!(found.fault.as_ref().is_none_or(counted), "{found:?}");
}

#[test]
fn no_timers_fire_while_a_contestant_stands_still() {
    assert_eq!(boast(&cheat("timer-storm")), None);
}

#[test]
fn nobody_is_ended_in_the_place_of_a_contestant_that_takes_all_memory() {
    let found = examined(&cheat("survivor"));
    // With a GPU it may write to what is its own in /proc, and is found by that.
    let found_out = |fault: &Fault| matches!(fault, Fault::Tampering { what } if what.contains("behind others"));
    assert!(found.fault.as_ref().map_or(found.unsupported.is_empty(), found_out), "{found:?}");
}

#[test]
fn nobody_waits_for_a_contestant_to_open_a_file() {
    assert_eq!(boast(&cheat("leaser")), None);
}

#[test]
fn nobody_holds_the_watches_of_files_that_a_rival_needs() {
    assert_eq!(boast(&cheat("watcher")), None);
}

#[test]
fn a_rival_that_needs_what_another_hoards_still_has_it() {
    // Whoever talks to itself through pipes, beside one that holds pipes and locks.
    for habits in ["piping", "looping"] {
        let rival = suite().honest(habits, limits());
        let [hoarder, rival] = examine([&cheat("hoarder"), &rival], &asked(6), 6).unwrap();
        assert!(
            hoarder.correctness.passed() && rival.correctness.passed(),
            "{:?} {:?}",
            hoarder.correctness,
            rival.correctness
        );
    }
}

#[test]
fn the_fence_cannot_be_opened_from_within() {
    assert_eq!(boast(&cheat("escapist")), None);
}

#[test]
fn nothing_that_a_build_leaves_behind_lives_on() {
    let script = "setsid sh -c 'sleep 602.5 & sleep 602.5' & sleep 0.2; true";
    let mut program = Program { build: vec!["sh".into(), "-c".into(), script.into()], ..honest() };
    program.build().unwrap();
    assert!(is_gone(b"sleep\x00602.5\0"), "a daemon of the build's lives on");
}

#[test]
fn a_build_is_fenced_as_a_run_is() {
    let folder = tempfile::tempdir().unwrap();
    let victim = folder.path().join("victim");
    fs::write(&victim, "theirs").unwrap();
    let script = format!("echo mine > {0}; cat {0}; env | grep CARGO", victim.display());
    let mut program = Program { build: vec!["sh".into(), "-c".into(), script], ..honest() };
    let _ = program.build();
    assert_eq!(fs::read_to_string(&victim).unwrap(), "theirs");
}

#[test]
fn a_build_writes_to_a_copy_and_so_changes_nothing_of_others_and_a_run_writes_nowhere() {
    let folder = tempfile::tempdir().unwrap();
    let [kernel, rival] = ["kernel.sh", "tank.py"].map(|name| folder.path().join(name));
    fs::write(&kernel, "#!/bin/sh\necho mine > built; cat $(dirname $0)/built >&2; exit 3\n").unwrap();
    fs::set_permissions(&kernel, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(&rival, "theirs").unwrap();
    // By every name that it has.
    let script = format!("echo here > built; echo slower > tank.py; echo slower > {}; true", rival.display());
    let build = ["sh", "-c", &script].map(str::to_owned).to_vec();
    let mut program =
        Program { build, ..Program::new("kernel", vec![kernel.display().to_string()], crate::common::limits()) };
    program.build().unwrap();
    assert_eq!(fs::read_to_string(&rival).unwrap(), "theirs");
    assert!(!folder.path().join("built").exists());
    let fault = program.start().err().map(|fault| fault.to_string()).unwrap_or_default();
    assert!(fault.contains("its last words: here"), "it runs from where it was built: {fault}");
}

#[test]
fn what_a_build_links_to_others_is_refused_after_it_and_before_every_start() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    let (kernel, victim) = (root.join("mine/links.sh"), root.join("theirs/kernel.sh"));
    for path in [&kernel, &victim] {
        fs::create_dir(path.parent().unwrap()).unwrap();
        fs::write(path, "#!/bin/sh\necho own >&2; exit 3\n").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let built = |script: &str| {
        let build = ["sh", "-c", script].map(str::to_owned).to_vec();
        let command = vec![kernel.display().to_string()];
        let mut program = Program { build, ..Program::new("links", command, crate::common::limits()) };
        program.build().map(|()| program)
    };
    let theirs = victim.display();
    // The last one never ends for whoever reads it: it is refused before its digest is taken.
    for target in [victim.as_path(), Path::new("/etc/shadow"), Path::new("/proc/kmsg")] {
        let refused = built(&format!("ln -sf {} links.sh", target.display())).err();
        let named = |what: &str| what.contains(&format!("links.sh is a link to {}", target.display()));
        assert!(matches!(&refused, Some(Fault::Tampering { what }) if named(what)), "{target:?}: {refused:?}");
    }
    let by_its_folder = built(&format!("ln -s {} sub && ln -sf sub/kernel.sh links.sh", root.join("theirs").display()));
    assert!(matches!(by_its_folder.err(), Some(Fault::Tampering { .. })));
    // Behind the fence nobody makes another name for a file of others; what was one's own still is.
    let hard = built(&format!("ln {theirs} other && mv -f other links.sh; ln links.sh again; true")).unwrap();
    let own = built("mv links.sh real; ln -s real links.sh").unwrap();
    for program in [&hard, &own] {
        assert!(matches!(program.start().err(), Some(Fault::Crash { words, .. }) if words.contains("own")));
    }
    let copies =
        std::env::temp_dir().join(format!("hammerhead-tank-builds-{}", fs::metadata("/proc/self").unwrap().uid()));
    let links: Vec<_> = fs::read_dir(copies).unwrap().map(|copy| copy.unwrap().path().join("links.sh")).collect();
    for link in links.iter().filter(|link| fs::read_link(link).is_ok_and(|to| to == Path::new("real"))) {
        fs::remove_file(link).unwrap();
        std::os::unix::fs::symlink(&victim, link).unwrap();
    }
    let later = own.start().err();
    assert!(matches!(&later, Some(Fault::Tampering { what }) if what.contains("theirs/kernel.sh")), "{later:?}");
}

/// Fills the disk in a folder that no name is long enough for.
const DEEP: &str = "d=$(printf d%.0s $(seq 200)); for i in $(seq 30); do mkdir $d && cd -P $d || exit 9; done; \
    for i in 1 2 3 4; do head -c 8M /dev/zero > $i; done";

#[test]
fn a_build_is_limited_as_a_run_is() {
    let folder = tempfile::tempdir().unwrap();
    let kernel = folder.path().join("kernel.sh").display().to_string();
    for (script, taken) in [
        ("for i in 1 2 3 4; do head -c 8M /dev/zero > $i; done; sleep 600", "16 MiB of the disk"),
        // Done before anybody looks, and deeper than names reach.
        ("for i in 1 2 3 4; do head -c 8M /dev/zero > $i; done", "16 MiB of the disk"),
        (DEEP, "16 MiB of the disk"),
        ("head -c 8M /dev/zero; sleep 600", "standard error"),
        ("for i in $(seq 40); do sleep 600 & done; wait", "32 may be started"),
    ] {
        let build = ["sh", "-c", script].map(str::to_owned).to_vec();
        let mut program = Program { build, ..Program::new("kernel", vec![kernel.clone()], crate::common::limits()) };
        let Limits { file_bytes, scratch_bytes, processes, .. } = &mut program.limits;
        (*file_bytes, *scratch_bytes, *processes) = (16 << 20, 2 << 20, 32);
        let fault = program.build().unwrap_err().to_string();
        // The kernel refuses the next process, except to root, whom the referee counts.
        assert!(fault.contains(taken) || fault.contains("fork"), "{fault}");
    }
}

#[test]
fn a_program_that_was_changed_after_it_was_examined_does_not_start() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("kernel.py");
    fs::write(&script, "import sys; sys.exit(3)").unwrap();
    let mut program =
        Program::new("kernel", vec!["python3".into(), script.display().to_string()], crate::common::limits());
    program.sealed = Some(program.digest());
    assert!(matches!(program.start().err(), Some(Fault::Crash { .. })), "it is what it was, and starts");
    fs::write(&script, "import sys; sys.exit(4)").unwrap();
    assert!(matches!(program.start().err(), Some(Fault::Tampering { what }) if what.contains("program")));
}

#[test]
fn nobody_can_tell_which_layer_comes_next() {
    let mut settings = quick();
    settings.timing = referee::Timing { most_layers: 8, sample_jobs: 6, rotation: 1.0, ..settings.timing };
    let (clock, asked) = (Steady::default(), Rc::new(RefCell::new(Vec::new())));
    let case = case(3, 9, 32, Inputs::Realistic);
    let remembered = Rc::clone(&asked);
    let remember = move |jobs: &[Job]| remembered.borrow_mut().extend(jobs.iter().map(|job| job.layer));
    let champion = scalar(&case);
    let challenger = Watched { staged: Rc::new(remember), ..Watched::new(scalar(&case)) };
    let pool = Pool::new(&champion, &challenger, tasks(&[case]).unwrap(), &settings, &clock, 11).unwrap();
    sit(&mut pool.on_the_processor().unwrap(), &settings, &Terms::default(), 11).unwrap();
    let asked = asked.borrow();
    let layers = asked.iter().max().unwrap() + 1;
    // Whoever fetches the layer after the last one beforehand is right as often as whoever guesses.
    let right = asked.windows(2).filter(|pair| pair[1] == (pair[0] + 1) % layers).count();
    assert!(layers > 3 && right < asked.len() / 2, "{right} of {} layers were the next ones", asked.len());
}
