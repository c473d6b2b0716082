//! `wmma`, and the shapes of `mma.sync` that only strangers use: products against sums that are made otherwise, and
//! accesses to memory.

use half::{bf16, f16};
use ptx::Kernel;
use ptx::parse::{Module, Shape};
use sim::{Gpu, Invocation, Limits, Rules, Schedule};

/// Values that every type holds exactly, and whose sums are exact in f16 too, so that only places matter.
fn value(matrix: usize, row: usize, column: usize) -> i32 {
    ((7 * row + 3 * column + 5 * matrix) % 5) as i32 + i32::from((row + column).is_multiple_of(3))
}

fn encode(ty: &str, value: i32) -> Vec<u8> {
    match ty {
        "f16" => f16::from_f32(value as f32).to_le_bytes().to_vec(),
        "bf16" => bf16::from_f32(value as f32).to_le_bytes().to_vec(),
        // What is beyond the bits of tf32 is not looked at.
        "tf32" => ((value as f32).to_bits() | (0x1fff * u32::from(value != 0))).to_le_bytes().to_vec(),
        "f32" => (value as f32).to_le_bytes().to_vec(),
        "f64" => f64::from(value).to_le_bytes().to_vec(),
        "s8" | "u8" => vec![value as u8],
        _ => value.to_le_bytes().to_vec(),
    }
}

fn bank(ty: &str) -> &str {
    if ty == "f64" { "f64" } else { "b32" }
}

/// A matrix in memory, with so many elements of something else behind each row or column.
fn laid_out(ty: &str, [rows, columns]: [usize; 2], order: &str, pad: usize, matrix: usize) -> Vec<u8> {
    let (lines, along) = if order == "row" { (rows, columns) } else { (columns, rows) };
    let mut bytes = Vec::new();
    for line in 0..lines {
        for at in 0..along + pad {
            let (row, column) = if order == "row" { (line, at) } else { (at, line) };
            bytes.extend(encode(ty, if at < along { value(matrix, row, column) } else { 1 }));
        }
    }
    bytes
}

fn kernel(target: &str, threads: u32, shared: &str, body: &str) -> Kernel {
    let text = format!(
        ".version 8.8\n.target {target}\n.address_size 64\n
        .visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d)
        {{
        .reg .pred %p<4>; .reg .b32 %r<16>, %t; .reg .b64 %a, %b, %c, %d, %x<4>; {shared}
        ld.param.u64 %a, [a]; ld.param.u64 %b, [b]; ld.param.u64 %c, [c]; ld.param.u64 %d, [d];
        mov.u32 %t, %tid.x;
        {body}
        ret;
        }}"
    );
    let shape = Shape { block: Some([threads, 1, 1]), ..Shape::default() };
    Module::read(&text).and_then(|module| module.kernel("k", shape)).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn run(kernel: &Kernel, [a, b, c]: [&[u8]; 3], bytes: usize) -> Result<Vec<u8>, String> {
    let mut gpu = Gpu::new(Limits::h200());
    let args = [gpu.upload("a", a), gpu.upload("b", b), gpu.upload("c", c), gpu.alloc("d", bytes)];
    let launch = Invocation { grid: [1, 1, 1], args: args.into_iter().map(Into::into).collect() };
    let mut left = Vec::new();
    for schedule in Schedule::several(2) {
        let mut gpu = gpu.clone();
        gpu.run(kernel, &launch, schedule).map_err(|fault| fault.to_string())?;
        left.push(gpu.download(args[3]).map_err(|fault| fault.to_string())?.to_vec());
    }
    assert!(left.windows(2).all(|pair| pair[0] == pair[1]));
    Ok(left.swap_remove(0))
}

/// Registers of a fragment, by their name.
fn registers(name: &str, count: usize) -> String {
    let all: Vec<String> = (0..count).map(|at| format!("%{name}{at}")).collect();
    format!("{{{}}}", all.join(", "))
}

/// One way to multiply.
struct Way<'w> {
    shape: [usize; 3],
    /// Type of A and B, of C and of D.
    types: [&'w str; 3],
    /// How many registers each has, D's last.
    counts: [usize; 4],
    orders: [&'w str; 4],
}

impl Way<'_> {
    fn text(&self) -> String {
        let ([m, n, k], [ty, of_c, of_d], [in_a, in_b, in_c, in_d]) = (self.shape, self.types, self.orders);
        let shape = format!("m{m}n{n}k{k}");
        let [a, b, c, d] = ["fa", "fb", "fc", "fd"];
        let declared: String = [(a, ty), (b, ty), (c, of_c), (d, of_d)]
            .iter()
            .map(|(name, ty)| format!(".reg .{} %{name}<8>; ", bank(ty)))
            .collect();
        let [a, b, c, d] = [(a, 0), (b, 1), (c, 2), (d, 3)].map(|(name, at)| registers(name, self.counts[at]));
        let types = if ty == "f16" { format!("{of_d}.{of_c}") } else { format!("{of_d}.{ty}.{ty}.{of_c}") };
        let [pad_a, pad_b] = self.strides();
        format!(
            "{declared}
            wmma.load.a.sync.aligned.{in_a}.{shape}.global.{ty} {a}, [%a], {pad_a};
            wmma.load.b.sync.aligned.{in_b}.{shape}.{ty} {b}, [%b], {pad_b};
            wmma.load.c.sync.aligned.{in_c}.{shape}.global.{of_c} {c}, [%c];
            wmma.mma.sync.aligned.{in_a}.{in_b}.{shape}.{types} {d}, {a}, {b}, {c};
            wmma.store.d.sync.aligned.{in_d}.{shape}.global.{of_d} [%d], {d};"
        )
    }

    /// Elements between rows of A and of B, or columns: sixteen more than there are.
    fn strides(&self) -> [usize; 2] {
        let ([m, n, k], [in_a, in_b, ..]) = (self.shape, self.orders);
        [if in_a == "row" { k } else { m } + 16, if in_b == "row" { n } else { k } + 16]
    }

    fn operands(&self) -> [Vec<u8>; 3] {
        let ([m, n, k], [ty, of_c, _], [in_a, in_b, in_c, _]) = (self.shape, self.types, self.orders);
        let [a, b] = [laid_out(ty, [m, k], in_a, 16, 0), laid_out(ty, [k, n], in_b, 16, 1)];
        [a, b, laid_out(of_c, [m, n], in_c, 0, 2)]
    }

    fn expected(&self) -> Vec<u8> {
        let ([m, n, k], of_d, in_d) = (self.shape, self.types[2], self.orders[3]);
        let (lines, along) = if in_d == "row" { (m, n) } else { (n, m) };
        let mut bytes = Vec::new();
        for line in 0..lines {
            for at in 0..along {
                let (row, column) = if in_d == "row" { (line, at) } else { (at, line) };
                let products = (0..k).map(|k| value(0, row, k) * value(1, k, column));
                bytes.extend(encode(of_d, value(2, row, column) + products.sum::<i32>()));
            }
        }
        bytes
    }
}

#[test]
fn every_shape_type_and_order_multiplies() {
    let wide = [[16, 16, 16], [32, 8, 16], [8, 32, 16]];
    let mut ways: Vec<([usize; 3], [&str; 3], [usize; 4])> = Vec::new();
    for (shape, [bytes_a, bytes_b], [pairs_a, pairs_b]) in
        [(wide[0], [2, 2], [4, 4]), (wide[1], [4, 1], [8, 2]), (wide[2], [1, 4], [2, 8])]
    {
        for (of_c, of_d) in [("f32", "f32"), ("f16", "f16"), ("f16", "f32"), ("f32", "f16")] {
            let count = |ty| if ty == "f16" { 4 } else { 8 };
            ways.push((shape, ["f16", of_c, of_d], [8, 8, count(of_c), count(of_d)]));
        }
        ways.push((shape, ["bf16", "f32", "f32"], [pairs_a, pairs_b, 8, 8]));
        ways.push((shape, ["u8", "s32", "s32"], [bytes_a, bytes_b, 8, 8]));
        ways.push((shape, ["s8", "s32", "s32"], [bytes_a, bytes_b, 8, 8]));
    }
    ways.push(([16, 16, 8], ["tf32", "f32", "f32"], [4, 4, 8, 8]));
    ways.push(([8, 8, 4], ["f64", "f64", "f64"], [1, 1, 2, 2]));
    for (shape, types, counts) in ways {
        for at in 0..16 {
            let order = |bit: usize| if at >> bit & 1 == 0 { "row" } else { "col" };
            let way = Way { shape, types, counts, orders: [order(0), order(1), order(2), order(3)] };
            let ([a, b, c], text) = (way.operands(), way.text());
            let found = run(&kernel("sm_80", 32, "", &text), [&a, &b, &c], way.expected().len());
            assert_eq!(found, Ok(way.expected()), "{text}");
        }
    }
}

#[test]
fn elements_of_accumulators_are_computed_with_one_by_one() {
    // D = 2·(A·B + C) + C, with both fragments of sums in the same places.
    let way = Way {
        shape: [16, 16, 16],
        types: ["f16", "f32", "f32"],
        counts: [8, 8, 8, 8],
        orders: ["row", "col", "row", "row"],
    };
    let twice: String = (0..8).map(|at| format!("fma.rn.f32 %fd{at}, %fd{at}, 0f40000000, %fc{at};\n")).collect();
    let text = way.text().replace("wmma.store", &format!("{twice} wmma.store"));
    let [a, b, c] = way.operands();
    let found = run(&kernel("sm_80", 32, "", &text), [&a, &b, &c], 1024).unwrap();
    let single =
        |bytes: &[u8]| -> Vec<f32> { bytes.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect() };
    let expected: Vec<f32> =
        single(&way.expected()).iter().zip(single(&c)).map(|(sum, before)| 2.0 * sum + before).collect();
    assert_eq!(single(&found), expected);
}

#[test]
fn a_fragment_that_is_loaded_in_one_order_and_multiplied_in_another_is_wrong() {
    let way =
        Way { shape: [16, 16, 16], types: ["f16", "f32", "f32"], counts: [8; 4], orders: ["row", "col", "row", "row"] };
    let ([a, b, c], expected) = (way.operands(), way.expected());
    let text = way.text();
    let mixed = text.replace("mma.sync.aligned.row.col", "mma.sync.aligned.col.col");
    assert_ne!(mixed, text);
    assert_eq!(run(&kernel("sm_80", 32, "", &text), [&a, &b, &c], 1024).unwrap(), expected);
    assert_ne!(run(&kernel("sm_80", 32, "", &mixed), [&a, &b, &c], 1024).unwrap(), expected);
}

#[test]
fn sums_of_integers_wrap_around_or_stop_at_the_end() {
    let text = |saturate: &str| {
        let declared = ".reg .b32 %fa<2>, %fb<2>, %fc<8>, %fd<8>;";
        let full: String =
            (0..2).map(|at| format!("mov.b32 %fa{at}, 0x7f7f7f7f; mov.b32 %fb{at}, 0x7f7f7f7f;")).collect();
        let sums: String = (0..8).map(|at| format!("mov.b32 %fc{at}, 0x7fffffff;")).collect();
        let [a, b, c, d] = [("fa", 2), ("fb", 2), ("fc", 8), ("fd", 8)].map(|(name, count)| registers(name, count));
        format!(
            "{declared} {full} {sums}
            wmma.mma.sync.aligned.row.col.m16n16k16.s32.s8.s8.s32{saturate} {d}, {a}, {b}, {c};
            wmma.store.d.sync.aligned.row.m16n16k16.global.s32 [%d], {d};"
        )
    };
    let of = |saturate| run(&kernel("sm_80", 32, "", &text(saturate)), [&[0; 8]; 3], 1024).unwrap();
    let sum = i32::MAX.wrapping_add(16 * 127 * 127);
    assert!(of("").as_chunks().0.iter().all(|four| i32::from_le_bytes(*four) == sum));
    assert!(of(".satfinite").as_chunks().0.iter().all(|four| i32::from_le_bytes(*four) == i32::MAX));
}

/// Two warps: the second multiplies what the first has stored to shared memory.
fn handed_over(between: &str) -> Kernel {
    let text = format!(
        ".reg .b32 %fa<8>, %fb<8>, %fc<8>, %fd<8>;
        setp.ge.u32 %p1, %t, 32; @%p1 bra SECOND;
        wmma.load.c.sync.aligned.row.m16n16k16.global.f32 {c}, [%c];
        wmma.store.d.sync.aligned.row.m16n16k16.shared.f32 [tile], {c};
        {between} bra END;
        SECOND: {between}
        cvta.shared.u64 %x1, tile;
        wmma.load.c.sync.aligned.row.m16n16k16.f32 {d}, [%x1];
        wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%d], {d};
        END:",
        c = registers("fc", 8),
        d = registers("fd", 8)
    );
    kernel("sm_90a", 64, ".shared .align 32 .b8 tile[1024];", &text)
}

#[test]
fn fragments_in_shared_memory_race_without_a_barrier() {
    let bytes: Vec<u8> = (0..256).flat_map(|at| (at as f32).to_le_bytes()).collect();
    assert_eq!(run(&handed_over("bar.sync 0;"), [&[0; 8], &[0; 8], &bytes], 1024), Ok(bytes.clone()));
    let found = run(&handed_over(""), [&[0; 8], &[0; 8], &bytes], 1024).unwrap_err();
    assert!(found.contains("race") && found.contains("tile"), "{found}");
}

#[test]
fn matrices_that_end_too_early_or_begin_anywhere_are_refused() {
    let load = |address: &str, stride: &str| {
        let text = format!(
            ".reg .b32 %fa<8>; {address} wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {}, [%x1], {stride};",
            registers("fa", 8)
        );
        run(&kernel("sm_80", 32, "", &text), [&[0; 512], &[0; 8], &[0; 8]], 8).unwrap_err()
    };
    // The kernel writes nothing, so that a load that is right is followed by a result that is not there.
    assert!(!load("mov.b64 %x1, %a;", "16").contains("wmma"));
    assert!(load("mov.b64 %x1, %a;", "24").contains("a buffer of 512 bytes"));
    assert!(load("add.u64 %x1, %a, 8;", "16").contains("multiple of 16"));
    assert!(load("mov.b64 %x1, %a;", "20").contains("multiple of 16"));
    assert!(load("mad.wide.u32 %x1, %t, 16, %a;", "16").contains("the address of a matrix"));
}

#[test]
fn by_the_letter_rows_are_aligned_to_the_fragment() {
    let text = format!(
        ".reg .b32 %fa<8>; wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {}, [%a], 24;",
        registers("fa", 8)
    );
    let kernel = kernel("sm_80", 32, "", &text);
    let run = |rules| {
        let mut gpu = Gpu::new(Limits::h200()).with_rules(rules);
        let args = [768, 8, 8, 8].map(|bytes| gpu.upload("x", &vec![0; bytes]));
        let launch = Invocation { grid: [1, 1, 1], args: args.into_iter().map(Into::into).collect() };
        gpu.run(&kernel, &launch, Schedule::Earliest).map_err(|fault| fault.to_string())
    };
    assert!(run(Rules::Practice).is_ok());
    assert!(run(Rules::Letter).is_err_and(|fault| fault.contains("multiple of 32")));
}

/// `mma.sync` of other shapes: lanes take their elements by the ISA's formulas, and put their sums back so.
fn fixed([m, n, k]: [usize; 3], [ty_a, ty_b, sums]: [&str; 3]) {
    let size = |ty: &str| encode(ty, 0).len();
    let packed = |ty: &str| (if ty == "f64" { 8 } else { 4 }) / size(ty);
    let blocks = m / 8;
    let mut text = format!(
        ".reg .{} %fa<8>; .reg .{} %fb<8>; .reg .{} %fc<8>, %fd<8>; .reg .b32 %g, %q, %e; .reg .b16 %half; .reg .b64 %at;
        shr.u32 %g, %t, 2; and.b32 %q, %t, 3;\n",
        bank(ty_a),
        bank(ty_b),
        bank(sums)
    );
    // Registers begin at addresses: those of A row by row, those of B column by column.
    let per_a = m * k / 32 / packed(ty_a);
    for register in 0..per_a {
        let (row, along) = (8 * (register % blocks), 4 * packed(ty_a) * (register / blocks));
        text += &format!(
            "add.u32 %e, %g, {row}; mul.lo.u32 %e, %e, {k}; mad.lo.u32 %e, %q, {}, %e; add.u32 %e, %e, {along};
            mad.wide.u32 %at, %e, {}, %a; ld.global.{} %fa{register}, [%at];\n",
            packed(ty_a),
            size(ty_a),
            bank(ty_a)
        );
    }
    let per_b = k * n / 32 / packed(ty_b);
    for register in 0..per_b {
        text += &format!(
            "mul.lo.u32 %e, %g, {k}; mad.lo.u32 %e, %q, {}, %e; add.u32 %e, %e, {};
            mad.wide.u32 %at, %e, {}, %b; ld.global.{} %fb{register}, [%at];\n",
            packed(ty_b),
            4 * packed(ty_b) * register,
            size(ty_b),
            bank(ty_b)
        );
    }
    let per_c = m * n / 32 / packed(sums);
    let place = |register: usize, name: &str| {
        let element = register * packed(sums);
        format!(
            "add.u32 %e, %g, {}; mul.lo.u32 %e, %e, {n}; mad.lo.u32 %e, %q, 2, %e; add.u32 %e, %e, {};
            mad.wide.u32 %at, %e, {}, %{name};\n",
            8 * (element / 2),
            element % 2,
            size(sums)
        )
    };
    for register in 0..per_c {
        text += &format!("{} ld.global.{} %fc{register}, [%at];\n", place(register, "c"), bank(sums));
    }
    let [a, b, c, d] =
        [("fa", per_a), ("fb", per_b), ("fc", per_c), ("fd", per_c)].map(|(name, count)| registers(name, count));
    text += &format!("mma.sync.aligned.m{m}n{n}k{k}.row.col.{sums}.{ty_a}.{ty_b}.{sums} {d}, {a}, {b}, {c};\n");
    for register in 0..per_c {
        text += &format!("{} st.global.{} [%at], %fd{register};\n", place(register, "d"), bank(sums));
    }
    let [a, b] = [laid_out(ty_a, [m, k], "row", 0, 0), laid_out(ty_b, [k, n], "col", 0, 1)];
    let c = laid_out(sums, [m, n], "row", 0, 2);
    let expected: Vec<u8> = (0..m * n)
        .flat_map(|at| {
            let products = (0..k).map(|k| value(0, at / n, k) * value(1, k, at % n));
            encode(sums, value(2, at / n, at % n) + products.sum::<i32>())
        })
        .collect();
    assert_eq!(run(&kernel("sm_90a", 32, "", &text), [&a, &b, &c], expected.len()), Ok(expected), "{text}");
}

#[test]
fn mma_of_other_shapes_and_sums() {
    for (shape, types) in [
        ([16, 8, 16], ["f16", "f16", "f16"]),
        ([16, 8, 8], ["f16", "f16", "f16"]),
        ([16, 8, 8], ["f16", "f16", "f32"]),
        ([16, 8, 8], ["bf16", "bf16", "f32"]),
        ([16, 8, 4], ["tf32", "tf32", "f32"]),
        ([8, 8, 16], ["s8", "s8", "s32"]),
        ([16, 8, 16], ["u8", "s8", "s32"]),
        ([16, 8, 32], ["s8", "u8", "s32"]),
        ([8, 8, 4], ["f64", "f64", "f64"]),
        ([16, 8, 4], ["f64", "f64", "f64"]),
        ([16, 8, 8], ["f64", "f64", "f64"]),
        ([16, 8, 16], ["f64", "f64", "f64"]),
    ] {
        fixed(shape, types);
    }
}

#[test]
fn sums_in_f16_are_rounded_once() {
    // 2048 + sixteen ones: rounded each time it would stay 2048, since a one is half of what f16 holds there.
    let ones = |count: usize| encode("f16", 1).repeat(count);
    let way = Way {
        shape: [16, 16, 16],
        types: ["f16", "f16", "f16"],
        counts: [8, 8, 4, 4],
        orders: ["row", "col", "row", "row"],
    };
    let found =
        run(&kernel("sm_80", 32, "", &way.text()), [&ones(512), &ones(512), &encode("f16", 2048).repeat(256)], 512);
    assert_eq!(found, Ok(encode("f16", 2064).repeat(256)));
}

#[test]
fn forms_that_ptx_does_not_have_are_named() {
    let text =
        format!(".reg .b32 %fa<8>; wmma.load.a.sync.aligned.row.m8n8k32.global.s4 {}, [%a];", registers("fa", 1));
    let found = run(&kernel("sm_80", 32, "", &text), [&[0; 512], &[0; 8], &[0; 8]], 8).unwrap_err();
    assert!(found.contains("not simulated") && found.contains("wmma.load.a.sync.aligned.row.m8n8k32"), "{found}");
}
