//! Small texts, and what their threads leave.

use ptx::Kernel;
use ptx::parse::{Module, Shape};
use sim::{Gpu, Invocation, Limits, Schedule};

/// A kernel that has its thread's number in `%t`, the address of its own eight bytes of `out` in `%o`, and that of
/// `in` in `%i`.
pub(crate) fn kernel_for(target: &str, block: [u32; 3], body: &str) -> Kernel {
    let [x, y, _] = block;
    let text = format!(
        ".version 8.8\n.target {target}\n.address_size 64\n
        .visible .entry k(.param .u64 in, .param .u64 out)
        {{
        .reg .pred %p<8>; .reg .b16 %h<8>; .reg .b32 %r<16>, %t; .reg .b64 %d<16>, %i, %o; .reg .f32 %f<8>; .reg .f64 %fd<8>;
        ld.param.u64 %i, [in]; ld.param.u64 %o, [out];
        mov.u32 %r0, %tid.y; mov.u32 %r1, %tid.z; mov.u32 %t, %tid.x;
        mad.lo.s32 %t, %r0, {x}, %t; mad.lo.s32 %t, %r1, {}, %t;
        mad.wide.s32 %o, %t, 8, %o;
        {body}
        ret;
        }}",
        x * y
    );
    let shape = Shape { block: Some(block), ..Shape::default() };
    Module::read(&text).and_then(|module| module.kernel("k", shape)).unwrap_or_else(|error| panic!("{error}"))
}

/// What each thread of a block leaves, under three schedules.
pub(crate) fn results_of(kernel: &Kernel, input: &[u8]) -> Vec<u64> {
    let threads = kernel.launch.threads as usize;
    let mut gpu = Gpu::new(Limits::h200());
    let (input, out) = (gpu.upload("in", input), gpu.alloc("out", 8 * threads));
    let launch = Invocation { grid: [1, 1, 1], args: vec![input.into(), out.into()] };
    let run = |schedule| {
        let mut gpu = gpu.clone();
        gpu.run(kernel, &launch, schedule).unwrap_or_else(|fault| panic!("{fault}"));
        let bytes = gpu.download(out).expect("all of it is written").to_vec();
        bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect::<Vec<u64>>()
    };
    let all = Schedule::several(1).into_iter().map(run).collect::<Vec<_>>();
    assert!(all.windows(2).all(|pair| pair[0] == pair[1]));
    all.into_iter().next().expect("a schedule")
}
