//! Texts that were not built here: what instructions compute that only strangers use, against values computed
//! otherwise.

use ptx::Kernel;
use ptx::descriptor::Swizzle;
use ptx::instr::Barrier;
use ptx::parse::{Module, Shape};
use ptx::tensor_map::{Element, TensorMap};
use sim::{Arg, Gpu, Invocation, Limits, Rules, Schedule};

use crate::texts::{kernel_for, results_of};

/// A kernel for Hopper, see [`kernel_for`].
fn kernel(block: [u32; 3], body: &str) -> Kernel {
    kernel_for("sm_90a", block, body)
}

/// What each thread of a block leaves, under three schedules.
fn results(block: [u32; 3], input: &[u8], body: &str) -> Vec<u64> {
    results_of(&kernel(block, body), input)
}

/// What the first thread leaves.
fn result(input: &[u8], body: &str) -> u64 {
    results([1, 1, 1], input, body)[0]
}

#[test]
fn threads_of_a_block_are_counted_along_x_then_y_then_z() {
    let body =
        "mov.u32 %r2, %tid.x; mov.u32 %r3, %tid.y; mov.u32 %r4, %tid.z; mov.u32 %r5, %ntid.y; mov.u32 %r6, %laneid;
        mad.lo.u32 %r2, %r3, 100, %r2; mad.lo.u32 %r2, %r4, 10000, %r2; mad.lo.u32 %r2, %r5, 1000000, %r2;
        mov.b64 %d1, {%r2, %r6}; st.global.b64 [%o], %d1;";
    // 5·3·3 threads are a warp and a part of one.
    let found = results([5, 3, 3], &[0; 8], body);
    let expected = (0..45u64).map(|t| (t % 5 + t / 5 % 3 * 100 + t / 15 * 10000 + 3_000_000) | (t % 32) << 32);
    assert_eq!(found, expected.collect::<Vec<_>>());
}

#[test]
fn a_partial_warp_meets_the_others_at_barriers() {
    let text = "
        st.shared.b32 [%r2], %t; bar.sync 0; barrier.sync 1;
        ld.shared.b32 %r4, [%r3]; cvt.u64.u32 %d1, %r4; st.global.b64 [%o], %d1;";
    let body = format!(
        ".shared .align 4 .b8 words[160]; mov.b32 %r1, words; mad.lo.s32 %r2, %t, 4, %r1; sub.s32 %r3, 39, %t; \
         mad.lo.s32 %r3, %r3, 4, %r1; {text}"
    );
    assert_eq!(results([40, 1, 1], &[0; 8], &body), (0..40u64).rev().collect::<Vec<_>>());
}

#[test]
fn signed_and_wide_integers() {
    let store = "st.global.b64 [%o], %d1;";
    let of = |body: &str| result(&[0; 8], &format!("{body} {store}")).cast_signed();
    assert_eq!(of("mov.s64 %d2, -7; mov.s64 %d3, 2; div.s64 %d1, %d2, %d3;"), -3);
    assert_eq!(of("mov.s64 %d2, -7; rem.s64 %d1, %d2, 4;"), -3);
    assert_eq!(of("mov.s64 %d2, -7; shr.s64 %d1, %d2, 1;"), -4);
    assert_eq!(of("mov.s64 %d2, -7; min.s64 %d1, %d2, 3;"), -7);
    assert_eq!(of("mov.u64 %d2, -7; min.u64 %d1, %d2, 3;"), 3);
    assert_eq!(of("mov.s64 %d2, -7; abs.s64 %d1, %d2;"), 7);
    assert_eq!(of("mov.s64 %d2, -0x7fffffffffffffff; mul.hi.s64 %d1, %d2, 4;"), -2);
    assert_eq!(of("mov.u32 %r1, -3; mul.wide.s32 %d1, %r1, 5;"), -15);
    assert_eq!(of("mov.u32 %r1, -3; mul.wide.u32 %d1, %r1, 5;"), 5 * 0xffff_fffd);
    assert_eq!(of("mov.u16 %h1, -3; mul.wide.s16 %r1, %h1, 5; cvt.s64.s32 %d1, %r1;"), -15);
    assert_eq!(of("mov.u32 %r1, -2; mad.hi.s32 %r2, %r1, 0x40000000, 9; cvt.s64.s32 %d1, %r2;"), 8);
    assert_eq!(of("mov.s64 %d2, -7; setp.lt.s64 %p1, %d2, 0; selp.s64 %d1, 1, 2, %p1;"), 1);
    assert_eq!(of("mov.s64 %d2, -7; setp.lo.u64 %p1, %d2, 9; selp.s64 %d1, 1, 2, %p1;"), 2);
    assert_eq!(of("mov.u64 %d2, 0x00f0000000000000; clz.b64 %r1, %d2; cvt.u64.u32 %d1, %r1;"), 8);
    assert_eq!(of("mov.u64 %d2, 0x00f0000000000001; popc.b64 %r1, %d2; cvt.u64.u32 %d1, %r1;"), 5);
    assert_eq!(of("mov.u32 %r2, 6; brev.b32 %r1, %r2; cvt.u64.u32 %d1, %r1;"), 0x6000_0000);
    assert_eq!(of("mov.s64 %d2, -256; bfe.s64 %d1, %d2, 4, 8;"), -16);
    assert_eq!(of("mov.u32 %r2, 1; mov.u32 %r3, 2; shf.r.clamp.b32 %r1, %r2, %r3, 40; cvt.u64.u32 %d1, %r1;"), 2);
}

#[test]
fn sums_of_several_words_carry() {
    let of = |body: &str| result(&[0; 8], &format!("{body} mov.b64 %d1, {{%r1, %r2}}; st.global.b64 [%o], %d1;"));
    let wide = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    assert_eq!(of("mov.u32 %r3, -1; add.cc.u32 %r1, %r3, 2; addc.u32 %r2, 5, 0;"), wide(1, 6));
    assert_eq!(of("mov.u32 %r3, -3; add.cc.u32 %r1, %r3, 2; addc.u32 %r2, 5, 0;"), wide(u32::MAX, 5));
    // The carry of one comes of another, and of itself.
    let thrice = "mov.u32 %r3, -1; add.cc.u32 %r1, %r3, 1; addc.cc.u32 %r1, %r3, 0; addc.u32 %r2, 0, 0;";
    assert_eq!(of(thrice), wide(0, 1));
    assert_eq!(of("mov.u32 %r3, 1; sub.cc.u32 %r1, %r3, 2; subc.u32 %r2, 5, 0;"), wide(u32::MAX, 4));
    assert_eq!(of("mov.u32 %r3, 2; sub.cc.u32 %r1, %r3, 2; subc.cc.s32 %r1, 0, 0; subc.u32 %r2, 5, 0;"), wide(0, 5));
    let product = "mov.u32 %r3, 0x10001; mad.lo.cc.u32 %r1, %r3, %r3, -1; madc.hi.u32 %r2, %r3, %r3, 7;";
    assert_eq!(of(product), 0x1_0001 * 0x1_0001 + u64::from(u32::MAX) + (7 << 32));
    let long = "mov.u64 %d2, -1; add.cc.u64 %d3, %d2, 1; addc.u64 %d3, %d3, 8; cvt.u32.u64 %r1, %d3; mov.u32 %r2, 0;";
    assert_eq!(of(long), 9);
}

#[test]
fn comparisons_combine_with_predicates() {
    let of = |body: &str| result(&[0; 8], &format!("setp.ne.u32 %p3, 1, 1; {body} st.global.b64 [%o], %d1;"));
    // %p3 is false; the opposite is combined, too.
    let both = "selp.b64 %d1, 1, 0, %p1; selp.b64 %d2, 2, 0, %p2; or.b64 %d1, %d1, %d2;";
    assert_eq!(of(&format!("setp.eq.and.u32 %p1|%p2, 4, 4, %p3; {both}")), 0);
    assert_eq!(of(&format!("setp.eq.or.u32 %p1|%p2, 4, 4, %p3; {both}")), 1);
    assert_eq!(of(&format!("setp.eq.and.u32 %p1|%p2, 4, 5, !%p3; {both}")), 2);
    assert_eq!(of(&format!("setp.eq.xor.u32 %p1|%p2, 4, 5, !%p3; {both}")), 1);
    let nan = |relation: &str| {
        let body =
            format!("mov.f32 %f1, 0f7FC00000; setp.{relation}.f32 %p1, %f1, 0f00000000; selp.b64 %d1, 1, 0, %p1;");
        of(&body)
    };
    assert_eq!(["eq", "ne", "lt", "num"].map(nan), [0; 4]);
    assert_eq!(["equ", "neu", "ltu", "geu", "nan"].map(nan), [1; 5]);
}

#[test]
fn doubles_and_directions() {
    let of = |body: &str| f64::from_bits(result(&[0; 8], &format!("{body} st.global.f64 [%o], %fd1;")));
    let (third, sum) = (1.0 / 3.0, 0.1 + 0.2);
    assert_eq!(of("mov.f64 %fd2, 0d3FF0000000000000; mov.f64 %fd3, 3.0; div.rn.f64 %fd1, %fd2, %fd3;"), third);
    // 1/3 is rounded down to nearest, so upwards is the next one.
    assert_eq!(of("mov.f64 %fd2, 1.0; mov.f64 %fd3, 3.0; div.rp.f64 %fd1, %fd2, %fd3;"), third.next_up());
    assert_eq!(of("mov.f64 %fd2, 0.1; add.f64 %fd1, %fd2, 0.2;"), sum);
    assert_eq!(of("mov.f64 %fd2, 0.1; add.rz.f64 %fd1, %fd2, 0.2;"), sum.next_down());
    assert_eq!(of("mov.f64 %fd2, 2.0; sqrt.rn.f64 %fd1, %fd2;"), 2f64.sqrt());
    assert_eq!(of("mov.f64 %fd2, 3.0; fma.rn.f64 %fd1, %fd2, %fd2, 0.5;"), 9.5);
    assert_eq!(of("mov.f32 %f1, 0.1; cvt.f64.f32 %fd1, %f1;"), f64::from(0.1f32));
    assert_eq!(of("mov.f64 %fd2, 0.1; cvt.rp.f32.f64 %f1, %fd2; cvt.f64.f32 %fd1, %f1;"), f64::from(0.1f32));
    assert_eq!(
        of("mov.f64 %fd2, 0.1; cvt.rm.f32.f64 %f1, %fd2; cvt.f64.f32 %fd1, %f1;"),
        f64::from(0.1f32.next_down())
    );
}

#[test]
fn singles_that_are_flushed_and_held() {
    let of = |body: &str| {
        f32::from_bits(result(
            &[0; 8],
            &format!("{body} mov.b32 %r1, %f1; cvt.u64.u32 %d1, %r1; st.global.b64 [%o], %d1;"),
        ) as u32)
    };
    assert_eq!(of("mov.f32 %f2, 0f00000001; add.ftz.f32 %f1, %f2, %f2;"), 0.0);
    assert_eq!(of("mov.f32 %f2, 0f00000001; add.f32 %f1, %f2, %f2;"), f32::from_bits(2));
    assert_eq!(of("mov.f32 %f2, 3.0; add.sat.f32 %f1, %f2, %f2;"), 1.0);
    assert_eq!(of("mov.f32 %f2, 0f7FC00000; fma.rn.sat.f32 %f1, %f2, %f2, %f2;"), 0.0);
    assert_eq!(of("mov.f32 %f2, 6.0; div.full.f32 %f1, %f2, 1.5;"), 4.0);
    assert_eq!(of("mov.f32 %f2, 8.0; lg2.approx.f32 %f1, %f2;"), 3.0);
    assert_eq!(of("mov.f32 %f2, 4.0; rsqrt.approx.ftz.f32 %f1, %f2;"), 0.5);
    assert_eq!(of("mov.f32 %f2, 1.0; mov.f32 %f3, 5.0; max.f32 %f1, %f2, %f3, 4.0;"), 5.0);
    assert!(of("mov.f32 %f2, 0f7FC00000; max.NaN.f32 %f1, %f2, 4.0;").is_nan());
    assert_eq!(of("mov.f32 %f2, -2.5; cvt.rmi.f32.f32 %f1, %f2;"), -3.0);
    assert_eq!(of("mov.f32 %f2, -2.5; cvt.sat.f32.f32 %f1, %f2;"), 0.0);
}

#[test]
fn conversions_of_integers() {
    let of = |body: &str| result(&[0; 8], &format!("{body} st.global.b64 [%o], %d1;")).cast_signed();
    assert_eq!(of("mov.u32 %r1, 0x1ff; cvt.s8.s32 %h1, %r1; cvt.s64.s16 %d1, %h1;"), -1);
    assert_eq!(of("mov.u32 %r1, 0x1ff; cvt.u8.u32 %h1, %r1; cvt.u64.u16 %d1, %h1;"), 255);
    assert_eq!(of("mov.u32 %r1, -5; cvt.sat.u16.s32 %h1, %r1; cvt.u64.u16 %d1, %h1;"), 0);
    assert_eq!(of("mov.u32 %r1, -5; cvt.s64.s32 %d1, %r1;"), -5);
    assert_eq!(of("mov.u32 %r1, -5; cvt.u64.u32 %d1, %r1;"), 0xffff_fffb);
    assert_eq!(of("mov.f32 %f1, 1e20; cvt.rzi.s64.f32 %d1, %f1;"), i64::MAX);
    assert_eq!(of("mov.f32 %f1, -1e20; cvt.rzi.s32.f32 %r1, %f1; cvt.s64.s32 %d1, %r1;"), i32::MIN.into());
    assert_eq!(
        of("mov.s64 %d2, 0x7fffffffffffffff; cvt.rz.f32.s64 %f1, %d2; cvt.rzi.s64.f32 %d1, %f1;"),
        i64::MAX - ((1 << 39) - 1)
    );
}

#[test]
fn narrow_loads_keep_their_signs() {
    let input = [0x80u8, 0x01, 0x00, 0x80, 0xff, 0xff, 0xff, 0x7f];
    let of = |body: &str| result(&input, &format!("{body} st.global.b64 [%o], %d1;")).cast_signed();
    assert_eq!(of("ld.global.s8 %r1, [%i]; cvt.s64.s32 %d1, %r1;"), -128);
    assert_eq!(of("ld.global.u8 %r1, [%i]; cvt.s64.s32 %d1, %r1;"), 128);
    assert_eq!(of("ld.global.s16 %r1, [%i+2]; cvt.s64.s32 %d1, %r1;"), -32768);
    assert_eq!(of("ld.volatile.global.s16 %d1, [%i+2];"), -32768);
    assert_eq!(of("ld.global.ca.L2::128B.b64 %d1, [%i];"), i64::from_le_bytes(input));
}

#[test]
fn atomics_of_all_kinds() {
    // Every thread takes a turn; the last value is the same in any order.
    let last = |op: &str, first: u64| {
        let body = format!(
            ".shared .align 8 .b64 cell; mov.u64 %d2, {first}; mov.b32 %r1, cell; setp.eq.u32 %p1, %t, 0;
             @%p1 st.shared.b64 [%r1], %d2; bar.sync 0; {op} bar.sync 0; ld.shared.b64 %d1, [%r1]; st.global.b64 [%o], %d1;"
        );
        let found = results([48, 1, 1], &[0; 8], &body);
        assert!(found.iter().all(|value| *value == found[0]));
        found[0]
    };
    assert_eq!(last("atom.shared.add.u64 %d3, [%r1], 2;", 5), 101);
    assert_eq!(last("red.shared.inc.u32 [%r1], 9;", 0), 48 % 10);
    assert_eq!(last("red.shared.dec.u32 [%r1], 9;", 5), 7);
    assert_eq!(last("red.shared.or.b32 [%r1], %t;", 64), 127);
    assert_eq!(last("red.shared.and.b32 [%r1], %t;", 255), 0);
    assert_eq!(last("atom.shared.max.s32 %r2, [%r1], %t;", 0xffff_fffb), 47);
    assert_eq!(last("atom.shared.cas.b32 %r2, [%r1], 7, 9;", 7), 9);
    assert_eq!(last("atom.shared.cas.b32 %r2, [%r1], 8, 9;", 7), 7);
}

#[test]
fn parameters_are_bytes() {
    let text = ".version 8.8 .target sm_90a .address_size 64
        .visible .entry k(.param .u8 flag, .param .align 8 .b8 fields[24]) .reqntid 1 {
        .reg .b64 %d<4>; .reg .b32 %r<8>; .reg .b16 %h<2>;
        ld.param.u64 %d1, [fields+16]; ld.param.s8 %r1, [fields+5]; ld.param.v2.u32 {%r2, %r3}, [fields+8]; ld.param.u8 %h1, [flag];
        mov.b32 %r4, fields; add.u32 %r4, %r4, 4; ld.param.u8 %r5, [%r4]; cvt.u32.u16 %r6, %h1;
        st.global.v4.b32 [%d1], {%r1, %r2, %r3, %r5}; st.global.b32 [%d1+16], %r6; ret; }";
    let kernel = Module::read(text).and_then(|module| module.kernel("k", Shape::default())).unwrap();
    let mut gpu = Gpu::new(Limits::h200());
    let out = gpu.alloc("out", 20);
    let mut fields: Vec<u8> = (0..16).map(|byte| if byte == 5 { 0xfe } else { byte }).collect();
    fields.extend(out.address.to_le_bytes());
    let args = vec![Arg::Bytes(vec![77], Vec::new()), Arg::Bytes(fields, Vec::new())];
    gpu.run(&kernel, &Invocation { grid: [1, 1, 1], args }, Schedule::Earliest).unwrap();
    let words = gpu.download(out).unwrap().as_chunks().0.iter().map(|word| u32::from_le_bytes(*word));
    assert_eq!(words.collect::<Vec<_>>(), [0xffff_fffe, 0x0b0a_0908, 0x0f0e_0d0c, 4, 77]);
}

#[test]
fn what_is_not_understood_is_refused_when_it_would_run_and_not_before() {
    let kernel = kernel(
        [1, 1, 1],
        "setp.eq.u32 %p1, %t, 9; @%p1 tex.1d.v4.f32.s32 {%r1, %r2, %r3, %r4}, [t, {%r5}]; st.global.b64 [%o], %i;",
    );
    let mut gpu = Gpu::new(Limits::h200());
    let (input, out) = (gpu.upload("in", &[0; 8]), gpu.alloc("out", 8));
    let launch = Invocation { grid: [1, 1, 1], args: vec![input.into(), out.into()] };
    assert!(gpu.run(&kernel, &launch, Schedule::Earliest).is_ok());
    let mut runs = kernel.clone();
    runs.body.iter_mut().for_each(|instr| instr.guard = None);
    let fault = gpu.run(&runs, &launch, Schedule::Earliest).unwrap_err().to_string();
    assert!(fault.contains("not simulated: line 12: tex.1d.v4.f32.s32 {%r1"), "{fault}");
}

#[test]
fn threads_that_store_the_same_to_one_place_do_not_race() {
    let body = |value: &str| {
        format!(
            ".shared .align 4 .b8 cell[4]; mov.b32 %r1, cell; and.b32 %r2, %t, {value}; st.shared.b32 [%r1], %r2; bar.sync 0; \
             ld.shared.b32 %r3, [%r1]; cvt.u64.u32 %d1, %r3; st.global.b64 [%o], %d1;"
        )
    };
    // By one instruction, and by two warps.
    assert_eq!(results([32, 1, 1], &[0; 8], &body("0")), vec![0; 32]);
    assert_eq!(results([64, 1, 1], &[0; 8], &body("0")), vec![0; 64]);
    let races = |threads: u32, value: &str, rules: Rules| {
        let kernel = kernel([threads, 1, 1], &body(value));
        let mut gpu = Gpu::new(Limits::h200()).with_rules(rules);
        let (input, out) = (gpu.upload("in", &[0; 8]), gpu.alloc("out", 512));
        let launch = Invocation { grid: [1, 1, 1], args: vec![input.into(), out.into()] };
        gpu.run(&kernel, &launch, Schedule::Earliest).is_err_and(|fault| fault.kind.name() == "race")
    };
    assert!(races(32, "1", Rules::Practice) && races(64, "32", Rules::Practice));
    assert!(races(64, "0", Rules::Letter) && races(32, "0", Rules::Letter));
}

#[test]
fn a_computed_branch_goes_where_the_list_says() {
    let body = "rem.u32 %r1, %t, 3; ts: .branchtargets A, B, C; brx.idx %r1, ts;
        A: mov.u64 %d1, 10; bra D; B: mov.u64 %d1, 20; bra D; C: mov.u64 %d1, 30; D: st.global.b64 [%o], %d1;";
    assert_eq!(results([7, 1, 1], &[0; 8], body), [10, 20, 30, 10, 20, 30, 10]);
    // Beyond the list nothing is defined.
    assert_eq!(refused(&kernel([7, 1, 1], &body.replace("%t, 3", "%t, 4"))), "trap");
}

/// What a run of a kernel in one block is refused for.
fn refused(kernel: &Kernel) -> &'static str {
    let mut gpu = Gpu::new(Limits::h200());
    let args = vec![gpu.upload("in", &[0; 8]).into(), gpu.alloc("out", 512).into()];
    let run = gpu.run(kernel, &Invocation { grid: [1, 1, 1], args }, Schedule::Earliest);
    run.expect_err("a fault").kind.name()
}

#[test]
fn clusters_of_more_blocks_than_can_be_counted_are_refused() {
    let mut kernel = kernel([32, 1, 1], "");
    for side in [1 << 16, u32::MAX] {
        kernel.launch.cluster = Some([side, side, 1]);
        assert_eq!(refused(&kernel), "over limit");
    }
}

#[test]
fn a_multiplication_may_leave_its_sums_elsewhere() {
    // A and B are ones of halves; C is the lane's number, and stays.
    let body = "mov.b32 %r1, 0x3c003c00; cvt.rn.f32.u32 %f1, %t;
        mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f2, %f3, %f4, %f5}, {%r1, %r1, %r1, %r1}, {%r1, %r1}, {%f1, %f1, %f1, %f1};
        mov.b64 %d1, {%f1, %f5}; st.global.b64 [%o], %d1;";
    let found = results([32, 1, 1], &[0; 8], body);
    let expected = (0..32u32).map(|t| u64::from((t as f32).to_bits()) | u64::from((t as f32 + 16.0).to_bits()) << 32);
    assert_eq!(found, expected.collect::<Vec<_>>());
}

#[test]
fn multiplications_of_other_types() {
    let of = |body: &str| results([32, 1, 1], &[0; 8], &format!("{body} st.global.b64 [%o], %d1;"));
    let mma = |shape: &str, one: &str| {
        format!(
            "mov.b32 %r1, {one}; mov.f32 %f1, 0f3F800000; mov.f32 %f2, %f1; mov.f32 %f3, %f1; mov.f32 %f4, %f1;
             mma.sync.aligned.{shape} {{%f1, %f2, %f3, %f4}}, {{%r1, %r1, %r1, %r1}}, {{%r1, %r1}}, {{%f1, %f2, %f3, %f4}};
             mov.b64 %d1, {{%f1, %f4}};"
        )
    };
    let floats = |sum: f32| vec![u64::from(sum.to_bits()) << 32 | u64::from(sum.to_bits()); 32];
    // The last 13 bits of a single are not looked at.
    assert_eq!(of(&mma("m16n8k8.row.col.f32.tf32.tf32.f32", "0x3f801fff")), floats(9.0));
    assert_eq!(of(&mma("m16n8k32.row.col.f32.e4m3.e4m3.f32", "0x38383838")), floats(33.0));
    assert_eq!(of(&mma("m16n8k32.row.col.f32.e5m2.e5m2.f32", "0xbcbc3c3c")), floats(33.0));
    assert_eq!(of(&mma("m16n8k16.row.col.f32.bf16.bf16.f32", "0x40004000")), floats(65.0));
    // Integers: 32 products of −2 and −2, on top of the largest there is.
    let integers = |words: &str| {
        of(&format!(
            "mov.b32 %r1, 0xfefefefe; mov.b32 %r2, 0x7ffffff0; mov.b32 %r3, %r2; mov.b32 %r4, %r2; mov.b32 %r5, %r2;
             mma.sync.aligned.m16n8k32.row.col{words} {{%r2, %r3, %r4, %r5}}, {{%r1, %r1, %r1, %r1}}, {{%r1, %r1}}, {{%r2, %r3, %r4, %r5}};
             mov.b64 %d1, {{%r2, %r5}};"
        ))[7] as u32
    };
    assert_eq!(integers(".s32.s8.s8.s32"), 0x7fff_fff0 + 128);
    assert_eq!(integers(".satfinite.s32.s8.s8.s32"), 0x7fff_ffff);
    assert_eq!(integers(".s32.u8.u8.s32"), 0x7fff_fff0u32.wrapping_add(32 * 254 * 254));
}

/// The first multiplication replaces accumulators that nobody has written, the second adds to them before it is done.
#[test]
fn a_multiplication_may_add_to_what_another_one_is_about_to_replace() {
    let multiply = |kind: &str, one: &str, scales: &str| {
        let body = format!(
            ".shared .align 1024 .b8 tile[4096]; mov.b32 %r1, tile; shl.b32 %r2, %t, 5; add.u32 %r2, %r1, %r2; mov.b32 %r3, {one};
             st.shared.v4.b32 [%r2], {{%r3, %r3, %r3, %r3}}; st.shared.v4.b32 [%r2+16], {{%r3, %r3, %r3, %r3}};
             fence.proxy.async.shared::cta; bar.sync 0; shr.u32 %r4, %r1, 4; cvt.u64.u32 %d1, %r4; or.b64 %d1, %d1, 0x0000001000080000;
             wgmma.fence.sync.aligned; setp.eq.u32 %p1, 0, 0;
             wgmma.mma_async.sync.aligned.m64n8{kind} {{%r5, %r6, %r7, %r8}}, %d1, %d1, 0{scales};
             wgmma.mma_async.sync.aligned.m64n8{kind} {{%r5, %r6, %r7, %r8}}, %d1, %d1, %p1{scales};
             wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; mov.b64 %d2, {{%r5, %r8}}; st.global.b64 [%o], %d2;"
        );
        results([128, 1, 1], &[0; 8], &body)
    };
    let both = |word: u32| vec![u64::from(word) << 32 | u64::from(word); 128];
    assert_eq!(multiply("k16.f32.f16.f16", "0x3c003c00", ", 1, 1, 0, 0"), both(32f32.to_bits()));
    assert_eq!(multiply("k8.f32.tf32.tf32", "0x3f800000", ", 1, 1"), both(16f32.to_bits()));
    assert_eq!(multiply("k32.f32.e4m3.e4m3", "0x38383838", ", 1, 1"), both(64f32.to_bits()));
    assert_eq!(multiply("k32.s32.s8.s8", "0xffffffff", ""), both(64));
}

/// A module with variables, and a body that may use them.
fn with_variables(body: &str) -> Kernel {
    let text = format!(
        ".version 8.8 .target sm_90a .address_size 64
        .const .align 4 .u32 table[6] = {{10, 20, 30, 40}};
        .global .align 8 .b8 bytes[16] = {{1, 2, 0, 0, 7}};
        .extern .func (.param .b32 result) vprintf (.param .b64 format, .param .b64 values);
        .visible .entry k(.param .u64 out) .reqntid 64 {{
        .local .align 8 .b8 depot[16]; .reg .b64 %d<16>; .reg .b32 %r<16>; .reg .b32 %t; .reg .pred %p<4>;
        mov.u32 %t, %tid.x; mov.u32 %r1, %ctaid.x; mad.lo.u32 %r2, %r1, 64, %t;
        ld.param.u64 %d1, [out]; mad.wide.u32 %d1, %r2, 4, %d1; {body} st.global.u32 [%d1], %r9; ret; }}"
    );
    Module::read(&text).and_then(|module| module.kernel("k", Shape::default())).unwrap()
}

fn run_with_variables(body: &str) -> Result<Vec<u32>, String> {
    let kernel = with_variables(body);
    let mut gpu = Gpu::new(Limits::h200());
    let out = gpu.alloc("out", 512);
    let launch = Invocation { grid: [2, 1, 1], args: vec![out.into()] };
    let run =
        |gpu: &mut Gpu| gpu.run(&kernel, &launch, Schedule::Random(1)).map_err(|fault| fault.kind.name().to_string());
    run(&mut gpu)?;
    // The next launch has variables of its own.
    run(&mut gpu)?;
    let bytes = gpu.download(out).map_err(|first| format!("written up to {first}"))?;
    Ok(bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect())
}

#[test]
fn variables_of_a_module_and_of_a_thread() {
    let found = run_with_variables(
        "mov.u64 %d2, depot; cvta.local.u64 %d3, %d2; st.local.u32 [%d2+4], %r2; ld.u32 %r3, [%d3+4];
         and.b32 %r4, %t, 3; mul.wide.u32 %d4, %r4, 4; mov.u64 %d5, table; add.s64 %d5, %d5, %d4; ld.const.u32 %r5, [%d5];
         ld.global.u32 %r6, [bytes]; ld.global.u8 %r7, [bytes+4]; ld.const.u32 %r8, [table+16];
         add.u32 %r9, %r3, %r5; add.u32 %r9, %r9, %r6; add.u32 %r9, %r9, %r7; add.u32 %r9, %r9, %r8;",
    );
    let expected = (0..128u32).map(|thread| thread + 10 * (thread % 4 + 1) + 0x0201 + 7);
    assert_eq!(found, Ok(expected.collect()));
    // Printed, it is the same.
    let kernel = with_variables("mov.u64 %d2, depot; mov.u64 %d3, table+4; ld.const.u32 %r9, [%d3];");
    let again = Module::read(&kernel.to_ptx()).and_then(|module| module.kernel("k", Shape::default())).unwrap();
    assert_eq!((&again.variables, again.body.len()), (&kernel.variables, kernel.body.len()));
}

#[test]
fn what_a_thread_has_not_written_of_its_own_is_not_there() {
    let kept = "mov.u64 %d2, depot; st.local.u32 [%d2], %t;";
    let read = "mov.u64 %d2, depot; ld.local.u32 %r9, [%d2];";
    assert_eq!(run_with_variables(&format!("{kept} {read}")).map(|words| words[5]), Ok(5));
    assert_eq!(run_with_variables(read), Err("uninitialised read".into()));
    assert_eq!(run_with_variables("mov.u64 %d2, depot; ld.local.u32 %r9, [%d2+4096];"), Err("out of bounds".into()));
}

#[test]
fn printing_does_nothing_and_other_calls_are_refused() {
    let call = |function: &str| {
        format!(
            "{{ .param .b64 param0; .param .b64 param1; .param .b32 retval0; st.param.b64 [param0], %d1; st.param.b64 [param1], 0;
             call.uni (retval0), {function}, (param0, param1); ld.param.b32 %r9, [retval0]; }}"
        )
    };
    assert_eq!(run_with_variables(&call("vprintf")), Ok(vec![0; 128]));
    assert_eq!(run_with_variables(&call("k")), Err("not simulated".into()));
}

/// The same with functions before the entry.
fn with_functions(functions: &str, body: &str) -> Kernel {
    let text = format!(
        ".version 8.8\n.target sm_90a\n.address_size 64\n{functions}
        .visible .entry k(.param .u64 in, .param .u64 out)
        {{ .reg .pred %p<8>; .reg .b32 %r<16>; .reg .b64 %o, %d<4>; ld.param.u64 %o, [out];
        mov.u32 %r1, %tid.x; mad.wide.u32 %o, %r1, 8, %o; {body} ret; }}"
    );
    let shape = Shape { block: Some([32, 1, 1]), ..Shape::default() };
    Module::read(&text).and_then(|module| module.kernel("k", shape)).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_called_function_is_put_in_place_of_the_call() {
    // Which returns early in some lanes, calls another, and has a register of the caller's name.
    let functions = "
        .func (.param .b32 r) twice(.param .b32 a) { .reg .b32 %r<3>; ld.param.b32 %r1, [a]; add.s32 %r1, %r1, %r1;
          st.param.b32 [r], %r1; ret; }
        .func (.param .b32 r) f(.param .b32 a, .param .b64 b)
        { .reg .pred %p<2>; .reg .b32 %r<4>; .reg .b64 %d<3>; ld.param.b32 %r1, [a]; setp.lt.u32 %p1, %r1, 10;
          @%p1 bra small; ld.param.b64 %d1, [b]; cvt.u32.u64 %r2, %d1; st.param.b32 [r], %r2; ret;
          small: { .param .b32 p0; .param .b32 q0; st.param.b32 [p0], %r1; call.uni (q0), twice, (p0); ld.param.b32 %r3, [q0]; }
          st.param.b32 [r], %r3; ret; }";
    let body = "{ .param .b32 p0; .param .b64 p1; .param .b32 q0; st.param.b32 [p0+0], %r1; mov.b64 %d1, 77; st.param.b64 [p1+0], %d1;
        setp.ne.u32 %p1, %r1, 5; mov.b32 %r2, 0; st.param.b32 [q0], %r2;
        @%p1 call (q0), f, (p0, p1); ld.param.b32 %r2, [q0+0]; } cvt.u64.u32 %d2, %r2; st.global.b64 [%o], %d2;";
    let kernel = with_functions(functions, body);
    let wanted = (0..32).map(|t| {
        if t == 5 {
            0
        } else if t < 10 {
            2 * t
        } else {
            77
        }
    });
    assert_eq!(results_of(&kernel, &[0; 8]), wanted.collect::<Vec<_>>());
}

#[test]
fn functions_that_call_each_other_without_end_are_refused() {
    let text = ".version 8.8 .target sm_90a .address_size 64
        .func f() { call.uni g; call.uni g; ret; } .func g() { call.uni f; call.uni f; ret; }
        .visible .entry k() .reqntid 32 { call.uni f; ret; }";
    let refused = Module::read(text).and_then(|module| module.kernel("k", Shape::default())).unwrap_err();
    assert!(refused.to_string().contains("calls at most"), "{refused}");
}

#[test]
fn bits_are_put_in_place_of_others() {
    let of = |body: &str| result(&[0; 8], &format!("{body} cvt.u64.u32 %d1, %r1; st.global.b64 [%o], %d1;"));
    assert_eq!(of("mov.b32 %r2, 0xff; mov.b32 %r3, 0; bfi.b32 %r1, %r2, %r3, 4, 8;"), 0xff0);
    assert_eq!(of("mov.b32 %r2, 0; mov.b32 %r3, -1; bfi.b32 %r1, %r2, %r3, 28, 8;"), 0x0fff_ffff);
    assert_eq!(of("mov.b32 %r2, 5; mov.b32 %r3, 9; bfi.b32 %r1, %r2, %r3, 0, 0;"), 9);
    assert_eq!(of("mov.b32 %r2, 5; mov.b32 %r3, 9; bfi.b32 %r1, %r2, %r3, 0, 32;"), 5);
    assert_eq!(of("mov.b32 %r2, 4; bmsk.clamp.b32 %r1, %r2, 3;"), 0x70);
    assert_eq!(of("mov.b32 %r2, 36; bmsk.wrap.b32 %r1, %r2, 35;"), 0x70);
    assert_eq!(of("mov.b32 %r2, 36; bmsk.clamp.b32 %r1, %r2, 35;"), 0);
    assert_eq!(of("mov.b32 %r2, 0x100; bfind.u32 %r1, %r2;"), 8);
    assert_eq!(of("mov.b32 %r2, 0x100; bfind.shiftamt.u32 %r1, %r2;"), 23);
    assert_eq!(of("mov.b32 %r2, 0; bfind.shiftamt.u32 %r1, %r2;"), 0xffff_ffff);
    assert_eq!(of("mov.b32 %r2, -2; bfind.s32 %r1, %r2;"), 0);
    assert_eq!(of("mov.f32 %f1, 0fBF800000; mov.f32 %f2, 0f40000000; copysign.f32 %r1, %f1, %f2;"), 0xc000_0000);
    assert_eq!(of("mov.b32 %f1, 0f3F801000; cvt.rna.tf32.f32 %r1, %f1;"), 0x3f80_2000, "ties go away from zero");
    assert_eq!(of("mov.b32 %f1, 0f7FFFFFFF; cvt.rna.tf32.f32 %r1, %f1;"), 0x7fff_ffff);
}

#[test]
fn registers_may_be_wider_than_what_they_are_for() {
    let of = |body: &str| result(&(-5i32).to_le_bytes().repeat(2), &format!("{body} st.global.b64 [%o], %d1;"));
    assert_eq!(of("ld.global.s32 %d1, [%i];").cast_signed(), -5);
    assert_eq!(of("ld.global.u32 %d1, [%i];"), 0xffff_fffb);
    assert_eq!(of("mov.b64 %d2, 0x1fffffffb; cvt.s64.s32 %d1, %d2;").cast_signed(), -5);
    assert_eq!(of("mov.b64 %d2, 0x180000003; st.global.b32 [%o], %d2; ld.global.u32 %d1, [%o];"), 0x8000_0003);
}

#[test]
fn a_shuffle_takes_its_segment_from_a_register() {
    let body =
        "mov.b32 %r2, 0x1c03; mov.b32 %r3, 1; shfl.sync.down.b32 %r4|%p1, %t, %r3, %r2, -1; cvt.u64.u32 %d1, %r4;
        st.global.b64 [%o], %d1;";
    let wanted = (0..32).map(|t| if t % 4 == 3 { t } else { t + 1 });
    assert_eq!(results([32, 1, 1], &[0; 8], body), wanted.collect::<Vec<_>>());
}

#[test]
fn a_barrier_counts_votes() {
    let of = |vote: &str, result: &str| {
        let body = format!("setp.lt.u32 %p1, %t, 40; {vote} {result} cvt.u64.u32 %d1, %r2; st.global.b64 [%o], %d1;");
        let found = results([48, 1, 1], &[0; 8], &body);
        assert!(found.iter().all(|word| *word == found[0]), "{found:?}");
        found[0]
    };
    let selected = "selp.u32 %r2, 1, 0, %p2;";
    assert_eq!(of("bar.red.popc.u32 %r2, 0, %p1;", ""), 40);
    assert_eq!(of("bar.red.popc.u32 %r3, 0, %p1; bar.red.popc.u32 %r2, 0, !%p1;", ""), 8);
    assert_eq!(of("bar.red.or.pred %p2, 1, %p1;", selected), 1);
    assert_eq!(of("bar.red.and.pred %p2, 1, %p1;", selected), 0);
    assert_eq!(of("setp.eq.u32 %p1, 1, 1; barrier.cta.red.and.pred %p2, 1, %p1;", selected), 1);
    assert_eq!(of("setp.eq.u32 %p1, 1, 2; bar.red.or.pred %p2, 1, %p1;", selected), 0);
}

#[test]
fn floats_are_reduced_over_a_warp() {
    let of = |op: &str| {
        let body = format!(
            "cvt.rn.f32.u32 %f1, %t; sub.f32 %f1, %f1, 0f41700000; setp.eq.u32 %p1, %t, 3; selp.f32 %f1, 0f7FC00000, %f1, %p1; \
             redux.sync.{op}.f32 %f2, %f1, -1; mov.b32 %r2, %f2; cvt.u64.u32 %d1, %r2; st.global.b64 [%o], %d1;"
        );
        f32::from_bits(results_of(&kernel_for("sm_100a", [32, 1, 1], &body), &[0; 8])[7] as u32)
    };
    assert_eq!([of("max"), of("min"), of("max.abs")], [16.0, -15.0, 16.0]);
    assert!(of("max.NaN").is_nan());
}

/// 64 × 16 × 16 by Blackwell's tensor cores: A in tensor memory, B in shared memory in the order that `transposed`
/// says, and sums loaded sixteen lanes at a time. A thread keeps two sums: of its row, columns 0 and 7, or 8 and 15 of
/// the upper half.
fn small_multiplication(transposed: bool) -> Kernel {
    // 8 × 16 bytes lie together; along k, or along n, the next such piece is 128 bytes on, and the other way 256.
    let shape = 1 << 4 | 2 << 17 | 4 << 24 | u32::from(transposed) << 16;
    let body = format!(
        ".shared .align 128 .b8 b[512]; .shared .align 8 .b8 bar[8]; .shared .align 4 .b8 addr[4]; .reg .b32 %a<8>, %s<8>;
        setp.lt.u32 %p1, %t, 32; setp.eq.u32 %p2, %t, 0; mov.b32 %r2, addr; mov.b32 %r3, bar; mov.b32 %r5, b;
        @%p1 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r2], 64;
        @%p2 mbarrier.init.shared::cta.b64 [%r3], 1; @%p2 fence.mbarrier_init.release.cluster;
        mad.wide.u32 %d1, %t, 4, %i; ld.global.b32 %r4, [%d1+4096]; mad.lo.u32 %r6, %t, 4, %r5; st.shared.b32 [%r6], %r4;
        fence.proxy.async.shared::cta; bar.sync 0; ld.shared.b32 %r7, [%r2];
        shr.u32 %r8, %t, 5; shl.b32 %r9, %r8, 21; add.u32 %r10, %r7, %r9;
        mad.wide.u32 %d2, %t, 32, %i;
        ld.global.v4.b32 {{%a0, %a1, %a2, %a3}}, [%d2]; ld.global.v4.b32 {{%a4, %a5, %a6, %a7}}, [%d2+16];
        tcgen05.st.sync.aligned.32x32b.x8.b32 [%r10 + 32], {{%a0, %a1, %a2, %a3, %a4, %a5, %a6, %a7}};
        tcgen05.wait::st.sync.aligned; bar.sync 0;
        shr.u32 %r11, %r5, 4; and.b32 %r11, %r11, 0x3fff; or.b32 %r11, %r11, 0x80000; mov.b32 %r12, 0x4010; mov.b64 %d3, {{%r11, %r12}};
        mov.b32 %r13, {shape}; setp.ne.u32 %p3, 1, 1;
        @%p2 tcgen05.mma.cta_group::1.kind::f16 [%r7], [%r7 + 32], %d3, %r13, %p3;
        @%p2 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r3];
        wait: mbarrier.try_wait.parity.shared::cta.b64 %p4, [%r3], 0; @!%p4 bra wait;
        tcgen05.ld.sync.aligned.16x32bx2.x8.b32 {{%s0, %s1, %s2, %s3, %s4, %s5, %s6, %s7}}, [%r10], 8;
        tcgen05.wait::ld.sync.aligned; mov.b64 %d4, {{%s0, %s7}}; st.global.b64 [%o], %d4;
        bar.sync 0; @%p1 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r7, 64;"
    );
    kernel_for("sm_100a", [128, 1, 1], &body)
}

#[test]
fn sixty_four_rows_of_tensor_memory_are_multiplied() {
    let (a, b) =
        (|row: usize, k: usize| ((row * 3 + k) % 7) as f32 - 3.0, |n: usize, k: usize| ((n * 5 + k * k) % 6) as f32);
    let half = |value: f32| half::f16::from_f32(value).to_le_bytes();
    for transposed in [false, true] {
        let mut input = vec![0; 4096 + 512];
        for (row, k) in (0..64).flat_map(|row| (0..16).map(move |k| (row, k))) {
            let thread = row / 16 * 32 + row % 16;
            input[32 * thread + 2 * k..][..2].copy_from_slice(&half(a(row, k)));
        }
        for (n, k) in (0..16).flat_map(|n| (0..16).map(move |k| (n, k))) {
            let at = match transposed {
                false => n / 8 * 256 + k / 8 * 128 + n % 8 * 16 + k % 8 * 2,
                true => n / 8 * 256 + k / 8 * 128 + k % 8 * 16 + n % 8 * 2,
            };
            input[4096 + at..][..2].copy_from_slice(&half(b(n, k)));
        }
        let sum = |row: usize, n: usize| (0..16).map(|k| a(row, k) * b(n, k)).sum::<f32>();
        let wanted = (0..128).map(|t| {
            let (row, first) = (t / 32 * 16 + t % 16, t % 32 / 16 * 8);
            u64::from(sum(row, first).to_bits()) | u64::from(sum(row, first + 7).to_bits()) << 32
        });
        assert_eq!(results_of(&small_multiplication(transposed), &input), wanted.collect::<Vec<_>>(), "{transposed}");
    }
}

#[test]
fn a_tensor_map_that_a_kernel_makes_is_used() {
    // A box of 8 × 4 words, from column 8 and row 2 of a tensor of 32 × 8.
    let body = "
        .shared .align 128 .b8 map[128]; .shared .align 128 .b8 tile[128]; .shared .align 8 .b8 bar[8];
        mov.b32 %r2, map; mov.b32 %r3, tile; mov.b32 %r4, bar; mov.b32 %r5, 0; mad.lo.u32 %r6, %t, 4, %r2; st.shared.b32 [%r6], %r5;
        bar.warp.sync -1; setp.eq.u32 %p1, %t, 0; cvt.u64.u32 %d1, %r2; add.u64 %d2, %i, 1024;
        @%p1 tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%d1], %i;
        @%p1 tensormap.replace.tile.rank.shared::cta.b1024.b32 [%d1], 0x1;
        @%p1 tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%d1], 0x0, 8;
        @%p1 tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%d1], 0x1, 4;
        @%p1 tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%d1], 0x0, 32;
        @%p1 tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%d1], 0x1, 8;
        mov.b64 %d3, 128; @%p1 tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%d1], 0x0, %d3;
        @%p1 tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [%d1], 0x0, 1;
        @%p1 tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [%d1], 0x1, 1;
        @%p1 tensormap.replace.tile.elemtype.shared::cta.b1024.b32 [%d1], 0x2;
        @%p1 tensormap.replace.tile.swizzle_mode.shared::cta.b1024.b32 [%d1], 0x0;
        bar.warp.sync -1;
        tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%d2], [%d1], 128;
        fence.proxy.tensormap::generic.acquire.gpu [%d2], 128;
        @%p1 mbarrier.init.shared::cta.b64 [%r4], 1; @%p1 fence.mbarrier_init.release.cluster; bar.warp.sync -1;
        mov.b32 %r7, 8; mov.b32 %r8, 2;
        @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], 128;
        @%p1 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%d2, {%r7, %r8}], [%r4];
        wait: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r4], 0; @!%p2 bra wait;
        mad.lo.u32 %r9, %t, 4, %r3; ld.shared.b32 %r10, [%r9]; cvt.u64.u32 %d4, %r10; st.global.b64 [%o], %d4;";
    let input: Vec<u8> = (0..288u32).flat_map(u32::to_le_bytes).collect();
    let wanted = (0..32).map(|t| (2 + t / 8) * 32 + 8 + t % 8);
    assert_eq!(results([32, 1, 1], &input, body), wanted.collect::<Vec<_>>());
}

#[test]
fn lanes_find_those_that_hold_the_same() {
    // Those with the same remainder by five; then whether all hold that, which they do not, and the same seven.
    let body = "rem.u32 %r2, %t, 5; match.any.sync.b32 %r3, %r2, 0xffffffff; match.all.sync.b32 %r4|%p1, %r2, -1; \
        mov.u64 %d3, 7; match.all.sync.b64 %r5|%p2, %d3, 0xffffffff; selp.b32 %r6, 2, 0, %p1; selp.b32 %r7, 1, 0, %p2; \
        or.b32 %r6, %r6, %r7; popc.b32 %r5, %r5; mad.lo.u32 %r6, %r5, 16, %r6; mad.lo.u32 %r6, %r4, 4096, %r6; \
        mov.b64 %d1, {%r3, %r6}; st.global.b64 [%o], %d1;";
    let alike = |t: u64| (0..32).filter(|other| other % 5 == t % 5).fold(0, |mask, other| mask | 1u64 << other);
    let expected: Vec<u64> = (0..32).map(|t| alike(t) | (32 * 16 + 1) << 32).collect();
    assert_eq!(results([32, 1, 1], &[0; 8], body), expected);
}

/// Two warps that hand words over by a barrier, twice: each thread waits for the phase that it arrived in.
fn handed_over_by_state(wait: &str) -> Kernel {
    let body = format!(
        ".shared .align 8 .b8 bar[8]; .shared .align 4 .b8 words[256]; mov.u32 %r9, bar; mov.u32 %r1, words; \
        setp.eq.u32 %p1, %t, 0; @%p1 mbarrier.init.shared::cta.b64 [%r9], 64; bar.sync 0; \
        mad.lo.u32 %r2, %t, 4, %r1; xor.b32 %r3, %t, 63; mad.lo.u32 %r3, %r3, 4, %r1; \
        st.shared.u32 [%r2], %t; mbarrier.arrive.shared::cta.b64 %d1, [%r9]; \
        FIRST: mbarrier.{wait}.shared.b64 %p2, [%r9], %d1; @!%p2 bra FIRST; ld.shared.u32 %r4, [%r3]; \
        mbarrier.arrive.release.cta.shared::cta.b64 %d1, [%r9], 1; \
        SECOND: mbarrier.{wait}.shared::cta.b64 %p2, [%r9], %d1; @!%p2 bra SECOND; \
        mad.lo.u32 %r5, %r4, 2, 1; st.shared.u32 [%r2], %r5; mbarrier.arrive.shared::cta.b64 %d1, [%r9]; \
        THIRD: mbarrier.{wait}.shared::cta.b64 %p2, [%r9], %d1; @!%p2 bra THIRD; ld.shared.u32 %r6, [%r3]; \
        mov.b64 %d2, {{%r4, %r6}}; st.global.b64 [%o], %d2;"
    );
    kernel([64, 1, 1], &body)
}

#[test]
fn a_thread_waits_for_the_phase_that_it_arrived_in() {
    let expected: Vec<u64> = (0..64).map(|t| (63 - t) | (2 * t + 1) << 32).collect();
    for wait in ["try_wait", "test_wait"] {
        assert_eq!(results_of(&handed_over_by_state(wait), &[0; 8]), expected);
    }
    // Without the wait in the middle a word may be overwritten before it is read.
    let mut kernel = handed_over_by_state("try_wait");
    let waits = kernel
        .body
        .iter()
        .enumerate()
        .filter(|(_, instr)| matches!(instr.op, ptx::Op::Barrier(Barrier::TryWait { .. })));
    let second = waits.map(|(at, _)| at).nth(1).expect("three waits");
    // The wait and the branch back to it.
    kernel.body.drain(second..second + 2);
    let mut gpu = Gpu::new(Limits::h200());
    let (input, out) = (gpu.upload("in", &[0; 8]), gpu.alloc("out", 512));
    let launch = Invocation { grid: [1, 1, 1], args: vec![input.into(), out.into()] };
    let races = |schedule| gpu.clone().run(&kernel, &launch, schedule).is_err_and(|fault| fault.kind.name() == "race");
    assert!(Schedule::several(4).into_iter().any(races));
}

#[test]
fn cooperative_groups_have_what_the_system_keeps_of_shared_memory() {
    let body = "mov.u32 %r1, %reserved_smem_offset_1; cvt.u64.u32 %d1, %r1; cvta.shared.u64 %d1, %d1; \
        mad.wide.u32 %d2, %t, 4, %d1; st.u32 [%d2], %t; bar.sync 0; ld.u32 %r2, [%d1+12]; ld.u32 %r3, [%d1+284]; \
        mov.b64 %d3, {%r2, %r3}; st.global.b64 [%o], %d3;";
    // It is zero where nobody has written.
    assert_eq!(results([64, 1, 1], &[0; 8], body), vec![3; 64]);
}

/// As `grid.sync` of cooperative groups is compiled: the driver's word counts blocks, the first one's arrival turns its
/// highest bit over.
fn meeting_of_a_grid() -> String {
    let meet = "mov.u32 %r1, %envreg2; mov.u32 %r2, %envreg1; mov.b64 %w, {%r1, %r2}; setp.ne.u64 %p, %w, 0; \
        @!%p trap; bar.sync 0; @%lead bra COUNT; bra MET; COUNT: mov.u32 %r3, %nctaid.x; mov.u32 %r4, %ctaid.x; \
        setp.eq.u32 %p, %r4, 0; sub.u32 %r3, 0x80000001, %r3; selp.b32 %r3, %r3, 1, %p; \
        atom.add.release.gpu.u32 %r5, [%w+4], %r3; WAIT: ld.acquire.gpu.u32 %r6, [%w+4]; xor.b32 %r6, %r6, %r5; \
        setp.gt.s32 %p, %r6, -1; @%p bra WAIT; MET: bar.sync 0;";
    format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry turn(.param .u64 out) {{\n\
        .reg .b32 %r<9>; .reg .b64 %w, %o, %d, %e; .reg .pred %p, %lead; ld.param.u64 %o, [out]; mov.u32 %r7, %tid.x; \
        setp.eq.u32 %lead, %r7, 0; mov.u32 %r8, %ctaid.x; mad.lo.u32 %r7, %r8, 64, %r7; mad.wide.u32 %d, %r7, 4, %o; \
        st.global.u32 [%d], %r7; {meet} mov.u32 %r8, %nctaid.x; shl.b32 %r8, %r8, 6; sub.u32 %r8, %r8, %r7; \
        sub.u32 %r8, %r8, 1; mad.wide.u32 %e, %r8, 4, %o; ld.global.u32 %r8, [%e]; mad.lo.u32 %r7, %r7, 0, %r8; \
        mov.u32 %r6, %nctaid.x; mad.wide.u32 %d, %r6, 256, %d; st.global.u32 [%d], %r7; ret; }}"
    )
}

#[test]
fn blocks_of_a_cooperative_launch_wait_for_each_other() {
    let text = meeting_of_a_grid();
    let run = |blocks: u32, cooperative: bool, schedule: Schedule| {
        let shape = Shape { block: Some([64, 1, 1]), cooperative, ..Shape::default() };
        let kernel = Module::read(&text).and_then(|module| module.kernel("turn", shape)).expect("a kernel");
        let mut gpu = Gpu::new(Limits { multiprocessors: 2, ..Limits::h200() }).with_rules(Rules::Letter);
        let out = gpu.alloc("out", 512 * 6);
        let launch = Invocation { grid: [blocks, 1, 1], args: vec![out.into()] };
        let run = gpu.run(&kernel, &launch, schedule).map_err(|fault| fault.kind.name());
        run.map(|_| gpu.download(out).expect("all written")[256 * 6..].to_vec())
    };
    for schedule in Schedule::several(2) {
        // Three of them on each multiprocessor.
        let turned: Vec<u8> = (0..384u32).rev().flat_map(u32::to_le_bytes).collect();
        assert_eq!(run(6, true, schedule), Ok(turned));
        assert_eq!(run(1000, true, schedule), Err("over limit"));
        // A plain launch has no such word.
        assert_eq!(run(6, false, schedule), Err("trap"));
    }
}

/// Whether a kernel runs by the rules of published kernels, and what the letter has against it.
fn judged(kernel: &Kernel, input: &[u8]) -> Vec<&'static str> {
    results_of(kernel, input);
    let mut found: Vec<&str> = Vec::new();
    for schedule in Schedule::several(4) {
        let mut gpu = Gpu::new(Limits::h200()).with_rules(Rules::Letter);
        let (input, out) = (gpu.upload("in", input), gpu.alloc("out", 8 * kernel.launch.threads as usize));
        let launch = Invocation { grid: [1, 1, 1], args: vec![input.into(), out.into()] };
        found.extend(gpu.run(kernel, &launch, schedule).err().map(|fault| fault.kind.name()));
    }
    found.dedup();
    found
}

/// As CUTLASS waits: out of the loop when the phase is over, and back otherwise.
#[test]
fn a_wait_may_branch_out_of_its_loop() {
    let body = ".shared .align 16 .b8 words[256]; .shared .align 8 .b8 full[8];
        mov.b32 %r2, words; mov.b32 %r3, full; setp.eq.u32 %p1, %t, 0; mov.u32 %r4, 0x989680;
        @%p1 mbarrier.init.shared::cta.b64 [%r3], 1; @%p1 fence.mbarrier_init.release.cluster; bar.sync 0;
        @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 256;
        @%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%i], 256, [%r3];
        {
        .reg .pred P1;
        LAB_WAIT:
        mbarrier.try_wait.parity.shared::cta.b64 P1, [%r3], 0, %r4;
        @P1 bra DONE;
        bra LAB_WAIT;
        DONE:
        }
        mad.lo.u32 %r5, %t, 8, %r2; ld.shared.b64 %d1, [%r5]; st.global.b64 [%o], %d1;";
    let input: Vec<u8> = (0..32u64).flat_map(|word| (3 * word).to_le_bytes()).collect();
    assert_eq!(results([32, 1, 1], &input, body), (0..32).map(|word| 3 * word).collect::<Vec<_>>());
    assert!(judged(&kernel([32, 1, 1], body), &input).is_empty());
}

/// In ThunderKittens all lanes of a warp initialise a barrier.
#[test]
fn lanes_that_initialise_a_barrier_alike_initialise_it_once() {
    let body = |first: &str| {
        format!(
            ".shared .align 8 .b8 bar[8]; mov.u32 %r9, bar; mov.u32 %r1, {first}; mbarrier.init.shared::cta.b64 [%r9], %r1; \
            bar.sync 0; mbarrier.arrive.shared::cta.b64 %d1, [%r9]; \
            WAIT: mbarrier.try_wait.shared::cta.b64 %p1, [%r9], %d1; @!%p1 bra WAIT; st.global.b64 [%o], 5;"
        )
    };
    assert_eq!(results([64, 1, 1], &[0; 8], &body("64")), vec![5; 64]);
    assert_eq!(judged(&kernel([64, 1, 1], &body("64")), &[0; 8]), ["re-initialised barrier"]);
    let differing = kernel([64, 1, 1], &body("%t; add.u32 %r1, %r1, 1"));
    let mut gpu = Gpu::new(Limits::h200());
    let launch =
        Invocation { grid: [1, 1, 1], args: vec![gpu.upload("in", &[0; 8]).into(), gpu.alloc("out", 512).into()] };
    assert_eq!(gpu.run(&differing, &launch, Schedule::Latest).unwrap_err().kind.name(), "re-initialised barrier");
}

/// Cooperative groups hand on what a lane has acquired by a shuffle.
#[test]
fn lanes_that_meet_in_a_shuffle_are_in_order() {
    let body = |meeting: &str| {
        format!(
            ".shared .align 4 .b8 words[128]; mov.b32 %r2, words; mad.lo.u32 %r3, %t, 4, %r2; st.shared.u32 [%r3], %t; \
            {meeting} xor.b32 %r5, %t, 1; mad.lo.u32 %r5, %r5, 4, %r2; ld.shared.u32 %r6, [%r5]; \
            cvt.u64.u32 %d1, %r6; st.global.b64 [%o], %d1;"
        )
    };
    let shuffled = body("shfl.sync.idx.b32 %r4, %t, 0, 31, 0xffffffff;");
    assert_eq!(results([32, 1, 1], &[0; 8], &shuffled), (0..32).map(|lane| lane ^ 1).collect::<Vec<_>>());
    assert_eq!(judged(&kernel([32, 1, 1], &shuffled), &[0; 8]), ["race"]);
    let mut gpu = Gpu::new(Limits::h200());
    let launch =
        Invocation { grid: [1, 1, 1], args: vec![gpu.upload("in", &[0; 8]).into(), gpu.alloc("out", 256).into()] };
    let apart = gpu.run(&kernel([32, 1, 1], &body("")), &launch, Schedule::Latest);
    assert_eq!(apart.unwrap_err().kind.name(), "race");
}

/// CUTLASS's epilogues store matrices over those that the warp has loaded: every lane has executed the load by then.
#[test]
fn a_warp_stores_matrices_over_those_it_has_loaded() {
    let body = ".shared .align 16 .b8 rows[512];
        mov.b32 %r2, rows; mad.lo.u32 %r3, %t, 16, %r2;
        mad.wide.u32 %d1, %t, 16, %i; ld.global.v4.b32 {%r4, %r5, %r6, %r7}, [%d1];
        st.shared.v4.b32 [%r3], {%r4, %r5, %r6, %r7}; bar.warp.sync 0xffffffff;
        ldmatrix.sync.aligned.m8n8.x4.shared::cta.b16 {%r8, %r9, %r10, %r11}, [%r3];
        stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [%r3], {%r11, %r10, %r9, %r8};
        bar.warp.sync 0xffffffff; ld.shared.b64 %d2, [%r3]; st.global.b64 [%o], %d2;";
    let input: Vec<u8> = (0..64u64).flat_map(u64::to_le_bytes).collect();
    // The four matrices of eight rows in the other order.
    let expected: Vec<u64> = (0..32).map(|row| 2 * ((3 - row / 8) * 8 + row % 8)).collect();
    assert_eq!(results([32, 1, 1], &input, body), expected);
    assert_eq!(judged(&kernel([32, 1, 1], body), &input), ["race"]);
}

/// What was not written may be computed with in practice, and not acted upon.
#[test]
fn an_unwritten_register_may_be_computed_with_where_nothing_depends_on_it() {
    let input = 0u64.to_le_bytes();
    let body = |chosen: u32| {
        format!(
            "ld.global.b32 %r2, [%i]; setp.eq.u32 %p1, %r2, 1; @%p1 mov.u32 %r3, 5;
            add.u32 %r4, %r3, 7; mov.u32 %r5, 9; setp.eq.u32 %p2, %r2, {chosen}; selp.u32 %r6, %r4, %r5, %p2;
            cvt.u64.u32 %d1, %r6; st.global.b64 [%o], %d1;"
        )
    };
    assert_eq!(result(&input, &body(1)), 9);
    assert_eq!(judged(&kernel([1, 1, 1], &body(1)), &input), ["undefined register"]);
    let mut gpu = Gpu::new(Limits::h200());
    let (input, out) = (gpu.upload("in", &input), gpu.alloc("out", 8));
    let launch = Invocation { grid: [1, 1, 1], args: vec![input.into(), out.into()] };
    let fault = gpu.run(&kernel([1, 1, 1], &body(0)), &launch, Schedule::Earliest).expect_err("it is stored");
    assert_eq!(fault.kind.name(), "undefined register");
}

/// CUTLASS has whole warps store their tiles: the same box from the same place to the same place.
#[test]
fn a_box_that_all_lanes_store_is_stored_once() {
    let text = ".version 8.8\n.target sm_90a\n.address_size 64\n
        .visible .entry k(.param .align 64 .b8 map[128])
        {
        .reg .b32 %r<5>; .reg .b64 %d<3>; .shared .align 128 .b8 tile[128];
        mov.u32 %r1, %tid.x; mov.b32 %r2, tile; mad.lo.u32 %r3, %r1, 4, %r2; st.shared.b32 [%r3], %r1;
        fence.proxy.async.shared::cta; bar.sync 0; mov.u32 %r4, 0;
        mov.b64 %d1, map; cvta.param.u64 %d2, %d1;
        cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%d2, {%r4}], [%r2];
        cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
        ret;
        }";
    let shape = Shape { block: Some([32, 1, 1]), ..Shape::default() };
    let kernel = Module::read(text).and_then(|module| module.kernel("k", shape)).unwrap();
    let run = |rules| {
        let mut gpu = Gpu::new(Limits::h200()).with_rules(rules);
        let out = gpu.alloc("out", 128);
        let (element, dims, strides, tile) = (Element::U32, vec![32], vec![], vec![32]);
        let map = TensorMap { element, address: out.address, dims, strides, tile, swizzle: Swizzle::None };
        let launch = Invocation { grid: [1, 1, 1], args: vec![Arg::Map(map)] };
        gpu.run(&kernel, &launch, Schedule::Latest).map(|profile| profile.copied_out)
    };
    assert_eq!(run(Rules::Practice).unwrap(), 128);
    assert_eq!(run(Rules::Letter).unwrap_err().kind.name(), "race");
}

/// What is found in a kernel by the rules of published ones.
fn found_in(kernel: &Kernel, input: &[u8]) -> Vec<&'static str> {
    let mut gpu = Gpu::new(Limits::h200());
    let (input, out) = (gpu.upload("in", input), gpu.alloc("out", 8 * kernel.launch.threads as usize));
    let launch = Invocation { grid: [1, 1, 1], args: vec![input.into(), out.into()] };
    let faults = Schedule::several(4).into_iter().filter_map(|at| gpu.clone().run(kernel, &launch, at).err());
    let mut found: Vec<&str> = faults.map(|fault| fault.kind.name()).collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// A kernel of one warp whose body leaves something in `%r9` of each lane.
fn words_of(target: &str, body: &str) -> Vec<u32> {
    let body = format!("{body} cvt.u64.u32 %d9, %r9; st.global.b64 [%o], %d9;");
    results_of(&kernel_for(target, [32, 1, 1], &body), &[0; 8]).into_iter().map(|word| word as u32).collect()
}

#[test]
fn narrow_floats_are_packed_and_unpacked() {
    // 1.5 and -6 as e2m1 are 3 and 15; the first operand has the upper bits.
    let e2m1 = ".reg .b8 %b<4>; mov.f32 %f0, 0f3FC00000; mov.f32 %f1, 0fC0C00000;
        cvt.rn.satfinite.e2m1x2.f32 %b0, %f1, %f0; cvt.rn.satfinite.e2m1x2.f32 %b1, %f0, %f1; mov.b32 %r9, {%b0, %b1, %b0, %b1};";
    assert_eq!(words_of("sm_100a", e2m1)[7], 0x3ff3_3ff3);
    let back = format!("{e2m1} mov.b32 {{%b0, %b1, %b2, %b3}}, %r9; cvt.rn.f16x2.e2m1x2 %r9, %b3;");
    assert_eq!(words_of("sm_100a", &back)[0], 0x3e00_c600, "1.5 and -6 as halves");
    let guarded = "mov.b32 %r9, 7; setp.lt.u32 %p1, %t, 4; mov.b16 %h1, 0x3838; @%p1 cvt.rn.f16x2.e4m3x2 %r9, %h1;";
    assert_eq!(words_of("sm_90", guarded)[3..5], [0x3c00_3c00, 7]);
    let scales = "mov.f32 %f0, 0f3FC00000; mov.f32 %f1, 0f40800000; cvt.rp.satfinite.ue8m0x2.f32 %h1, %f0, %f1;
        cvt.rn.bf16x2.ue8m0x2 %r9, %h1;";
    assert_eq!(words_of("sm_100a", scales)[0], 0x4000_4080, "2 and 4 as bfloats");
    let negative = "mov.f32 %f0, 0fBF800000; cvt.rn.satfinite.relu.e5m2x2.f32 %h1, %f0, %f0; cvt.u32.u16 %r9, %h1;";
    assert_eq!(words_of("sm_90", negative)[0], 0);
}

/// 16 × 8 × 32 of `elements`, all of them one in their byte, with the scales of `select` in `scales`.
fn multiplied(elements: &str, [a, b]: [u32; 2], scales: u32, select: &str) -> Vec<u32> {
    let kind = if scales == 0 { "kind::f8f6f4" } else { "kind::mxf8f6f4.block_scale.scale_vec::1X" };
    let (of, tail) =
        if scales == 0 { ("", String::new()) } else { (".ue8m0", format!(", %r7, {select}, %r7, {select}")) };
    let body = format!(
        ".reg .b32 %s<4>; mov.b32 %r5, {a}; mov.b32 %r6, {b}; mov.b32 %r7, {scales};
         mov.b32 %s0, 0; mov.b32 %s1, 0; mov.b32 %s2, 0; mov.b32 %s3, 0;
         mma.sync.aligned.m16n8k32.row.col.{kind}.f32.{elements}.f32{of} {{%s0, %s1, %s2, %s3}}, {{%r5, %r5, %r5, %r5}}, \
         {{%r6, %r6}}, {{%s0, %s1, %s2, %s3}}{tail}; mov.b32 %r9, %s3;"
    );
    words_of("sm_120a", &body)
}

#[test]
fn floats_of_eight_bits_and_fewer_are_multiplied_with_scales() {
    let is =
        |found: Vec<u32>, wanted: f32| assert!(found.iter().all(|bits| f32::from_bits(*bits) == wanted), "{found:?}");
    // One, in the byte that each has: e2m1 has the middle of it.
    let (e4m3, e5m2, e2m3, e3m2, e2m1) = (0x3838_3838, 0x3c3c_3c3c, 0x0808_0808, 0x0c0c_0c0c, 0x0808_0808);
    is(multiplied("e4m3.e5m2", [e4m3, e5m2], 0, ""), 32.0);
    is(multiplied("e2m3.e3m2", [e2m3, e3m2], 0, ""), 32.0);
    is(multiplied("e2m1.e4m3", [e2m1, e4m3], 0, ""), 32.0);
    // Bytes of scales: one, two, a quarter, a half.
    let scales = 0x7e7d_807f;
    is(multiplied("e4m3.e4m3", [e4m3, e4m3], scales, "{0, 0}"), 32.0);
    is(multiplied("e4m3.e4m3", [e4m3, e4m3], scales, "{1, 1}"), 128.0);
    is(multiplied("e5m2.e2m1", [e5m2, e2m1], scales, "{2, 0}"), 2.0);
    is(multiplied("e3m2.e2m3", [e3m2, e2m3], scales, "{3, 1}"), 8.0);
}

#[test]
fn four_bit_floats_are_multiplied_with_a_scale_per_thirty_two() {
    // Scales of one and two for the halves of k in the lower bytes, of four and eight in the upper ones.
    let with = |byte: u32| {
        let body = format!(
            ".reg .b32 %s<4>; mov.b32 %r5, 0x22222222; mov.b32 %r7, 0x8281807f; mov.b32 %r8, 0x7f7f7f7f;
             mov.b32 %s0, 0; mov.b32 %s1, 0; mov.b32 %s2, 0; mov.b32 %s3, 0;
             mma.sync.aligned.m16n8k64.row.col.kind::mxf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0 \
             {{%s0, %s1, %s2, %s3}}, {{%r5, %r5, %r5, %r5}}, {{%r5, %r5}}, {{%s0, %s1, %s2, %s3}}, \
             %r7, {{{byte}, 1}}, %r8, {{0, 3}}; mov.b32 %r9, %s1;"
        );
        f32::from_bits(words_of("sm_120a", &body)[11])
    };
    assert_eq!((with(0), with(2)), (96.0, 384.0));
}

#[test]
fn a_selector_may_be_in_a_register_that_holds_it_throughout() {
    // As nvcc writes what CUTLASS has in inline assembly.
    let with = |more: &str| {
        let text = format!(
            ".version 8.8\n.target sm_120a\n.address_size 64\n.entry k() .reqntid 32 {{ .reg .b16 %h<4>; .reg .b32 %r<16>;
             mov.u16 %h1, 0; mov.u16 %h2, 3; {more}
             mma.sync.aligned.kind::mxf4nvf4.block_scale.scale_vec::4X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue4m3 \
             {{%r0, %r1, %r2, %r3}}, {{%r4, %r5, %r6, %r7}}, {{%r8, %r9}}, {{%r0, %r1, %r2, %r3}}, \
             {{%r10}}, {{%h1, %h1}}, {{%r11}}, {{%h1, %h2}}; ret; }}"
        );
        let kernel = Module::read(&text).and_then(|module| module.kernel("k", Shape::default()));
        kernel.map(|kernel| kernel.body.iter().any(|instr| matches!(instr.op, ptx::Op::Mma(_))))
    };
    assert_eq!(with("").ok(), Some(true));
    let other = with("bra on; on:").and(with("back: mov.u16 %h2, 3; bra back;"));
    assert_eq!(other.ok(), Some(true));
    let refused = with("add.u16 %h3, %h2, 1; bra on; mov.b32 {%h1, %h2}, %r1; on:").unwrap_err();
    assert!(refused.to_string().contains("a selector that is"), "{refused}");
}

/// A warp copies words thread by thread, and another reads them behind a barrier that the copies arrive at.
fn copied_and_told(arrive: &str, count: u32) -> Kernel {
    let body = format!(
        ".shared .align 8 .b8 bar[8]; .shared .align 16 .b8 words[128]; mov.u32 %r9, bar; mov.u32 %r1, words;
        setp.eq.u32 %p1, %t, 0; @%p1 mbarrier.init.shared::cta.b64 [%r9], {count}; bar.sync 0; setp.ge.u32 %p2, %t, 32;
        @%p2 bra reads; mad.lo.u32 %r2, %t, 4, %r1; mad.wide.u32 %d1, %t, 4, %i;
        cp.async.ca.shared.global [%r2], [%d1], 4; {arrive}
        reads: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r9], 0; @!%p3 bra reads;
        and.b32 %r3, %t, 31; xor.b32 %r3, %r3, 9; mad.lo.u32 %r3, %r3, 4, %r1; ld.shared.u32 %r4, [%r3];
        cvt.u64.u32 %d2, %r4; st.global.b64 [%o], %d2;"
    );
    kernel([64, 1, 1], &body)
}

#[test]
fn copies_of_threads_tell_a_barrier_of_their_end() {
    let input: Vec<u8> = (0..32u32).flat_map(|word| (word * word).to_le_bytes()).collect();
    let expected: Vec<u64> = (0..64).map(|t| ((t % 32) ^ 9) * ((t % 32) ^ 9)).collect();
    let counted = "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r9];";
    assert_eq!(results_of(&copied_and_told(counted, 32), &input), expected);
    // One more that is not expected, and the thread's own.
    let added = "cp.async.mbarrier.arrive.shared.b64 [%r9]; mbarrier.arrive.shared::cta.b64 _, [%r9];";
    assert_eq!(results_of(&copied_and_told(added, 32), &input), expected);
    // Its own alone tells of no copy.
    let untold = "mbarrier.arrive.shared::cta.b64 _, [%r9]; cp.async.wait_all;";
    assert_eq!(found_in(&copied_and_told(untold, 32), &input), ["race"]);
}

#[test]
fn arrivals_are_dropped_or_may_not_complete() {
    let body = |first: &str, second: &str| {
        format!(
            ".shared .align 8 .b8 bar[8]; mov.u32 %r9, bar; setp.eq.u32 %p1, %t, 0; @%p1 mbarrier.init.shared::cta.b64 [%r9], 33;
            bar.warp.sync -1; @%p1 {first} bar.warp.sync -1; mbarrier.arrive.shared::cta.b64 %d1, [%r9];
            W0: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r9], 0; @!%p3 bra W0; bar.warp.sync -1;
            mbarrier.arrive.shared::cta.b64 _, [%r9]; {second}
            W1: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r9], 1; @!%p3 bra W1; mov.b64 %d2, 5; st.global.b64 [%o], %d2;"
        )
    };
    // The second phase expects one fewer, or has one more arrival.
    let dropped = body("mbarrier.arrive_drop.shared::cta.b64 _, [%r9];", "");
    assert_eq!(results([32, 1, 1], &[0; 8], &dropped), [5; 32]);
    let plain = "mbarrier.arrive.noComplete.shared::cta.b64 %d1, [%r9], 1;";
    assert_eq!(
        results([32, 1, 1], &[0; 8], &body(plain, &format!("@%p1 {}", &plain.replace(".noComplete", "")))),
        [5; 32]
    );
    let completes = kernel([32, 1, 1], &body(plain, &format!("bar.warp.sync -1; @%p1 {plain}")));
    assert_eq!(found_in(&completes, &[0; 8]), ["bad operand"]);
}

#[test]
fn a_function_is_called_through_a_pointer() {
    let functions = "
        .func (.param .b32 r) twice(.param .b32 a) { .reg .b32 %r<3>; ld.param.b32 %r1, [a]; add.s32 %r1, %r1, %r1;
          st.param.b32 [r], %r1; ret; }
        .func (.param .b32 r) square(.param .b32 a) { .reg .b32 %r<3>; ld.param.b32 %r1, [a]; mul.lo.s32 %r1, %r1, %r1;
          st.param.b32 [r], %r1; ret; }
        .func (.param .b32 r) unused(.param .b32 a) { trap; ret; }
        .global .align 8 .u64 table[2] = {twice, square};";
    let call = "{ .param .b32 p0; .param .b32 q0; st.param.b32 [p0], %r1; proto: .callprototype (.param .b32 _) _ (.param .b32 _);
        call (q0), %d1, (p0), proto; ld.param.b32 %r2, [q0]; } cvt.u64.u32 %d2, %r2; st.global.b64 [%o], %d2;";
    // Each lane has its own, from a table.
    let from_table = format!(
        "and.b32 %r3, %r1, 1; mov.u64 %d0, table; mad.wide.u32 %d0, %r3, 8, %d0; ld.global.u64 %d1, [%d0]; {call}"
    );
    let wanted: Vec<u64> = (0..32).map(|t| if t % 2 == 0 { 2 * t } else { t * t }).collect();
    assert_eq!(results_of(&with_functions(functions, &from_table), &[0; 8]), wanted);
    let direct = format!("mov.u64 %d1, square; {call}");
    assert_eq!(results_of(&with_functions(functions, &direct), &[0; 8]), (0..32).map(|t| t * t).collect::<Vec<u64>>());
    // What points nowhere is told.
    let lost = with_functions(functions, &format!("mov.u64 %d1, 48; {call}"));
    assert_eq!(found_in(&lost, &[0; 8]), ["trap"]);
}
