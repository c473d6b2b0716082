//! Generic addresses: they carry their window, and are held to its bounds and its races.

use sim::{Gpu, Invocation, Limits, Schedule};

use crate::texts::{kernel_for, results_of};

/// The generic address of a word per thread in `%d1`, and of its right neighbour's in `%d2`, round about.
const WORDS: &str = "
    .shared .align 8 .b8 words[256]; mov.u64 %d3, words; cvta.shared.u64 %d3, %d3;
    mad.wide.u32 %d1, %t, 4, %d3; add.u32 %r2, %t, 1; and.b32 %r2, %r2, 63; mad.wide.u32 %d2, %r2, 4, %d3;";

fn fault(threads: u32, body: &str) -> Option<String> {
    let kernel = kernel_for("sm_90a", [threads, 1, 1], body);
    let mut gpu = Gpu::new(Limits::h200());
    let (input, out) = (gpu.upload("in", &[7; 64]), gpu.alloc("out", 8 * threads as usize));
    let launch = Invocation { grid: [1, 1, 1], args: vec![input.into(), out.into()] };
    let run = |schedule| gpu.clone().run(&kernel, &launch, schedule).err().map(|fault| fault.to_string());
    Schedule::several(4).into_iter().find_map(run)
}

#[test]
fn threads_exchange_words_by_generic_addresses() {
    let body = format!(
        "{WORDS} mad.lo.u32 %r3, %t, 3, 1; st.u32 [%d1], %r3; bar.sync 0; ld.u32 %r4, [%d2]; \
         cvt.u64.u32 %d5, %r4; st.u64 [%o], %d5;"
    );
    let found = results_of(&kernel_for("sm_90a", [64, 1, 1], &body), &[0; 8]);
    assert_eq!(found, (0..64u64).map(|t| (t + 1) % 64 * 3 + 1).collect::<Vec<_>>());
}

#[test]
fn without_the_barrier_it_is_a_race_as_by_shared_addresses() {
    let near = "mad.lo.u32 %r3, %t, 3, 1; st.u32 [%d1], %r3; ld.u32 %r4, [%d2]; cvt.u64.u32 %d5, %r4;";
    let generic = fault(64, &format!("{WORDS} {near} st.u64 [%o], %d5;")).expect("a race");
    let shared = "cvta.to.shared.u64 %d1, %d1; cvta.to.shared.u64 %d2, %d2; mov.u32 %r3, %t;
        st.shared.u32 [%d1], %r3; ld.shared.u32 %r4, [%d2]; cvt.u64.u32 %d5, %r4; st.global.u64 [%o], %d5;";
    let shared = fault(64, &format!("{WORDS} {shared}")).expect("a race");
    for found in [&generic, &shared] {
        assert!(found.contains("race") && found.contains("words"), "{found}");
    }
}

#[test]
fn the_ends_of_shared_memory_hold_for_generic_addresses() {
    let found = fault(1, &format!("{WORDS} ld.u32 %r4, [%d1+256];")).expect("it is beyond");
    assert!(found.contains("shared") && found.contains("256 bytes"), "{found}");
    let found = fault(1, "mov.u64 %d1, 4096; ld.u32 %r4, [%d1];").expect("nothing is there");
    assert!(found.contains("no buffer"), "{found}");
    // An address that is not of shared memory is none where shared memory is asked for.
    let found = fault(1, "cvta.to.shared.u64 %d1, %i; ld.shared.u32 %r4, [%d1];").expect("nothing is there");
    assert!(found.contains("not in this block's window"), "{found}");
}

#[test]
fn lanes_of_one_instruction_may_be_in_different_windows() {
    // Odd threads load their word of shared memory, and even ones one of the input, by the same instruction; then all
    // of them add to it there.
    let body = format!(
        "{WORDS} mul.lo.u32 %r3, %t, 100; st.shared.u32 [words+0], 0; bar.sync 0; cvt.u32.u64 %r5, %d1; \
         st.shared.u32 [%r5], %r3; and.b32 %r6, %t, 1; setp.eq.u32 %p1, %r6, 0; mad.wide.u32 %d4, %t, 4, %i; \
         selp.b64 %d4, %d4, %d1, %p1; ld.u32 %r4, [%d4]; atom.add.u32 %r7, [%d4], 5; ld.u32 %r8, [%d4]; \
         sub.u32 %r8, %r8, %r7; mad.lo.u32 %r4, %r8, 1000000, %r4; cvt.u64.u32 %d5, %r4; st.u64 [%o], %d5;"
    );
    let input: Vec<u8> = (0..64u32).flat_map(|word| (word + 7).to_le_bytes()).collect();
    let found = results_of(&kernel_for("sm_90a", [64, 1, 1], &body), &input);
    let word = |t: u64| if t.is_multiple_of(2) { t + 7 } else { 100 * t };
    assert_eq!(found, (0..64).map(|t| 5_000_000 + word(t)).collect::<Vec<_>>());
}

#[test]
fn an_address_says_in_which_window_it_is() {
    let ask = |address: &str| {
        let windows = ["global", "const", "local", "param", "shared", "shared::cta", "shared::cluster"];
        let asked: String = (0..)
            .zip(windows)
            .map(|(bit, window)| {
                format!("isspacep.{window} %p1, %d1; selp.b64 %d6, {}, 0, %p1; or.b64 %d5, %d5, %d6;", 1 << bit)
            })
            .collect();
        let body = format!("mov.u64 %d5, 0; {address} {asked} st.global.u64 [%o], %d5;");
        results_of(&kernel_for("sm_90a", [1, 1, 1], &body), &[0; 8])[0]
    };
    assert_eq!(ask("mov.u64 %d1, %i;"), 0b000_0001);
    assert_eq!(ask(".local .b8 own[8]; mov.u64 %d1, own; cvta.local.u64 %d1, %d1;"), 0b000_0100);
    assert_eq!(ask(".shared .b8 ours[8]; cvta.shared.u64 %d1, ours;"), 0b111_0000);
    // The window of the parameters is a part of the global one.
    assert_eq!(ask("mov.b64 %d1, in; cvta.param.u64 %d1, %d1;"), 0b000_1001);
}

#[test]
fn parameters_and_what_a_thread_has_are_read_by_generic_addresses() {
    let body = "mov.b64 %d1, in; cvta.param.u64 %d1, %d1; ld.u64 %d2, [%d1]; sub.u64 %d2, %d2, %i;
        .local .align 8 .b8 own[16]; cvta.local.u64 %d3, own; st.u32 [%d3+4], %t; ld.u32 %r2, [%d3+4];
        mad.wide.u32 %d2, %r2, 2, %d2; st.u64 [%o], %d2;";
    let found = results_of(&kernel_for("sm_90a", [40, 1, 1], body), &[0; 8]);
    assert_eq!(found, (0..40).map(|t| 2 * t).collect::<Vec<u64>>());
}

#[test]
fn barriers_and_matrices_are_found_by_generic_addresses() {
    // Each thread arrives, waits for the others, and takes a row of a matrix that all have stored.
    let body = ".shared .align 16 .b8 bar[8]; .shared .align 16 .b8 rows[128]; cvta.shared.u64 %d1, bar; \
        cvta.shared.u64 %d2, rows; setp.eq.u32 %p1, %t, 0; @%p1 mbarrier.init.b64 [%d1], 32; bar.sync 0; \
        mad.wide.u32 %d3, %t, 4, %d2; st.u32 [%d3], %t; mbarrier.arrive.b64 _, [%d1]; \
        WAIT: mbarrier.try_wait.parity.b64 %p2, [%d1], 0; @!%p2 bra WAIT; \
        and.b32 %r2, %t, 7; mad.wide.u32 %d4, %r2, 16, %d2; ldmatrix.sync.aligned.m8n8.x1.b16 {%r3}, [%d4]; \
        cvt.u64.u32 %d5, %r3; st.u64 [%o], %d5;";
    let found = results_of(&kernel_for("sm_90a", [32, 1, 1], body), &[0; 8]);
    assert_eq!(found, (0..32).collect::<Vec<u64>>());
    let global = "setp.eq.u32 %p1, %t, 0; @%p1 mbarrier.init.b64 [%i], 32;";
    assert!(fault(32, global).is_some_and(|found| found.contains("not in this block's window")));
}
