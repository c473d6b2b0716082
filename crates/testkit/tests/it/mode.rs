//! A caller whose thread flushes subnormal numbers or rounds otherwise gets the same bits as any other, and its mode
//! back.
#![cfg(target_arch = "x86_64")]

use std::arch::asm;

use format::Values;
use hammerhead::{Activation, Activations, Backend, Engine, Gate, Options, Output, Request, Strategy, cpu};
use hammerhead_testkit::cases::{self, Case, Inputs, Suite};

/// MXCSR as a process starts, and what callers may have made of it: subnormal numbers flushed when written, when read,
/// both, and the other three ways to round.
const DEFAULT: u32 = 0x1F80;
const MODES: [u32; 6] = [0x9F80, 0x1FC0, 0x9FC0, 0x3F80, 0x5F80, 0x7F80];

fn mode() -> u32 {
    let mut value = 0u32;
    // SAFETY: the instruction writes the four bytes of `value`.
    unsafe { asm!("stmxcsr [{}]", in(reg) &mut value, options(nostack, preserves_flags)) };
    value
}

fn set_mode(value: u32) {
    // SAFETY: the instruction reads the four bytes of `value`, which has no reserved bit set. Between a change and its
    // undoing this file only calls the engine, which is what is tested.
    unsafe { asm!("ldmxcsr [{}]", in(reg) &value, options(nostack, preserves_flags)) };
}

/// What a thread of that mode gets for its results, as bits, and the mode that it is left in. The engine is made there
/// too, so its threads inherit the mode.
fn bits_in(mode_of_caller: u32, backend: &str, request: Request, instance: &cases::Instance) -> (String, u32) {
    let run = || {
        set_mode(mode_of_caller);
        let options = Options { backend: Some(backend.into()), threads: Some(2), request };
        let engine = Engine::new(options).unwrap();
        let layer = engine.load(&instance.weights, instance.problem.gate()).unwrap();
        let results = engine.run(&layer, &instance.activations, instance.problem.output()).unwrap();
        let after = mode();
        set_mode(DEFAULT);
        let bits = |values: &Values<'_>| match values {
            Values::F32(values) => values.iter().map(|x| format!("{:08x}", x.to_bits())).collect::<String>(),
            other => format!("{other:?}"),
        };
        (results.iter().map(|c| bits(c.values())).collect(), after)
    };
    std::thread::scope(|scope| scope.spawn(run).join().unwrap())
}

/// A case whose results lie around f32's smallest normal number: half of them are subnormal.
fn tiny(activation: Activation) -> cases::Instance {
    let case = cases::suite(Suite::Edge)
        .into_iter()
        .find(|c| c.inputs == Inputs::Realistic && c.groups[0].m == 33)
        .map(|case| Case { activation, output: Output::F32, gate: Gate::Silu, ..case })
        .unwrap();
    let mut instance = case.instance(5).unwrap();
    for a in &mut instance.activations {
        *a = match a {
            Activations::NvFp4(matrix) => {
                matrix.clone().with_global((matrix.global().value() * 2f64.powi(-63)) as f32).unwrap().into()
            }
            Activations::Dense(dense) => {
                let values = match dense.values() {
                    // Subnormal tokens, where there are such.
                    Values::F32(v) => v.iter().map(|x| x * 2f32.powi(-126)).collect::<Vec<_>>().into(),
                    other => other.clone(),
                };
                let global = if activation == Activation::F32 { 2f32.powi(63) } else { 2f32.powi(-63) };
                format::Dense::new(dense.rows(), dense.k(), values, global).unwrap().into()
            }
        };
    }
    instance
}

#[test]
fn the_mode_of_the_calling_thread_neither_changes_the_bits_nor_is_changed() {
    let here = |backend: &&&'static dyn Backend| backend.available().is_ok();
    for activation in Activation::ALL {
        let instance = tiny(activation);
        for backend in cpu::backends().iter().filter(here) {
            let plan = Request::default();
            let requests = Strategy::ALL.map(|s| format!("strategy={s},tile=16x48,stages=2").parse().unwrap());
            for request in requests.into_iter().chain([plan]) {
                let (expected, _) = bits_in(DEFAULT, backend.name(), request, &instance);
                for mode in MODES {
                    let (found, after) = bits_in(mode, backend.name(), request, &instance);
                    let name = backend.name();
                    assert!(found == expected, "{name}, {activation}, {request:?}: other bits in mode {mode:#06x}");
                    assert_eq!(after & !0x3F, mode, "{name} changes the caller's mode");
                }
            }
        }
    }
}
